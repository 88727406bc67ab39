"""Presampling: how often training visits every node and every edge, as weights for a partition.

GSplit (Polisetty et al., "GSplit: scaling graph neural network training on large graphs via split-parallelism"),
section on the offline part of its splitting algorithm: the weight of a node is the number of times it is sampled at
a layer above the input, over all mini-batches of some epochs; the weight of an edge is the number of times it is
sampled. Both are kept as whole numbers (not divided by the number of mini-batches), and every node weighs one more.

Mini-batches are the global ones of a training run with the same seed, drawn by the same keys. A node counts once in
each layer of a mini-batch, as where its owner computes it once for all workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Int64, UInt32
from torch import Tensor

from partita.core import progress
from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey
from partita.core.options import MOST_NEIGHBORS, numbers_by_relation, size_of, takes
from partita.graph.derived import DerivedColumns
from partita.graph.store import GraphStore
from partita.kernels.compile import compiled
from partita.sample.options import PresampleOptions
from partita.sample.seeds import SeedOrder
from partita.sample.topology import LocalTopology, as_tensor

NOTE = "presample"
"""Under this name the metadata's notes say how a store was presampled."""

_EDGES_AT_ONCE = 1 << 18
_BYTES_PER_EDGE = 128  # a sampled edge with fanout 1, its destination included
_LARGEST_COUNT = 2**32 - 1


@dataclass(frozen=True, slots=True)
class PresampleSummary:
    """What was presampled, and what it came to.

    Attributes:
        path: of the store.
        fanout: neighbors per layer, starting with the first hop from the seed nodes; -1: all. Of a typed graph those of
            every relation, or of relations by name.
        batch_size: seeds of a mini-batch.
        epochs: over the seeds.
        seed: of all draws.
        split: whose nodes were the seeds.
        replace: neighbors were drawn with replacement.
        weighted: neighbors were drawn in proportion to the edge weights.
        num_seeds: nodes in the split.
        steps: mini-batches of all epochs.
        sampled_edges: edges drawn, per layer, layer 1 (input side) first.
        destinations: rows computed, per layer, layer 1 first.
        input_rows: distinct input rows of every mini-batch, summed.
    """

    path: Path
    fanout: tuple[int, ...] | dict[str, tuple[int, ...]]
    batch_size: int
    epochs: int
    seed: int
    split: str
    replace: bool
    weighted: bool
    num_seeds: int = 0
    steps: int = 0
    sampled_edges: tuple[int, ...] = ()
    destinations: tuple[int, ...] = ()
    input_rows: int = 0

    def to_json(self) -> dict[str, Any]:
        """Everything but the path, as the metadata's notes hold it."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if isinstance(self.fanout, dict):
            values["fanout"] = {name: list(numbers) for name, numbers in self.fanout.items()}
        del values["path"]
        return values


@takes(PresampleOptions)
def presample(store: GraphStore | str | os.PathLike[str], options: PresampleOptions) -> PresampleSummary:
    """Sample mini-batches as training would, count, and add ``presample_node`` and ``presample_edge`` to the store.

    A store that is open already does not see the new columns; open it again. Memory: 9 bytes per node (5 below 2^31
    nodes), and buffers.

    Args:
        store: a store or its path.
        options: see :class:`~partita.sample.options.PresampleOptions`. The mini-batches are those of a run with this
            seed. The memory limit is for buffers, besides those for the nodes.

    Raises:
        ConfigError: a setting is out of range, or an edge could be drawn more often than 32 bits count.
        StoreError: no store there, no such split, or the store cannot be written.
        ResourceError: the disk has no room for the columns.
    """
    path = store.path if isinstance(store, GraphStore) else Path(store)
    summary = PresampleSummary(
        path, _numbers(options.fanout), options.batch_size, options.epochs, options.seed, options.split,
        options.replace, options.weighted,
    )  # fmt: skip
    _check_settings(summary)
    seed, epochs, split = options.seed, options.epochs, options.split
    limit = size_of(options.memory_limit, "memory_limit")
    with DerivedColumns(path) as adding:
        opened = adding.store
        seeds = as_tensor(opened.split(split))
        if len(seeds) == 0:
            raise ConfigError(f"the split '{split}' is empty", where=str(path), fix="Choose a split with nodes")
        order = SeedOrder(seeds, seed, options.batch_size)
        summary = replaced(summary, num_seeds=len(seeds), steps=epochs * order.num_steps)
        fanouts = _fanouts(summary, opened)
        _check_counts_fit(summary, fanouts)
        topology = LocalTopology(opened, replace=options.replace, weighted=options.weighted, types=True)
        node, edge = adding.allocate("presample_node"), adding.allocate("presample_edge")
        node += 1
        counter = _Counter(topology, opened, fanouts, node, edge, limit)
        with progress.task("presample", total=summary.steps, unit="mini-batches") as task:
            for epoch in range(epochs):
                for step in range(order.num_steps):
                    counter.count(order.batch(epoch, step), StepKey(seed, epoch, step))
                    task.advance()
        summary = replaced(
            summary,
            sampled_edges=tuple(counter.sampled_edges),
            destinations=tuple(counter.destinations),
            input_rows=counter.input_rows,
        )
        adding.finish(**{NOTE: summary.to_json()})
    return summary


def _numbers(given: object) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
    """The fanout as it is recorded: a single entry of a relation is for as many layers as another one has."""
    try:
        read: Any = numbers_by_relation(given)
    except ValueError as error:
        raise ConfigError(str(error), where="fanout") from None
    if not isinstance(read, Mapping):
        return tuple(read)
    layers = max(map(len, read.values()), default=0)
    return {name: tuple(numbers) * (layers if len(numbers) == 1 else 1) for name, numbers in read.items()}


def _check_settings(given: PresampleSummary) -> None:
    """Of a relation nothing may be drawn, if anything is drawn of another."""
    by_name = given.fanout if isinstance(given.fanout, dict) else {"": given.fanout}
    least = 0 if isinstance(given.fanout, dict) else 1
    drawn = any(map(any, by_name.values()))
    for name, fanout in by_name.items() if drawn else [("", ())]:
        if not fanout or any((k < least and k != -1) or k > MOST_NEIGHBORS for k in fanout):
            raise ConfigError(
                f"the fanout{f' of {name}' if name else ''} is {','.join(map(str, fanout)) or 'empty'}",
                where="fanout",
                fix=f"Give one entry per layer, each from {least} to {MOST_NEIGHBORS:,}, or -1 for all neighbors; for "
                "instance 15,10,5",
            )


def _fanouts(given: PresampleSummary, store: GraphStore) -> tuple[int | tuple[int, ...], ...]:
    """Of each layer, first hop first, a number; or in a typed graph one for each relation."""
    if isinstance(given.fanout, dict):
        if store.schema is None:
            raise ConfigError(
                "fanouts are given for relations, and the graph has none",
                where="fanout",
                fix="Give a number for each layer, for instance 15,10",
            )
        return store.schema.by_relation(given.fanout, "fanout")
    if store.schema is None:
        return given.fanout
    return tuple((number,) * len(store.schema.relations) for number in given.fanout)


def _check_counts_fit(given: PresampleSummary, fanouts: Sequence[int | tuple[int, ...]]) -> None:
    """No edge can be drawn more often than an unsigned 32-bit number says."""
    most = [k if isinstance(k, int) else max(k, default=0) for k in fanouts]  # an edge is of one relation
    per_step = sum(max(1, k) if given.replace else 1 for k in most)
    if given.steps * per_step > _LARGEST_COUNT:
        raise ConfigError(
            f"{given.steps:,} mini-batches could draw an edge {given.steps * per_step:,} times, "
            f"and counts go up to {_LARGEST_COUNT:,}",
            where="epochs",
            fix="Presample fewer epochs; ten are enough",
        )


class _Counter:
    """Counts mini-batches, one after the other.

    The nodes of a mini-batch lie in one list in the order in which they come up: the destinations of a layer are the
    beginning of the list, and the new sources of its edges are appended.
    """

    def __init__(
        self,
        topology: LocalTopology,
        store: GraphStore,
        fanouts: tuple[int | tuple[int, ...], ...],
        node: Int64[np.ndarray, "N"],
        edge: UInt32[np.ndarray, "E"],
        memory_limit: int,
    ) -> None:
        self.sampled_edges = [0] * len(fanouts)
        self.destinations = [0] * len(fanouts)
        self.input_rows = 0
        self._topology, self._indptr, self._fanouts = topology, store.indptr, fanouts
        self._node, self._edge = node, edge
        self._nodes = as_tensor(np.empty(store.num_nodes, dtype=store.indices.dtype))
        self._listed = np.zeros(store.num_nodes, dtype=np.bool_)
        self._edges_at_once = max(1 << 12, min(_EDGES_AT_ONCE, memory_limit // 2 // _BYTES_PER_EDGE))

    def count(self, seeds: Int[Tensor, "B"], key: StepKey) -> None:
        """Draw one mini-batch from the seeds down, and count it."""
        nodes = self._nodes.numpy()
        length = _append(seeds.numpy(), self._listed, nodes, 0)
        for layer, fanout in zip(range(len(self._fanouts), 0, -1), self._fanouts):
            num_dst, layer_key = length, key.at(Purpose.SAMPLE, layer)
            start = 0
            while start < num_dst:
                stop = self._chunk_end(start, num_dst, fanout)
                length = self._draw(self._nodes[start:stop], layer_key, layer, fanout, length)
                start = stop
            _add_one(nodes[:num_dst], self._node)
            self.destinations[layer - 1] += num_dst
        self.input_rows += length
        self._listed[nodes[:length]] = False

    def _chunk_end(self, start: int, stop: int, fanout: int | tuple[int, ...]) -> int:
        numbers, at_once = (fanout,) if isinstance(fanout, int) else fanout, self._edges_at_once
        stop = min(stop, start + max(1, at_once // max(1, sum(k for k in numbers if k > 0))))
        if min(numbers, default=0) < 0:  # all of some relation: as many as there are
            stop = int(_rows_within(self._indptr, self._nodes.numpy(), start, stop, at_once))
        return stop

    def _draw(self, dst: Int[Tensor, "D"], key: int, layer: int, fanout: int | tuple[int, ...], length: int) -> int:
        """Draw the in-edges of some destinations; returns the new length of the list of nodes."""
        sampled = self._topology.sample(dst, key, fanout, positions=True)
        assert sampled.positions is not None
        _add_one(sampled.positions.numpy(), self._edge)
        self.sampled_edges[layer - 1] += len(sampled.indices)
        return int(_append(sampled.indices.numpy(), self._listed, self._nodes.numpy(), length))


@compiled
def _append(ids, listed, nodes, length):
    """Append the ids that are not listed yet to ``nodes[:length]``; returns the new length."""
    for i in range(len(ids)):
        node = ids[i]
        if not listed[node]:
            listed[node] = True
            nodes[length] = node
            length += 1
    return length


@compiled
def _add_one(places, counts):
    for i in range(len(places)):
        counts[places[i]] += 1


@compiled
def _rows_within(indptr, nodes, start, stop, num_edges):
    """The largest end so that the rows of ``nodes[start:end]`` hold at most ``num_edges`` edges, or are one row."""
    end = start + 1
    total = indptr[nodes[start] + 1] - indptr[nodes[start]]
    while end < stop and end - start < num_edges:
        total += indptr[nodes[end] + 1] - indptr[nodes[end]]
        if total > num_edges:
            break
        end += 1
    return end
