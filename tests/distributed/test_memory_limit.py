"""Isolated training of a graph that is four times as large as the memory for it; the kernel enforces the limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.graph.build import TopologyBuilder
from partita.graph.splits import write_splits
from partita.graph.writer import StoreWriter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA")

PARTS = 32
WIDTH = 512
CLASSES = 8
NEAR = 64
"""How far a neighbor is at most, so that a halo is small."""
EPOCHS = 2

SCRIPT = """
import json, resource, sys, threading
# A thread reserves its stack, 8 MiB if nothing is said, and uses little of it. What is reserved counts here.
threading.stack_size(1 << 20)
import partita
from partita.core.errors import ResourceError

folder, limit, runs = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])

def train(store, out, settings):
    return partita.Trainer(f"{folder}/{store}", out=out, **settings).fit().record

def data_bytes():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))

for out, settings in runs.items():
    train("small", f"{out}-small", settings)  # all that is imported and compiled on the way
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + limit, -1))
said = {}
for out, settings in runs.items():
    try:
        said[out] = train("large", out, settings)
    except (MemoryError, ResourceError) as error:
        said[out] = [isinstance(error, MemoryError), str(error)]
print(json.dumps(said))
"""


def write_street(path: Path, num_nodes: int) -> None:
    """A store whose nodes have eight neighbors each, all near by, and features that tell little of the class alone.

    The nodes of a part are next to each other, so it is partitioned as it is.
    """
    rng = np.random.default_rng(0)
    ids = np.arange(num_nodes)
    label = ids * 4 * CLASSES // num_nodes % CLASSES
    centroids = 0.2 * rng.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    with StoreWriter(path) as writer:
        builder = TopologyBuilder(writer, memory_limit=1 << 24)
        dst = np.repeat(ids, 8)
        builder.add((dst + rng.integers(-NEAR, NEAR + 1, len(dst))) % num_nodes, dst)
        num_edges = builder.finish(num_nodes).num_edges
        x = writer.append("x", np.float32, (WIDTH,))
        for first in range(0, num_nodes, 1 << 12):
            here = label[first : first + (1 << 12)]
            x.append(centroids[here] + rng.standard_normal((len(here), WIDTH), dtype=np.float32))
        writer.write("y", label)
        kind = rng.permutation(ids) % 10
        splits = {"train": kind < 6, "val": (kind >= 6) & (kind < 8), "test": kind >= 8}
        write_splits(writer, {name: np.flatnonzero(chosen) for name, chosen in splits.items()})
        writer.write("part_offsets", np.arange(PARTS + 1) * num_nodes // PARTS)
        writer.finish(num_nodes=num_nodes, num_edges=num_edges, task="classes", num_classes=CLASSES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two stores, the large one of some 200 MB."""
    path = tmp_path_factory.mktemp("stores")
    write_street(path / "large", 100_000)
    write_street(path / "small", 20 * PARTS)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def limit(folder: Path) -> int:
    """A quarter of the store."""
    return sum(file.stat().st_size for file in (folder / "large").iterdir()) // 4


def under_limit(folder: Path, limit: int, runs: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """Train in a process of its own; ``run.json`` of every run, or whether memory was refused and what was said."""
    settings = {
        "layers": 2, "hidden": 16, "fanout": "5,5", "batch_size": 256, "epochs": EPOCHS, "eval_every": 0, "threads": 1,
        "prefetch": 1, "memory_limit": limit // 3,
    }  # fmt: skip
    given = {str(out): settings | own for out, own in runs.items()}
    # Freed buffers go back to the system at once, so that what is counted is what is held.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-c", SCRIPT, str(folder), str(limit), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("preset", "views"), [("grappa", PARTS // 2), ("sdt-gnn", PARTS)])
def test_a_graph_of_four_times_the_memory(folder: Path, limit: int, tmp_path: Path, preset: str, views: int) -> None:
    """Trained, evaluated and saved; what is loaded in an epoch is all of the graph."""
    out = tmp_path / "run"
    record = under_limit(folder, limit, {out: {"preset": preset, "memory_per_worker": limit}})[str(out)]
    assert record["status"] == "finished"
    assert record["peak_memory_bytes"] <= limit
    (loading,) = record["views"]["loading"]
    assert loading["views"] == EPOCHS * views
    assert loading["bytes"] > EPOCHS * 4 * WIDTH * 100_000
    assert record["metrics"]["test"]["accuracy"] > 0.6  # by chance 0.125


def test_a_whole_graph_does_not_fit(folder: Path, limit: int, tmp_path: Path) -> None:
    """The same limit refuses a view of all parts: by what is known beforehand, and otherwise by the kernel."""
    known, unknown = tmp_path / "known", tmp_path / "unknown"
    runs = {known: {"views": "all", "memory_per_worker": limit}, unknown: {"views": "all", "memory_per_worker": "1GiB"}}
    said = under_limit(folder, limit, runs)
    refused, text = said[str(known)]
    assert not refused
    assert "the view of parts 0, 1, 2" in text
    refused, text = said[str(unknown)]
    assert refused, text
    assert not known.exists()  # refused before anything was written
    assert json.loads((unknown / "run.json").read_text())["status"].startswith("failed")
