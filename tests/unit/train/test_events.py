"""Event files are what TensorBoard reads."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from partita.train.events import EventWriter


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder, steps = tmp_path / "events", [0, 1, 127, 128, 300, 70_000]
    writer = EventWriter(folder)
    for step in steps:
        event = {"event": "evaluate", "epoch": 3, "step": step, "loss": 0.5 - step, "nodes": step, "name": "a", "é": 1}
        writer.write(event, step)
    writer.write({"event": "odd", "huge": 1e300, "low": -1e300, "none": math.nan, "list": [1]}, 5)
    writer.close()
    (file,) = folder.iterdir()
    assert file.name.startswith("events.out.tfevents.")
    found = reader.EventAccumulator(str(folder))
    found.Reload()
    assert found.Tags()["scalars"] == [*(f"evaluate/{name}" for name in ("loss", "nodes", "é")), *_odd()]
    assert [(row.step, row.value) for row in found.Scalars("evaluate/loss")] == [(step, 0.5 - step) for step in steps]
    assert [row.value for row in found.Scalars("evaluate/nodes")] == steps
    assert [found.Scalars(name)[0].value for name in _odd()[:2]] == [math.inf, -math.inf]
    assert math.isnan(found.Scalars(_odd()[2])[0].value)


def _odd() -> list[str]:
    return ["odd/huge", "odd/low", "odd/none"]


def test_records_have_the_checksums_of_tensorboard(tmp_path: Path) -> None:
    crc = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    writer = EventWriter(tmp_path)
    writer.write({"event": "train", "loss": 0.25}, 12)
    writer.close()
    data, at, records = next(tmp_path.iterdir()).read_bytes(), 0, 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        assert int.from_bytes(data[at + 8 : at + 12], "little") == crc.masked_crc32c(data[at : at + 8])
        record = data[at + 12 : at + 12 + length]
        assert int.from_bytes(data[at + 12 + length : at + 16 + length], "little") == crc.masked_crc32c(record)
        at, records = at + 16 + length, records + 1
    assert records == 2


def test_a_run_imports_neither_tensorboard_nor_the_compiler_of_torch(tmp_path: Path) -> None:
    code = """
import sys, partita
graph, run = sys.argv[1:]
partita.generate_sbm(graph, num_nodes=200)
partita.Trainer(graph, out=run, epochs=1).fit()
print(*{"tensorboard", "sympy", "torch._dynamo", "torch._inductor", "torchmetrics", "pandas"} & sys.modules.keys())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "graph"), str(tmp_path / "run")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == ""
