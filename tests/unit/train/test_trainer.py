"""The trainer: the same run twice, interrupted, killed, resumed: always the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import partita
from partita.core.errors import ConfigError, RunError
from partita.graph.splits import write_splits
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.runs.checkpoint import latest_checkpoint, read_state
from partita.testing.graphs import formula_store, small_random_store

SETTINGS = {"layers": 2, "hidden": 16, "fanout": "4,3", "batch_size": 16, "epochs": 3, "seed": 5}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 200, 1200)


def weights(run: Path) -> bytes:
    """The model's bytes in the latest checkpoint."""
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    return (latest / "model.safetensors").read_bytes()


def events(run: Path, kind: str) -> list[dict]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    timed = ("seconds", "seeds_per_second")
    return [{k: v for k, v in e.items() if k not in timed} for e in lines if e["event"] == kind]


MODELS = [
    {"model": "sage"},
    {"model": "sage", "aggregator": "max", "input_dropout": 0.2},
    {"model": "gcn", "norm": "batch"},
    {"model": "gat", "heads": 4, "attn_dropout": 0.3},
    {"model": "gin", "optimizer": "sgd", "lr": 0.001},
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: "-".join(map(str, m.values())))
def test_same_seed_same_bytes_and_another_seed_others(tmp_path, store, model, threads) -> None:
    for name, prefetch, seed in [("a", 0, 5), ("b", 3, 5), ("c", 0, 6)]:
        settings = {**SETTINGS, **model, "threads": threads, "prefetch": prefetch, "seed": seed}
        partita.Trainer(store, out=tmp_path / name, **settings).fit()
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert weights(tmp_path / "a") != weights(tmp_path / "c")
    assert events(tmp_path / "a", "epoch") == events(tmp_path / "b", "epoch")


class _StopAt:
    """A callback that sends SIGINT to this process when a given number of seeds has been trained on."""

    def __init__(self, trainer: partita.Trainer, epoch: int, step: int) -> None:
        self.trainer, self.at, self.original = trainer, (epoch, step), trainer._step

    def __call__(self, train_phase, batch, *rest):
        totals = self.original(train_phase, batch, *rest)
        if (batch.key.epoch, batch.key.step) == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        return totals


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("epoch", "step"), [(0, 0), (1, 3), (1, 7), (2, 6)])
@pytest.mark.parametrize("model", [MODELS[0], MODELS[2]], ids=["sage", "gcn"])
def test_ctrl_c_saves_and_resuming_gives_the_same_bytes(tmp_path, store, epoch, step, threads, model) -> None:
    settings = {**SETTINGS, **model, "threads": threads, "schedule": "cosine", "warmup": 3}
    partita.Trainer(store, out=tmp_path / "whole", **settings).fit()

    first = partita.Trainer(store, out=tmp_path / "cut", **settings)
    first._step = _StopAt(first, epoch, step)  # type: ignore[method-assign]
    summary = first.fit()
    assert summary.status == "interrupted"
    latest = latest_checkpoint(tmp_path / "cut" / "checkpoints")
    assert latest is not None
    state = read_state(latest)
    assert (state.epoch, state.step) == ((epoch, step + 1) if step < 7 else (epoch + 1, 0))

    resumed = partita.Trainer.resume(tmp_path / "cut")
    assert resumed.fit().status == "finished"
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert events(tmp_path / "cut", "epoch") == events(tmp_path / "whole", "epoch")
    whole = partita.runs.folder.RunFolder.open(tmp_path / "whole").read_record()
    cut = partita.runs.folder.RunFolder.open(tmp_path / "cut").read_record()
    assert cut["metrics"] == whole["metrics"]
    assert cut["counts"] == whole["counts"]
    assert len(cut["resumed"]) == 1


_KILLED = """
import os, signal, sys
import partita
store, run, threads, epoch, step, stage = sys.argv[1:]
settings = dict(layers=2, hidden=16, fanout="4,3", batch_size=16, epochs=3, seed=5, threads=int(threads),
                checkpoint_minutes=1e-9)
trainer = partita.Trainer(store, out=run, **settings)
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
at = (int(epoch), int(step))
if stage == "step":
    original = trainer._step
    def stop(train_phase, batch, *rest):
        if (batch.key.epoch, batch.key.step) == at:
            die()
        return original(train_phase, batch, *rest)
    trainer._step = stop
else:
    import partita.runs.checkpoint as checkpoint
    original = checkpoint._flatten_optimizer
    def stop(model, optimizer):
        if (trainer._state.epoch, trainer._state.step) == at:
            die()
        return original(model, optimizer)
    checkpoint._flatten_optimizer = stop
trainer.fit()
"""


@pytest.mark.parametrize(
    ("threads", "epoch", "step", "stage"), [(1, 0, 0, "step"), (2, 1, 3, "step"), (1, 1, 2, "save"), (2, 2, 0, "save")]
)
def test_killed_in_a_step_or_while_saving_and_resumed_gives_the_same_bytes(
    tmp_path, store, threads, epoch, step, stage
) -> None:
    arguments = [store.path, tmp_path / "cut", threads, epoch, step, stage]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(_KILLED), *map(str, arguments)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert partita.Trainer.resume(tmp_path / "cut").fit().status == "finished"
    partita.Trainer(store, out=tmp_path / "whole", **SETTINGS, threads=threads).fit()
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert not [path for path in (tmp_path / "cut" / "checkpoints").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "gin"])
def test_a_reordered_store_trains_the_same_model(tmp_path, name) -> None:
    settings = {**SETTINGS, "model": name, "fanout": "2,2"}
    for order, seed in [("plain", None), ("shuffled", 3)]:
        graph = formula_store(tmp_path / f"{order}-store", num_nodes=120, shuffle_seed=seed)
        partita.Trainer(graph, out=tmp_path / order, **settings).fit()
    assert weights(tmp_path / "plain") == weights(tmp_path / "shuffled")


def test_float16_features_train_as_their_float32_copy(tmp_path) -> None:
    for dtype in ("float32", "float16"):
        graph = formula_store(tmp_path / f"{dtype}-store", dtype=dtype)
        partita.Trainer(graph, out=tmp_path / dtype, **SETTINGS).fit()
    assert weights(tmp_path / "float32") == weights(tmp_path / "float16")


@pytest.mark.parametrize("precision", ["float32", "bf16", "float64"])
def test_precisions_learn(tmp_path, precision) -> None:
    graph = formula_store(tmp_path / "g", num_nodes=120, num_classes=3)
    settings = {**SETTINGS, "precision": precision, "epochs": 30, "dropout": 0.0}
    summary = partita.Trainer(graph, out=tmp_path / "run", **settings).fit()
    losses = [event["loss"] for event in events(tmp_path / "run", "epoch")]
    assert losses[-1] < 0.7 * losses[0]
    latest = latest_checkpoint(summary.path / "checkpoints")
    assert latest is not None
    kinds = {tensor.dtype for tensor in load_file(latest / "model.safetensors").values()}
    assert kinds == {torch.float64 if precision == "float64" else torch.float32}


def other_task(path: Path, task: str) -> GraphStore:
    """The random store's graph with labels of another task that follow from its features."""
    graph = small_random_store(path.with_name("base"), 300, 1500)
    x = graph.x
    assert x is not None
    y = x[:, 0].astype("float32") if task == "regression" else (x[:, :3] > 0).astype("uint8")
    with StoreWriter(path) as writer:
        for name in ("indptr", "indices", "x", "part_offsets"):
            writer.write(name, graph.column(name))
        writer.write("y", y)
        write_splits(writer, {name: ids.copy() for name, ids in graph.splits.items()})
        writer.finish(num_nodes=300, num_edges=graph.num_edges, task=task, num_classes=1 if task == "regression" else 3)
    return GraphStore.open(path)


@pytest.mark.parametrize(("task", "metric"), [("regression", "mae"), ("multilabel", "micro_f1")])
def test_other_tasks_learn(tmp_path, task, metric) -> None:
    graph = other_task(tmp_path / "g", task)
    settings = {**SETTINGS, "epochs": 25, "dropout": 0.0, "lr": 0.01}
    summary = partita.Trainer(graph, out=tmp_path / "run", **settings).fit()
    losses = [event["loss"] for event in events(tmp_path / "run", "epoch")]
    assert losses[-1] < 0.5 * losses[0]
    assert metric in summary.metrics["test"]
    assert summary.record["best"]["metric"] == metric


def test_early_stopping_and_the_best_weights(tmp_path, store) -> None:
    settings = {**SETTINGS, "epochs": 60, "patience": 3, "lr": 0.05}
    summary = partita.Trainer(store, out=tmp_path / "run", **settings).fit()
    assert summary.record["early_stopped"]
    assert summary.record["epoch"] < 60
    best = summary.record["best"]
    seen = [event["val_accuracy"] for event in events(tmp_path / "run", "epoch")]
    assert best["value"] == max(seen)
    assert best["epoch"] == 1 + seen.index(max(seen))
    assert summary.record["epoch"] == best["epoch"] + 3
    assert summary.metrics["val"]["accuracy"] == best["value"]
    again = partita.evaluate(tmp_path / "run", split="val")
    assert again["accuracy"] == best["value"]
    assert partita.Trainer.resume(tmp_path / "run").fit().record["epoch"] == summary.record["epoch"]


def test_more_epochs_on_resume(tmp_path, store) -> None:
    partita.Trainer(store, out=tmp_path / "short", **{**SETTINGS, "epochs": 2}).fit()
    partita.Trainer.resume(tmp_path / "short", epochs=3).fit()
    partita.Trainer(store, out=tmp_path / "long", **SETTINGS).fit()
    assert weights(tmp_path / "short") == weights(tmp_path / "long")


def test_the_run_folder(tmp_path, store) -> None:
    seen = []
    summary = partita.Trainer(store, out=tmp_path / "run", callbacks=[seen.append], **SETTINGS).fit()
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {
        "analysis.json",
        "checkpoints",
        "config.yaml",
        "events",
        "metrics.jsonl",
        "run.json",
    }
    record = json.loads((run / "run.json").read_text())
    assert record == {"format": 1, **summary.record}
    assert record["status"] == "finished"
    assert set(record["metrics"]) == {"val", "test"}
    assert record["counts"]["computed_destinations"][1] == 3 * 120
    assert record["counts"]["input_rows_read"] <= record["counts"]["row_reads"]
    assert record["peak_memory_bytes"] > 0
    assert set(record["stage_seconds"]) == {
        "wait_for_view", "wait_for_batch", "forward", "backward", "sum_gradients", "settle", "optimizer", "join_models",
        "evaluate", "checkpoint",
    }  # fmt: skip
    assert [event["event"] for event in seen] == ["note", *["epoch"] * 3, "baseline"]
    assert partita.Config.load(run / "config.yaml").batch_size == 16
    assert list((run / "events").iterdir())


def test_bad_starts_write_nothing(tmp_path, store) -> None:
    bare = formula_store(tmp_path / "bare", num_features=0)
    unlabeled = formula_store(tmp_path / "unlabeled", num_classes=0)
    for graph, settings, error, words in [
        (bare, {}, ConfigError, "no features"),
        (unlabeled, {}, ConfigError, "no labels"),
        (store, {"model": "sgae"}, ConfigError, "'sage'"),
        (store, {"weighted": True}, ConfigError, "edge weight"),
        (store, {"metric": "mae"}, ConfigError, "not reported"),
        (store, {"epohcs": 3}, ConfigError, "'epochs'"),
        (store, {"activation": "relo"}, ConfigError, "'relu'"),
    ]:
        with pytest.raises(error, match=words):
            partita.Trainer(graph, out=tmp_path / "run", **settings)
        assert not (tmp_path / "run").exists()


def changed(path: Path, base: GraphStore, **columns) -> GraphStore:
    """A copy of a store with other labels or splits."""
    with StoreWriter(path) as writer:
        for name in ("indptr", "indices", "x", "y", "part_offsets", "split_train", "split_val", "split_test"):
            writer.write(name, columns.get(name, base.column(name)))
        writer.finish(num_nodes=base.num_nodes, num_edges=base.num_edges, task=base.task, num_classes=base.num_classes)
    return GraphStore.open(path)


def test_seeds_must_be_there_and_have_labels(tmp_path, store) -> None:
    y = store.y.copy()
    y[store.split("train")[3]] = -1
    unlabeled = changed(tmp_path / "unlabeled", store, y=y)
    empty = changed(tmp_path / "empty", store, split_train=store.split("train")[:0])
    for graph, words in [(unlabeled, "without a label"), (empty, "split is empty")]:
        with pytest.raises(ConfigError, match=words):
            partita.Trainer(graph, out=tmp_path / "run", **SETTINGS)
        assert not (tmp_path / "run").exists()


def test_nodes_without_a_label_are_left_out_of_metrics(tmp_path, store) -> None:
    y = store.y.copy()
    y[store.split("val")[::2]] = -1
    graph = changed(tmp_path / "g", store, y=y)
    halved = changed(tmp_path / "h", store, split_val=store.split("val")[1::2])
    runs = [partita.Trainer(g, out=tmp_path / n, **SETTINGS).fit() for n, g in (("a", graph), ("b", halved))]
    assert runs[0].metrics["val"] == runs[1].metrics["val"]


def test_what_cannot_be_resumed_says_so(tmp_path, store) -> None:
    partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit()
    with pytest.raises(ConfigError, match=r"'lr' cannot change.*epochs"):
        partita.Trainer.resume(tmp_path / "run", lr=0.1)
    other = small_random_store(tmp_path / "other", 200, 1200, seed=1)
    with pytest.raises(RunError, match="another store"):
        partita.Trainer.resume(tmp_path / "run", store=other.path)
    with pytest.raises(RunError, match="not a run folder"):
        partita.Trainer.resume(tmp_path / "absent")
    with pytest.raises(RunError, match="--resume"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS)


def test_a_state_of_another_model_is_refused(tmp_path, store) -> None:
    run = partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit().path
    state = latest_checkpoint(run / "checkpoints") / "state.json"
    content = json.loads(state.read_text())
    content["counts"]["computed_destinations"] += [1]
    state.write_text(json.dumps(content))
    (state.parent / "digests.json").unlink()
    with pytest.raises(RunError, match=r"state\.json: is damaged: counts of \d layers, and the model has \d"):
        partita.Trainer.resume(run, epochs=9)


def test_the_end_of_a_run_is_told_once_however_often_it_failed(tmp_path, store) -> None:
    whole = partita.Trainer(store, out=tmp_path / "whole", **SETTINGS).fit().path
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "status": "failed: ResourceError"}))
    partita.Trainer.resume(run).fit()
    logs = [(path / "metrics.jsonl").read_text() for path in (run, whole)]
    assert logs[0] == logs[1]
    partita.Trainer.resume(run).fit()
    assert "epochs are done; to train longer" in (run / "metrics.jsonl").read_text()


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, store) -> None:
    settings = {**SETTINGS, "optimizer": "sgd", "lr": 1000.0, "norm": "none", "epochs": 50}
    with pytest.raises(RunError, match=r"loss is (nan|inf).*--lr"):
        partita.Trainer(store, out=tmp_path / "run", **settings).fit()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed: RunError"


def test_a_model_of_ones_own(tmp_path, store) -> None:
    from torch_geometric.nn import GraphConv

    def make() -> partita.Model:
        torch.manual_seed(0)
        convs = [GraphConv((8, 8), 16), GraphConv((16, 16), 4)]
        return partita.Model.from_layers(
            [partita.PygLayer(convs[0], 8, 16), partita.PygLayer(convs[1], 16, 4)], dropout=0.2
        )

    for name in ("a", "b"):
        partita.Trainer(store, out=tmp_path / name, model=make(), **SETTINGS).fit()
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    with pytest.raises(RunError, match="model of your own"):
        partita.evaluate(tmp_path / "a")
    assert "accuracy" in partita.evaluate(tmp_path / "a", model=make())
