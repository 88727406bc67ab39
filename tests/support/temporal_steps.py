"""A training step on a graph whose edges and seeds have times, and what comes out of graphs that end at each time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from steps import KEY, Outcome, Step, run_share
from torch import Tensor
from typed_graphs import TypedStep

from partita.comm.axis import Axis, Workers, make_axis
from partita.comm.group import Group
from partita.core.keys import MASK64, StepKey, fold
from partita.core.protocols import Topology
from partita.core.records import Sampled
from partita.graph.store import GraphStore
from partita.nn.ages import RowTimes
from partita.nn.model import Model
from partita.parallel.block_worker import BlockWorker
from partita.parallel.engine import Engine, MiniBatch
from partita.parallel.placements.data import Data
from partita.sample.collective import CollectiveTopology
from partita.sample.temporal import SeedTimes, TemporalTopology, Windows, slots_for
from partita.sample.topology import ArrayTopology

ALWAYS, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
LATEST = 9
"""When all rows are known; seeds that are asked about later count as asked about then."""


def edge_times(store: GraphStore, seed: int = 8) -> Tensor:
    """Times of edges, of which some were always there, in order within each relation of a row; some are equal."""
    generator = np.random.default_rng(seed)
    found = generator.integers(-5, 20, store.num_edges)
    found[generator.random(store.num_edges) < 0.1] = ALWAYS
    rows = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    kinds = np.zeros(store.num_edges) if store.edge_type is None else store.edge_type
    order = np.lexsort((found, kinds, rows))
    return torch.from_numpy(found[order])


def signed(key: int) -> int:
    """64 bits as int64 has them."""
    return key - (1 << 64) if key >= 1 << 63 else key


def until(
    topology: ArrayTopology, times: Tensor, last: int, newest: int | None = None, windows: Windows | None = None
) -> ArrayTopology:
    """A graph of its own without the edges after a time, whose nodes have the keys that they have at that time.

    Args:
        topology: all edges.
        times: of the edges.
        last: time.
        newest: so many of the edges of each relation stay in a row; ``None``: all that there are.
        windows: older edges are not there either.
    """
    given = topology.arrays()
    kept = times <= last
    if windows is not None:
        now = min(last, windows.latest)
        for edge in torch.nonzero(kept).flatten().tolist():
            width = int(windows.of_relations[0 if given["edge_type"] is None else int(given["edge_type"][edge])])
            kept[edge] = width < 0 or (int(times[edge]) != ALWAYS and now - int(times[edge]) <= width)
    indptr = given["indptr"]
    row = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    if newest is not None:
        kinds = [0] * len(row) if given["edge_type"] is None else given["edge_type"].tolist()
        runs = dict[tuple[int, int], list[int]]()
        for edge in torch.nonzero(kept).flatten().tolist():
            runs.setdefault((int(row[edge]), kinds[edge]), []).append(edge)
        kept = torch.zeros_like(kept)
        kept[[edge for run in runs.values() for edge in run[-newest:]]] = True
    counts = torch.bincount(row[kept], minlength=len(indptr) - 1)
    given["indptr"] = given["degree_offsets"] = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    for name in ("indices", "edge_type", "weights"):
        if given[name] is not None:
            column = given[name]
            signed_dtype = {torch.uint16: torch.int16, torch.uint32: torch.int32}.get(column.dtype, column.dtype)
            given[name] = column.view(signed_dtype)[kept].view(column.dtype)
    given["edge_rows"] = {name: column[kept] for name, column in given["edge_rows"].items()}
    originals = topology.original(torch.arange(topology.num_nodes)).tolist()
    given["original"] = torch.tensor([signed(fold(each, last & MASK64)) for each in originals])
    return ArrayTopology(**given)


class OwnTemporal(TemporalTopology):
    """A topology that knows no edges but those into the nodes of one worker."""

    own: Axis

    def at_owners(self, ids: Tensor, *arguments: Any, **options: Any) -> Sampled:
        assert bool((self.own.owner(ids) == self.own.rank).all()), "asked for another worker's nodes"
        return super().at_owners(ids, *arguments, **options)


@dataclass(frozen=True)
class TemporalStep(Step):
    """A step on a graph with times.

    Attributes:
        last: the last edges are taken; then the fanouts are all alike.
        windows: how old edges of each relation may be; ``None``: of any age.
    """

    last: bool = False
    windows: tuple[int, ...] | None = None

    def how_old(self) -> Windows | None:
        """Seeds that are asked about later count as asked about at 9."""
        return None if self.windows is None else Windows(torch.tensor(self.windows), LATEST)

    def times(self) -> SeedTimes:
        """Of all nodes as seeds; some are before any edge, and several nodes share one."""
        return SeedTimes(self.original() * 7 % 17 - 6, slots_for(len(self.seeds)))

    def key(self) -> StepKey:
        return replace(KEY, times=self.times().of(self.batch_seeds()))

    def requests(self, seeds: Tensor) -> Tensor:
        times = self.key().times
        assert times is not None
        return self.times().requests(seeds, times)

    def batch_seeds(self) -> Tensor:
        return torch.argsort(self.original())[list(self.seeds)]

    def whole_topology(self, kind: type[TemporalTopology] = TemporalTopology) -> TemporalTopology:
        slots = self.times().slots
        return kind(self.topology(), edge_times(self.store), slots, last=self.last, windows=self.how_old())

    def topology_of(self, context: Workers) -> Topology:
        found, times = self.whole_topology(OwnTemporal if self.split_topology else TemporalTopology), self.times()
        if not isinstance(found, OwnTemporal):
            return found
        offsets = self.part_offsets() * times.slots
        axis = make_axis(context, "all" if len(offsets) - 1 == context.mesh.size else "workers", offsets)
        found.own = axis
        return CollectiveTopology(found, axis)


@dataclass(frozen=True)
class TypedTemporalStep(TemporalStep, TypedStep):
    """The same on a typed graph, whose rows have times that the model may read."""

    def row_times(self) -> Tensor:
        """Of all nodes; some have none, and some are later than seeds that read them."""
        numbers = self.original()
        return (numbers * 5 % 23 - 8).masked_fill(numbers % 7 == 2, ALWAYS).masked_fill(numbers % 11 == 5, NEVER)

    def model(self) -> Model:
        model = super().model()
        if self.dated:
            model.encoder.ages.source = RowTimes(self.row_times(), self.store.node_types, LATEST)
        return model


class AgedEngine(Engine):
    """Of a graph that ends at a time: adds what the ages of rows say then, in plain torch."""

    step: TypedTemporalStep
    time: int

    def forward(self, batch: MiniBatch) -> Tensor:
        encoder = self.worker.model.encoder
        nodes = batch.works[0].block.src.long()
        kinds = torch.from_numpy(self.step.store.types(nodes.numpy()))
        rows, now = list(encoder(self.load(batch).rows)), min(self.time, LATEST)
        for at, (kind, born) in enumerate(zip(kinds.tolist(), self.step.row_times()[nodes].tolist(), strict=True)):
            name = encoder.node_types[kind]
            if name in self.step.dated and born not in (ALWAYS, NEVER):
                age = max(0, now - born) / 3.0
                features = [math.log2(1 + 512 * age) / 9, *(0.5 ** (age * 2.0**n) for n in range(-2, 10))]
                weight = encoder.ages.lins[encoder.ages.kinds.index(kind)].weight
                rows[at] = rows[at] + weight @ torch.tensor(features, dtype=weight.dtype)
        h = torch.stack(rows)
        for layer, (placement, work) in enumerate(zip(self.placements, batch.works, strict=True), start=1):
            h = placement.forward(layer, work, h)
        return h


def reference_at_times(step: TemporalStep) -> Outcome:
    """For each time the seeds of that time, in one process, in a graph that has no later edges: all of them summed."""
    model, seeds, times = step.model(), step.batch_seeds(), edge_times(step.store)
    of_seeds = step.times().of_nodes[seeds]
    plain = _without_times(step)
    loss, gradients = torch.zeros((), dtype=step.dtype), dict[str, Tensor]()
    batches = []
    for last in of_seeds.unique().tolist():
        model.zero_grad()
        worker = BlockWorker(
            model,
            until(step.topology(), times, last, step.fanouts[0] if step.last else None, step.how_old()),
            step.inputs(),
            step.sampler(Group.alone()),
            step.dtype,
        )
        dated = isinstance(step, TypedTemporalStep) and bool(step.dated)
        engine = (AgedEngine if dated else Engine)([Data(worker)] * len(step.fanouts), worker)
        if isinstance(engine, AgedEngine):
            engine.step, engine.time = step, last
        learnt = step.learnt_rows(model, Group.alone())
        done = run_share(plain, engine, model, seeds[of_seeds == last], KEY, learnt)
        loss += done.loss
        for name, gradient in done.gradients.items():
            gradients[name] = gradients.get(name, 0) + gradient
        batches.append(done.batch)
    return Outcome(loss, gradients, {}, batches)


def _without_times(step: TemporalStep) -> Step:
    """The same step, which asks for nodes."""
    kind = TypedStep if isinstance(step, TypedStep) else Step
    return kind(**{name: getattr(step, name) for name in kind.__dataclass_fields__})
