"""Who multiplies in a run: what is fastest where that matters, the same again when the run goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.nn import matmul
from partita.nn.decoders import build_decoder
from partita.nn.matmul import TORCH, Backend
from partita.nn.model import build_model
from partita.testing.graphs import small_random_store
from partita.train import matmul_backend as choice
from partita.train.matmul_backend import Shape, batch_rows, fastest, seconds_of, shapes_of, shapes_of_scores

SETTINGS = {"layers": 2, "hidden": 32, "fanout": "4,3", "batch_size": 300, "epochs": 2, "threads": 1}
needs_onednn = pytest.mark.skipif(not matmul.onednn_works(), reason="this PyTorch has no oneDNN")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 700, 4000, num_features=24)


@pytest.fixture
def worth(monkeypatch) -> None:
    monkeypatch.setattr(choice, "WORTH_FLOP", 0)


def measuring(monkeypatch, **seconds: float) -> list[Counter[Shape]]:
    """Let a measurement find this; what it was asked to measure."""
    asked: list[Counter[Shape]] = []

    def found(shapes: Counter[Shape]) -> dict[str, float]:
        asked.append(shapes)
        return {name.replace("_", "-"): value for name, value in seconds.items()}

    monkeypatch.setattr(choice, "seconds_of", found)
    return asked


@contextmanager
def counting(monkeypatch) -> Iterator[list[int]]:
    calls, original = [0], matmul._onednn

    def count(*given: torch.Tensor | None) -> torch.Tensor:
        calls[0] += 1
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(matmul, "_onednn", count)
        yield calls


def notes(run: Path) -> list[str]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if line["event"] == "note"]


def test_rows_of_a_batch() -> None:
    config = Config(layers=2, fanout="10,5", batch_size=100)
    assert batch_rows(config, 10_000, 80_000, 5_000, 1) == [(900, 5_400), (100, 900)]
    assert batch_rows(config, 10_000, 80_000, 5_000, 2) == [(450, 2_700), (50, 450)]
    assert batch_rows(config, 10_000, 20_000, 60, 1) == [(180, 540), (60, 180)]
    assert batch_rows(config, 3_000, 80_000, 3_000, 1)[0] == (1_100, 3_000)
    whole = Config(layers=1, fanout="-1", batch_size=0)
    assert batch_rows(whole, 10_000, 30_000, 2_000, 1) == [(2_000, 8_000)]
    layer = Config(layers=1, sampler="layer", layer_budget="512", batch_size=100)
    assert batch_rows(layer, 10_000, 80_000, 5_000, 2) == [(50, 306)]


def test_shapes_are_those_of_linear_maps_that_are_wide_and_tall_enough() -> None:
    rows = [(5_000, 20_000), (1_000, 5_000)]
    model = build_model("sage", in_width=100, hidden=64, out_width=40, layers=2)
    assert shapes_of(model, rows) == {Shape(5_000, 100, 64, inner=False): 2, Shape(1_000, 64, 40, inner=True): 2}
    assert Shape(10, 3, 5, inner=True).flop == 3 * 300
    assert Shape(10, 3, 5, inner=False).flop == 2 * 300
    wide = build_model("gcn", in_width=800, hidden=64, out_width=4, layers=2)
    assert shapes_of(wide, rows) == {Shape(5_000, 800, 64, inner=False): 1}, "of sums; 4 is narrow"
    attending = build_model("gat", in_width=100, hidden=64, out_width=4, layers=2)
    assert set(shapes_of(attending, rows)) == {Shape(20_000, 100, 64, inner=False)}, "of sources"
    assert not shapes_of(model, [(200, 800), (50, 200)])


def test_shapes_of_scores() -> None:
    wide = build_decoder("complex", 200, 3)
    assert shapes_of_scores(wide, 1024, [512, 512]) == {Shape(1024, 200, 512, inner=True): 2}
    assert shapes_of_scores(wide, 1024, [5_000]) == {Shape(1024, 200, 1667, inner=True): 3}, "in pieces"
    assert shapes_of_scores(build_decoder("complex", 200, 3, reciprocal=True), 1024, [512])
    assert not shapes_of_scores(wide, 100, [512]), "few rows are left to PyTorch"
    assert not shapes_of_scores(wide, 1024, [8]), "and narrow products"
    assert not shapes_of_scores(build_decoder("transe", 200, 3), 1024, [512]), "no product"


@needs_onednn
def test_scores_of_links_are_measured_and_multiplied_as_chosen(monkeypatch, tmp_path, worth) -> None:
    """Where no layer is, as with one."""
    asked = measuring(monkeypatch, torch=3.0, onednn=1.0, onednn_all=2.0)
    graph = partita.generate_rmat(tmp_path / "g", scale=9, edge_factor=8, undirected=True)
    given = {"task": "links", "model": "none", "embed": "32", "hidden": 32, "negatives": 64, "batch_size": 600}
    with counting(monkeypatch) as calls:
        summary = partita.Trainer(graph, out=tmp_path / "run", epochs=1, eval_every=0, threads=1, **given).fit()
    assert asked == [Counter({Shape(600, 32, 64, inner=True): 2})]
    assert summary.record["matmul"] == "onednn"
    assert calls[0] > 0


class Rates:
    """Backends that take time by a clock of their own; the first calls of each take longer."""

    def __init__(self, first: float = 10.0, **rates: float) -> None:
        self.now, self.first = 0.0, first
        self.calls: Counter[str] = Counter()
        self.rows: set[int] = set()
        self.backends = {name: self._backend(name, rate) for name, rate in rates.items()}

    def _backend(self, name: str, rate: float) -> Backend:
        def work(x: torch.Tensor, other: torch.Tensor, *_: object) -> torch.Tensor:
            self.calls[name] += 1
            self.rows.add(len(x))
            self.now += x.numel() / rate + (self.first if self.calls[name] <= 2 else 0.0)
            return x

        return Backend(work, work, work, work)


def test_seconds_are_medians_of_whole_batches() -> None:
    shapes = Counter({Shape(40_000, 64, 32, inner=False): 2})
    rates = Rates(torch=1e6, onednn=2e6)
    found = seconds_of(shapes, rates.backends, lambda: rates.now)
    # forward of rows (64 columns), the weights' gradient of what comes back (32)
    assert found == pytest.approx({"torch": 2 * 40_000 * 96 / 1e6, "onednn": 40_000 * 96 / 1e6}, rel=1e-6)
    assert max(rates.rows) <= 6_144
    assert rates.calls["torch"] == 2 * (1 + 3), "slow ones are measured three times"


def test_fast_machines_measure_more_often_and_the_largest_products_only() -> None:
    shapes = Counter({Shape(5_000, 64, 32, inner=True): 1, Shape(300, 64, 32, inner=True): 1})
    rates = Rates(first=0.0, torch=1e9, onednn=1e9)
    found = seconds_of(shapes, rates.backends, lambda: rates.now)
    assert rates.calls["torch"] == 3 * (1 + 7)
    assert rates.rows == {5_000}
    assert found["torch"] == pytest.approx(found["onednn"])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_it_measures_on_any_number_of_threads(threads) -> None:
    before, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(threads)
    try:
        found = seconds_of(Counter({Shape(700, 20, 24, inner=True): 2}))
    finally:
        torch.set_num_threads(before)
    assert found.keys() == set(matmul.BACKENDS)
    assert min(found.values()) > 0
    assert torch.equal(torch.get_rng_state(), state)


def test_more_threads_are_given_more_rows() -> None:
    shapes, before = Counter({Shape(50_000, 602, 256, inner=False): 2}), torch.get_num_threads()
    rows = {}
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            rows[threads] = choice._sample(shapes)[1]
    finally:
        torch.set_num_threads(before)
    assert rows == {1: 768, 2: 1536, 4: 3072}


def test_another_backend_must_be_a_quarter_faster() -> None:
    assert fastest({"torch": 1.25, "onednn": 1.0, "onednn-all": 2.0}) == ("onednn", 1.25)
    assert fastest({"torch": 3.0, "onednn": 2.0, "onednn-all": 1.5}) == ("onednn-all", 2.0)
    assert fastest({"torch": 1.24, "onednn": 1.0, "onednn-all": 1.5}) == (TORCH, 1.24)
    assert fastest({"torch": 1.0, "onednn": 2.0, "onednn-all": 4.0}) == (TORCH, 0.5)


def test_short_runs_measure_nothing(monkeypatch, tmp_path, store) -> None:
    asked = measuring(monkeypatch, torch=9, onednn=1)
    summary = partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit()
    assert (summary.record["matmul"], asked, notes(tmp_path / "run")) == (TORCH, [], [])


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"precision": "float64"}, {"matmul": "torch"}], ids=str)
def test_where_nothing_can_be_chosen_nothing_is_measured(monkeypatch, tmp_path, store, worth, settings) -> None:
    asked = measuring(monkeypatch, torch=9, onednn=1)
    with counting(monkeypatch) as calls:
        summary = partita.Trainer(store, out=tmp_path / "run", **SETTINGS, **settings).fit()
    assert (summary.record["matmul"], asked, calls) == (TORCH, [], [0])


@needs_onednn
def test_the_faster_one_is_used_recorded_and_named(monkeypatch, tmp_path, store, worth) -> None:
    asked = measuring(monkeypatch, torch=3, onednn=2, onednn_all=1)
    seen = []
    trainer = partita.Trainer(store, out=tmp_path / "run", callbacks=[seen.append], **SETTINGS)
    with counting(monkeypatch) as calls:
        summary = trainer.fit()
    assert calls[0] > 0
    assert len(asked) == 1
    assert {shape.before for shape in asked[0]} == {24}
    assert summary.record["matmul"] == "onednn-all"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["matmul"] == "onednn-all"
    assert notes(tmp_path / "run") == ["matmul backend: onednn-all (3.0x faster than torch here)"]
    assert seen[0]["event"] == "note"
    with counting(monkeypatch) as calls:  # the run is over
        matmul.linear(torch.ones(600, 32), torch.ones(32, 32))
    assert calls == [0]


@needs_onednn
def test_torch_stays_where_the_others_are_hardly_faster(monkeypatch, tmp_path, store, worth) -> None:
    measuring(monkeypatch, torch=1.2, onednn=1, onednn_all=3)
    with counting(monkeypatch) as calls:
        summary = partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit()
    assert (summary.record["matmul"], calls) == (TORCH, [0])
    assert notes(tmp_path / "run") == ["matmul backend: torch (oneDNN is only 1.2x faster here)"]


@needs_onednn
@pytest.mark.parametrize("first", ["onednn", "torch"])
def test_a_resumed_run_keeps_its_backend_and_does_not_measure(monkeypatch, tmp_path, store, worth, first) -> None:
    measuring(monkeypatch, **{"torch": 1, "onednn": 3, "onednn_all": 3, first: 0.1})
    partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit()
    asked = measuring(monkeypatch, **{"torch": 3, "onednn": 3, "onednn_all": 3, first: 100})
    with counting(monkeypatch) as calls:
        summary = partita.Trainer.resume(tmp_path / "run", epochs=3).fit()
    assert (summary.record["matmul"], asked) == (first, [])
    assert (calls[0] > 0) == (first == "onednn")


@needs_onednn
def test_resumed_it_is_as_if_it_had_not_stopped(monkeypatch, tmp_path, store, worth) -> None:
    measuring(monkeypatch, torch=3, onednn=1, onednn_all=2)
    partita.Trainer(store, out=tmp_path / "short", **SETTINGS).fit()
    partita.Trainer.resume(tmp_path / "short", epochs=3).fit()
    partita.Trainer(store, out=tmp_path / "long", **{**SETTINGS, "epochs": 3}).fit()
    models = [
        max((run / "checkpoints").glob("epoch-00003*")).joinpath("model.safetensors").read_bytes()
        for run in (tmp_path / "short", tmp_path / "long")
    ]
    assert models[0] == models[1]


@needs_onednn
def test_another_backend_may_be_given_on_resume(monkeypatch, tmp_path, store, worth) -> None:
    measuring(monkeypatch, torch=3, onednn=1, onednn_all=2)
    partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit()
    assert partita.Trainer.resume(tmp_path / "run", epochs=3, matmul="torch").fit().record["matmul"] == TORCH
    assert partita.Trainer.resume(tmp_path / "run", epochs=4).fit().record["matmul"] == TORCH
    assert partita.Trainer.resume(tmp_path / "run", epochs=5, matmul="auto").fit().record["matmul"] == "onednn"


@needs_onednn
def test_a_run_goes_on_with_torch_where_its_backend_is_missing(monkeypatch, tmp_path, store, worth) -> None:
    measuring(monkeypatch, torch=3, onednn=1, onednn_all=2)
    partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit()
    for module in (matmul, choice):
        monkeypatch.setattr(module, "onednn_works", lambda: False)
    assert partita.Trainer.resume(tmp_path / "run", epochs=3).fit().record["matmul"] == TORCH
    assert notes(tmp_path / "run")[-1] == "matmul backend: torch (onednn is not available here)"


def test_auto_is_torch_where_there_is_nothing_else(monkeypatch, tmp_path, store, worth) -> None:
    monkeypatch.setattr(choice, "onednn_works", lambda: False)
    asked = measuring(monkeypatch, torch=9, onednn=1)
    summary = partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit()
    assert (summary.record["matmul"], asked, notes(tmp_path / "run")) == (TORCH, [], [])


def test_asked_for_by_name_where_it_is_missing_nothing_is_written(monkeypatch, tmp_path, store) -> None:
    monkeypatch.setattr(matmul, "onednn_works", lambda: False)
    with pytest.raises(ConfigError, match="'onednn' needs oneDNN"):
        partita.Trainer(store, out=tmp_path / "run", matmul="onednn", **SETTINGS)
    assert not (tmp_path / "run").exists()


@needs_onednn
@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gin"])
def test_runs_by_name_train_the_same_model(tmp_path, store, model) -> None:
    losses = []
    for name in ("torch", "onednn", "onednn-all"):
        summary = partita.Trainer(store, out=tmp_path / name, **SETTINGS, model=model, matmul=name).fit()
        assert summary.record["matmul"] == name
        losses.append(summary.metrics["val"]["loss"])
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)
