"""How large a graph one worker trains from disk within a memory budget, and what switching views costs.

    python bench/isolated_capacity.py --folder DIR --scales 20 22 24 26 --out docs/capacity_measured.csv

For every scale: an R-MAT graph (16 edges per node, 16 float16 features, 1 % of the nodes are trained on), cut at random
into as many chunks as the budget asks for, and one epoch of Grappa's schedule by one worker: two layers of SAGE, hidden
64, fanout 10,10, batches of 1024. ``--budget`` is for all private memory of the process above what it holds after its
imports; a third of it is for views. The store that was generated is deleted when it is partitioned, and what was
partitioned when it is trained, so DIR needs room for two stores of the largest scale.

    python bench/isolated_capacity.py --folder DIR --scales 20 --parts 64 --train 0.6 --epochs 3 --out switching.csv

measures what changing views costs at a given number of chunks; with ``--one-at-a-time`` without reading ahead.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rows import append_row

import partita
from partita.isolated.views import WEIGHTS, PartView

FIELDS = (
    "scale", "nodes", "edges", "store_bytes", "parts", "views", "epochs", "generate_seconds", "partition_seconds",
    "epoch_seconds", "seeds", "sampled_edges", "wait_for_view", "loading_seconds", "wait_for_batch", "forward",
    "backward", "optimizer", "checkpoint", "mean_view_bytes", "peak_memory_bytes", "budget_bytes", "ahead",
)  # fmt: skip


def measure(scale: int, options: argparse.Namespace) -> dict[str, Any]:
    folder: Path = options.folder
    whole, cut, out = folder / "whole", folder / "cut", folder / "run"
    for path in (whole, cut, out):
        shutil.rmtree(path, ignore_errors=True)
    started = time.perf_counter()
    partita.generate_rmat(
        whole, scale=scale, num_features=16, num_classes=16, dtype="float16", split=(options.train, 0, 0),
        memory_limit=options.budget // 2,
    )  # fmt: skip
    generated = time.perf_counter()
    store = partita.open(str(whole))
    parts = options.parts or parts_for(store, options.budget // 3)
    partita.partition(whole, cut, parts=parts, algorithm="random", memory_limit=options.budget // 2)
    partitioned = time.perf_counter()
    if not options.keep:
        shutil.rmtree(whole)
    store = partita.open(str(cut))
    share = 2 / 3
    if options.one_at_a_time:  # room for one and a half
        share = 1 - 1.5 * PartView.measure(store, (0, 1), "none", without=(WEIGHTS,)).bytes / options.budget
    # In a process of its own, whose memory is nobody else's.
    command = [sys.executable, "-c", "from partita.cli import main; main()", "train", str(cut), "--out", str(out)]
    options_of_run = {
        "preset": "grappa", "layers": 2, "hidden": 64, "fanout": "10,10", "epochs": options.epochs, "eval-every": 0,
        "checkpoint-minutes": 1000, "memory-per-worker": options.budget, "compute-share": share, "seed": options.seed,
    }  # fmt: skip
    command += [f"--{name}={value}" for name, value in options_of_run.items()]
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    record = json.loads(done.stdout)
    stages = record["stage_seconds"]
    loading = record["views"]["loading"][0]
    size = sum(file.stat().st_size for file in cut.rglob("*") if file.is_file())
    row = {
        "scale": scale,
        "nodes": store.num_nodes,
        "edges": store.num_edges,
        "store_bytes": size,
        "parts": parts,
        "views": loading["views"],
        "epochs": options.epochs,
        "generate_seconds": generated - started,
        "partition_seconds": partitioned - generated,
        "epoch_seconds": sum(seconds_of(out)),
        "seeds": record["counts"]["computed_destinations"][-1],
        "sampled_edges": record["counts"]["sampled_edges"],
        "loading_seconds": loading["seconds"],
        "mean_view_bytes": loading["bytes"] // loading["views"],
        "peak_memory_bytes": record["peak_memory_bytes"],
        "budget_bytes": options.budget,
        "ahead": record["views"]["ahead"],
        **{name: stages[name] for name in FIELDS if name in stages},
    }
    for path in (cut, out) if not options.keep else (out,):
        shutil.rmtree(path)
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}


def parts_for(store: partita.GraphStore, room: int) -> int:
    """Chunks such that two views, of two chunks each, fit; at least 4."""
    everything = PartView.bound(store, range(store.num_parts), "none", without=(WEIGHTS,)).bytes
    found = 4
    # A pair has 2 / c of the nodes, and at random (2 / c)^2 of the edges; the bound counts 2 / c of them.
    while 2 * (2 / found) * everything * 1.1 > room:
        found *= 2
    return found


def seconds_of(run: Path) -> list[float]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["seconds"] for event in events if event["event"] == "epoch"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the stores")
    parser.add_argument("--scales", type=int, nargs="+", default=[20, 21, 22])
    parser.add_argument("--budget", type=int, default=6 * 2**30, help="bytes of private memory; default 6 GiB")
    parser.add_argument("--parts", type=int, default=0, help="chunks; default: as the budget asks for")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--train", type=float, default=0.01, help="fraction of the nodes that are trained on")
    parser.add_argument("--one-at-a-time", action="store_true", help="no memory for reading ahead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the stores of the last scale")
    parser.add_argument("--out", type=Path, default=Path("capacity_measured.csv"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for scale in options.scales:
        row = measure(scale, options)
        append_row(options.out, FIELDS, row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
