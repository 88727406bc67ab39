"""What a model of links says of pairs of nodes, and who the best new neighbors of nodes are, by the users' own ids."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.comm.context import Context
from partita.comm.group import Group
from partita.core.asides import written_aside
from partita.core.errors import ConfigError
from partita.core.options import Size
from partita.graph.store import GraphStore
from partita.infer.known_answers import LinkQueries, known_answers
from partita.infer.link_files import nodes_of, pairs_of
from partita.infer.links import NodeRows
from partita.infer.links_in_time import in_time, of_each_time
from partita.infer.ranking import BLOCK_BYTES
from partita.infer.rows_in_time import RowsInTime
from partita.infer.run import inference_of, join, launched, on_workers, require_memory
from partita.infer.table_files import check_table_file, write_tables
from partita.infer.temporal import TemporalInference
from partita.infer.top_links import NOBODY, TopLinks, checked, top_links
from partita.nn.decoders import Side
from partita.runs.load import load_run
from partita.sample.topology import as_tensor
from partita.tasks.links.edges import RELATION, SOURCE, TARGET, is_symmetric, target_relations
from partita.tasks.links.task import LinkTask
from partita.tasks.task import EdgeTask, make_task

_TOGETHER = 1 << 14
"""Nodes, or pairs, that are looked at together: their rows are in memory."""


@dataclass(frozen=True, slots=True)
class LinkPredictionSummary:
    """What was written: the file, how many rows, and its columns; and what was not as in training."""

    path: str
    rows: int
    columns: tuple[str, ...]
    checkpoint: str
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it; without ``notes`` where there are none."""
        values = {**asdict(self), "columns": list(self.columns), "notes": list(self.notes)}
        return values if self.notes else {name: value for name, value in values.items() if name != "notes"}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LinkPredictionSummary:
        """The inverse of :meth:`to_json`."""
        return cls(**{**values, "columns": tuple(values["columns"]), "notes": tuple(values.get("notes", ()))})


def predict_links(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    links: int | None = None,
    pairs: str | os.PathLike[str] | None = None,
    nodes: str | os.PathLike[str] | None = None,
    relation: str | None = None,
    side: str = "tail",
    store: str | os.PathLike[str] | None = None,
    memory_limit: Size | None = None,
    trust: str | None = None,
    workers: int = 1,
    context: Context | None = None,
) -> LinkPredictionSummary:
    """Write the best new neighbors of nodes, or the scores of pairs, by the best checkpoint of a run on links.

    With ``links``, a row for each of the best new neighbors, of every node in the order asked for and the best first:
    ``node`` and ``neighbor`` (the users' ids), of a typed graph ``relation``, ``score`` and ``probability``. Neighbors
    that a node has in the graph or in a held-out split are left out, and so is the node itself; equal scores are in
    the order of ingest. With ``pairs``, a row for each of them: ``source``, ``target``, of a typed graph ``relation``,
    ``score`` and ``probability``.

    Of a run that samples neighbors by time, the neighbors are nodes that are there at the ``seed_time`` of the node, or
    once all is known where it has none; those that it has already may be among them, as they may come again. Pairs are
    asked about at the time of their source.

    In processes that torchrun has started, every one of them calls this, and they share the work; the first one
    writes the file.

    Args:
        run: the run folder. Of several workers only the first one reads it.
        out: a ``.parquet`` or ``.csv`` file; an existing one is replaced when the new one is complete.
        links: how many new neighbors of every node.
        pairs: a table of sources and destinations, and of a typed graph perhaps relations, as for ingest.
        nodes: whose neighbors: a file that lists them, or the name of a split; default all nodes of the type.
        relation: which relation, in a typed graph; default the one that the run has learned, if there is only one.
        side: which end of new links is looked for: ``"tail"``, where they lead to, or ``"head"``, where from.
        store: path of a graph store; default the one that the run was trained on.
        memory_limit: bytes per worker, or text such as ``"2GiB"``; default as in the run's settings.
        trust: ``"imports"``: the run may name code to import, such as a decoder of one's own.
        workers: so many processes are started on this machine to share the work; 1 for none.
        context: of this worker, where the caller has made one.

    Raises:
        ConfigError: unknown file type, both or none of ``links`` and ``pairs``, no such relation, or the run has not
            learned links.
        InputError: a file of nodes or of pairs cannot be read, or names what is not in the graph.
        RunError: there is no run, or the store does not fit it; the message says what differs.
        StoreError, ResourceError: the store or the disk cannot be used.
    """
    given: dict[str, Any] = {
        "links": links, "pairs": None if pairs is None else str(pairs), "nodes": None if nodes is None else str(nodes),
        "relation": relation, "side": side, "store": store, "memory_limit": memory_limit, "trust": trust,
    }  # fmt: skip
    if workers == 1 or context is not None or launched():
        return _predict(join(context, workers), run, out, **given)
    entry = "partita.infer.predict_links:predict_on_worker"
    return LinkPredictionSummary.from_json(on_workers(entry, workers, None, run=run, out=out, **given))


def predict_on_worker(context: Context, **options: Any) -> dict[str, Any]:
    """What every worker that :func:`predict_links` starts runs."""
    return _predict(context, **options).to_json()


def _predict(
    context: Context,
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    links: int | None,
    pairs: str | None,
    nodes: str | None,
    relation: str | None,
    side: str,
    store: str | os.PathLike[str] | None,
    memory_limit: Size | None,
    trust: str | None,
) -> LinkPredictionSummary:
    target = Path(out)
    context.agree(lambda: _check(target, links, pairs, nodes, side))
    loaded = load_run(run, store=store, trust=trust, context=context)
    graph, task = loaded.store, make_task(loaded.config, loaded.store)
    if not isinstance(task, EdgeTask):
        raise ConfigError("the run has not learned links", where=str(run), fix="Train with --task links")
    task.attach(loaded.model)
    number = _relation(graph, relation, loaded.config.target_relations, needed=links is not None)
    inference = inference_of(loaded.model, graph, loaded.config, context, memory_limit=memory_limit)
    if links is not None:
        assert number is not None
        kind = 0 if graph.schema is None else int(graph.schema.ends[number, SOURCE if side == "tail" else TARGET])
        asked = nodes_of(graph, nodes, kind)
        require_memory(inference, graph, context)
        end: Side = "tail" if side == "tail" else "head"
        if isinstance(inference, TemporalInference):
            times = inference.times_of(asked)
            tables = _best_in_time(inference, in_time(task), asked, times, end, number, links)
        else:
            tables = _best(NodeRows.of(inference), task, asked, end, number, links)
    else:
        assert pairs is not None
        given = [as_tensor(np.ascontiguousarray(piece)) for piece in pairs_of(graph, Path(pairs), number)]
        require_memory(inference, graph, context)
        if isinstance(inference, TemporalInference):
            tables = _scored(partial(_ends_in_time, inference), in_time(task), given)
        else:
            tables = _scored(partial(_ends, NodeRows.of(inference)), task, given)
    if context.mesh.rank == 0:
        first = list(islice(tables, 1))  # which takes longest: until then nothing is there that a kill could leave
        with written_aside(target) as aside:
            count, names = write_tables(aside, target.suffix, chain(first, tables))
        summary = LinkPredictionSummary(str(target), count, names, loaded.checkpoint.name, loaded.notes).to_json()
    else:
        deque(tables, maxlen=0)  # takes part
        summary = None
    return LinkPredictionSummary.from_json(context.group("all").broadcast(summary))


def _check(out: Path, links: int | None, pairs: str | None, nodes: str | None, side: str) -> None:
    if (links is None) == (pairs is None):
        both = "both" if pairs is not None else "none"
        raise ConfigError(f"of links and pairs {both} are given", where="predict", fix="Give one of them")
    if links is not None and links < 1:
        raise ConfigError(f"the {links} best are none", where="links", fix="Ask for at least 1")
    if nodes is not None and pairs is not None:
        raise ConfigError("pairs name their nodes themselves", where="nodes", fix="Leave it out")
    if side not in ("tail", "head"):
        raise ConfigError(f"a link has no end '{side}'", where="side", fix="Use tail or head")
    check_table_file(out)


def _relation(store: GraphStore, name: str | None, learned: str, *, needed: bool) -> int | None:
    """Number of the relation that is meant, 0 in an untyped graph."""
    schema = store.schema
    if schema is None:
        if name is not None:
            raise ConfigError("the graph has no relations", where="relation", fix="Leave it out")
        return 0
    numbers = target_relations(schema, learned) if name is None else schema.relation_numbers(name)
    if len(numbers) == 1:
        return numbers[0]
    if name is None and not needed:
        return None
    raise ConfigError(
        f"{len(numbers)} relations are meant" if name is None else f"'{name}' is the name of {len(numbers)} relations",
        where="relation",
        fix=f"Name one of {', '.join(str(schema.relations[at]) for at in numbers[:8])}",
    )


def _best(
    table: NodeRows, task: EdgeTask, nodes: Int64[np.ndarray, "n"], side: Side, relation: int, k: int
) -> Iterator[pa.Table]:
    """The best new neighbors, on the first worker; the others take part, and yield nothing."""
    store, original = task.store, task.store.original_index
    group = table.inference.context.group("all")
    limit = min(BLOCK_BYTES, max(1 << 20, table.inference.memory_limit // 4))
    both_ways = store.schema is None and is_undirected(store)
    for begin in range(0, len(nodes), _TOGETHER):
        queries = LinkQueries.for_nodes(store, nodes[begin : begin + _TOGETHER], side, relation)
        own = top_links(
            task.decoder, queries, table.at(as_tensor(queries.given)), table.rows, table.first, store.node_types, k,
            original=None if original is None else as_tensor(original),
            known=known_answers(store, queries, both_ways=both_ways), memory_limit=limit,
        )  # fmt: skip
        found = _collected(own, group, k)
        if found is not None:
            yield _table_of(task, queries.given, found, relation)


def _table_of(task: EdgeTask, given: Int64[np.ndarray, "n"], found: TopLinks, relation: int) -> pa.Table:
    """The best neighbors of nodes, by the users' ids."""
    store = task.store
    rows, places = (found.ids != NOBODY).nonzero(as_tuple=True)
    columns = {
        "node": pa.array(store.names(given[rows.numpy()])),
        "neighbor": pa.array(store.names(found.ids[rows, places].numpy())),
    }
    if store.schema is not None:
        columns["relation"] = pa.array([str(store.schema.relations[relation])] * len(rows))
    return pa.table({**columns, **task.columns(found.scores[rows, places].float().unsqueeze(1), flat=True)})


def _best_in_time(
    inference: TemporalInference,
    task: LinkTask,
    nodes: Int64[np.ndarray, "n"],
    times: Int64[np.ndarray, "n"],
    side: Side,
    relation: int,
    k: int,
) -> Iterator[pa.Table]:
    """The best neighbors that nodes may get, among those that are there at the times of the nodes; see :func:`_best`.

    Rows of candidates are computed once for every distinct time. What was found is kept in memory, as nodes are told of
    in the order asked for: 20 bytes for each neighbor.
    """
    store, group, in_time = task.store, inference.context.group("all"), task.in_time
    assert in_time is not None
    original = None if store.original_index is None else as_tensor(store.original_index)
    limit = min(BLOCK_BYTES, max(1 << 20, min(group.gather(inference.memory_limit)) // 4))
    best = TopLinks.merged([TopLinks.none(len(nodes), torch.empty(0, dtype=inference.dtype))], k)
    kind = int(LinkQueries.for_nodes(store, nodes[:1], side, relation).types[0])
    for which in of_each_time(times):
        there = in_time.nodes.at(kind, int(times[which[0]]))
        wanted = np.unique(np.concatenate([there, nodes[which]]))
        table = RowsInTime.of(inference, wanted, np.full(len(wanted), times[which[0]]))
        for begin in range(0, len(which), _TOGETHER):
            some = which[begin : begin + _TOGETHER]
            queries = LinkQueries.for_nodes(store, nodes[some], side, relation)
            given, own = table.at(nodes[some], times[some]), torch.from_numpy(nodes[some])
            with torch.no_grad():
                for at, ids, scores in table.blocks(task.decoder, queries, given, store, limit):
                    candidates, scores = torch.from_numpy(ids), checked(scores)
                    absent = ~torch.from_numpy(np.isin(ids, there))
                    scores[absent.unsqueeze(0) | (candidates == own[at, None])] = -torch.inf
                    best.add(torch.from_numpy(some)[at], scores, candidates, original)
    for begin in range(0, len(nodes), _TOGETHER):
        mine = TopLinks(*(each[begin : begin + _TOGETHER] for each in (best.ids, best.original, best.scores)))
        if (found := _collected(mine, group, k)) is not None:
            yield _table_of(task, nodes[begin : begin + _TOGETHER], found, relation)


def is_undirected(store: GraphStore) -> bool:
    """Whether every edge of an untyped graph has its reverse, so that held-out ones are meant in both directions."""
    destinations = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    return is_symmetric(store.indices.astype(np.int64), destinations, store.num_nodes)


def _collected(own: TopLinks, group: Group, k: int) -> TopLinks | None:
    """The best of all workers' lists, on the first one."""
    count, size = len(own.ids), group.size
    if size == 1:
        return own
    send = [count] + [0] * (size - 1)
    receive = [count if group.rank == 0 else 0] * size
    pieces = [group.exchange(each, send, receive, "metadata") for each in (own.ids, own.original, own.scores)]
    if group.rank:
        return None
    ids, original, scores = (each.split(count) for each in pieces)
    return TopLinks.merged([TopLinks(*each) for each in zip(ids, original, scores, strict=True)], k)


RowsOf = Callable[[Int64[Tensor, "n ends"]], tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]]
"""Gives rows of the sources and of the destinations of pairs, on all workers."""


def _ends(table: NodeRows, pairs: Int64[Tensor, "n ends"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    return table.at(pairs[:, SOURCE]), table.at(pairs[:, TARGET])


def _ends_in_time(
    inference: TemporalInference, pairs: Int64[Tensor, "n ends"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """At the times of the sources."""
    sources, targets = (pairs[:, end].numpy() for end in (SOURCE, TARGET))
    times = inference.times_of(sources)
    table = RowsInTime.of(inference, np.concatenate([sources, targets]), np.concatenate([times, times]))
    return table.at(sources, times), table.at(targets, times)


def _scored(rows_of: RowsOf, task: EdgeTask, pieces: list[Int64[Tensor, "n ends"]]) -> Iterator[pa.Table]:
    """Scores of pairs, on all workers."""
    store = task.store
    for piece in pieces:
        for some in piece.split(_TOGETHER):
            scores = _scores(*rows_of(some), task, some)
            ends = some.numpy()
            columns = {
                "source": pa.array(store.names(ends[:, SOURCE])),
                "target": pa.array(store.names(ends[:, TARGET])),
            }
            if store.schema is not None:
                names = np.array(list(map(str, store.schema.relations)), dtype=object)
                columns["relation"] = pa.array(names[ends[:, RELATION]])
            yield pa.table({**columns, **task.columns(scores.float().unsqueeze(1), flat=True)})


def _scores(
    heads: Float[Tensor, "n d"], tails: Float[Tensor, "n d"], task: EdgeTask, pairs: Int64[Tensor, "n ends"]
) -> Float[Tensor, "n"]:
    relations = pairs[:, RELATION] if pairs.shape[1] > RELATION else torch.zeros_like(pairs[:, SOURCE])
    with torch.no_grad():
        return task.decoder(heads, tails, relations)
