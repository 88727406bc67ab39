"""A folder with all that commands read, the commands, and what must be true after one that could not do its work."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import partita
from partita.testing.graphs import small_random_store

TRAIN = "--layers 2 --hidden 8 --fanout 3,3 --batch-size 16 --seed 3"


@dataclass(frozen=True)
class Verb:
    """A command, in a folder that is like :func:`make_world`.

    Attributes:
        words: the command; files are named relative to the folder.
        makes: what it makes there; ``None``: it changes what is there.
        resume: how it is repeated where it has left what can be gone on with.
        workers: it starts workers, which takes some seconds.
        keeps: its work is what it writes; otherwise that is kept for later beside what it prints.
    """

    words: str
    makes: str | None = "new"
    resume: str | None = None
    workers: bool = False
    keeps: bool = True

    def arguments(self, **named: str) -> list[str]:
        """The command; ``new="x"`` puts another name for what it makes."""
        made = {self.makes: named["new"]} if "new" in named and self.makes else {}
        return [made.get(word, word) for word in self.words.split()]


VERBS = {
    "ingest": Verb("ingest edges.csv new --nodes nodes.csv --label-column topic --split-seed 2"),
    "ingest-npz": Verb("ingest packed.npz.gz new"),
    "generate-rmat": Verb("generate rmat new --scale 9 --features 8 --classes 3"),
    "generate-sbm": Verb("generate sbm new --nodes 600 --features 8"),
    "export": Verb("export graph --out new.npz", "new.npz"),
    "export-run": Verb("export run --out new"),
    "partition": Verb("partition graph new --parts 2 --algorithm spring"),
    "partition-file": Verb("partition graph new.csv --parts 2 --algorithm random", "new.csv"),
    "partition-parquet": Verb("partition graph new.parquet --parts 2 --algorithm random", "new.parquet"),
    "shard": Verb("shard parts new --host 0 --hosts 2"),
    "split": Verb("split graph new"),
    "presample": Verb("presample graph --fanout 2,2 --epochs 2 --batch-size 16", None),
    "train": Verb(f"train graph --out new {TRAIN} --epochs 2", resume="train --resume new"),
    "train-2": Verb(f"train parts --out new {TRAIN} --epochs 2 --workers 2", resume="train --resume new", workers=True),
    "resume": Verb("train --resume begun --epochs 3", None, resume="train --resume begun --epochs 3"),
    "evaluate": Verb("evaluate bare", None, keeps=False),
    "predict-csv": Verb("predict run --out new.csv", "new.csv"),
    "predict-parquet": Verb("predict run --out new.parquet", "new.parquet"),
    "predict-npy": Verb("predict run --out new.npy --embeddings", "new.npy"),
    "predict-2": Verb("predict run --out new.csv --workers 2", "new.csv", workers=True),
    "report": Verb("report run --out new.html", "new.html"),
    "measure": Verb("measure --out new.json", "new.json", workers=True),
}
READERS = ["inspect graph", "inspect run", "verify run", "quality parts", "evaluate run", "train --help", "--help"]


def make_world(folder: Path) -> Path:
    """Edges, tables, stores and runs, some hundred KB."""
    folder.mkdir(mode=0o755)
    draw = np.random.default_rng(1)
    store = small_random_store(folder / "graph", 1500, 9000, num_features=8)
    partita.partition(store, folder / "parts", parts=2, algorithm="random")
    edges = np.stack([store.indices, np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))])
    np.savetxt(folder / "edges.csv", edges.T, "%d", ",", header="source,target", comments="")
    rows = "".join(f"{node},{draw.random():.5f},topic{node % 3}\n" for node in range(store.num_nodes))
    (folder / "nodes.csv").write_text("id,size,topic\n" + rows)
    np.savez(folder / "packed.npz", edge_index=edges)
    partita_settings: dict[str, Any] = {"layers": 2, "hidden": 8, "fanout": (3, 3), "batch_size": 64, "seed": 3}
    cwd = Path.cwd()
    os.chdir(folder)  # a world can be copied: runs know their store by a path that moves with it
    try:
        partita.Trainer(store, out="run", epochs=2, **partita_settings).fit()
    finally:
        os.chdir(cwd)
    shutil.copytree(folder / "run", folder / "begun")
    (shutil.copytree(folder / "run", folder / "bare") / "analysis.json").unlink()
    import gzip

    (folder / "packed.npz.gz").write_bytes(gzip.compress((folder / "packed.npz").read_bytes()))
    (folder / "packed.npz").unlink()
    return folder


def moved(folder: Path) -> Path:
    """Make the runs of a copy know the store beside them."""
    for run in ("run", "begun", "bare"):
        record = folder / run / "run.json"
        found = json.loads(record.read_text())
        found["store"]["path"] = str(folder / "graph")
        record.write_text(json.dumps(found, indent=2) + "\n")
    return folder


TIMES = {
    "started", "ended", "seconds", "seeds_per_second", "machine", "stage_seconds", "pipeline", "peak_memory_bytes",
    "resumed", "at", "path", "workers", "plan", "matmul", "candidates", "device", "memory",
    "traffic_bytes", "traffic", "evaluation",  # what a killed run had sent ahead is sent again, and counted again
}  # fmt: skip
"""Keys of what differs between two runs of one command, or between folders."""


def content(folder: Path, *, of: str | None = None) -> dict[str, Any]:
    """What a folder holds, times and paths left out; hidden files too."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == "filler" or "/events" in name or (of is not None and name.split("/")[0] != of):
            continue
        found[name] = None if path.is_dir() else _bytes(path)
    return found


def _bytes(path: Path) -> Any:
    if path.name in ("run.json", "state.json", "new.json"):
        found = json.loads(path.read_text())
        return sorted(found) if path.name == "new.json" else _without_times(found)
    if path.name == "metrics.jsonl":
        events = [_without_times(json.loads(line)) for line in path.read_text().splitlines()]
        return [{**event, "text": ""} if event.get("event") == "plan" else event for event in events]  # tells seconds
    if path.name == "digests.json":
        return {name: each for name, each in json.loads(path.read_text()).items() if name != "state.json"}
    if path.suffix == ".html":
        return path.read_text().rstrip().endswith("</html>")
    if path.name in ("metadata.json", "analysis.json"):
        return _without_times(json.loads(path.read_text())) | {"checksum": ""}
    return path.read_bytes()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if key not in TIMES}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def left_over(folder: Path) -> list[str]:
    """Hidden files, which are written aside; what an interrupted partitioning continues with is meant to stay."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [name for name in names if re.search(r"(^|/)\.|partial|partita-", name) and "partial-resume-" not in name]


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Names of files that only one has, or that differ."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name, 0) != expected.get(name, 0))


def messages(text: str) -> Iterator[str]:
    """The messages of a command, without its notes."""
    for line in text.splitlines():
        if line.startswith("partita: ") and not line.startswith("partita: note: "):
            yield line
