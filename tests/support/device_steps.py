"""Training steps whose tensors are on a device, simulated or real: the picks and gradients are those of the host.

Each case takes the place where it runs, and the stores.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import pytest
import torch
from link_steps import LearntLinkStep, LinkStep, TypedLinkStep
from steps import Outcome, Step, difference, distributed, reference
from torch import Tensor
from typed_graphs import TypedStep, typed_store

from partita.comm.axis import Workers, make_axis
from partita.core.protocols import Topology
from partita.features.rows import FeatureColumn
from partita.features.tiers import CacheSettings
from partita.features.typed import TypedColumns
from partita.graph.store import GraphStore
from partita.nn.model import Model
from partita.sample.collective import CollectiveTopology
from partita.sample.device import HostDraws, on_device
from partita.sample.topology import ArrayTopology, LocalTopology
from partita.sample.walks import WalkWise
from partita.testing.graphs import small_random_store

PARTS = (0, 31, 31, 100)
EVERYTHING = 2**40
SOME = 900  # bytes: a part of the nodes' edges
SEEDS = tuple(range(0, 60, 7))

STEPS: list = []


@dataclass(frozen=True)
class Place:
    """A device, and what is done in its own way on it.

    Attributes:
        device: the tensors' own.
        pin: a copy of a tensor in pinned memory.
        to_host: a copy in host memory of a tensor, which has to be on the device.
        around: a block in which threads use the device.
    """

    device: torch.device
    pin: Callable[[Tensor], Tensor]
    to_host: Callable[[Tensor], Tensor]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class Stores:
    """The graphs of the steps, made in a folder when they are first asked for."""

    folder: Path

    @cached_property
    def plain(self) -> GraphStore:
        return small_random_store(self.folder / "plain", 100, 700)

    @cached_property
    def weighted(self) -> GraphStore:
        return small_random_store(self.folder / "weighted", 100, 700, weighted=True)

    @cached_property
    def typed(self) -> GraphStore:
        return typed_store(self.folder / "typed")


@dataclass(frozen=True)
class OnDevice(Step):
    """A step of which the model, ids, blocks and labels are on the device.

    Attributes:
        edge_budget: bytes of edges there; ``None``: the host draws.
        pin: the other edges are in pinned memory.
        rows_in: where input rows are: ``device``, ``pinned`` or ``host``.
    """

    place: Place | None = None
    edge_budget: int | None = EVERYTHING
    pin: bool = True
    rows_in: str = "device"

    @property
    def at(self) -> Place:
        assert self.place is not None
        return self.place

    def model(self) -> Model:
        return super().model().to(self.at.device)

    def topology(self) -> ArrayTopology:  # type: ignore[override]
        local = super().topology()
        if self.edge_budget is None:
            return HostDraws(local, self.at.device)
        return on_device(local, self.at.device, self.edge_budget, pin=self.pin)

    def topology_of(self, context: Workers) -> Topology:
        if not self.split_topology:
            return self.topology()
        offsets = self.part_offsets()
        axis = make_axis(context, "all" if len(offsets) - 1 == context.mesh.size else "workers", offsets)
        return CollectiveTopology(self.topology(), axis)

    def column(self) -> FeatureColumn | TypedColumns:  # type: ignore[override]
        column = super().column()
        places = {"device": lambda x: x.to(self.at.device), "pinned": self.at.pin, "host": lambda x: x}

        def moved(each: FeatureColumn) -> FeatureColumn:
            return replace(each, x=places[self.rows_in](each.x))

        return column.mapped(moved) if isinstance(column, TypedColumns) else moved(column)

    def original(self) -> Tensor:
        return LocalTopology(self.store, types=True).original(torch.arange(self.store.num_nodes))

    def batch_seeds(self) -> Tensor:
        return super().batch_seeds().to(self.at.device)


@dataclass(frozen=True)
class DeviceStep(OnDevice):
    """Of an untyped graph."""


@dataclass(frozen=True)
class DeviceTypedStep(OnDevice, TypedStep):
    """Of a typed one."""


@dataclass(frozen=True)
class _OfLinks(OnDevice):
    """A step whose seeds are edges, which stay in host memory, as the tables of learnt rows do."""

    def batch_seeds(self) -> Tensor:
        return super(OnDevice, self).batch_seeds()

    def requests(self, seeds: Tensor) -> Tensor:
        return super().requests(seeds).to(self.at.device)


@dataclass(frozen=True)
class DeviceLinkStep(_OfLinks, LinkStep):
    """Of an untyped graph."""


@dataclass(frozen=True)
class DeviceLearntLinkStep(_OfLinks, LearntLinkStep):
    """Of an untyped graph whose nodes have learnt rows."""


@dataclass(frozen=True)
class DeviceTypedLinkStep(_OfLinks, TypedLinkStep):
    """Of a typed one, perhaps with learnt rows."""


KINDS = {
    Step: DeviceStep,
    TypedStep: DeviceTypedStep,
    LinkStep: DeviceLinkStep,
    LearntLinkStep: DeviceLearntLinkStep,
    TypedLinkStep: DeviceTypedLinkStep,
}
"""What steps are there."""


def on_the_device(place: Place, step: Step, **options: object) -> OnDevice:
    """The same step, on the device."""
    given = {name: getattr(step, name) for name in step.__dataclass_fields__}
    kind = KINDS[type(step)]
    cache = replace(step.cache, device=place.device)
    return kind(**{**given, "cache": cache, "place": place, **options})  # type: ignore[arg-type]


def run_there(place: Place, step: Step, strategy: str, workers: int, **options: object) -> Outcome:
    """What a step gives on the device; its loss and gradients have to be there, and are copied to host memory."""
    with place.around():
        found = distributed(on_the_device(place, step, **options), strategy, workers, around=place.around)
        gradients = {
            name: gradient if name.startswith("learnt/") else place.to_host(gradient)
            for name, gradient in found.gradients.items()
        }
        return replace(found, loss=place.to_host(found.loss), gradients=gradients)


def compared(place: Place, step: Step, strategy: str, workers: int, **options: object) -> Outcome:
    """The same, compared with one process on the CPU."""
    wanted = reference(step)
    found = run_there(place, step, strategy, workers, **options)
    assert difference(found, wanted) < (1e-9 if step.dtype == torch.float64 else 1e-5)
    return found


def case(**choices: tuple) -> Callable:
    """Enter a case into :data:`STEPS`, once for every combination of the choices."""

    def enter(check: Callable) -> Callable:
        for values in product(*choices.values()):
            name = "-".join([check.__name__, *(str(value).removeprefix("torch.") for value in values)])
            STEPS.append(pytest.param(partial(check, **dict(zip(choices, values))), id=name))
        return check

    return enter


@case(kind=("sage", "sage-max", "gcn", "gat", "gin"))
def one_worker_draws_and_computes_the_same(place: Place, stores: Stores, kind: str) -> None:
    step = Step(stores.plain, kind, seeds=SEEDS, dropout=0.2, input_dropout=0.1 if kind == "gcn" else 0.0)
    found, wanted = compared(place, step, "gdp", 1), reference(step)
    for work, other in zip(found.batches[0].works, wanted.batches[0].works, strict=True):
        for name in ("indptr", "indices", "src", "dst"):
            ours, theirs = getattr(work.block, name), getattr(other.block, name)
            assert (ours is None and theirs is None) or torch.equal(place.to_host(ours), theirs)


@case(
    kind=("sage", "gcn", "gat", "gin"),
    strategy=("gdp", "nfp", "snp", "dnp", "gsplit", "by-owner,data,data,data"),
)
def several_workers_are_as_one(place: Place, stores: Stores, kind: str, strategy: str) -> None:
    compared(place, Step(stores.plain, kind, parts=PARTS, seeds=SEEDS), strategy, 3)


@case(strategy=("gdp", "snp"))
def a_split_topology(place: Place, stores: Stores, strategy: str) -> None:
    compared(place, Step(stores.plain, parts=PARTS, seeds=SEEDS, split_topology=True), strategy, 3)


@case(layout=("own", "partitioned"), rows_in=("pinned", "host"), strategy=("gdp", "nfp", "gsplit"))
def a_cache_over_rows_of_the_host(place: Place, stores: Stores, layout: str, rows_in: str, strategy: str) -> None:
    step = Step(stores.plain, parts=PARTS, seeds=SEEDS, cache=CacheSettings(1500, layout=layout))
    compared(place, step, strategy, 3, rows_in=rows_in)


@case(rows_in=("pinned", "host"), stored=(torch.float16, torch.float64), strategy=("gdp", "gsplit"))
def rows_of_the_host(place: Place, stores: Stores, rows_in: str, stored: torch.dtype, strategy: str) -> None:
    step = Step(stores.plain, "gcn", parts=PARTS, seeds=SEEDS, stored=stored)
    compared(place, step, strategy, 3, rows_in=rows_in)


@case(pin=(True, False), strategy=("gdp", "snp"))
def edges_that_do_not_all_fit(place: Place, stores: Stores, pin: bool, strategy: str) -> None:
    compared(place, Step(stores.plain, "gcn", parts=PARTS, seeds=SEEDS), strategy, 3, edge_budget=SOME, pin=pin)


@case(split=(True, False), weighted=(True, False))
def a_layer_drawn_as_a_whole_by_the_host(place: Place, stores: Stores, split: bool, weighted: bool) -> None:
    step = Step(
        stores.weighted, "gcn", parts=PARTS, seeds=SEEDS, budgets=(40, 30, 20), weighted=weighted, split_topology=split
    )
    compared(place, step, "dnp", 3, edge_budget=None)


@case(split=(True, False))
def neighbors_by_walks_of_the_host(place: Place, stores: Stores, split: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "sampler", lambda self, group: WalkWise((3, 2, 2), walks=6, length=3, restart=0.4))
        step = Step(stores.plain, "sage", parts=PARTS, seeds=SEEDS, split_topology=split)
        compared(place, step, "gsplit", 3, edge_budget=None)


def typed_step(stores: Stores, kind: str, **changes: object) -> TypedStep:
    """A step of two layers on a typed graph."""
    return TypedStep(stores.typed, kind, **{"fanouts": (3, 2), "seeds": SEEDS, "dropout": 0.2, **changes})


@case(
    kind=("rgcn", "hetero-sage", "rgat", "hgt", "graphconv+edge_weights"),
    strategy=("gdp", "snp", "dnp", "gsplit"),
)
def a_typed_graph(place: Place, stores: Stores, kind: str, strategy: str) -> None:
    compared(place, typed_step(stores, kind, input_dropout=0.2 * (kind == "rgcn")), strategy, 3)


@case(rows_in=("pinned", "host"), cached=("own gdp", "partitioned dnp", "own gsplit"))
def caches_of_typed_rows(place: Place, stores: Stores, rows_in: str, cached: str) -> None:
    layout, strategy = cached.split()
    step = typed_step(stores, "rgcn", cache=CacheSettings(600, layout=layout))
    found = compared(place, step, strategy, 3, rows_in=rows_in, edge_budget=SOME, pin=rows_in == "pinned")
    assert sum(counts.rows_from[0] for counts in found.counts) > 0


@case(weighted=(True, False))
def typed_edges_drawn_by_their_owners(place: Place, stores: Stores, weighted: bool) -> None:
    compared(place, typed_step(stores, "hgt", split_topology=True, weighted=weighted), "snp", 3)


DECODERS = ("dot", "cosine", "mlp", "bilinear", "distmult", "complex", "transe", "rotate")


LOSSES = ("cross_entropy", "margin", "bpr", "softmax", "self_adversarial")


@case(decoder=DECODERS, negatives=("uniform", "joint"))
def links_by_every_decoder(place: Place, stores: Stores, decoder: str, negatives: str) -> None:
    settings = {"decoder": decoder, "negative_sampler": negatives, "corrupt": "both"}
    compared(place, LinkStep(stores.plain, fanouts=(2,), settings=tuple(settings.items())), "gdp", 1)


@case(loss=LOSSES, negatives=("in_batch", "all"))
def links_with_every_loss(place: Place, stores: Stores, loss: str, negatives: str) -> None:
    settings = {"loss": loss, "negative_sampler": negatives, "known_negatives": negatives == "all"}
    compared(place, LinkStep(stores.plain, fanouts=(2,), settings=tuple(settings.items())), "gdp", 1)


@case(strategy=("gdp", "nfp", "snp", "dnp", "gsplit"), split=(True, False))
def links_of_several_workers(place: Place, stores: Stores, strategy: str, split: bool) -> None:
    step = LinkStep(
        stores.plain, fanouts=(3, 2), parts=PARTS, split_topology=split, settings=(("negative_sampler", "degree"),)
    )
    compared(place, step, strategy, 3)


@case(strategy=("gdp", "dnp", "gsplit"), featured=(True, False))
def links_of_learnt_rows(place: Place, stores: Stores, strategy: str, featured: bool) -> None:
    settings = {"decoder": "complex", "negative_sampler": "joint", "loss": "softmax", "corrupt": "both"}
    step = LearntLinkStep(
        stores.plain, fanouts=(3, 2), parts=PARTS, settings=tuple(settings.items()), featured=featured
    )
    assert any(name.startswith("learnt/") for name in compared(place, step, strategy, 3).gradients)


@case(reciprocal=(True, False), message_share=(None, 0.5))
def links_of_a_typed_graph(place: Place, stores: Stores, reciprocal: bool, message_share: float | None) -> None:
    settings = {"decoder": "distmult", "reciprocal": reciprocal, "corrupt": "both", "message_share": message_share}
    step = TypedLinkStep(stores.typed, "rgcn", fanouts=(3, 2), learnt=(4, 0, 2), settings=tuple(settings.items()))
    compared(place, step, "gdp", 3)
