"""Links with the candidates that a user gives for their ends, as the benchmarks of OGB do, and where they rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float64, Int64

from partita.core.errors import InputError
from partita.graph.store import GraphStore
from partita.infer.candidates import Pairs, count_among
from partita.infer.known_answers import LinkQueries
from partita.infer.link_files import find_nodes, of_type, relations_by_name
from partita.infer.links import NodeRows
from partita.infer.ranking import BLOCK_BYTES
from partita.nn.decoders import Side
from partita.sources.arrays import ArrayFile, open_npz
from partita.tasks.links.edges import RELATION, SOURCE, TARGET
from partita.tasks.links.metrics import link_metrics, link_metrics_by, realistic_ranks
from partita.tasks.task import EdgeTask

_CANDIDATES: dict[Side, str] = {"tail": "target_candidates", "head": "source_candidates"}
_TOGETHER = 1 << 20
"""Candidates that are compared at once, about."""


@dataclass(frozen=True, eq=False)
class GivenCandidates:
    """Links, and for each the nodes that one of its ends, or each of them, is ranked among.

    Attributes:
        links: (n, 2), of a typed graph (n, 3); store ids, and numbers of relations.
        candidates: by the end that they stand for, (n, K); store ids.
    """

    links: Int64[np.ndarray, "n ends"]
    candidates: dict[Side, Int64[np.ndarray, "n K"]]

    @classmethod
    def read(cls, store: GraphStore, path: Path, relation: int | None) -> GivenCandidates:
        """Read them from an ``.npz`` file.

        Its arrays are ``source`` (n) and ``target`` (n), of a typed graph ``relation`` (n), the names of relations;
        and ``target_candidates`` (n, K), ``source_candidates`` (n, K), or both. Nodes have the users' ids.

        Args:
            store: the graph.
            path: of the file.
            relation: number of that of all links, where the file has none; 0 in an untyped graph.

        Raises:
            InputError: the file cannot be read, lacks an array, or names what is no node of the type, or no relation.
        """
        arrays = open_npz(path)
        given = [(side, _wanted(arrays, name, path, 2)) for side, name in _CANDIDATES.items() if name in arrays]
        if not given:
            raise InputError(
                "the file has no candidates", where=str(path),
                fix=f"Add an array {' or '.join(_CANDIDATES.values())} with a row for each link",
            )  # fmt: skip
        source, target = (_wanted(arrays, name, path, 1) for name in ("source", "target"))
        if not len(source):
            raise source.fail("has no links", "Give at least one")
        for array in (target, *(array for _, array in given)):
            _check_rows(array, source)
        kinds = np.zeros(len(source), np.int64)
        if store.schema is not None:
            kinds = _relations(store, arrays, source, relation)
        links = [_nodes(store, source, kinds, SOURCE), _nodes(store, target, kinds, TARGET)]
        columns = {"tail": TARGET, "head": SOURCE}
        return cls(
            np.stack(links if store.schema is None else [*links, kinds], axis=1),
            {side: _nodes(store, array, kinds, columns[side]) for side, array in given},
        )

    def judge(self, table: NodeRows, task: EdgeTask) -> dict[str, Any]:
        """Metrics of the ranks, and of a typed graph those of each relation. All workers call this."""
        ranks = np.concatenate([self._ranks(table, task, side) for side in self.candidates])
        found: dict[str, Any] = link_metrics(ranks)
        if task.store.schema is not None:
            names = task.store.schema.short_relations
            of = link_metrics_by(ranks, np.tile(self.links[:, RELATION], len(self.candidates)))
            most = sorted(of.items(), key=lambda item: (-item[1]["ranks"], item[0]))
            sides = len(self.candidates)
            found["relations"] = {names[at]: {"edges": each.pop("ranks") // sides, **each} for at, each in most}
        return found

    @torch.no_grad()
    def _ranks(self, table: NodeRows, task: EdgeTask, side: Side) -> Float64[np.ndarray, "n"]:
        """Of one end of every link; a candidate that is that end itself does not count."""
        limit = min(BLOCK_BYTES, max(1 << 20, table.inference.memory_limit // 4))
        per_link, found = max(1, self.candidates[side].shape[1]), []
        together = max(1, _TOGETHER // per_link)
        for begin in range(0, len(self.links), together):
            some = torch.from_numpy(self.links[begin : begin + together])
            queries = LinkQueries.of(task.store, some, side)
            heads, tails = table.at(some[:, SOURCE]), table.at(some[:, TARGET])
            relations = torch.from_numpy(queries.relations)
            true, given = task.decoder.toward(side, heads, tails, relations), heads if side == "tail" else tails
            pairs = _pairs(queries, self.candidates[side][begin : begin + together])
            counts = count_among(task.decoder, queries, given, true, table.rows, table.first, pairs, memory_limit=limit)
            table.inference.context.group("all").sum_([counts], kind="metadata")
            found.append(realistic_ranks(*counts))
        return np.concatenate(found)


def _pairs(queries: LinkQueries, candidates: Int64[np.ndarray, "n K"]) -> Iterator[Pairs]:
    counted = candidates != queries.true[:, None]
    yield np.nonzero(counted)[0], candidates[counted]


def _wanted(arrays: dict[str, ArrayFile], name: str, path: Path, dims: int) -> ArrayFile:
    if name not in arrays:
        raise InputError(f"the file has no array '{name}'", where=str(path), fix=f"It has {', '.join(sorted(arrays))}")
    return arrays[name].expect("iuU", dims)


def _check_rows(array: ArrayFile, source: ArrayFile) -> None:
    if len(array) != len(source):
        raise array.fail(f"has {len(array):,} rows, where 'source' has {len(source):,}", "Give a row for each link")


def _relations(
    store: GraphStore, arrays: dict[str, ArrayFile], source: ArrayFile, relation: int | None
) -> Int64[np.ndarray, "n"]:
    """Numbers of the relations of all links."""
    schema = store.schema
    assert schema is not None
    if "relation" not in arrays:
        if relation is None:
            raise source.fail("has links, and no array has their relations", "Add an array 'relation' with their names")
        return np.full(len(source), relation)
    array = arrays["relation"].expect("U", 1)
    _check_rows(array, source)
    names, places = np.unique(array.load(), return_inverse=True)
    known = relations_by_name(schema, names.tolist(), array.where)
    return np.array([known[name] for name in names.tolist()], np.int64)[places]


def _nodes(
    store: GraphStore, array: ArrayFile, kinds: Int64[np.ndarray, "n"], column: int
) -> Int64[np.ndarray, "n ..."]:
    """Store ids of nodes that stand at one end of the relations of their rows."""
    text, given = store.has("name_offsets"), array.load()
    if text != (given.dtype.kind == "U"):
        own, other = ("text", "integers") if text else ("integers", "text")
        raise array.fail(f"holds {other}, and ids of this graph are {own}", "Give ids as they were ingested")
    found = np.empty(given.shape, np.int64)
    for number in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == number)
        kind = 0 if store.schema is None else int(store.schema.ends[number, column])
        names = given[rows]
        ids = find_nodes(store, pa.array(names.ravel() if text else names.ravel().astype(np.int64)), kind)
        found[rows] = ids.reshape(names.shape)
    if (found < 0).any():
        at = tuple(np.argwhere(found < 0)[0].tolist())
        kind = 0 if store.schema is None else int(store.schema.ends[kinds[at[0]], column])
        raise array.fail(
            f"row {at[0]}: there is no node {given[at].item()!r}{of_type(store, kind)}", "Give nodes of the graph"
        )
    return found
