"""Training steps whose tensors are on a device, which is simulated: the picks and gradients are those of the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import simulated_device
import torch
from gpu_imports import gpu_kernels
from simulated_device import DEVICE, DeviceTensor, launch_on_the_device, simulated
from simulated_streams import found_anywhere
from steps import Outcome, Step, difference, distributed, reference
from torch import Tensor
from typed_graphs import TypedStep, typed_store

from partita.comm.axis import Workers, make_axis
from partita.comm.cuda_streams import device_tensors
from partita.core.protocols import Topology
from partita.features.rows import FeatureColumn
from partita.features.tiers import CacheSettings
from partita.features.typed import TypedColumns
from partita.kernels import memory
from partita.nn.model import Model
from partita.parallel.engine import Engine, MiniBatch
from partita.sample import device as device_topology
from partita.sample.collective import CollectiveTopology
from partita.sample.device import HostDraws, on_device
from partita.sample.topology import ArrayTopology, LocalTopology
from partita.sample.walks import WalkWise
from partita.testing.graphs import small_random_store

PARTS = (0, 31, 31, 100)
EVERYTHING = 2**40
SOME = 900  # bytes: a part of the nodes' edges


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_random_store(tmp_path_factory.mktemp("device") / "g", 100, 700)


@pytest.fixture(scope="module")
def weighted_store(tmp_path_factory):
    return small_random_store(tmp_path_factory.mktemp("device") / "g", 100, 700, weighted=True)


@pytest.fixture(scope="module", autouse=True)
def _device() -> Iterator[None]:
    with gpu_kernels(interpreted=True), pytest.MonkeyPatch.context() as patch:
        launch_on_the_device(patch)
        for module in (memory, device_topology):
            patch.setattr(module, "is_pinned", simulated_device.is_pinned)
        patch.setattr(device_topology, "pinned", simulated_device.pin)
        yield


@dataclass(frozen=True)
class OnDevice(Step):
    """A step of which the model, ids, blocks and labels are on the device.

    Attributes:
        edge_budget: bytes of edges there; ``None``: the host draws.
        pin: the other edges are in pinned memory.
        rows_in: where input rows are: ``device``, ``pinned`` or ``host``.
    """

    edge_budget: int | None = EVERYTHING
    pin: bool = True
    rows_in: str = "device"

    def model(self) -> Model:
        return super().model().to(DEVICE)

    def topology(self) -> ArrayTopology:  # type: ignore[override]
        local = super().topology()
        if self.edge_budget is None:
            return HostDraws(local, DEVICE)
        return on_device(local, DEVICE, self.edge_budget, pin=self.pin)

    def topology_of(self, context: Workers) -> Topology:
        if not self.split_topology:
            return self.topology()
        offsets = self.part_offsets()
        axis = make_axis(context, "all" if len(offsets) - 1 == context.mesh.size else "workers", offsets)
        return CollectiveTopology(self.topology(), axis)

    def column(self) -> FeatureColumn | TypedColumns:  # type: ignore[override]
        column = super().column()
        places = {"device": lambda x: x.to(DEVICE), "pinned": simulated_device.pin, "host": lambda x: x}

        def moved(each: FeatureColumn) -> FeatureColumn:
            return replace(each, x=places[self.rows_in](each.x))

        return column.mapped(moved) if isinstance(column, TypedColumns) else moved(column)

    def original(self) -> Tensor:
        return LocalTopology(self.store, types=True).original(torch.arange(self.store.num_nodes))

    def batch_seeds(self) -> Tensor:
        return super().batch_seeds().to(DEVICE)


@dataclass(frozen=True)
class DeviceStep(OnDevice):
    """Of an untyped graph."""


@dataclass(frozen=True)
class DeviceTypedStep(OnDevice, TypedStep):
    """Of a typed one."""


def on_the_device(step: Step, **options: object) -> OnDevice:
    given = {name: getattr(step, name) for name in step.__dataclass_fields__}
    kind = DeviceTypedStep if isinstance(step, TypedStep) else DeviceStep
    return kind(**{**given, "cache": replace(step.cache, device=DEVICE), **options})  # type: ignore[arg-type]


def on_host(outcome: Outcome) -> Outcome:
    """The same in host memory; what was not on the device is an error."""

    def taken(tensor: Tensor) -> Tensor:
        assert isinstance(tensor, DeviceTensor)
        return tensor.held

    return replace(
        outcome,
        loss=taken(outcome.loss),
        gradients={name: taken(gradient) for name, gradient in outcome.gradients.items()},
    )


def compared(step: Step, strategy: str, workers: int, **options: object) -> Outcome:
    wanted = reference(step)
    with simulated():
        found = on_host(distributed(on_the_device(step, **options), strategy, workers, around=simulated))
    assert difference(found, wanted) < (1e-9 if step.dtype == torch.float64 else 1e-5)
    return found


@pytest.mark.parametrize("kind", ["sage", "sage-max", "gcn", "gat", "gin"])
def test_a_step_of_one_worker_draws_and_computes_the_same(store, kind) -> None:
    step = Step(store, kind, seeds=tuple(range(0, 60, 7)), dropout=0.2, input_dropout=0.1 if kind == "gcn" else 0.0)
    found, wanted = compared(step, "gdp", 1), reference(step)
    for work, other in zip(found.batches[0].works, wanted.batches[0].works, strict=True):
        for name in ("indptr", "indices", "src", "dst"):
            ours, theirs = getattr(work.block, name), getattr(other.block, name)
            assert (ours is None and theirs is None) or torch.equal(ours.held, theirs)


@pytest.mark.parametrize("strategy", ["gdp", "nfp", "snp", "dnp", "gsplit", "by-owner,data,data,data"])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "gin"])
def test_a_step_of_several_workers_is_that_of_one(store, kind, strategy) -> None:
    compared(Step(store, kind, parts=PARTS, seeds=tuple(range(0, 60, 7))), strategy, 3)


@pytest.mark.parametrize(
    ("kind", "strategy", "cached"),
    [("sage", "gdp", False), ("gat", "gdp", True), ("sage", "nfp", True), ("gat", "snp", False),
     ("sage", "dnp", True), ("gat", "gsplit", True)],
)  # fmt: skip
def test_all_tensors_of_a_batch_are_found(store, kind, strategy, cached) -> None:
    cache = CacheSettings(1500, layout="partitioned") if cached else CacheSettings()
    step = Step(store, kind, parts=PARTS, seeds=tuple(range(0, 60, 7)), cache=cache, input_dropout=0.2)
    loaded: list[MiniBatch] = []
    with simulated(), pytest.MonkeyPatch.context() as patch:
        load = Engine.load
        patch.setattr(Engine, "load", lambda self, batch: loaded.append(load(self, batch)) or loaded[-1])
        found = distributed(on_the_device(step, rows_in="pinned"), strategy, 3, around=simulated)
    assert len(loaded) == 3
    for batch in [*found.batches, *loaded]:
        listed = {id(tensor) for tensor in device_tensors(batch)}
        assert listed == {id(tensor) for tensor in found_anywhere(batch) if isinstance(tensor, DeviceTensor)}
        assert len(listed) > 8


@pytest.mark.parametrize("strategy", ["gdp", "snp"])
def test_a_split_topology(store, strategy) -> None:
    compared(Step(store, parts=PARTS, seeds=tuple(range(0, 60, 7)), split_topology=True), strategy, 3)


@pytest.mark.parametrize("layout", ["own", "partitioned"])
@pytest.mark.parametrize("rows_in", ["pinned", "host"])
@pytest.mark.parametrize("strategy", ["gdp", "nfp", "gsplit"])
def test_a_cache_on_the_device_over_rows_of_the_host(store, layout, rows_in, strategy) -> None:
    cache = CacheSettings(1500, layout=layout)
    compared(Step(store, parts=PARTS, seeds=tuple(range(0, 60, 7)), cache=cache), strategy, 3, rows_in=rows_in)


@pytest.mark.parametrize("rows_in", ["pinned", "host"])
@pytest.mark.parametrize("stored", [torch.float16, torch.float64])
@pytest.mark.parametrize("strategy", ["gdp", "gsplit"])
def test_rows_of_the_host_without_a_cache(store, rows_in, stored, strategy) -> None:
    step = Step(store, "gcn", parts=PARTS, seeds=tuple(range(0, 60, 7)), stored=stored)
    compared(step, strategy, 3, rows_in=rows_in)


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("strategy", ["gdp", "snp"])
def test_edges_that_do_not_all_fit_on_the_device(store, pin, strategy) -> None:
    step = Step(store, "gcn", parts=PARTS, seeds=tuple(range(0, 60, 7)))
    compared(step, strategy, 3, edge_budget=SOME, pin=pin)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_layer_drawn_as_a_whole_by_the_host(weighted_store, split, weighted) -> None:
    step = Step(
        weighted_store, "gcn", parts=PARTS, seeds=tuple(range(0, 60, 7)), budgets=(40, 30, 20), weighted=weighted,
        split_topology=split,
    )  # fmt: skip
    compared(step, "dnp", 3, edge_budget=None)


@pytest.mark.parametrize("split", [True, False])
def test_neighbors_by_walks_of_the_host(store, split, monkeypatch) -> None:
    monkeypatch.setattr(Step, "sampler", lambda self, group: WalkWise((3, 2, 2), walks=6, length=3, restart=0.4))
    step = Step(store, "sage", parts=PARTS, seeds=tuple(range(0, 60, 7)), split_topology=split)
    compared(step, "gsplit", 3, edge_budget=None)


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    return typed_store(tmp_path_factory.mktemp("device") / "t")


def typed_step(store, kind: str, **changes: object) -> TypedStep:
    return TypedStep(store, kind, **{"fanouts": (3, 2), "seeds": tuple(range(0, 60, 7)), "dropout": 0.2, **changes})


@pytest.mark.parametrize("strategy", ["gdp", "snp", "dnp", "gsplit"])
@pytest.mark.parametrize("kind", ["rgcn", "hetero-sage", "rgat", "hgt", "graphconv+edge_weights"])
def test_a_step_on_a_typed_graph(typed, kind, strategy) -> None:
    compared(typed_step(typed, kind, input_dropout=0.2 * (kind == "rgcn")), strategy, 3)


@pytest.mark.parametrize("rows_in", ["pinned", "host"])
@pytest.mark.parametrize(("layout", "strategy"), [("own", "gdp"), ("partitioned", "dnp"), ("own", "gsplit")])
def test_caches_of_typed_rows_on_the_device(typed, rows_in, layout, strategy) -> None:
    step = typed_step(typed, "rgcn", cache=CacheSettings(600, layout=layout))
    found = compared(step, strategy, 3, rows_in=rows_in, edge_budget=SOME, pin=rows_in == "pinned")
    assert sum(counts.rows_from[0] for counts in found.counts) > 0


@pytest.mark.parametrize("weighted", [True, False])
def test_typed_edges_that_are_drawn_by_their_owners(typed, weighted) -> None:
    compared(typed_step(typed, "hgt", split_topology=True, weighted=weighted), "snp", 3)


def test_all_tensors_of_a_typed_batch_are_found(typed) -> None:
    loaded: list[MiniBatch] = []
    step = typed_step(typed, "rgcn", cache=CacheSettings(600), input_dropout=0.2)
    with simulated(), pytest.MonkeyPatch.context() as patch:
        load = Engine.load
        patch.setattr(Engine, "load", lambda self, batch: loaded.append(load(self, batch)) or loaded[-1])
        found = distributed(on_the_device(step, rows_in="pinned"), "gsplit", 3, around=simulated)
    for batch in [*found.batches, *loaded]:
        listed = {id(tensor) for tensor in device_tensors(batch)}
        assert listed == {id(tensor) for tensor in found_anywhere(batch) if isinstance(tensor, DeviceTensor)}
