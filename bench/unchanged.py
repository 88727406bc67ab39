"""Whether another version does what this one did: the same bytes in stores, checkpoints, predictions and plans.

    python bench/unchanged.py --against REVISION [--only gat] [--keep FOLDER] [--out found.json]

For changes that must not change behavior. Each row of the tables below is run twice, once by the sources of the
revision (``before``) and once by those of this checkout (``now``), with the same interpreter and libraries, and what
it leaves is compared. Only the command line and the documented files are used, so modules, classes and functions can
have any name. Commands are written as REVISION understands them: what was an option then must still be one.

- Stores: every file that ``ingest``, ``generate``, ``partition``, ``shard``, ``presample`` and ``export`` write.
- Runs: the tensors of all checkpoints and their ``state.json``; of ``run.json`` the counts, bytes sent, metrics and
  classes; every line of ``metrics.jsonl``; all that ``predict`` writes and ``evaluate`` says.
- Plans: of every strategy the bytes by kind and by link, and the rows and edges.
- Old files: the new version evaluates, predicts with and resumes runs of the old one, and reads its stores.

Bytes must be identical. Where the weights of a run in float64 are not, a difference of up to 1e-12 of the largest
element is said but allowed, for its metrics and predictions too; in float32 only where the table says ``reordered``.
Seconds, memory and dates are not compared; what else is left out, and why, stands beside ``DROPPED``.

``--keep FOLDER`` leaves both halves there. If it has the ``before`` half already, of the same revision, tables,
machine and libraries, only ``now`` is run: a second time takes half as long. Kernels are compiled anew whenever a
source file has changed, as numba does not see that a function which another one calls has changed; take ``--only`` for
a short look. Any difference ends in exit code 1.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import inspect
import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

ROOT = Path(__file__).resolve().parents[1]

# What is run. All paths are relative to the folder of a half; write_inputs() makes what lies in inputs/.

STORES: dict[str, str] = {
    # Generated
    "sbm": "generate sbm sbm --nodes 1200 --classes 5 --features 24 --average-degree 10 --seed 3",
    "sbm16": "generate sbm sbm16 --nodes 700 --classes 4 --features 20 --average-degree 8 --feature-dtype float16",
    "rmat": "generate rmat rmat --scale 10 --edge-factor 6 --features 12 --classes 3 --split 0.5,0.2,0.3 --seed 5",
    "rmat-both": "generate rmat rmat-both --scale 9 --features 8 --classes 4 --undirected --dedup",
    "sampled": "generate sbm sampled --nodes 900 --classes 3 --features 8 --average-degree 12 --seed 9\n"
    "presample sampled --fanout 5,3 --batch-size 64 --epochs 2 --replace",
    # Ingested
    "named": "ingest inputs/edges.csv named --nodes inputs/nodes.csv --weight-column weight --label-column topic "
    "--split-column split",
    "labels": "ingest inputs/edges.parquet labels --nodes inputs/labels.parquet --source-column from "
    "--target-column to --id-column key --label-column red,green,blue --undirected --dedup --self-loops add",
    "values": "ingest inputs/links.txt.gz values --features inputs/x.npy --labels inputs/values.csv "
    "--task regression --split 0.5,0.25,0.25 --split-seed 4 --ids index --self-loops drop",
    "arrays": "ingest inputs/arrays.npz arrays --feature-dtype float16",
    # Every partitioner
    "sbm2": "partition sbm sbm2 --parts 2 --algorithm spring+",
    "sbm3": "partition sbm sbm3 --parts 3 --algorithm hdrf",
    "sbm4": "partition sbm sbm4 --parts 4 --algorithm spring --option cap=0.2",
    "sbm22": "partition sbm sbm22 --parts 2x2 --algorithm metis --weights degree",
    "sbm16-2": "partition sbm16 sbm16-2 --parts 2 --algorithm two_phase",
    "rmat3": "partition rmat rmat3 --parts 3 --algorithm dbh --seed 2",
    "named2": "partition named named2 --parts 2 --algorithm greedy --refine 3 --feature-dtype float16",
    "labels2": "partition labels labels2 --parts 2 --algorithm random --seed 4",
    "labels3": "partition labels labels3 --parts 3 --algorithm spring --refine 2",
    "values2": "partition values values2 --parts 2 --algorithm inputs/parts.csv",
    "sampled4": "partition sampled sampled4 --parts 4 --algorithm spring+ --weights presample --epsilon 0.1",
    "sampled3.npy": "partition sampled sampled3.npy --parts 3 --algorithm spring+ --weights edges",
    "sampled2.csv": "partition sampled sampled2.csv --parts 2 --algorithm metis --weights node",
    "fitting": "partition sbm fitting --parts auto --memory-per-worker 2MiB --compute-share 0.95 --halo one-hop",
    "parts.npy": "partition sbm parts.npy --parts 5 --algorithm two_phase",
    "parts.parquet": "partition named parts.parquet --parts 3 --algorithm dbh",
    "edges.npy": "partition inputs/plain.csv edges.npy --parts 4 --algorithm spring --undirected",
    # Shards and exports
    "shard0": "shard sbm22 shard0 --host 0 --hosts 2",
    "shard1": "shard sbm22 shard1 --host 1 --hosts 2",
    "hot0": "shard sampled4 hot0 --host 0 --hosts 2 --topology replicated --hot 4KiB --hot-policy presample",
    "sbm3.npz": "export sbm3 --out sbm3.npz",
    "named2.npz": "export named2 --out named2.npz",
}
"""Stores, and files about them: their name, which is also their path, and the commands that make them, one a line."""

SAID: dict[str, str] = {
    "inspect": "inspect named2",
    "inspect a shard": "inspect hot0",
    "verify": "verify sampled4",
    "quality": "quality sbm22",
    "quality of a file": "quality sbm --assignment parts.npy --parts 5",
    "partition --dry-run": "partition sbm nowhere --parts 4 --algorithm spring+ --dry-run",
}
"""What commands say with ``--json``, which is added."""

COMMON = "--epochs 2 --layers 2 --hidden 16 --batch-size 128 --threads 1 --memory-limit 256MiB"
"""Of all runs; what a run names itself wins. Limits keep free memory out of what is done and sent."""
VIEWS = "--fanout 5,4 --memory-per-worker 64MiB "
"""Of isolated training."""


@dataclass(frozen=True)
class Run:
    """A row of the table of runs.

    Attributes:
        store: to train on; ``{host}`` in it is the number of the host.
        options: of ``partita train``, beside the common ones.
        workers: of each host. Workers are started as torchrun starts them, unless the options have ``--workers``.
        hosts: as how many this machine counts.
        predict, evaluate: options of these commands.
        resumed: options with which the run is taken up again once it is over; what it had been is kept beside it.
        reordered: whether sums in float32 are known to be taken in another order now.
    """

    store: str
    options: str
    workers: int = 1
    hosts: int = 1
    predict: str = ""
    evaluate: str = ""
    resumed: str = ""
    reordered: bool = False


F64 = "--precision float64 "
RUNS: dict[str, Run] = {
    # One worker: models, samplers, tasks, optimizers
    "sage mean": Run("sbm", F64 + "--fanout 5,4 --input-dropout 0.1", resumed="--epochs 3"),
    "sage max, weighted": Run(
        "named", "--aggregator max --fanout 6,3 --weighted --norm none --schedule cosine --warmup 3 --activation gelu"
    ),
    "gcn, all neighbors": Run(
        "rmat", F64 + "--model gcn --fanout -1 --optimizer sgd --lr 0.05 --batch-size 0 --epochs 3 --eval-every 2",
        predict="--embeddings",
    ),
    "gat, labels": Run(
        "labels", "--model gat --heads 2 --fanout 4,4 --attn-dropout 0.2 --norm batch --metric macro_f1 --patience 1"
    ),
    "gin, values": Run(
        "values", "--model gin --fanout 5,5 --optimizer adamw --weight-decay 0.01 --schedule linear --prefetch 0"
    ),
    "layer sampler": Run("named", F64 + "--sampler layer --layer-budget 200,150 --weighted --norm batch"),
    "walk sampler": Run("sbm", "--sampler walk --fanout 5,4 --walks 6 --walk-length 2 --walk-restart 0.3 --threads 2"),
    "bf16": Run("arrays", "--precision bf16 --fanout 5 --layers 3 --eval-every 0"),
    "onednn": Run("sbm16", "--products onednn --fanout 5,4 --normalize-features"),
    "onednn-all": Run("sbm16-2", "--products onednn-all --model gcn --fanout 5,4 --replace --activation elu"),
    # Strategies
    "gdp, sum": Run("sbm2", F64 + "--strategy gdp --aggregator sum --fanout 5,4 --deal even", workers=2),
    "nfp, gcn": Run("sbm2", F64 + "--strategy nfp --model gcn --fanout 5,4 --norm none", workers=2),
    "nfp, sage, 3": Run(
        "rmat3", "--strategy nfp --layers 3 --fanout 4,3,2 --cache 8KiB --cache-policy presample", workers=3
    ),
    "snp, gin": Run("sbm3", F64 + "--strategy snp --model gin --fanout 5,4 --deal owner", workers=3),
    "snp, gat": Run("sbm2", "--strategy snp --model gat --heads 4 --fanout 5,4", workers=2, evaluate="--split val"),
    "dnp, gat": Run("sbm3", F64 + "--strategy dnp --model gat --fanout 5,4 --attn-dropout 0.1", workers=3),
    "dnp, values": Run(
        "values2", "--strategy dnp --fanout 5,4 --cache 4KiB --cache-policy pagerank --cache-layout partitioned",
        workers=2, predict="--split test",
    ),
    "gsplit, max": Run("sbm3", "--strategy gsplit --aggregator max --fanout 5,4 --normalize-features", workers=3),
    "gsplit, labels": Run(
        "labels2", F64 + "--strategy gsplit --model gcn --fanout 4,4 --topology partitioned", workers=2
    ),
    "mixed list": Run("sbm2", F64 + "--strategy source,destination,data --layers 3 --fanout 4,3,2", workers=2),
    "placements": Run("labels3", "--placements by-owner,destination,data --fanout 5,4 --optimizer sgd", workers=3),
    "auto": Run("sbm2", "--workers 2 --strategy auto --fanout 5,4", evaluate="--workers 2"),
    # Samplers on several workers
    "layer sampler, 2": Run(
        "sbm2", "--strategy gsplit --sampler layer --layer-budget 300,200 --topology partitioned", workers=2
    ),
    "walk sampler, 2": Run("sbm2", F64 + "--strategy dnp --sampler walk --fanout 5,4", workers=2),
    "weighted, partitioned": Run(
        "named2", F64 + "--strategy snp --model gcn --weighted --replace --fanout 5,4 --topology partitioned", workers=2
    ),
    # Hosts
    "mesh of gdp and gsplit": Run(
        "sbm22", F64 + "--strategy data@hosts+gsplit@workers --fanout 5,4", workers=2, hosts=2
    ),
    "mesh with nfp": Run("sbm22", "--strategy nfp@workers+data@hosts --fanout 5,4", workers=2, hosts=2),
    "shards": Run(
        "shard{host}", "--strategy gdp --topology partitioned --fanout 5,4 --cache 4KiB --cache-layout partitioned",
        workers=2, hosts=2, predict="--store sbm22", evaluate="--store sbm22",
    ),
    # Presets
    "preset dsp": Run("sbm2", "--preset dsp --fanout 5,4 --cache 16KiB", workers=2),
    "preset gsplit": Run("sbm16-2", "--preset gsplit --fanout 5,4 --cache 4KiB", workers=2),
    "preset apt, snp": Run("sbm2", "--preset apt --strategy snp --fanout 5,4 --cache 12KiB", workers=2),
    "preset apt, gdp": Run(
        "sbm2", F64 + "--preset apt --strategy gdp --fanout 5,4 --cache 12KiB --cache-policy strategy", workers=2
    ),
    "preset grappa": Run("sbm4", F64 + VIEWS + "--preset grappa --epochs 3", workers=2),
    "preset sdt-gnn": Run("sbm4", VIEWS + "--preset sdt-gnn --optimizer-state average", workers=2),
    # Isolated training
    "all views": Run("sbm4", F64 + VIEWS + "--views all --halo one-hop+edges --coverage uniform", workers=2),
    "tournament": Run(
        "sampled4", VIEWS + "--views tournament --coverage resampling_raw --switch-deficit 0.1 --switch-window 2 "
        "--epochs 4", workers=2,
    ),
    "views in turn": Run(
        "sbm4", F64 + VIEWS + "--views cyclic --halo one-hop --sync model-average --optimizer-state reset "
        "--average-every 2 --coverage none", resumed="--epochs 4",
    ),
}  # fmt: skip

LINKS: dict[str, Any] = {
    "format": 1,
    "send": {link: {"num_bytes": [4096, 2**20], "seconds": [1e-4, 2e-3]} for link in ("same_host", "other_host")},
    "sum": {link: {"num_bytes": [4096, 2**20], "seconds": [1e-4, 2e-3]} for link in ("same_host", "other_host")},
    "hosts": 2, "workers": 2, "machine": {}, "date": "2026-01-01T00:00:00+00:00",
}  # fmt: skip
"""As ``partita measure`` leaves them; of links that nobody has measured."""

PLANS: dict[str, tuple[int, str]] = {
    "sage": (2, "plan sbm2 --layers 2 --hidden 16 --fanout 5,4 --batch-size 128 --threads 1"),
    "gat, cached": (
        2, "plan sbm2 --model gat --heads 2 --layers 2 --hidden 16 --fanout 5,4 --batch-size 128 --threads 1 "
        "--topology partitioned --cache 12KiB --cache-policy strategy --allow approximate",
    ),
    "hosts": (
        1, "plan sbm22 --hosts 2 --workers 2 --links inputs/links.json --layers 2 --hidden 16 --fanout 5,4 "
        "--batch-size 128 --threads 1",
    ),
}  # fmt: skip
"""Plans of strategies: how many workers are started, and the command."""

OLD_STORES = ("named2", "labels3", "sampled4", "hot0")
OLD_RUNS = ("sage mean", "snp, gin", "views in turn")
"""Stores and runs of the old version that the new one is to read."""

VALUES: dict[str, str] = {
    "--model": "sage gcn gat gin",
    "--aggregator": "mean sum max",
    "--norm": "layer none batch",
    "--sampler": "node layer walk",
    "--strategy": "auto gdp nfp snp dnp gsplit",
    "--deal": "auto owner even",
    "--topology": "replicated partitioned",
    "--cache-policy": "in-degree pagerank presample strategy",
    "--cache-layout": "own partitioned",
    "--views": "whole all cyclic tournament",
    "--halo": "none one-hop one-hop+edges",
    "--sync": "gradient-sum model-average",
    "--coverage": "resampling uniform resampling_raw none",
    "--optimizer-state": "keep reset average",
    "--optimizer": "adam adamw sgd",
    "--schedule": "constant cosine linear",
    "--precision": "float32 bf16 float64",
    "--products": "auto onednn onednn-all",
    "--preset": "- apt dsp gsplit grappa sdt-gnn",
}
"""Options of runs, and the values of which each must occur in some run; the first is what holds where none is named."""

DROPPED = frozenset(
    (
        *("seconds", "stage_seconds", "seeds_per_second", "waited", "peak_memory_bytes", "free_disk_bytes"),
        *("path", "store"),  # of a store; it differs between the halves
    )
)
"""Keys of JSON objects that are not compared, wherever they are."""

STARTED = ("metadata", "gradients")
"""Kinds of bytes that are not compared of the phase ``start``: workers send each other the settings as text, with their
names, and with strategy ``auto`` take as many steps as are needed to time one."""

LOADED = ("metadata",)
"""Kinds of bytes that are not compared of isolated training: at its end workers send each other as text how long they
have loaded. What was sent until then is in ``state.json``, and compared."""

EXACT = frozenset(("counts", "traffic", "traffic_bytes", "workers", "evaluation"))
"""Keys below which nothing may differ, whatever is allowed of weights."""

RECORDED = (
    *("status", "device", "matmul", "placements", "traffic_bytes", "workers", "epoch", "step", "best"),
    *("early_stopped", "metrics", "classes", "views", "counts"),
)
"""Keys of ``run.json`` that are compared."""

NEW_NAMES = {"products": "matmul", "deal": "seed_split"}
"""What keys of records are called now that had another name in earlier versions."""

PLANNED = ("epoch_bytes", "epoch_links", "counts", "settings")
"""Keys of the strategies of a plan that are compared; their seconds and memory are measured."""

LOOKS = ("inspect", "verify")


# What commands read


def write_inputs(folder: Path) -> None:
    """Small tables of edges and nodes in several formats, the same ones every time."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir(parents=True)
    random = np.random.default_rng(7)

    def edges(nodes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        return random.integers(0, nodes, count), np.minimum(random.geometric(8 / nodes, count), nodes) - 1

    def table(name: str, columns: dict[str, Any]) -> None:
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    nodes = 500
    names = np.array([f"n{number * 37 % 1009:04d}" for number in range(nodes)])
    topics = random.integers(0, 4, nodes)
    x = np.eye(4)[topics] @ random.normal(size=(4, 10)) + random.normal(size=(nodes, 10))
    source, target = edges(nodes, 4000)
    weights = np.round(random.random(4000) * (random.random(4000) > 0.05), 3)
    table("edges.csv", {"source": names[source], "target": names[target], "weight": weights})
    features = {f"x{column}": np.round(x[:, column], 3) for column in range(10)}
    split = random.choice(["train", "val", "test"], nodes, p=[0.5, 0.2, 0.3])
    topic = np.array(["river", "hill", "coast", "wood"])[topics]
    table("nodes.csv", {"id": names, **features, "topic": topic, "split": split})

    source, target = edges(nodes, 3000)
    parquet.write_table(pa.table({"from": source * 3 + 1, "to": target * 3 + 1}), folder / "edges.parquet")
    flags = {color: (random.random(nodes) < 0.4).astype(int) for color in ("red", "green", "blue")}
    columns = {"key": np.arange(nodes) * 3 + 1, **flags, **{name: features[name] for name in list(features)[:7]}}
    parquet.write_table(pa.table(columns), folder / "labels.parquet")

    source, target = edges(nodes, 3500)
    with gzip.GzipFile(folder / "links.txt.gz", "wb", mtime=0) as file:
        lines = ["# links", *(f"{a}\t{b}" for a, b in zip(source, target, strict=True)), f"{nodes - 1}\t0"]
        file.write(("\n".join(lines) + "\n").encode())
    np.save(folder / "x.npy", x.astype(np.float32))
    known = random.permutation(nodes)[:450]
    table("values.csv", {"id": known, "value": np.round(x[known].sum(1), 3)})
    table("parts.csv", {"node": np.arange(nodes), "part": random.integers(0, 2, nodes)})

    source, target = edges(nodes, 3000)
    order = random.permutation(nodes)
    masks = {f"{name}_mask": np.isin(order % 4, [number]) for number, name in enumerate(["train", "val", "test"])}
    np.savez(
        folder / "arrays.npz", edge_index=np.stack([source, target]), x=x.astype(np.float32), y=topics, **masks
    )  # fmt: skip
    table("plain.csv", {"source": source, "target": target})
    (folder / "links.json").write_text(json.dumps(LINKS), encoding="utf-8")


# Running commands: a process imports the libraries once, and forks for every command


LIBRARIES = (
    *("numpy", "yaml", "psutil", "pydantic", "rich.progress", "rich.table", "typer", "safetensors.torch", "jaxtyping"),
    *("torch", "torch._dynamo", "torch.distributed", "torch.distributed.rendezvous", "numba"),
    *("torchmetrics.functional.classification", "torch.utils.tensorboard"),
)


def serve() -> None:
    """Fork for every request on standard input, a JSON object a line; print how the processes have ended."""
    import importlib
    import signal
    import threading
    import warnings

    sys.path.pop(0)  # of this script
    spec = find_spec("partita")
    with warnings.catch_warnings(action="ignore"):
        for name in LIBRARIES:
            if find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
    assert threading.active_count() == 1, "threads do not survive a fork"
    print(json.dumps(spec.origin if spec else None), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        children = []
        for environment in request["environments"]:
            pid = os.fork()
            if pid == 0:
                become(request["arguments"], environment, request["log"])
            children.append(pid)
        end, codes = time.monotonic() + request["timeout"], dict.fromkeys(children)
        while None in codes.values():
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in codes:
                codes[pid] = os.waitstatus_to_exitcode(status)
                end = end if codes[pid] == 0 else min(end, time.monotonic() + 30)  # others may wait for it forever
            elif time.monotonic() > end:
                for child in (child for child, code in codes.items() if code is None):
                    os.kill(child, signal.SIGKILL)
            else:
                time.sleep(0.01)
        print(json.dumps(list(codes.values())), flush=True)


def become(arguments: list[str], environment: dict[str, str], log: str) -> NoReturn:
    """Run ``python -m partita ARGUMENTS`` in this process, which has just been forked, and end."""
    import atexit
    import runpy
    import threading

    rank = environment.get("RANK", "0")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path in enumerate([os.devnull, f"{log}-{rank}.out", f"{log}-{rank}.err"]):
        os.dup2(os.open(path, os.O_RDONLY if number == 0 else flags, 0o600), number)
    os.environ.update(environment)
    place = int(rank) // int(environment.get("LOCAL_WORLD_SIZE", "1"))
    sys.argv[:] = ["partita", *(word.replace("{host}", str(place)) for word in arguments)]
    code: object = 0
    try:
        runpy.run_module("partita", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
        if isinstance(code, str):
            sys.stderr.write(code + "\n")
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    # As the interpreter ends, but without taking all modules apart, which takes as long as to import them.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


LEFT_OUT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("PYTHONDONTWRITEBYTECODE", "NUMBA_DISABLE_JIT"),
)
"""Variables of the environment that commands do not get."""


@dataclass
class Job:
    """Commands that are run one after the other.

    Attributes:
        name: of the row.
        commands: without ``partita``; ``copy FROM TO`` is one of ours.
        needs: names of jobs that must have been done.
        workers, hosts: of ``train`` and ``plan``.
    """

    name: str
    commands: list[str]
    needs: list[str] = field(default_factory=list)
    workers: int = 1
    hosts: int = 1


class Half:
    """All that one version makes.

    Args:
        name: ``before`` or ``now``.
        folder: where to; its folder ``work`` is what commands run in.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.source, self.work, self.logs = folder / "src", folder / "work", folder / "logs"
        self.done: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        self._server: subprocess.Popen[str] | None = None

    def begin(self, package: Path, common: dict[str, str], *, again: bool) -> None:
        """Take the sources, and keep what is there if it was made from the same.

        Args:
            package: folder of the package; it is copied, so that it can change meanwhile.
            common: all that results follow from beside the sources.
            again: do everything again. Kernels that were compiled from the same sources are kept even so.
        """
        record = self.folder / "done.json"
        held = read_json(record) if record.exists() else {"key": {}}
        self._key = {"sources": digest_of(package), **common}
        if held["key"].get("sources") != self._key["sources"]:
            for path in (self.source, self.folder / "compiled"):
                shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(package, self.source / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        if held["key"] == self._key and not again:
            self.done = held["jobs"]
            return
        for path in (self.work, self.logs):
            shutil.rmtree(path, ignore_errors=True)
        self.logs.mkdir(parents=True)
        write_inputs(self.work / "inputs")
        (self.work / "out").mkdir()
        self._note()

    def run(self, job: Job) -> None:
        """Do a job, unless it was done before; a failure is noted."""
        if job.name in self.done or job.name in self.failed:
            return
        missing = next((name for name in job.needs if name in self.failed), None)
        if missing is not None:
            self.failed[job.name] = f"needs {missing}, which failed"
            return
        began = time.perf_counter()
        for number, command in enumerate(job.commands):
            arguments = shlex.split(command)
            if arguments[0] == "copy":
                shutil.copytree(self.work / arguments[1], self.work / arguments[2])
                continue
            spread = arguments[0] in ("train", "plan") and job.workers * job.hosts > 1
            log = self.logs / f"{slug(job.name)}-{number}"
            codes = self._ask(arguments, ranks(job.workers, job.hosts) if spread else [{}], log)
            if any(codes):
                errors = Path(f"{log}-{next(rank for rank, code in enumerate(codes) if code)}.err")
                said = " ".join(errors.read_text(encoding="utf-8").split()[-60:])
                self.failed[job.name] = f"partita {command}: exit codes {codes}: {said}"
                break
        else:
            self.done[job.name] = job.commands
            self._note()
        print(f"{self.name}: {job.name}, {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)

    def said(self, job: str, number: int) -> Any:
        """What a command of a job has printed, as JSON."""
        return json.loads((self.logs / f"{slug(job)}-{number}-0.out").read_text(encoding="utf-8"))

    def close(self) -> None:
        """End the process that runs commands."""
        if self._server is not None:
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.wait(60)
            self._server = None

    def _note(self) -> None:
        text = json.dumps({"key": self._key, "jobs": self.done})
        (self.folder / "done.json").write_text(text, encoding="utf-8")

    def _ask(self, arguments: list[str], environments: list[dict[str, str]], log: Path) -> list[int]:
        if self._server is None:
            self._start()
        assert self._server is not None
        assert self._server.stdin is not None
        request = {"arguments": arguments, "environments": environments, "log": str(log), "timeout": 1200}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._server is not None
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: the process that runs commands has ended")
        return json.loads(line)

    def _start(self) -> None:
        (self.folder / "cache").mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT} | {
            "PYTHONPATH": str(self.source),
            "NUMBA_CACHE_DIR": str(self.folder / "compiled"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),  # no links that were measured before
            "OMP_WAIT_POLICY": "PASSIVE",
            "OMP_NUM_THREADS": "1",
        }
        self._server = subprocess.Popen(
            [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=self.work, env=environment,
        )  # fmt: skip
        origin = self._answer()
        print(f"{self.name}: {origin}", file=sys.stderr, flush=True)
        if origin is None or not Path(origin).resolve().is_relative_to(self.source.resolve()):
            sys.exit(f"{self.name} imports {origin}, which is not in {self.source}")


def ranks(workers: int, hosts: int) -> list[dict[str, str]]:
    """The environment that torchrun gives to each worker."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        {
            "RANK": str(host * workers + worker), "WORLD_SIZE": str(hosts * workers), "LOCAL_RANK": str(worker),
            "LOCAL_WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }
        for host, worker in product(range(hosts), range(workers))
    ]  # fmt: skip


# What is run


def slug(name: str) -> str:
    """A name as a part of a path."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def stores_in(command: str) -> list[str]:
    """The stores, and files about them, that a command reads."""
    words = [word.replace("{host}", host) for word in shlex.split(command) for host in "01"]
    return [name for name in STORES if name in words]


def run_job(name: str, run: Run) -> Job:
    """Train, predict and evaluate; perhaps go on."""
    folder, out = f"runs/{slug(name)}", f"out/{slug(name)}.parquet"
    commands = [
        f"train {run.store} --out {folder} {COMMON} {run.options}",
        f"predict {folder} --out {out} {run.predict}",
        f"evaluate {folder} --json {run.evaluate}",
    ]
    if run.resumed:
        commands += [f"copy {folder} {folder}-longer", f"train --resume {folder}-longer {run.resumed}"]
    return Job(name, commands, stores_in(" ".join(commands)), run.workers, run.hosts)


def old_run_job(name: str, run: Run, before: Path) -> Job:
    """Let another version do with a run what the version that made it has done."""
    old, new = before / "runs" / slug(name), f"runs/{slug(name)}-again"
    commands = [
        f"train {run.store} --config {old}/config.yaml --out {new}",
        f"predict {old} --out out/{slug(name)}-again.parquet {run.predict}",
        f"evaluate {old} --json {run.evaluate}",
    ]
    if run.resumed:
        commands += [f"copy {old} {new}-longer", f"train --resume {new}-longer {run.resumed}"]
    return Job(f"old {name}", commands, stores_in(commands[0]), run.workers, run.hosts)


def all_jobs() -> dict[str, Job]:
    """Those of both versions, by name."""
    made = [
        Job(name, commands.split("\n"), [other for other in stores_in(commands) if other != name])
        for name, commands in STORES.items()
    ]
    made += [Job(name, [f"{command} --json"], stores_in(command)) for name, command in SAID.items()]
    made += [run_job(name, run) for name, run in RUNS.items()]
    made += [
        Job(f"plan {name}", [f"{command} --out out/plan-{slug(name)}.json"], stores_in(command), workers)
        for name, (workers, command) in PLANS.items()
    ]
    made += [Job(f"look at {name}", [f"{verb} {name} --json" for verb in LOOKS], [name]) for name in OLD_STORES]
    assert len({slug(job.name) for job in made}) == len(made), "two rows have the same name"
    return {job.name: job for job in made}


def unused_values() -> list[str]:
    """Options of which a value occurs in no run."""
    found = []
    for option, values in VALUES.items():
        words = [shlex.split(run.options) for run in RUNS.values()]
        used = {at[at.index(option) + 1] if option in at else values.split()[0] for at in words}
        found += [f"{option} {value}" for value in values.split() if value not in used]
    return found


# Comparing


class Comparison:
    """Looks for differences, and remembers what it found.

    Args:
        allowed: how large a difference may be, of the largest element.

    Attributes:
        differences: those that are not allowed.
        largest: of the differences, allowed or not, between numbers.
        count: of what was compared.
    """

    def __init__(self, allowed: float = 0.0) -> None:
        self.allowed = allowed
        self.differences: list[str] = []
        self.largest = 0.0
        self.count = 0

    def differ(self, where: str, before: object, now: object) -> None:
        """Note a difference."""
        self.differences.append(f"{where}: {shorten(before)} before, {shorten(now)} now")

    def values(self, where: str, before: Any, now: Any, *, exact: bool = False) -> None:
        """Compare JSON values, without the keys that are dropped. Counts are compared exactly, whatever is allowed."""
        if isinstance(before, dict) and isinstance(now, dict):
            last = {"checksum", "fingerprint"}  # something else says more
            for key in sorted({*before, *now} - DROPPED, key=lambda key: (key in last, key)):
                if key not in before or key not in now:
                    self.differ(f"{where}.{key}", *("there" if key in each else "absent" for each in (before, now)))
                else:
                    self.values(f"{where}.{key}", before[key], now[key], exact=exact or key in EXACT)
        elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
            for at, pair in enumerate(zip(before, now, strict=True)):
                self.values(f"{where}[{at}]", *pair, exact=exact)
        else:
            self.count += 1
            same = type(before) is type(now) and (before == now or (before != before and now != now))
            if not same and (exact or not self._close(before, now)):
                self.differ(where, before, now)

    def arrays(self, where: str, before: np.ndarray, now: np.ndarray) -> None:
        """Compare arrays, to the last bit unless something is allowed."""
        self.count += 1
        if (before.dtype, before.shape) != (now.dtype, now.shape):
            return self.differ(where, f"{before.dtype} {before.shape}", f"{now.dtype} {now.shape}")
        if before.tobytes() == now.tobytes():
            return None
        if before.dtype.kind not in "fiu":
            at = np.flatnonzero((before != now).ravel())[0]
            return self.differ(f"{where}[{at}]", before.ravel()[at], now.ravel()[at])
        a, b = before.ravel().astype(float), now.ravel().astype(float)
        with np.errstate(all="ignore"):
            error = float(np.max(np.abs(a - b)) / np.max(np.abs(a)))
        error = np.inf if np.isnan(error) else error
        self.largest = max(self.largest, error)
        if error > self.allowed or (np.isfinite(self.allowed) and before.dtype.kind != "f"):
            different = np.flatnonzero(~((a == b) | (np.isnan(a) & np.isnan(b))))
            at = different[0] if len(different) else 0
            self.differ(
                f"{where}, {len(different)} of {a.size} elements, by up to {error:.1e} of the largest, first [{at}]",
                before.ravel()[at], now.ravel()[at],
            )  # fmt: skip
        return None

    def _close(self, before: object, now: object) -> bool:
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (before, now))
        if not numbers or not self.allowed:
            return False
        error = abs(before - now) / max(abs(before), abs(now))  # type: ignore[operator, arg-type]
        self.largest = max(self.largest, error)
        return error <= self.allowed

    @property
    def result(self) -> str:
        """In words."""
        if not self.differences:
            return f"within {self.largest:.1e}" if self.largest else "identical"
        more = f" (and {len(self.differences) - 1:,} more)" if len(self.differences) > 1 else ""
        return f"DIFFERENT: {self.differences[0]}{more}"


def shorten(value: object) -> str:
    """At most a line of it."""
    value = value.item() if isinstance(value, np.generic) else value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else f"{text[:160]}..."


def files_in(folder: Path) -> dict[str, Path]:
    """All files below a folder, by relative path."""
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def compare_files(found: Comparison, name: str, before: Path, now: Path) -> None:
    """Compare files by their bytes, or by what they mean if a difference is allowed; else that only names it."""
    noted, suffix = len(found.differences), before.suffix
    if suffix == ".json":
        return found.values(name, *map(read_json, (before, now)))
    if before.read_bytes() == now.read_bytes():
        return None
    if suffix == ".npy":
        found.arrays(name, *(np.load(path, mmap_mode="r") for path in (before, now)))
    elif suffix in (".npz", ".parquet", ".safetensors"):
        read = {".npz": read_npz, ".parquet": read_parquet, ".safetensors": read_safetensors}[suffix]
        columns = read(before), read(now)
        for key in sorted({*columns[0], *columns[1]}):
            if key not in columns[0] or key not in columns[1]:
                found.differ(f"{name}, {key}", *("there" if key in each else "absent" for each in columns))
            else:
                found.arrays(f"{name}, {key}", columns[0][key], columns[1][key])
    if len(found.differences) == noted and not found.allowed:
        found.differences.append(f"{name}: the same content in other bytes")
    return None


def read_json(path: Path) -> Any:
    """What a file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name."""
    with np.load(path) as file:
        return dict(file)


def read_parquet(path: Path) -> dict[str, np.ndarray]:
    """Columns by name."""
    from pyarrow import parquet

    table = parquet.read_table(path)
    return {name: np.array(table.column(name).to_pylist()) for name in table.column_names}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Tensors by name."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    dtypes = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name == "__metadata__":
            tensors[name] = np.array(json.dumps(entry, sort_keys=True))
        else:
            first, last = (start + offset for offset in entry["data_offsets"])
            values = np.frombuffer(content[first:last], dtypes.get(entry["dtype"], "u1"))
            tensors[name] = values.reshape(entry["shape"]) if entry["dtype"] in dtypes else values
    return tensors


def compare_folders(found: Comparison, before: Path, now: Path, suffix: str = "") -> None:
    """Compare all files below folders that end so; those of JSON, which sum others up, last."""
    files = [{name: path for name, path in files_in(each).items() if name.endswith(suffix)} for each in (before, now)]
    for name in sorted({*files[0], *files[1]}, key=lambda name: (name.endswith(".json"), name)):
        if name not in files[0] or name not in files[1]:
            found.differ(name, *("there" if name in each else "absent" for each in files))
        else:
            compare_files(found, name, files[0][name], files[1][name])


Row = tuple[str, str, str]
"""Name, what was compared, and the result."""


def row(name: str, what: str, found: Comparison) -> Row:
    """A row of the table that is printed."""
    return name, what, found.result


def store_rows(name: str, before: Half, now: Half) -> Iterator[Row]:
    """Compare stores, or files about them."""
    found, paths = Comparison(), (before.work / name, now.work / name)
    if all(path.is_file() for path in paths):
        compare_files(found, name, *paths)
        yield row(name, "bytes of the file", found)
    else:
        compare_folders(found, *paths)
        yield row(name, f"bytes of {len(files_in(paths[0]))} files", found)


def said_rows(name: str, commands: int, before: Half, now: Half) -> Iterator[Row]:
    """Compare what the commands of a job have printed."""
    found = Comparison()
    for number in range(commands):
        found.values("", *(half.said(name, number) for half in (before, now)))
    yield row(name, f"{found.count:,} values", found)


def run_rows(name: str, run: Run, before: Half, now: Half, again: bool = False) -> Iterator[Row]:
    """Compare runs, and what was made with them.

    Args:
        name: of the run.
        run: its row of the table.
        before, now: the halves.
        again: compare what ``now`` has made of what ``before`` had made.
    """
    title, mark = (f"old {name}", "-again") if again else (name, "")
    allowed = np.inf if run.reordered else 1e-12 if F64 in run.options else 0.0
    follows = 0.0  # what is allowed of all that follows from the weights
    for end in ("", "-longer") if run.resumed else ("",):
        resumed = ", resumed" if end else ""
        folders = before.work / "runs" / f"{slug(name)}{end}", now.work / "runs" / f"{slug(name)}{mark}{end}"
        found = Comparison(allowed)
        compare_folders(found, *(folder / "checkpoints" for folder in folders), suffix=".safetensors")
        tensors = [read_safetensors(path) for path in (folders[0] / "checkpoints").rglob("*.safetensors")]
        yield row(title, f"{sum(map(len, tensors))} tensors of checkpoints{resumed}", found)
        if found.largest and allowed:
            follows = np.inf if run.reordered else 1e-6
        found = Comparison(follows)
        found.values("state.json", *(states(folder, same=not follows) for folder in folders))
        found.values("run.json", *(recorded(folder, same=not follows) for folder in folders))
        yield row(title, f"{found.count:,} values of run.json and state.json{resumed}", found)
        found = Comparison(follows)
        found.values("metrics.jsonl", *map(events, folders))
        yield row(title, f"{found.count:,} values of metrics.jsonl{resumed}", found)
    found = Comparison(follows)
    paths = before.work / "out" / f"{slug(name)}.parquet", now.work / "out" / f"{slug(name)}{mark}.parquet"
    compare_files(found, "predictions", *paths)
    yield row(title, "bytes of predict", found)
    found = Comparison(follows)
    found.values("evaluate", before.said(name, 2), now.said(title, 2))
    yield row(title, f"{found.count:,} values of evaluate", found)


def recorded(folder: Path, *, same: bool) -> dict[str, Any]:
    """What is compared of ``run.json``.

    Args:
        folder: of the run.
        same: whether the weights are the same; otherwise metrics that are sent as text may differ in their length.
    """
    record = read_json(folder / "run.json")
    phases = [(phase, sent) for worker in record.get("workers", []) for phase, sent in worker["traffic_bytes"].items()]
    if "workers" in record:
        phases += [("training", record["traffic_bytes"]), ("evaluation", record["traffic_bytes"]["evaluation"])]
    for phase, sent in phases:
        left_out = STARTED if phase == "start" else ()
        left_out += LOADED if "views" in record else ()
        left_out += () if same or phase != "evaluation" else ("metadata",)
        for kind in left_out:
            sent.pop(kind, None)
    record = {NEW_NAMES.get(key, key): value for key, value in record.items()}
    return {key: record[key] for key in RECORDED if key in record}


def states(folder: Path, *, same: bool) -> dict[str, Any]:
    """What is compared of ``state.json``, by checkpoint; see :func:`recorded`."""
    found = {path.parent.name: read_json(path) for path in (folder / "checkpoints").glob("*/state.json")}
    for state in found.values():
        if not same:
            state["evaluation"].pop("metadata", None)
    return found


def events(folder: Path) -> list[dict[str, Any]]:
    """What is compared of ``metrics.jsonl``: of notes the words, without the seconds in them."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(re.sub(r"[\d.,]+ m?s\b", "# s", line)) for line in lines]


def plan_rows(name: str, before: Half, now: Half) -> Iterator[Row]:
    """Compare what plans count; which strategy is the fastest is measured, and so may differ."""
    plans = [read_json(half.work / "out" / f"plan-{slug(name)}.json") for half in (before, now)]
    found = Comparison()
    settings = [NEW_NAMES.get(key, key) for key in plans[0]["made_for"]]
    found.values("plan", *(planned(plan, settings) for plan in plans))
    yield row(f"plan {name}", f"{found.count:,} values", found)


def planned(plan: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """What is compared of a plan: all that was counted, by strategy.

    Args:
        plan: as its file holds it.
        settings: names of those to compare, of all that the plan was made for.
    """
    strategies = {each["strategy"]: each for each in plan["candidates"] + plan["approximate"]}
    made_for = {NEW_NAMES.get(key, key): value for key, value in plan["made_for"].items()}
    return {
        **{key: plan[key] for key in ("steps", "sampled_steps", "refused")},
        "made_for": {key: made_for.get(key) for key in settings},
        **{name: {key: each.get(key) for key in PLANNED} for name, each in strategies.items()},
    }


# The command


def digest_of(folder: Path) -> str:
    """Of all files below a folder."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def check_out(revision: str, folder: Path) -> Path:
    """Write the sources of a revision into a folder; where the package is."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", revision, "src"], stdout=subprocess.PIPE)
    if archive.returncode:
        sys.exit(f"git cannot give the sources of {revision}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / "src"


def surroundings() -> dict[str, str]:
    """All that results follow from, beside the sources."""
    tables = repr([asdict(job) for job in all_jobs().values()]) + inspect.getsource(write_inputs) + repr(LINKS)
    libraries = ("torch", "numpy", "numba", "pyarrow", "scipy", "pymetis", "torchmetrics", "safetensors")
    return {
        "tables": hashlib.sha256(tables.encode()).hexdigest(),
        "machine": f"{processor()}, {platform.node()}, Python {platform.python_version()}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in libraries),
    }


def processor() -> str:
    """Its name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def chosen(jobs: dict[str, Job], only: str) -> list[str]:
    """Names of the jobs to compare, after what each needs."""
    wanted: dict[str, None] = {}

    def want(name: str) -> None:
        for other in jobs[name].needs:
            want(other)
        wanted[name] = None

    for name in jobs:
        if only.lower() in name.lower():
            want(name)
    return list(wanted)


def rows_of(name: str, before: Half, now: Half) -> Iterator[Row]:
    """Do the jobs of a row in both halves, and compare."""
    job = all_jobs()[name]
    for half in (before, now):
        half.run(job)
    failed = next((f"{half.name} failed: {half.failed[name]}" for half in (before, now) if name in half.failed), None)
    if failed is not None:
        yield name, "-", f"DIFFERENT: {failed}"
    elif name in STORES:
        yield from store_rows(name, before, now)
    elif name in RUNS:
        yield from run_rows(name, RUNS[name], before, now)
    elif name.removeprefix("plan ") in PLANS:
        yield from plan_rows(name.removeprefix("plan "), before, now)
    else:
        yield from said_rows(name, len(job.commands), before, now)


def old_rows_of(name: str, before: Half, now: Half) -> Iterator[Row]:
    """Let the new version read what the old one has made, and compare."""
    if name in RUNS:
        job = old_run_job(name, RUNS[name], before.work)
    else:
        job = Job(f"old {name}", [f"{verb} {before.work / name} --json" for verb in LOOKS])
    now.run(job)
    if job.name in now.failed:
        yield job.name, "-", f"DIFFERENT: now failed: {now.failed[job.name]}"
    elif name in RUNS:
        yield from run_rows(name, RUNS[name], before, now, again=True)
    else:
        found = Comparison()
        for number in range(len(LOOKS)):
            found.values("", before.said(f"look at {name}", number), now.said(job.name, number))
        yield row(job.name, f"{found.count:,} values", found)


def compare(before: Half, now: Half, only: str) -> Iterator[Row]:
    """All rows of the table."""
    jobs = all_jobs()
    names = chosen(jobs, only)
    old = [name for name in OLD_STORES if f"look at {name}" in names] + [name for name in OLD_RUNS if name in names]
    for rows, name in [(rows_of, name) for name in names] + [(old_rows_of, name) for name in old]:
        if rows is old_rows_of and name in before.failed:
            continue
        try:
            yield from rows(name, before, now)
        except (OSError, LookupError, TypeError, ValueError) as error:  # a file is missing, or has another form
            yield name, "-", f"DIFFERENT: cannot be compared: {error!r}"


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REVISION", help="of git, to compare with")
    parser.add_argument(
        "--before-src", type=Path, help="folder with the package to compare with, instead of a revision"
    )
    parser.add_argument("--now-src", type=Path, default=ROOT / "src", help="folder with the package, default: this one")
    parser.add_argument(
        "--only", default="", metavar="SUBSTRING", help="rows whose names have this, and what they need"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to leave what is made, and to find it again")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the rows to this file, as JSON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    if (options.against is None) == (options.before_src is None):
        parser.error("give either --against or --before-src")
    if unused := unused_values():
        sys.exit(f"no run has {', '.join(unused)}")
    began, rows = time.perf_counter(), []
    with ExitStack() as stack:

        def temporary() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="partita-unchanged-")))

        before = options.before_src or check_out(options.against, temporary())
        folder = (options.keep or temporary()).resolve()
        halves = [Half(name, folder / name) for name in ("before", "now")]
        for half, source in zip(halves, (before, options.now_src), strict=True):
            half.begin(source / "partita", surroundings(), again=half.name == "now")
            stack.callback(half.close)
        print("| what | compared | result |\n|---|---|---|")
        for found in compare(*halves, options.only):
            rows.append(found)
            print(f"| {' | '.join(found)} |", flush=True)
    different = sum(result.startswith("DIFFERENT") for _, _, result in rows)
    print(f"\n{len(rows)} comparisons, {different} different, {time.perf_counter() - began:.0f} s", flush=True)
    if options.out:
        found = [dict(zip(("name", "compared", "result"), each, strict=True)) for each in rows]
        options.out.write_text(json.dumps({"rows": found, "different": different}, indent=1) + "\n", encoding="utf-8")
    sys.exit(int(different > 0))


if __name__ == "__main__":
    main()
