"""Graphs of networkx, as tables of edges and of nodes. networkx is not imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from partita.core.errors import InputError
from partita.sources.columnar import FrameTable
from partita.sources.options import IngestOptions

_ID = "id"


def is_networkx(source: Any) -> bool:
    """Whether an object is a graph of networkx, by what it can do."""
    return all(hasattr(source, name) for name in ("nodes", "edges", "adj", "is_directed", "is_multigraph"))


def networkx_tables(graph: Any, options: IngestOptions) -> tuple[FrameTable, FrameTable]:
    """The edges, with the attribute that ``weight_column`` names, and the nodes in their order with their attributes.

    Attributes of nodes are columns as in any table about nodes: one that some nodes lack has empty cells there.

    Args:
        graph: any graph of networkx. Its nodes are integers or strings.
        options: of the ingest.

    Raises:
        InputError: nodes of other types, or an attribute that is not of one type.
    """
    nodes = dict(graph.nodes(data=True))
    strange = next((node for node in nodes if not isinstance(node, str | int) or isinstance(node, bool)), None)
    if strange is not None:
        what = f"the node {strange!r} is of type {type(strange).__name__}"
        fix = "Name nodes by integers or strings: networkx.convert_node_labels_to_integers"
        raise InputError(what, where="networkx graph", fix=fix)
    texts = any(isinstance(node, str) for node in nodes)
    ids = {node: str(node) if texts else node for node in nodes}
    if len(set(ids.values())) < len(ids):
        what = "a node is named by a number, another by the same number as text"
        raise InputError(what, where="networkx graph", fix="Name all nodes by integers, or all by strings")
    edges = list(graph.edges(data=True))
    weight = options.weight_column
    columns: dict[str, list[Any]] = {
        "source": [ids[source] for source, _, _ in edges],
        "target": [ids[target] for _, target, _ in edges],
    }
    if isinstance(weight, str):
        columns[weight] = [found.get(weight) for _, _, found in edges]
    others = sorted({str(name) for _, _, found in edges for name in found} - {weight})
    note = f"attributes of edges not used: {', '.join(others)}" if others else ""
    table = {_ID: list(ids.values())} | _attributes(nodes.values())
    return FrameTable("edges of the networkx graph", columns, note), FrameTable("nodes of the networkx graph", table)


def _attributes(found: Iterable[Mapping[Any, Any]]) -> dict[str, list[Any]]:
    rows = list(found)
    names = dict.fromkeys(name for row in rows for name in row)
    return {str(name): [row.get(name) for row in rows] for name in names if name != _ID}
