"""Stores whose edges have times, a step on their links, and what comes out of graphs that end at each time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from link_steps import _Links
from steps import KEY, Outcome, Step, run_share
from temporal_steps import ALWAYS, OwnTemporal, until
from torch import Tensor
from typed_graphs import TypedStep, typed_store

import partita
from partita.comm.axis import Workers, make_axis
from partita.comm.group import Group
from partita.core.keys import StepKey
from partita.core.protocols import Topology
from partita.graph.store import GraphStore
from partita.parallel.block_worker import BlockWorker
from partita.parallel.engine import Engine
from partita.parallel.placements.data import Data
from partita.sample.collective import CollectiveTopology
from partita.sample.temporal import SeedTimes, TemporalTopology, slots_for
from partita.sample.topology import as_tensor
from partita.tasks.times import TaskTimes

NEVER = np.iinfo(np.int64).max
SPLIT = ("14", "17")


def times_of(nodes: int, edges: int, *, seed: int = 8, of_nodes: bool = True, seeds: bool = True) -> dict[str, Any]:
    """Times of edges and nodes, some of which were always there; and some nodes are asked about at times of their own.

    Args:
        nodes, edges: how many.
        seed: of the draws.
        of_nodes: nodes have times.
        seeds: nodes have times at which they are asked about.
    """
    generator = np.random.default_rng(seed)
    found = {"edge_time": generator.integers(-2, 20, edges), "node_time": generator.integers(-5, 12, nodes)}
    found["seed_time"] = generator.integers(0, 19, nodes)
    for name, share in (("edge_time", 0.1), ("node_time", 0.4), ("seed_time", 0.7)):
        found[name][generator.random(len(found[name])) < share] = ALWAYS
    found["edge_time"][generator.random(edges) < 0.05] = NEVER
    wanted = {"edge_time": True, "node_time": of_nodes, "seed_time": seeds}
    return {name: values for name, values in found.items() if wanted[name]}


def timed_store(path: Path, *, nodes: int = 60, edges: int = 400, parts: int = 1, **options: Any) -> GraphStore:
    """An untyped graph; in parts its nodes have other ids."""
    generator = np.random.default_rng(3)
    arrays = {
        "edge_index": generator.integers(0, nodes, (2, edges)),
        "x": generator.normal(size=(nodes, 5)).astype(np.float32),
        **times_of(nodes, edges, **options),
    }
    whole = path.with_suffix(".whole")
    partita.ingest(arrays, whole, split_times=SPLIT)
    partita.partition(whole, path, parts=parts, algorithm="random")
    return GraphStore.open(path)


def typed_timed_store(path: Path, parts: int = 1, **options: Any) -> GraphStore:
    """The typed graph of other tests, with times."""
    return typed_store(path, parts=parts, more=lambda nodes, edges: times_of(nodes, edges, **options))


@dataclass(frozen=True)
class _TimedLinks(_Links):
    """A step on links in time.

    Attributes:
        last: the last edges are taken; then the fanouts are all alike.
        at_times: nodes are requested at times; else as in a graph of one time only.
    """

    last: bool = False
    at_times: bool = True

    def task(self):
        return replace(self, settings=(("split_times", ",".join(SPLIT)), *self.settings))._plain_task()

    def _plain_task(self):
        return super().task()

    def task_times(self) -> TaskTimes:
        found = TaskTimes.of_run(self.task(), SeedTimes(torch.empty(0, dtype=torch.int64), slots_for(len(self.seeds))))
        assert found is not None
        return found

    def key(self) -> StepKey:
        return replace(KEY, epoch=0, step=1, times=self.task_times().of(self.batch_seeds()))

    def requests(self, seeds: Tensor) -> Tensor:
        times = self.key().times
        return self.task_times().requests(seeds, times) if self.at_times else self.task().requests(seeds)

    def topology_of(self, context: Workers) -> Topology:
        kind, slots = OwnTemporal if self.split_topology else TemporalTopology, slots_for(len(self.seeds))
        found = kind(self.topology(), as_tensor(self.store.edge_time), slots, last=self.last)
        if not isinstance(found, OwnTemporal):
            return found
        offsets = self.part_offsets() * slots
        axis = make_axis(context, "all" if len(offsets) - 1 == context.mesh.size else "workers", offsets)
        found.own = axis
        return CollectiveTopology(found, axis)


@dataclass(frozen=True)
class TimedLinkStep(_TimedLinks, Step):
    """Of an untyped graph."""


@dataclass(frozen=True)
class TypedTimedLinkStep(_TimedLinks, TypedStep):
    """Of a typed graph."""


def reference_at_times(step: _TimedLinks) -> Outcome:
    """For each time the edges asked about then, in one process, in a graph that has no later edges: all summed."""
    model, seeds, times = step.model(), step.batch_seeds(), as_tensor(step.store.edge_time)
    asked = step.task_times().task.times(seeds)
    plain = replace(step, at_times=False)
    loss, gradients, batches = torch.zeros((), dtype=step.dtype), dict[str, Tensor](), []
    for last in asked.unique().tolist():
        model.zero_grad()
        topology = until(step.topology(), times, last, step.fanouts[0] if step.last else None)
        worker = BlockWorker(model, topology, step.inputs(), step.sampler(Group.alone()), step.dtype)
        engine = Engine([Data(worker)] * len(step.fanouts), worker)
        learnt = step.learnt_rows(model, Group.alone())
        done = run_share(plain, engine, model, seeds[asked == last], replace(KEY, epoch=0, step=1), learnt)
        loss += done.loss
        for name, gradient in done.gradients.items():
            gradients[name] = gradients.get(name, 0) + gradient
        batches.append(done.batch)
    return Outcome(loss, gradients, {}, batches)
