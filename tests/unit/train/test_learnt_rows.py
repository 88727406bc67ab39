"""Runs with learnt rows in one process: trained, saved, resumed, evaluated, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typed_graphs import typed_store

import partita
from partita.config import Config
from partita.core.errors import ConfigError, PartitaError, RunError
from partita.graph.store import GraphStore
from partita.runs.checkpoint import check_checkpoint, latest_checkpoint
from partita.runs.learnt_files import LEARNT
from partita.testing.graphs import small_random_store

SETTINGS = {"layers": 2, "hidden": 8, "fanout": "4,3", "batch_size": 16, "epochs": 2, "threads": 1}


class Crashed(Exception):
    """Stands for any end that saves nothing."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphStore]:
    """A graph with features, the same without, and a typed one."""
    folder = tmp_path_factory.mktemp("stores")
    generator = np.random.default_rng(5)
    edges, labels = generator.integers(0, 200, (2, 1200)), generator.integers(0, 3, 200)
    np.savez(folder / "bare.npz", edge_index=edges, y=labels)
    partita.ingest(folder / "bare.npz", folder / "bare", split=(0.6, 0.2, 0.2))
    return {
        "features": small_random_store(folder / "g", 200, 1200),
        "bare": GraphStore.open(folder / "bare"),
        "typed": typed_store(folder / "typed", 240, parts=2),
    }


def learnt_of(run: Path) -> dict[str, torch.Tensor]:
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    return load_file(latest / LEARNT)


def files(run: Path) -> dict[str, bytes]:
    found = sorted((run / "checkpoints").rglob("*.safetensors"))
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("graph", "more", "widths"),
    [
        ("bare", {"embed": 8}, {"node": 8}),
        ("bare", {"embed": {"*": 5}, "model": "gat", "embed_optimizer": "adagrad"}, {"node": 5}),
        ("features", {"embed": "4", "embed_optimizer": "sgd", "schedule": "linear"}, {"node": 4}),
        ("typed", {"embed": 6, "model": "rgcn"}, {"place": 6}),
        ("typed", {"embed": "author=3 *=8", "model": "hgt"}, {"paper": 8, "author": 3, "place": 8}),
    ],
)
def test_a_run_trains_them_and_what_is_evaluated_later_is_what_was_evaluated(stores, tmp_path, graph, more, widths):
    summary = partita.Trainer(stores[graph], out=tmp_path / "run", **SETTINGS, **more).fit()
    found = learnt_of(tmp_path / "run")
    held = {name.removeprefix("rows/"): tuple(rows.shape) for name, rows in found.items() if name.startswith("rows/")}
    sizes = {name: len(stores[graph].nodes_of(name)) if graph == "typed" else 200 for name in widths}
    assert held == {name: (sizes[name], width) for name, width in widths.items()}
    assert int(found["steps"]) == 2 * -(-len(stores[graph].split("train")) // 16)
    later = partita.evaluate(tmp_path / "run", split="test")
    for name, value in summary.record["metrics"]["test"].items():
        assert later[name] == pytest.approx(value, rel=1e-6)
    assert len(partita.predict(tmp_path / "run").ids)
    check_checkpoint(latest_checkpoint(tmp_path / "run" / "checkpoints"))
    assert set(summary.record["learnt"]["types"]) == set(widths)


def test_rows_that_are_learnt_tell_nodes_apart(stores, tmp_path) -> None:
    """Random labels: a graph says nothing about them, but rows of the training nodes can."""
    settings = {**SETTINGS, "model": "mlp", "layers": 1, "fanout": "4", "epochs": 40, "eval_every": 0}
    settings |= {"embed": 8, "embed_lr": 0.05, "lr": 0.05}
    partita.Trainer(stores["bare"], out=tmp_path / "run", **settings).fit()
    assert partita.evaluate(tmp_path / "run", split="train")["accuracy"] > 0.9


def test_a_killed_run_goes_on_to_the_same_bytes(stores, tmp_path) -> None:
    for name, more in (("bare", {"embed": 8}), ("typed", {"embed": "*=4", "model": "rgcn"})):
        settings = {**SETTINGS, **more, "checkpoint_steps": 2}
        partita.Trainer(stores[name], out=tmp_path / f"{name}-whole", **settings).fit()
        cut = partita.Trainer(stores[name], out=tmp_path / f"{name}-cut", **settings)
        original = cut._step

        def crash(*arguments, cut=cut, original=original):
            if (cut._state.epoch, cut._state.step) == (1, 2):
                raise Crashed
            return original(*arguments)

        cut._step = crash
        with pytest.raises(Crashed):
            cut.fit()
        assert partita.Trainer.resume(tmp_path / f"{name}-cut").fit().status == "finished"
        assert files(tmp_path / f"{name}-cut") == files(tmp_path / f"{name}-whole")
        assert any(LEARNT in path for path in files(tmp_path / f"{name}-cut"))


FILES = {
    "none": {"embed_memory": 0},
    "some": {"embed_memory": "7KB"},
    "far": {"embed_memory": "7KB", "look_ahead": 100},
    "in one thread": {"embed_memory": "7KB", "prefetch": 0},
}


@pytest.mark.parametrize("graph", ["bare", "typed"])
def test_files_change_no_bit(stores, tmp_path, graph) -> None:
    """Of one table, or of two of which one is in memory."""
    settings = {**SETTINGS, "embed": 8 if graph == "bare" else "place=3 author=40", "clip_norm": 0.5, "epochs": 3}
    settings |= {} if graph == "bare" else {"model": "rgcn"}
    partita.Trainer(stores[graph], out=tmp_path / "memory", **settings).fit()
    for name, more in FILES.items():
        record = partita.Trainer(stores[graph], out=tmp_path / name, **settings, **more).fit().record
        assert files(tmp_path / "memory") == files(tmp_path / name), name
        (reads,) = record["learnt_reads"]
        assert reads["rows"] > 0
        assert (reads["kept"] > 0) == (name != "none")
        assert reads["look_ahead"] >= (100 if name == "far" else 4)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        epochs = [line["learnt_reads"]["asked"] for line in map(json.loads, lines) if line["event"] == "epoch"]
        assert sum(epochs) == reads["asked"]


def test_a_norm_is_that_of_all_gradients(stores, tmp_path) -> None:
    """Clipped to a norm that no step reaches, nothing changes; with SGD, a lower one makes every step shorter."""
    settings = {
        **SETTINGS,
        "embed": 8,
        "optimizer": "sgd",
        "embed_optimizer": "sgd",
        "epochs": 1,
        "precision": "float64",
    }
    begun = partita.Trainer(stores["bare"], out=tmp_path / "begun", **settings).job.learnt.tables[0].rows.clone()
    moved = {}
    for norm in (0.0, 1e6, 1e-3):
        run = tmp_path / f"run{norm}"
        partita.Trainer(stores["bare"], out=run, clip_norm=norm, **settings).fit()
        moved[norm] = float((learnt_of(run)["rows/node"] - begun).norm())
    assert moved[1e6] == pytest.approx(moved[0.0], rel=1e-9)
    assert 0 < moved[1e-3] < 0.003 * 1e-3 * 9  # a step is the rate times the norm, at most


@pytest.mark.parametrize(
    ("graph", "more", "words"),
    [
        ("bare", {}, "--embed 64"),
        ("bare", {"embed": "paper=4"}, "no node type 'paper'"),
        ("typed", {"embed": "papr=4", "model": "rgcn"}, "no node type 'papr'"),
        ("bare", {"embed": 0}, "from 1 to"),
        ("bare", {"embed": "author 4"}, "TYPE=COLUMNS"),
        ("bare", {"embed": 4, "embed_optimizer": "adamm"}, "adam"),
        ("features", {"embed": 4, "model": "torch_geometric.nn:GraphSAGE"}, "computed as a whole"),
        ("typed", {"embed": 4, "model": "rgcn", "views": "cyclic"}, "views"),
        ("bare", {"embed": 4, "copy_checkpoints": True}, "copy_checkpoints"),
    ],
)
def test_what_does_not_go_together_is_refused(stores, tmp_path, graph, more, words) -> None:
    with pytest.raises(ConfigError, match=words):
        partita.Trainer(stores[graph], out=tmp_path / "run", **{**SETTINGS, **more})
    assert not (tmp_path / "run").exists()


def test_other_nodes_and_plain_pyg_are_refused(stores, tmp_path) -> None:
    partita.Trainer(stores["features"], out=tmp_path / "run", embed=4, **SETTINGS).fit()
    other = small_random_store(tmp_path / "other", 300, 900)
    with pytest.raises(RunError, match="learnt the rows of the nodes"):
        partita.evaluate(tmp_path / "run", store=other.path, split="test")
    with pytest.raises(ConfigError, match="learnt"):
        partita.export_model(tmp_path / "run", tmp_path / "out")
    with pytest.raises(ConfigError, match="cannot change"):
        partita.Trainer.resume(tmp_path / "run", embed=5)


def test_damage_and_other_rows_are_told(stores, tmp_path) -> None:
    partita.Trainer(stores["bare"], out=tmp_path / "run", embed=4, **SETTINGS).fit()
    for path in (tmp_path / "run" / "checkpoints").rglob(LEARNT):
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    for use in (partita.evaluate, partita.Trainer.resume):
        with pytest.raises(RunError, match="does not match its digest"):
            use(tmp_path / "run")
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("embed_optimizer: adam", "embed_optimizer: adagrad"))
    with pytest.raises(RunError, match="other learnt rows"):
        partita.Trainer.resume(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").rglob(LEARNT):
        path.write_bytes(b"\xff" * 30)
    for use in (partita.evaluate, partita.Trainer.resume):
        with pytest.raises(PartitaError, match="damaged"):
            use(tmp_path / "run")
    for path in list((tmp_path / "run" / "checkpoints").rglob(LEARNT)):
        path.unlink()
    with pytest.raises(RunError, match="no learnt rows"):
        partita.evaluate(tmp_path / "run")


def test_settings_read_widths_in_every_form() -> None:
    assert Config.make({"embed": "64"}).embed == 64
    assert Config.make({"embed": "author=64 paper=32"}).embed == {"author": 64, "paper": 32}
    assert Config.make({"embed": "author=64,*=32"}).embed == {"author": 64, "*": 32}
    assert Config.make({"embed": {"author": 64}}).embed == {"author": 64}
    for wrong in ("a=1 a=2", "=3", "a=b", "x", {}, {"a": 0}, -1):
        with pytest.raises(ConfigError):
            Config.make({"embed": wrong})


LIMITED = """
import resource, sys
import partita

LIMIT = 36 * 2**20
store, run, memory = sys.argv[1:]
settings = dict(layers=1, hidden=4, fanout="4", model="mlp", batch_size=64, epochs=1, prefetch=0, threads=1,
    memory_limit="4MiB", matmul="torch", eval_every=0)
partita.Trainer(store, out=run + "-before", embed=1, embed_memory=0, **settings).fit()  # what is loaded once is loaded
held = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (held + LIMIT, held + LIMIT))
try:
    trainer = partita.Trainer(store, out=run, embed=256, embed_memory=memory, **settings)
except (MemoryError, RuntimeError, partita.PartitaError) as error:
    raise SystemExit(f"no memory: {error}")
(table,) = trainer.job.learnt.tables.values()
assert table.held.num_rows * sum(table.held.widths.values()) * 4 >= 10 * LIMIT > 100 * table.held.num_bytes
trainer.fit(progress=False)
partita.evaluate(run, split="val", memory_limit="4MiB")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA of other systems counts other things")
def test_a_table_of_ten_times_the_memory_is_trained_saved_and_evaluated(tmp_path) -> None:
    """The limit is on what the process takes beyond what it holds when training begins."""
    nodes = 130_000
    generator = np.random.default_rng(1)
    edges = generator.integers(0, nodes, (2, 2000)).astype(np.int32)
    labels = np.full(nodes, -1)
    labels[:1000] = np.arange(1000) % 3
    np.savez(tmp_path / "g.npz", edge_index=edges, y=labels)
    partita.ingest(tmp_path / "g.npz", tmp_path / "g", split=(0.6, 0.2, 0.2))

    def train(memory: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LIMITED, str(tmp_path / "g"), str(tmp_path / f"run{memory}"), memory]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert "no memory" in train("1GiB").stderr
    done = train("0")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run0" / "run.json").read_text())
    assert record["status"] == "finished"
    rows = learnt_of(tmp_path / "run0")["rows/node"]
    assert tuple(rows.shape) == (nodes, 256)
