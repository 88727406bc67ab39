"""Isolated training in one process: as the whole graph where nothing is missing; left and gone on with anywhere."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from isolated import assert_same, dense_epoch, epochs_of, filtered_epoch, model_of
from torch.nn import functional as F
from typed_graphs import typed_store

import partita
from partita.core.errors import ConfigError, ResourceError
from partita.graph.store import GraphStore
from partita.isolated import schedules, syncs
from partita.isolated.schedules import Cyclic
from partita.isolated.syncs import ModelAverage
from partita.nn.model import Model
from partita.runs.checkpoint import latest_checkpoint, read_state
from partita.testing.graphs import formula_store, small_random_store
from partita.train import phase as train_phase
from partita.train import trainer

SETTINGS = {"layers": 2, "hidden": 8, "fanout": "4,3", "batch_size": 16, "epochs": 3, "seed": 5, "eval_every": 0}
SWEEP = {"views": "tournament"}
AVERAGE = {"views": "cyclic", "sync": "model-average"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[int, GraphStore]:
    """The same graph in 1 and in 6 parts, one of them without training nodes."""
    folder = tmp_path_factory.mktemp("stores")
    whole = small_random_store(folder / "whole", 240, 1600, undirected=True, num_features=6)
    parts = np.random.default_rng(3).integers(0, 5, whole.num_nodes)
    rest = np.setdiff1d(np.arange(whole.num_nodes), whole.split("train"))
    parts[rest[:20]] = 5
    np.save(folder / "parts.npy", parts)
    partita.partition(whole, folder / "six", parts=6, algorithm=str(folder / "parts.npy"))
    return {1: whole, 6: partita.open(folder / "six")}


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> dict[str, dict[int, GraphStore]]:
    """A typed graph, and one whose edges have weights and features: each in 1 and in 6 parts."""
    folder = tmp_path_factory.mktemp("others")
    typed = {6: typed_store(folder / "six", 240, parts=6), 1: partita.open(folder / "six.whole")}
    edges = {
        parts: formula_store(
            folder / f"edges{parts}", num_nodes=240, num_features=6, weighted=True, edge_features=3, num_parts=parts,
            shuffle_seed=2,
        )
        for parts in (1, 6)
    }  # fmt: skip
    return {"typed": typed, "edges": edges}


OTHERS = [
    ("typed", {"model": "rgcn", "fanout": "cites=3,2 *=2,2"}),
    ("typed", {"model": "hgt", "heads": 2}),
    ("typed", {"model": "gatv2", "heads": 2}),
    ("edges", {"model": "gcn", "edge_weights": True}),
    ("edges", {"model": "gatv2", "heads": 2}),
]


def train(store: GraphStore, out: Path, **settings) -> partita.train.recorder.RunSummary:
    return partita.Trainer(store, out=out, **{**SETTINGS, **settings}).fit()


@pytest.mark.parametrize(
    "isolated", [{"views": "all"}, {"views": "cyclic", "coverage": "uniform"}, AVERAGE, {**AVERAGE, "average_every": 2}]
)
@pytest.mark.parametrize("model", [{"model": "sage"}, {"model": "gcn", "dropout": 0.3}, {"model": "gat", "heads": 2}])
def test_one_part_is_the_whole_graph(stores, tmp_path, isolated, model) -> None:
    """Bit by bit: batches, draws, dropout, losses and weights; a mean over one view is its model."""
    settings = {**model, "input_dropout": 0.2, "schedule": "cosine", "warmup": 2, "eval_every": 1}
    train(stores[1], tmp_path / "whole", **settings)
    summary = train(stores[1], tmp_path / "view", **settings, **isolated)
    assert_same(tmp_path / "view", tmp_path / "whole")
    expected = epochs_of(tmp_path / "whole")
    assert [{k: e[k] for k in w} for e, w in zip(epochs_of(tmp_path / "view"), expected, strict=True)] == expected
    assert summary.record["views"]["parts"] == 1
    assert summary.record["views"]["loading"][0]["views"] == 1  # it stays in memory


@pytest.mark.parametrize("halo", ["none", "one-hop", "one-hop+edges"])
@pytest.mark.parametrize("coverage", ["none", "uniform", "resampling"])
def test_a_step_is_that_of_dense_matrices(stores, tmp_path, halo, coverage) -> None:
    """One epoch of full-graph steps of SGD over the pairs of six chunks, phase by phase, with their factors."""
    store, lr = stores[6], 0.1
    settings = {
        **SETTINGS, **SWEEP, "halo": halo, "coverage": coverage, "fanout": -1, "batch_size": 0, "epochs": 1,
        "optimizer": "sgd", "momentum": 0.0, "lr": lr, "norm": "none", "dropout": 0.0, "precision": "float64",
    }  # fmt: skip
    start = partita.Trainer(store, out=tmp_path / "start", **settings)
    weights = {name: tensor.clone() for name, tensor in start.job.model.state_dict().items()}
    partita.Trainer(store, out=tmp_path / "run", **settings).fit()

    weights, factors = dense_epoch(store, weights, schedules.Tournament(6, 1, 1).assignment(0), halo, coverage, lr)
    for name, value in model_of(tmp_path / "run").items():
        expected = weights[name].numpy()
        assert np.abs(value - expected).max() <= 1e-12 * np.abs(expected).max(), name
    assert epochs_of(tmp_path / "run")[0]["coverage"] == pytest.approx(np.mean(factors))
    assert coverage == "none" or (min(factors) < 1 and max(factors) <= 1)


@pytest.mark.parametrize("isolated", [{"views": "all"}, {**AVERAGE, "optimizer": "adamw", "weight_decay": 0.1}])
@pytest.mark.parametrize(("name", "model"), [*OTHERS, ("typed", {"model": "rgat", "heads": 2})])
def test_one_part_of_another_graph_is_the_whole(others, tmp_path, name, model, isolated) -> None:
    """What a batch does not reach has gradient 0 in both."""
    store = others[name][1]
    shared = {key: value for key, value in isolated.items() if key in ("optimizer", "weight_decay")}
    settings = {**model, **shared, "dropout": 0.3, "input_dropout": 0.2}
    train(store, tmp_path / "whole", **settings)
    train(store, tmp_path / "view", **{**settings, **isolated})
    assert_same(tmp_path / "view", tmp_path / "whole")
    assert [e["loss"] for e in epochs_of(tmp_path / "view")] == [e["loss"] for e in epochs_of(tmp_path / "whole")]
    notes = [(tmp_path / run / "metrics.jsonl").read_text().count("layers do not reach") for run in ("view", "whole")]
    assert notes[0] == notes[1]


@pytest.mark.parametrize("halo", ["none", "one-hop", "one-hop+edges"])
@pytest.mark.parametrize("coverage", ["uniform", "resampling"])
@pytest.mark.parametrize(("name", "model"), [*OTHERS, ("typed", {"model": "sage"})])
def test_a_step_is_that_of_the_graph_without_the_edges_that_leave(
    others, tmp_path, name, model, halo, coverage
) -> None:
    """One epoch of full-graph steps of SGD over the pairs of six chunks; coverage by relation where layers do."""
    store = others[name][6]
    settings = {
        **SETTINGS, **SWEEP, **model, "halo": halo, "coverage": coverage, "fanout": -1, "batch_size": 0, "epochs": 1,
        "optimizer": "sgd", "momentum": 0.0, "lr": 0.1, "norm": "none", "dropout": 0.0, "precision": "float64",
    }  # fmt: skip
    start = partita.Trainer(store, out=tmp_path / "start", **settings)
    start.job.views.close()
    partita.Trainer(store, out=tmp_path / "run", **settings).fit()
    assignment = schedules.Tournament(6, 1, 1).assignment(0)
    weights, factors = filtered_epoch(store, start.job.model, start.job.config, assignment)
    largest = max(float(each.abs().max()) for each in weights.values())
    for name, value in model_of(tmp_path / "run").items():
        assert np.abs(value - weights[name].numpy()).max() <= 1e-12 * largest, name
    assert epochs_of(tmp_path / "run")[0]["coverage"] == pytest.approx(np.mean(factors))
    assert min(factors) < 1


class _StopAt:
    """Sends SIGINT to this process, or raises, after a step."""

    def __init__(self, made: partita.Trainer, epoch: int, step: int, *, crash: bool) -> None:
        self.made, self.at, self.crash, self.original = made, (epoch, step), crash, made._step

    def __call__(self, *arguments):
        at = self.made._state.epoch, self.made._state.step
        if at == self.at and self.crash:
            raise KeyError("crash")
        totals = self.original(*arguments)
        if at == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        return totals


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("at", [(0, 0), (0, 4), (1, 2), (2, 6)])
@pytest.mark.parametrize(
    "isolated",
    [
        SWEEP,
        {**SWEEP, "switch_deficit": 0.2, "switch_window": 3, "epochs": 12},
        {**AVERAGE, "optimizer_state": "average", "halo": "one-hop"},
        {**AVERAGE, "average_every": 2},
    ],
    ids=["sweep", "controller", "average", "every-other"],
)
def test_left_anywhere_and_gone_on_with_gives_the_same_bytes(
    stores, tmp_path, monkeypatch, isolated, at, crash
) -> None:
    monkeypatch.setattr(train_phase, "SETTLE_STEPS", 1)
    leave_and_go_on(stores[6], tmp_path, isolated, at, crash=crash)


@pytest.mark.parametrize("isolated", [SWEEP, {**AVERAGE, "optimizer_state": "average", "halo": "one-hop"}])
@pytest.mark.parametrize(("name", "model"), [OTHERS[0], OTHERS[1], OTHERS[-1]])
def test_left_and_gone_on_with_on_other_graphs(others, tmp_path, monkeypatch, name, model, isolated) -> None:
    monkeypatch.setattr(train_phase, "SETTLE_STEPS", 1)
    leave_and_go_on(others[name][6], tmp_path, {**isolated, **model}, (1, 2), crash=False)


def leave_and_go_on(store: GraphStore, tmp_path: Path, isolated: dict, at: tuple[int, int], *, crash: bool) -> None:
    settings = {**SETTINGS, **isolated, "schedule": "linear", "eval_every": 2}
    if crash:
        settings["checkpoint_minutes"] = 1e-9
    partita.Trainer(store, out=tmp_path / "whole", **settings).fit()
    cut = partita.Trainer(store, out=tmp_path / "cut", **settings)
    cut._step = _StopAt(cut, *at, crash=crash)  # type: ignore[method-assign]
    if crash:
        with pytest.raises(KeyError):
            cut.fit()
    else:
        assert cut.fit().status == "interrupted"
    if latest_checkpoint(tmp_path / "cut" / "checkpoints") is not None:
        state = read_state(latest_checkpoint(tmp_path / "cut" / "checkpoints"))
        assert (state.epoch, state.step) >= (at[0], at[1] - 1 if crash else 0)
    assert partita.Trainer.resume(tmp_path / "cut").fit().status == "finished"
    assert_same(tmp_path / "cut", tmp_path / "whole")
    assert epochs_of(tmp_path / "cut") == epochs_of(tmp_path / "whole")


def test_the_controller_ends_rounds_early_and_says_so(stores, tmp_path) -> None:
    settings = {**SWEEP, "epochs": 20, "switch_deficit": 0.3, "switch_window": 2}
    summary = train(stores[6], tmp_path / "run", **settings)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    switches = [line for line in lines if line["event"] == "switch"]
    early = [line for line in switches if line["reason"] == "deficit"]
    assert early
    assert {line["reason"] for line in switches} == {"deficit", "planned"}
    assert [line["round"] for line in switches] == list(range(len(switches)))
    assert len(summary.record["views"]["early_switches"]) == len(early)
    assert all(line["deficit"] > 0.3 for line in early)


def test_models_of_views_come_apart_and_together(stores, tmp_path) -> None:
    """Against a loop over the parts with an optimizer each, joined by hand."""
    kept = {"precision": "float64", "dropout": 0.0, "epochs": 4, "average_every": 2, "eval_every": 0}
    train(stores[6], tmp_path / "run", **AVERAGE, **kept)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "finished"
    store = stores[6]
    train_ids = store.split("train")
    owner = np.searchsorted(store.part_offsets[1:], train_ids, side="right")
    counts = np.bincount(owner, minlength=6)
    assert counts[5] == 0
    ready = partita.Trainer(store, out=tmp_path / "loop", **{**SETTINGS, **AVERAGE, **kept})
    views = ready.job.views
    made = []
    for _ in range(6):
        model = Model.from_description(ready.job.model.describe()).double()
        model.load_state_dict(ready.job.model.state_dict())
        made.append((model, torch.optim.Adam(model.parameters(), lr=0.003)))
    for epoch in range(4):
        state = ready._state.with_(epoch=epoch)
        for phase in views.phases(state):
            part = phase.shares[0].parts[0]
            here = views.enter(phase, state)
            model, optimizer = made[part]
            for step in range(here.steps):
                batch = here.sample(step)
                ready.job.model.load_state_dict(model.state_dict())
                ready.job.model.train()
                out = here.engine.forward(batch)
                ready.job.model.zero_grad()
                F.cross_entropy(out, here.targets(batch), reduction="mean").backward()
                for own, shared in zip(model.parameters(), ready.job.model.parameters(), strict=True):
                    own.grad = shared.grad.clone()
                optimizer.step()
        if epoch % 2:
            with torch.no_grad():
                for tensors in zip(*(model.parameters() for model, _ in made), strict=True):
                    mean = sum(t * int(n) for t, n in zip(tensors, counts, strict=True)) / int(counts.sum())
                    for tensor in tensors:
                        tensor.copy_(mean)
    views.close()
    expected = made[0][0].state_dict()
    for name, value in model_of(tmp_path / "run").items():
        assert np.abs(value - expected[name].numpy()).max() <= 1e-10 * np.abs(value).max(), name


def test_views_are_read_once_each_and_two_at_a_time(stores, tmp_path) -> None:
    summary = train(stores[6], tmp_path / "sweep", **SWEEP, epochs=5)
    loading = summary.record["views"]["loading"][0]
    assert loading["views"] == 15  # every pair of six chunks once
    assert summary.record["views"]["ahead"]
    largest = loading["bytes"] / 15 * 1.6
    tight = train(stores[6], tmp_path / "tight", **SWEEP, epochs=5, memory_per_worker=2**20, compute_share=0.0)
    assert tight.record["views"]["ahead"]
    share = 1 - largest / 2**20
    tight = train(stores[6], tmp_path / "one", **SWEEP, epochs=5, memory_per_worker=2**20, compute_share=share)
    assert not tight.record["views"]["ahead"]
    assert_same(tmp_path / "one", tmp_path / "sweep")
    with pytest.raises(ResourceError, match=r"the view of parts \d, \d takes [\d,]+ bytes.*--parts \d+"):
        train(stores[6], tmp_path / "over", **SWEEP, memory_per_worker=2**20, compute_share=1 - 1000 / 2**20)
    assert not (tmp_path / "over").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**SWEEP, "strategy": "gsplit"}, "rule out.*Use strategy gdp"),
        ({**SWEEP, "cache": "1MiB"}, "Leave cache out"),
        ({**SWEEP, "topology": "partitioned"}, "Leave topology out"),
        ({"views": "tournamnt"}, "Did you mean 'tournament'"),
        ({**SWEEP, "sync": "gradient-sun"}, "Did you mean 'gradient-sum'"),
        ({**SWEEP, "coverage": "resamplin"}, "Did you mean 'resampling'"),
        ({**AVERAGE, "switch_deficit": 0.5}, "have no rounds to end early"),
        ({"views": "isolated:Nothing"}, "cannot be imported"),
    ],
)
def test_refusals(stores, tmp_path, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        train(stores[6], tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_store_of_one_part_makes_no_pair(stores, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"one partition gives no pair.*--parts 2"):
        train(stores[1], tmp_path / "run", **SWEEP)


def test_a_part_without_training_nodes_is_told_of(stores, tmp_path) -> None:
    train(stores[6], tmp_path / "run", **AVERAGE)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "part 5: no training node, so weight 0" in text
    assert "6 parts over 1 worker (cyclic, halo none, model-average)" in text


def test_batches_without_neighbors_are_logged(tmp_path) -> None:
    """Two nodes a part: hardly any seed has a neighbor in its view."""
    base = small_random_store(tmp_path / "g", 60, 200)
    np.save(tmp_path / "parts.npy", np.arange(60) % 30)
    partita.partition(base, tmp_path / "many", parts=30, algorithm=str(tmp_path / "parts.npy"))
    train(partita.open(tmp_path / "many"), tmp_path / "run", views="cyclic", batch_size=4, epochs=1)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    blind = [line for line in lines if line["event"] == "no_neighbors"]
    assert blind
    assert all(line["batches"] == 1 and line["deficit"] > 0 for line in blind)


class Backwards(Cyclic):
    """The parts from the last one to the first."""

    def assignment(self, epoch, switches=()):
        return super().assignment(epoch)[::-1]


class Unweighted(ModelAverage):
    """Every view counts the same."""

    def join_models(self, members, group):
        return super().join_models([type(m)(m.model, m.optimizer, 1.0) for m in members], group)


def test_schedules_and_syncs_of_ones_own(stores, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(schedules.VIEW_SCHEDULES, "_entries", {**schedules.VIEW_SCHEDULES._entries})
    monkeypatch.setattr(syncs.SYNCS, "_entries", {**syncs.SYNCS._entries})
    schedules.VIEW_SCHEDULES.register("backwards", Backwards)
    syncs.SYNCS.register("unweighted", Unweighted)
    train(stores[6], tmp_path / "own", views="backwards", sync="unweighted", precision="float64")
    train(stores[6], tmp_path / "plain", **AVERAGE, precision="float64")
    found, plain = model_of(tmp_path / "own"), model_of(tmp_path / "plain")
    assert any(np.abs(found[name] - plain[name]).max() > 1e-6 for name in plain)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "support")
    imported = "partita.isolated.schedules:Cyclic"
    train(stores[6], tmp_path / "imported", views=imported, sync="model-average", precision="float64")
    assert_same(tmp_path / "imported", tmp_path / "plain")


def test_more_epochs_keep_the_rounds(stores, tmp_path) -> None:
    train(stores[6], tmp_path / "run", **SWEEP, epochs=5)
    assert partita.Trainer.resume(tmp_path / "run", epochs=7).fit().status == "finished"
    assert len(epochs_of(tmp_path / "run")) == 7


def test_event_steps_are_those_of_the_trainer() -> None:
    assert trainer.STEP_EVENTS % train_phase.SETTLE_STEPS == 0
