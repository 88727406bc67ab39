"""Inference by several workers: the rows, metrics and files of one process, whatever the workers, hosts and layers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from commands import run_partita
from meters import bytes_sent
from small_columns import small_column
from steps import make_layer
from torch import Tensor

import partita
from partita.comm.meter import KINDS
from partita.comm.threads import ThreadGroups
from partita.core.errors import ConfigError, ResourceError
from partita.features.rows import FeatureColumn, l1_scale
from partita.graph.hashing import normal
from partita.graph.store import GraphStore
from partita.infer.evaluate import evaluate_split
from partita.infer.layerwise import LayerwiseInference
from partita.infer.ranges import Ranges
from partita.infer.row_table import RowTable
from partita.nn.model import Model
from partita.runs.checkpoint import TrainState, save_checkpoint, share_checkpoint
from partita.sample.topology import LocalTopology
from partita.tasks.nodes import Classes
from partita.testing.graphs import formula_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

pytestmark = pytest.mark.usefixtures("libraries")

# The last layer is narrow enough for its sources to be projected before they are summed.
N, WIDTH, HIDDEN, CLASSES = 60, 12, 9, 2
KINDS_OF_LAYERS = ("sage", "sage-max", "gcn", "gat", "gin", "pyg-graph")
MESHES = [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (3, 3)]
IN_FLOAT32 = [(3, 1), (4, 2)]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
# Bounds by number of workers; the second one owns nothing where there are three or more.
PARTS = {1: (0, N), 2: (0, 25, N), 3: (0, 20, 20, N), 4: (0, 10, 10, 37, N)}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    """Re-ordered, with multi-edges, loops and nodes without neighbors."""
    return formula_store(tmp_path_factory.mktemp("inference") / "g", num_nodes=N, num_classes=CLASSES, shuffle_seed=3)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files, which must be empty afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    # torch_geometric and torchrun leave things of their own there.
    assert list(folder.glob("partita*")) == []


def model_of(kind: str, dtype: torch.dtype, layers: int = 3) -> Model:
    widths = [WIDTH, *[HIDDEN] * (layers - 1), CLASSES]
    made = [make_layer(kind, i, o, n == layers - 1) for n, (i, o) in enumerate(pairwise(widths))]
    model = Model.from_layers(made, activation="elu", dropout=0.5)
    model.reset(27)
    return model.to(dtype)


def column_of(dtype: torch.dtype, nodes: slice = slice(None), *, scaled: bool = False, stored=None) -> FeatureColumn:
    if stored == torch.int8:
        x = torch.from_numpy(normal(7, np.arange(N * WIDTH)).reshape(N, WIDTH))
        column = small_column(x, "int8", dtype=dtype)
        rows = column.x[nodes]
        return replace(column, x=rows, scale=l1_scale(rows, column.levels) if scaled else None)
    x = torch.from_numpy(normal(7, np.arange(N * WIDTH)).reshape(N, WIDTH)).to(stored or dtype)[nodes]
    return FeatureColumn(x, dtype=dtype, scale=l1_scale(x) if scaled else None)


@lru_cache(maxsize=64)
def alone(store: GraphStore, kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    inference = LayerwiseInference(model_of(kind, dtype), LocalTopology(store), column_of(dtype))
    (rows,) = inference.run()
    return rows.output, rows.embedding


def on_workers(store, kind, dtype, mesh, ids=None, *, bounds=None, layers=3, inputs=None, **options) -> tuple:
    """Ids, outputs and embeddings that the first worker gets; the groups; number of pieces."""
    groups = ThreadGroups(*mesh)
    models = [model_of(kind, dtype, layers) for _ in range(mesh[0])]  # PyG's initialization draws from one generator

    def work(context):
        ranges = Ranges(context.mesh, bounds) if bounds else Ranges.of(store, context.mesh)
        rows = column_of(dtype) if inputs is None else inputs(ranges)
        inference = LayerwiseInference(
            models[context.mesh.rank], LocalTopology(store), rows, context=context, ranges=ranges, **options
        )
        return list(inference.collect(ids, embeddings=True))

    pieces, *others = groups.run(work)
    assert others == [[]] * len(others)
    together = [torch.cat([getattr(rows, name) for rows in pieces]) for name in ("ids", "output", "embedding")]
    return *together, groups, len(pieces)


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


def cases_of_rows() -> list[Any]:
    """Everything in float64; in float32, whose bound is wider, two meshes that have it all, and the others as slow."""
    return [
        pytest.param(
            kind, mesh, dtype, id=f"{kind.replace('-', '_')}-{mesh[0]}/{mesh[1]}-{str(dtype).removeprefix('torch.')}",
            marks=() if dtype == torch.float64 or mesh in IN_FLOAT32 else pytest.mark.slow,
        )
        for kind, mesh, dtype in product(KINDS_OF_LAYERS, MESHES, (torch.float64, torch.float32))
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "mesh", "dtype"), cases_of_rows())
def test_any_workers_give_the_rows_of_one(store, kind, mesh, dtype) -> None:
    output, embedding = alone(store, kind, dtype)
    for bounds in (None, PARTS[mesh[0]]):
        for memory_limit in (None, 3000):  # one block in memory; or many blocks, everything spilled
            ids, found, inputs, groups, _ = on_workers(
                store, kind, dtype, mesh, bounds=bounds, memory_limit=memory_limit
            )
            assert ids.tolist() == list(range(N))
            assert_near(found, output, dtype)
            assert_near(inputs, embedding, dtype)
            assert torch.equal(found.argmax(1), output.argmax(1))
            sent = bytes_sent(groups)
            assert sent["features"] == sent["backward"] == sent["gradients"] == 0


@pytest.mark.parametrize("kind", KINDS_OF_LAYERS)
@pytest.mark.parametrize("mesh", [(1, 1), (3, 1), (4, 2)], ids=str)
def test_tables_read_in_order_give_the_same_rows(store, kind, mesh) -> None:
    output, embedding = alone(store, kind, torch.float64)
    wanted = torch.tensor([45, 2, 59, 11, 30])
    # From one chunk in memory to many chunks and blocks, everything spilled.
    for memory_limit, asked in ((None, None), (3000, None), (20_000, wanted)):
        ids, found, inputs, *_ = on_workers(
            store, kind, torch.float64, mesh, asked, bounds=PARTS[mesh[0]], memory_limit=memory_limit, in_order=True
        )
        assert ids.tolist() == (list(range(N)) if asked is None else asked.tolist())
        assert_near(found, output[ids.long()], torch.float64)
        assert_near(inputs, embedding[ids.long()], torch.float64)


@pytest.mark.parametrize("kind", ["sage", "gat"])
@pytest.mark.parametrize("mesh", [(1, 1), (4, 1), (4, 2)], ids=str)
@pytest.mark.parametrize("ids", [[45, 2, 59, 11, 30], [3, 1, 2], []], ids=str)
def test_only_the_nodes_asked_for_in_their_order(store, kind, mesh, ids) -> None:
    wanted = torch.tensor(ids, dtype=torch.int64)  # of all workers; of one; of none

    def work(context):
        ranges = Ranges.of(store, context.mesh)
        column, options = column_of(torch.float64), {"context": context, "ranges": ranges, "memory_limit": 300}
        inference = LayerwiseInference(model_of(kind, torch.float64), LocalTopology(store), column, **options)
        return list(inference.collect(wanted, embeddings=True))

    pieces, *others = ThreadGroups(*mesh).run(work)
    assert others == [[]] * len(others)
    assert [v for piece in pieces for v in piece.ids.tolist()] == ids
    assert len(pieces) > 1 or len(ids) < 5
    output, embedding = alone(store, kind, torch.float64)
    for piece in pieces:
        assert_near(piece.output, output[piece.ids.long()], torch.float64)
        assert_near(piece.embedding, embedding[piece.ids.long()], torch.float64)


def halo_of(store: GraphStore, ids: list[int], first: int, last: int) -> set[int]:
    return {u for v in ids for u in store.neighbors(v).tolist() if not first <= u < last}


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
@pytest.mark.parametrize(
    ("scaled", "stored"), [(False, torch.float32), (True, torch.float32), (False, torch.int8), (True, torch.int8)]
)
@pytest.mark.parametrize("mesh", [(2, 2), (4, 2), (3, 3)], ids=str)
def test_hosts_that_hold_their_own_input_rows_fetch_each_other_row_once(store, kind, scaled, stored, mesh) -> None:
    # Rows travel as they are stored; some rows of other hosts are there already.
    bounds = PARTS[mesh[0]]
    hot = torch.tensor([0, 21, 22, 23, 38, 39, 40, 58])

    def inputs(ranges: Ranges) -> RowTable:
        first, last = ranges.host
        away = hot[(hot < first) | (hot >= last)]
        home = column_of(torch.float64, slice(first, last), scaled=scaled, stored=stored)
        extra = column_of(torch.float64, scaled=scaled, stored=stored)
        scale = None if extra.scale is None else extra.scale[away]
        return RowTable(home, N, first, away, replace(extra, x=extra.x[away], scale=scale))

    column = column_of(torch.float64, scaled=scaled, stored=stored)
    model = model_of(kind, torch.float64, 2)
    (expected,) = LayerwiseInference(model, LocalTopology(store), column).run()
    wanted = torch.arange(0, N, 7)
    for limit in (None, 2000):
        _, output, _, groups, _ = on_workers(
            store, kind, torch.float64, mesh, wanted, bounds=bounds, inputs=inputs, layers=2, memory_limit=limit
        )
        assert_near(output, expected.output[wanted], torch.float64)
        per_host = mesh[0] // mesh[1]
        rows, hidden = 0, 0
        for host in range(mesh[1]):
            first, last = bounds[host * per_host], bounds[(host + 1) * per_host]
            rows += len(halo_of(store, list(range(first, last)), first, last) - set(hot.tolist()))
            hidden += len(halo_of(store, [v for v in wanted.tolist() if first <= v < last], first, last))
        sent = bytes_sent(groups)
        if kind == "gat":  # what travels are messages, computed from rows at home
            assert sent["features"] == 0
            continue
        assert sent["features"] == rows * (stored.itemsize * WIDTH + 4 * scaled)
        results = sum(1 for v in wanted.tolist() if v >= bounds[1]) * 8 * (CLASSES + HIDDEN)
        width = CLASSES if model.layers[1].split.message_width is not None else HIDDEN
        assert sent["forward"] == hidden * 8 * width + results


def test_on_one_host_nothing_travels_but_results(store) -> None:
    *_, groups, _ = on_workers(store, "sage", torch.float64, (4, 1), torch.tensor([1, 2, 3]), bounds=PARTS[4])
    sent = bytes_sent(groups)
    assert {kind for kind in KINDS if sent[kind]} == {"metadata"}
    *_, groups, _ = on_workers(store, "sage", torch.float64, (4, 1), torch.tensor([1, 2, 50]), bounds=PARTS[4])
    assert bytes_sent(groups)["forward"] == (CLASSES + HIDDEN) * 8


@pytest.mark.parametrize("mesh", [(2, 1), (4, 2)], ids=str)
def test_metrics_are_those_of_one_process(store, mesh) -> None:
    for split in ("train", "val", "test"):

        def work(context, split=split):
            options = {"context": context, "ranges": Ranges.of(store, context.mesh)} if context else {}
            model, column = model_of("gin", torch.float64), column_of(torch.float64)
            return evaluate_split(
                LayerwiseInference(model, LocalTopology(store), column, **options), Classes(store), split
            )

        expected = work(None)
        for found in ThreadGroups(*mesh).run(work):
            assert found.metrics == pytest.approx(expected.metrics, rel=1e-12)
            assert found.metrics["accuracy"] == expected.metrics["accuracy"]
            assert found.classes == expected.classes


# Several processes


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A store in two parts, with text ids, and a run on it by two workers."""
    folder = tmp_path_factory.mktemp("trained")
    store = formula_store(folder / "store", num_nodes=300, num_features=9, names="strings", shuffle_seed=1)
    partita.partition(store, folder / "parts", parts=2, algorithm="spring")
    partita.Trainer.launch(
        folder / "parts", out=folder / "run", workers=2, strategy="gsplit", layers=2, hidden=16, fanout=(4, 3),
        batch_size=40, epochs=3, precision="float64",
    )  # fmt: skip
    return folder


def test_files_and_metrics_of_two_workers(trained, tmp_path) -> None:
    run = trained / "run"
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    partita.predict(run, out=one, embeddings=True)
    done = run_partita("predict", run, "--out", two, "--embeddings", "--workers", 2, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] == 300
    mine, theirs = pyarrow.parquet.read_table(one), pyarrow.parquet.read_table(two)
    assert mine.schema == theirs.schema
    for name in ("node", "prediction"):
        assert mine[name].to_pylist() == theirs[name].to_pylist()
    np.testing.assert_allclose(mine["probability"].to_numpy(), theirs["probability"].to_numpy(), rtol=1e-6)
    np.testing.assert_allclose(mine["embedding"].to_pylist(), theirs["embedding"].to_pylist(), rtol=1e-6, atol=1e-7)
    summary = partita.predict(run, out=tmp_path / "test.csv", split="test", workers=2)
    partita.predict(run, out=tmp_path / "alone.csv", split="test")
    mine, theirs = (pyarrow.csv.read_csv(tmp_path / name) for name in ("alone.csv", "test.csv"))
    assert summary.columns == ("node", "prediction", "probability")
    for name in ("node", "prediction"):
        assert mine[name].to_pylist() == theirs[name].to_pylist()
    expected = json.loads((run / "run.json").read_text())["metrics"]
    found = partita.evaluate(run, split="val", workers=2)
    assert (found["split"], found["nodes"]) == ("val", 60)
    assert {name: found[name] for name in expected["val"]} == pytest.approx(expected["val"], rel=1e-9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "alone.csv", "one.parquet", "temporary", "test.csv", "two.parquet"
    ]  # fmt: skip


def test_torchrun(trained, tmp_path) -> None:
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
         "--master-port", "29513", "-m", "partita", "evaluate", trained / "run", "--json"],
        capture_output=True, text=True, timeout=180, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found, expected = json.loads(done.stdout), partita.evaluate(trained / "run")  # printed once
    for name, value in expected.items():
        assert found[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-9))


def test_what_does_not_fit_is_one_message(trained, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write '\.txt' files"):
        partita.predict(trained / "run", out=tmp_path / "p.txt", workers=2)
    with pytest.raises(ConfigError, match="a model of your own is an object of this process"):
        partita.evaluate(trained / "run", workers=2, model=model_of("sage", torch.float64))
    with pytest.raises(partita.PartitaError, match="has no split 'tset'"):
        partita.evaluate(trained / "run", split="tset", workers=2)


def predict_with_full_disk(context, run: str, out: str, rank: int) -> None:
    """The disk is full for one worker, and by memory limit everything is spilled."""
    if context.mesh.rank == rank:

        def full(*_: int) -> None:
            raise OSError(28, "No space left on device")

        os.posix_fallocate = full
    partita.predict(run, out=out, memory_limit=15_000, context=context)


@pytest.mark.parametrize("rank", [0, 1])  # the one that makes shared files; the one that spills its output
def test_a_full_disk_on_one_worker_ends_all_with_that_error(trained, tmp_path, rank) -> None:
    what = "hidden layer 1" if rank == 0 else "output"
    with pytest.raises(ResourceError, match=rf"{what}: .* bytes of disk .*--memory-limit"):
        run_workers(predict_with_full_disk, 2, trained / "run", tmp_path / "p.csv", rank, timeout=150)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["temporary"]


def predict_slowly(context, run: str, out: str, sign: str) -> None:
    """Stop in the midst of a layer, with shared files mapped."""
    original = LayerwiseInference._node_blocks

    def slow(self, *arguments):
        for number, block in enumerate(original(self, *arguments)):
            yield block
            if number == 1:
                Path(f"{sign}-{context.mesh.rank}").write_text(str(os.getpid()))
                time.sleep(150)

    LayerwiseInference._node_blocks = slow
    partita.predict(run, out=out, memory_limit=30_000, context=context)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_leaves_nothing_behind(trained, tmp_path, rank) -> None:
    sign = tmp_path / "sign"

    def kill() -> None:
        while not all(Path(f"{sign}-{each}").exists() for each in (0, 1)):
            time.sleep(0.05)
        time.sleep(0.1)
        os.kill(int(Path(f"{sign}-{rank}").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(partita.PartitaError, match=f"worker {rank} was killed by signal 9"):
        run_workers(predict_slowly, 2, trained / "run", tmp_path / "p.csv", sign, timeout=150)
    killer.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sign-0", "sign-1", "temporary"]


def load_from_the_first(context, folder: str) -> list[float]:
    """Each worker has a folder of its own; only that of the first one holds a checkpoint."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    found = share_checkpoint(context, Path(folder) / f"host{context.mesh.rank}", model, optimizer)
    assert found is not None
    state, members = found
    assert members["a"].tolist() == [1.0, 2.0]
    x = torch.arange(18, dtype=torch.float32).reshape(6, 3).sin()
    model(x).pow(2).sum().backward()
    optimizer.step()
    values = [value.double().sum().item() for value in model.state_dict().values()]
    return [state.epoch, state.step, *values]


def test_only_the_first_worker_needs_to_see_the_checkpoints(tmp_path) -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.rand(6, 3)).pow(2).sum().backward()
        optimizer.step()
    save_checkpoint(tmp_path / "host0", model, optimizer, TrainState(epoch=4, step=2), {"a": torch.tensor([1.0, 2.0])})
    first, second, third = run_workers(load_from_the_first, 3, tmp_path, timeout=150)
    assert first == second == third
    assert first[:2] == [4, 2]


def move_in(context, run: str, out: str) -> dict[str, object]:
    """Predict and resume where only the first worker sees the run folder."""
    if context.mesh.rank > 0:
        run, out = f"{run}-is-not-here", f"{out}-is-not-here/p.csv"
    summary = partita.predict(run, out=out, context=context)
    trainer = partita.Trainer.resume(run, context=context, epochs=4)
    record = trainer.fit().record
    return {"nodes": summary.nodes, "epoch": record.get("epoch"), "resumed": record["resumed"]}


def test_the_run_folder_need_not_be_shared(trained, tmp_path) -> None:
    run = tmp_path / "run"
    subprocess.run(["cp", "-r", trained / "run", run], check=True)
    first, second = run_workers(move_in, 2, run, tmp_path / "p.csv", purposes=PURPOSES, timeout=150)
    assert first["nodes"] == second["nodes"] == 300
    assert first["epoch"] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "run", "temporary"]
