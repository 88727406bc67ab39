"""Memory is told before work begins: a tenth more than what is said suffices, and too little is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private memory on Linux only")

MIB = 2**20
SMALL = ["--epochs", "1", "--hidden", "32", "--batch-size", "256"]
FANOUT = ["--fanout", "3,3,3"]
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from partita.cli.main import main
main()
"""


def partita(*words: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which may take so many bytes."""
    program = ["-m", "partita"] if limit is None else ["-c", LIMITED, str(limit)]
    command = [sys.executable, *program, *map(str, words)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)


def said(stderr: str) -> int:
    """Bytes by estimate, of the line that a verb begins with."""
    found = re.search(r"memory: at most ([\d,.]+) (MiB|GiB) by estimate, .* may be used \(.*\)", stderr)
    assert found is not None, stderr
    return int(float(found[1].replace(",", "")) * (MIB if found[2] == "MiB" else 2**30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory")
    made = partita("generate", "sbm", path / "graph", "--nodes", 4000, "--classes", 4)
    assert made.returncode == 0, made.stderr
    for parts in (2, 4):
        made = partita("partition", path / "graph", path / f"graph{parts}", "--parts", parts)
        assert made.returncode == 0, made.stderr
    edges = [f"{(7 * i) % 3001},{(11 * i + 5) % 3001}" for i in range(30_000)]
    (path / "edges.csv").write_text("source,target\n" + "\n".join(edges) + "\n")
    trained = partita("train", path / "graph", "--out", path / "run", *SMALL, *FANOUT)
    assert trained.returncode == 0, trained.stderr
    return path


VERBS: dict[str, Callable[[Path, str], list[object]]] = {
    "ingest": lambda path, to: [
        "ingest", path / "edges.csv", path / f"ingested{to}", "--memory-limit", "64MiB", "--ids", "index",
    ],
    "partition": lambda path, to: ["partition", path / "graph", path / f"parts{to}", "--parts", 3],
    "evaluate": lambda path, to: ["evaluate", path / "run"],
    "predict": lambda path, to: ["predict", path / "run", "--out", path / f"predictions{to}.parquet"],
}  # fmt: skip

RUNS = {
    "sage": ["graph"],
    "gcn": ["graph", "--model", "gcn"],
    "gat": ["graph", "--model", "gat", "--heads", "4"],
    "gin, full batch": ["graph", "--model", "gin", "--batch-size", "0"],
    "walk": ["graph", "--sampler", "walk"],
    "layer": ["graph", "--sampler", "layer", "--layer-budget", "2000,2000,2000"],
    "gdp": ["graph2", "--workers", "2", "--strategy", "gdp"],
    "nfp": ["graph2", "--workers", "2", "--strategy", "nfp"],
    "snp": ["graph2", "--workers", "2", "--strategy", "snp"],
    "dnp": ["graph2", "--workers", "2", "--strategy", "dnp"],
    "gsplit": ["graph2", "--workers", "2", "--preset", "gsplit"],
    "dsp": ["graph2", "--workers", "2", "--preset", "dsp", "--cache", "1MiB"],
    "apt": ["graph2", "--workers", "2", "--preset", "apt"],
    "grappa": ["graph4", "--workers", "2", "--preset", "grappa"],
    "sdt-gnn": ["graph4", "--workers", "2", "--preset", "sdt-gnn"],
}
"""A store, and what it is trained with, ``SMALL`` besides."""

LEFT_OUT = ("gcn", "gin, full batch", "layer", "gdp", "nfp", "snp", "gsplit", "apt")
"""A run takes half a minute, and these are estimated as others are."""


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_ends_well_with_a_tenth_more_than_its_estimate(verb: str, folder: Path) -> None:
    free = partita(*VERBS[verb](folder, "-free"))
    assert free.returncode == 0, free.stderr
    limited = partita(*VERBS[verb](folder, "-limited"), limit=said(free.stderr) * 11 // 10)
    assert limited.returncode == 0, limited.stderr
    assert "RLIMIT_DATA" in limited.stderr


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LEFT_OUT)) for name in RUNS])
def test_training_ends_well_with_a_tenth_more_than_its_estimate(name: str, folder: Path, tmp_path: Path) -> None:
    store, *settings = RUNS[name]
    fanout = [] if name == "layer" else FANOUT  # which that sampler does not take
    words = ["train", folder / store, *SMALL, *fanout, *settings, "--out"]
    free = partita(*words, tmp_path / "free")
    assert free.returncode == 0, free.stderr
    need = json.loads((tmp_path / "free/run.json").read_text())["memory"]
    assert need["bytes"] == need["held"] + sum(need["parts"].values())
    limited = partita(*words, tmp_path / "limited", limit=need["bytes"] * 11 // 10)
    assert limited.returncode == 0, limited.stderr
    found = json.loads((tmp_path / "limited/run.json").read_text())
    assert found["status"] == "finished"
    assert "RLIMIT_DATA" in found["memory"]["limit"]


def test_too_little_is_refused_with_numbers_and_a_remedy(folder: Path, tmp_path: Path) -> None:
    words = ["train", folder / "graph", "--out", tmp_path / "run", "--hidden"]
    training = r"training needs up to [\d,.]+ \wiB \(.*[MG]iB for model"
    libraries = (368 + 80 * (len(os.sched_getaffinity(0)) - 1)) * MIB
    cases = ((32 * MIB, 2000, training), (32 * MIB, 6000, training), (0, 2000, training), (-1, 2000, "libraries alone"))
    for more, hidden, need in cases:
        refused = partita(*words, hidden, limit=libraries + more)
        assert refused.returncode == 2, refused.stderr
        assert re.search(need, refused.stderr)
        assert "RLIMIT_DATA" in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_learnt_rows_of_many_times_the_memory_are_trained_and_evaluated(tmp_path: Path) -> None:
    """192 MiB of rows and moments, and 64 MiB of rows that links are scored with, in files."""
    made = partita("generate", "rmat", tmp_path / "graph", "--scale", 16, "--edge-factor", 1)
    assert made.returncode == 0, made.stderr
    words = [
        "train", tmp_path / "graph", "--task", "links", "--model", "none", "--hidden", 256, "--held-out", "0,0.002",
        "--epochs", 1, "--batch-size", 512, "--negatives", 64, "--embed-memory", "16MiB", "--memory-limit", "64MiB",
        "--out",
    ]  # fmt: skip
    free = partita(*words, tmp_path / "free")
    assert free.returncode == 0, free.stderr
    need = json.loads((tmp_path / "free/run.json").read_text())["memory"]
    assert need["parts"]["learnt rows"] + need["parts"]["evaluation"] < 64 * MIB
    limited = partita(*words, tmp_path / "limited", limit=need["bytes"] * 11 // 10)
    assert limited.returncode == 0, limited.stderr
    found = json.loads((tmp_path / "limited/run.json").read_text())
    assert "mrr" in found["metrics"]["test"]
    assert found["metrics"] == json.loads((tmp_path / "free/run.json").read_text())["metrics"]
