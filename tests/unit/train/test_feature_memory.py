"""Feature rows that are read from files keep the memory that they are given, whoever counts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import partita

GROUPS = Path("/sys/fs/cgroup/memory")
NODES, COLUMNS = 50_000, 1024
LIMIT = 20 * 2**20
"""Bytes that training may take: a tenth of the features."""

CHILD = """
import os, resource, sys
from pathlib import Path
import partita

limit, (store, run, memory, how) = int(sys.argv[1]), sys.argv[2:]
settings = dict(layers=2, hidden=8, fanout="5,5", batch_size=16, epochs=1, prefetch=0, threads=1, look_ahead=20,
    memory_limit="4MiB", matmul="torch", eval_every=0)
# What is loaded once is loaded, and is not counted.
partita.Trainer(store, out=run + "-before", feature_memory="5MiB", **settings).fit(progress=False)
if how == "RLIMIT_DATA":
    held = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + limit, held + limit))
else:
    group = Path(how)
    (group / "memory.limit_in_bytes").write_text(str(limit))  # what was taken before is counted where it was taken
    (group / "cgroup.procs").write_text(str(os.getpid()))
try:
    partita.Trainer(store, out=run, feature_memory=memory, **settings).fit(progress=False)
except (MemoryError, RuntimeError, partita.PartitaError) as error:
    raise SystemExit(f"no memory: {error}")
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, generator = tmp_path_factory.mktemp("wide"), np.random.default_rng(1)
    edges = generator.integers(0, NODES, (2, 5 * NODES)).astype(np.int32)
    x = np.zeros((NODES, COLUMNS), np.float32)
    x[:, 0] = np.arange(NODES)
    np.savez(folder / "g.npz", edge_index=edges, x=x, y=np.arange(NODES) % 3)
    partita.ingest(folder / "g.npz", folder / "g", split=(0.01, 0.005, 0.005))
    (folder / "g.npz").unlink()
    assert x.nbytes >= 10 * 0.95 * LIMIT
    return folder / "g"


@pytest.fixture
def group() -> Iterator[Path]:
    path = GROUPS / f"partita-test-{os.getpid()}"
    if not (GROUPS / "memory.limit_in_bytes").exists() or not os.access(GROUPS, os.W_OK):
        pytest.skip("control groups of memory cannot be made here")
    path.mkdir()
    yield path
    path.rmdir()


def train(store: Path, run: Path, memory: str, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, str(LIMIT), str(store), str(run), memory, how]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA of other systems counts other things")
def test_private_memory(store, tmp_path) -> None:
    assert "no memory" in train(store, tmp_path / "all", "1GiB", "RLIMIT_DATA").stderr
    done = train(store, tmp_path / "run", "5MiB", "RLIMIT_DATA")
    assert done.returncode == 0, done.stderr
    (reads,) = json.loads((tmp_path / "run" / "run.json").read_text())["feature_reads"]
    assert reads["bytes"] > LIMIT


def test_memory_of_a_control_group(store, tmp_path, group) -> None:
    """Which counts the pages of files, too."""
    done = train(store, tmp_path / "run", "5MiB", str(group))
    assert done.returncode == 0, done.stderr
    assert int((group / "memory.max_usage_in_bytes").read_text()) <= LIMIT
    (reads,) = json.loads((tmp_path / "run" / "run.json").read_text())["feature_reads"]
    assert reads["bytes"] > LIMIT
