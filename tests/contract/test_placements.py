"""What every placement of the table must do, at every layer that it allows: and one of a user's own.

A new entry of the table, or a placement of one's own that is registered, needs no new test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import example_placement
import numpy as np
import pytest
import torch
from estimating import check as check_estimate
from estimating import engine_of, sampled
from learnt_steps import LearntStep
from steps import EDGE_LAYERS, EDGE_WIDTH, Step, difference, distributed, reference

import partita
from partita.comm.axis import Workers
from partita.comm.fake import FakeContext
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.core.protocols import Estimator, Placement
from partita.features.host import HostRows
from partita.graph.store import GraphStore
from partita.parallel.block_worker import BlockWorker
from partita.parallel.placements.kinds import INPUT_PLACEMENTS, PLACEMENTS, PlacementKind
from partita.parallel.simulation import Simulation
from partita.parallel.strategies import make_placement, parse_strategy
from partita.plan.links import Curve, Links
from partita.testing.graphs import formula_store, small_random_store

OWN = "shifted"
NAMES = [*PLACEMENTS, OWN]
PARTS = {1: (0, 60), 2: (0, 25, 60), 3: (0, 20, 20, 60)}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    partita.register("placement", OWN, example_placement.KIND)
    yield
    PLACEMENTS.remove(OWN)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Re-ordered, with multi-edges, loops and nodes without neighbors."""
    return formula_store(tmp_path_factory.mktemp("placements") / "g", num_nodes=60, num_features=7, shuffle_seed=3)


def kind_of(name: str) -> PlacementKind:
    return example_placement.KIND if name == OWN else PLACEMENTS.find(name)


def lists(name: str) -> list[str]:
    """The placement at each of two layers that it allows, ``data`` at the other; and at both."""
    found = [f"{name},data"]
    return found if kind_of(name).first_layer_only else [*found, f"data,{name}", f"{name},{name}"]


STRATEGIES_OF_TABLE = {strategy for name in PLACEMENTS for strategy in lists(name)}
CASES = [(name, strategy) for name in NAMES for strategy in lists(name)]
every_list = pytest.mark.parametrize("strategy", [strategy for _, strategy in CASES])


def check(step: Step, strategy: str, workers: int) -> None:
    found = distributed(step, strategy, workers, seed_split="even")
    assert difference(found, reference(replace(step, split_topology=False))) < 1e-9
    assert {kind: found.sent[kind] for kind in found.traffic.to_json()} == found.traffic.to_json()


@every_list
@pytest.mark.parametrize("workers", PARTS)
def test_gradients_are_those_of_one_process_and_bytes_are_those_that_are_said(store, strategy, workers) -> None:
    for number, kind in enumerate(("sage", "gat", "gcn")):
        step = Step(store, kind, fanouts=(3, 2), parts=PARTS[workers], dropout=0.3, split_topology=number == 0)
        check(step, strategy, workers)


@pytest.fixture(scope="module")
def edge_store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """The same graph, whose edges have weights and features."""
    path = tmp_path_factory.mktemp("placements") / "edges"
    return formula_store(path, num_nodes=60, num_features=7, shuffle_seed=3, weighted=True, edge_features=EDGE_WIDTH)


READING_EDGES = ("gcn-weighted", "sage-weighted", "graphconv-weighted", *EDGE_LAYERS)


@every_list
@pytest.mark.parametrize("workers", PARTS)
@pytest.mark.parametrize("kind", READING_EDGES)
def test_layers_that_read_edges_are_placed_as_well(edge_store, strategy, workers, kind) -> None:
    """Loss, gradients, bytes, and what is estimated of them; with neighbors drawn by their owners for some."""
    split = kind in ("gcn-weighted", "gatv2")
    step = Step(edge_store, kind, fanouts=(3, 2), parts=PARTS[workers], dropout=0.3, split_topology=split)
    check(step, strategy, workers)
    check_estimate(step, strategy, workers)


@pytest.mark.parametrize("kind", READING_EDGES)
def test_layers_that_read_edges_take_importances(edge_store, kind) -> None:
    step = Step(edge_store, kind, fanouts=(-1, -1), budgets=(40, 20), parts=PARTS[2])
    check(step, "source,data", 2)


@pytest.mark.parametrize("strategy", [strategy for name, strategy in CASES if not kind_of(name).first_layer_only])
@pytest.mark.parametrize("workers", PARTS)
def test_gradients_of_learnt_rows_are_those_of_one_process(store, strategy, workers) -> None:
    """Beside features, in their place, and without a map behind them."""
    cases = [("sage", 4, True), ("gat", 4, False), ("gcn", 9, False), ("gin", 9, True), ("sage", 9, False)]
    for kind, width, featured in cases:
        step = LearntStep(
            store, kind, fanouts=(3, 2), parts=PARTS[workers], dropout=0.3, learnt=width, featured=featured,
            input_dropout=0.2 * featured,
        )  # fmt: skip
        check(step, strategy, workers)
        if strategy in STRATEGIES_OF_TABLE:
            check_estimate(step, strategy, workers)


def test_columns_of_learnt_rows_are_not_dealt_out(store) -> None:
    with pytest.raises(ConfigError, match="learnt rows"):
        distributed(LearntStep(store, fanouts=(3, 2), parts=PARTS[2]), "feature,data", 2)


@every_list
@pytest.mark.parametrize("workers", PARTS)
def test_edges_that_carry_no_messages_are_as_if_they_were_not_there(store, edge_store, strategy, workers) -> None:
    """Loss and gradients are those of one process in a graph that lacks them, wherever they are drawn."""
    sampling = [{}, {"budgets": (30, 20)}, {"fanouts": (-1, 2), "replace": True}, {"weighted": True}]
    for number, kind in enumerate(("sage", "gcn", "gat", "gcn-weighted", "gin", "gcn")):
        step = Step(
            edge_store if kind == "gcn-weighted" or number == 3 else store, kind, parts=PARTS[workers], lost=4 + number,
            split_topology=number % 3 != 2, **{"fanouts": (3, 2), **sampling[number % 4]},
        )  # fmt: skip
        found = distributed(step, strategy, workers, seed_split="even")
        assert difference(found, reference(replace(step, split_topology=False))) < 1e-9, kind
        assert difference(found, reference(replace(step, split_topology=False, lost=0))) > 1e-6, kind
        said = {each: found.sent[each] for each in found.traffic.to_json()}
        if step.split_topology and workers > 1 and step.kind.startswith("gcn"):
            said["ids"] -= counts_bytes(step, workers)
        assert said == found.traffic.to_json(), kind


def counts_bytes(step: Step, workers: int) -> int:
    """What owners say to all others of the edges that their nodes lose: three numbers of every destination."""
    excluded = step.key().excluded
    assert excluded is not None
    return 3 * 8 * len(excluded.dst.unique()) * (workers - 1)


@every_list
def test_workers_that_want_nothing_hang_nobody(store, monkeypatch, strategy) -> None:
    monkeypatch.setattr("partita.comm.threads.TIMEOUT", 20.0)
    step = Step(store, fanouts=(3, 2), parts=PARTS[3], seeds=(7,))
    found, wanted = distributed(step, strategy, 3, seed_split="even"), reference(step)
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-9, atol=1e-12)


@every_list
@pytest.mark.parametrize("workers", PARTS)
def test_what_is_estimated_is_what_is_counted(store, strategy, workers) -> None:
    for kind, split in (("sage", False), ("gcn", True), ("gat", False)):
        step = Step(store, kind, fanouts=(4, 3), parts=PARTS[workers], split_topology=split)
        check_estimate(step, strategy, workers)


@pytest.mark.parametrize("strategy", [strategy for name, strategy in CASES if name in PLACEMENTS])
@pytest.mark.parametrize("kind", ["sage", "gat", "gcn"])
def test_simulation_finds_what_a_placement_estimates(store, strategy, kind) -> None:
    step, mesh = Step(store, kind, fanouts=(4, 3), parts=PARTS[3]), Mesh.of(0, 3, 3)
    engine = engine_of(FakeContext(mesh), step, strategy)
    asked = np.uint64(1) << np.arange(len(step.seeds), dtype=np.uint64) % np.uint64(3)
    for layer, drawn in reversed([*enumerate(sampled(step), start=1)]):
        estimator = engine.estimators[layer - 1]

        def make(layer: int, worker: BlockWorker, context: Workers) -> Placement:
            parsed, rows = parse_strategy(strategy, 2), HostRows(step.rows(context.mesh))
            return make_placement(parsed.placements[layer - 1], parsed, worker, context, rows, step.part_offsets())

        found = Simulation(engine.worker, partial(make, layer)).estimate(layer, drawn, asked, mesh)
        wanted = estimator.estimate(layer, drawn, asked, mesh)
        assert found.traffic == list(wanted.traffic)
        for field in ("drawing", "computed", "below"):
            assert np.array_equal(getattr(found, field), getattr(wanted, field)), field
        assert (found.accesses is None) == (wanted.accesses is None)
        assert found.accesses is None or np.array_equal(found.accesses, wanted.accesses)
        asked = wanted.below


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_placement_holds(store, name) -> None:
    kind = kind_of(name)
    assert kind.sentence
    assert not kind.sentence.endswith(".")
    assert kind.inputs in INPUT_PLACEMENTS
    engine = engine_of(FakeContext(Mesh.of(0, 3, 3)), Step(store, fanouts=(4, 3), parts=PARTS[3]), f"{name},data")
    placement = engine.placements[0]
    assert isinstance(placement, Placement)
    assert placement.collective == kind.collective
    assert isinstance(engine.estimators[0], Estimator)
    if kind.needs_owners:
        with pytest.raises(ConfigError, match="2 parts"):
            engine_of(FakeContext(Mesh.of(0, 3, 3)), Step(store, fanouts=(4, 3), parts=PARTS[2]), f"{name},data")


def test_one_of_its_own_has_no_estimate_and_is_simulated(store) -> None:
    engine = engine_of(FakeContext(Mesh.of(0, 3, 3)), Step(store, fanouts=(4, 3), parts=PARTS[3]), f"{OWN},data")
    assert not isinstance(engine.placements[0], Estimator)
    assert isinstance(engine.estimators[0], Simulation)


def test_one_of_its_own_is_planned_and_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are other processes, which know it by where it is defined."""
    monkeypatch.setattr("partita.plan.remote.DRY_RUN_SECONDS", 0.0)  # one step
    small_random_store(tmp_path / "whole", 300, 2500, undirected=True, num_features=7)
    partita.partition(tmp_path / "whole", tmp_path / "two", parts=2)
    settings = {
        "layers": 2, "hidden": 16, "fanout": (4, 3), "batch_size": 40, "epochs": 2, "precision": "float64",
        "eval_every": 0,
    }  # fmt: skip
    curves = {"same_host": Curve((1e3, 1e6), (1e-5, 1e-2))}
    links = Links(curves, curves, 1, 2, {}, "2026-01-01T00:00:00+00:00")
    plan = partita.make_plan(
        tmp_path / "two", Config.make({**settings, "workers": 2}, where="test"), hosts=1, links=links
    )
    assert {f"{OWN},data", f"by-owner,{OWN},{OWN}", f"data,{OWN}"} <= {each.name for each in plan.candidates}
    found = [
        partita.Trainer.launch(tmp_path / "two", out=tmp_path / out, workers=2, strategy=strategy, **settings)
        for out, strategy in (("own", "example_placement:KIND,data"), ("plain", "gdp"))
    ]
    own, plain = (summary.record["metrics"]["test"] for summary in found)
    assert own == pytest.approx(plain)
    assert found[0].record["placements"] == "direct,example_placement:KIND,data"
    assert found[0].record["placement_sentences"][1] == example_placement.KIND.sentence
