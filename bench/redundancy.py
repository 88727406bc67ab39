"""What data-parallel workers sample, compute and load twice, and split parallelism once: GSplit's Table 1.

    python bench/redundancy.py [--graphs rmat19,oewn2024] [--batch 1024,4096] [--out docs/redundancy.md]

Only sampling is done: every worker of a run draws the batches of an epoch as the trainer does, and the counts of its
batches are summed over workers and steps. ``gdp`` with the batch dealt evenly is the paper's "Micro" (4 micro-batches
of a quarter each), ``gsplit`` its "Mini" (the whole mini-batch, each vertex at one worker).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import partita
from partita import Config
from partita.comm.context import Context
from partita.comm.local import run_local
from partita.core.keys import StepKey
from partita.core.records import Counts
from partita.train.job import Job
from partita.train.team import PURPOSES

DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
MARKS = ("<!-- measured: begin -->", "<!-- measured: end -->")
WORKERS = 4
WAYS = {
    "gdp, 1 worker": {"strategy": "gdp", "workers": 1},
    "gdp, dealt evenly": {"strategy": "gdp", "workers": WORKERS, "seed_split": "even"},
    "gdp, dealt by owner": {"strategy": "gdp", "workers": WORKERS, "seed_split": "owner"},
    "gsplit": {"strategy": "gsplit", "workers": WORKERS, "seed_split": "owner"},
}
HEAD = (
    "graph", "seeds", "steps", "way", "sampled edges", "rows of layer 1", "of layer 2", "of layer 3",
    "input rows loaded", "edges : gsplit", "loaded : gsplit",
)  # fmt: skip


# Graphs


def make_rmat(scale: int) -> Callable[[Path], object]:
    """Both directions of 16 edges per node, a tenth of the nodes to train on; features that cost nothing."""
    return lambda store: partita.generate_rmat(
        store, scale=scale, undirected=True, deduplicate=True, num_features=4, num_classes=4, split=(0.1, 0.1, 0.1)
    )


def make_real(name: str) -> Callable[[Path], object]:
    def make(store: Path) -> None:
        several = name == "tolokers"  # splits
        partita.ingest(
            DATA / f"{name}.npz", store, undirected=True, deduplicate=True, feature_dtype="float16",
            split_index=0 if several else None,
        )  # fmt: skip

    return make


GRAPHS = {
    "rmat19": make_rmat(19),
    **{name: make_real(name) for name in ("oewn2024", "facebook_pagepage", "coauthor_cs", "amazon_computers")},
    "tolokers": make_real("tolokers"),
    "rmat12": make_rmat(12),  # for trying out
}


# Counts


def count(context: Context, store: str, runs: list[dict[str, Any]], max_steps: int) -> list[dict[str, Any]]:
    """Draw the batches of the first epoch of every run; what this worker sampled, computed and loaded."""
    found = []
    for settings in runs:
        job = Job.prepare(Config.make(settings), partita.open(store), context)
        total, steps = Counts.zero(job.config.layers), min(job.views.seed_order.num_steps, max_steps)
        for step in range(steps):
            seeds = job.team.share(job.views.seed_order.batch(0, step))
            total += job.views.engine.sample(seeds, StepKey(job.config.seed, 0, step)).counts
        found.append({"counts": total.to_json(), "steps": steps})
    return found


def counts_of(store: Path, runs: list[dict[str, Any]], max_steps: int) -> list[tuple[Counts, int]]:
    """Counts of each run, summed over its workers, and its steps. All runs are on the same number of workers."""
    workers = runs[0]["workers"]
    if workers == 1:
        found = [count(Context.alone(purposes=PURPOSES), str(store), runs, max_steps)]
    else:
        found = run_local(count, workers, [str(store), runs, max_steps], purposes=PURPOSES)
    return [
        (sum((Counts.from_json(each["counts"]) for each in run), Counts.zero(runs[0]["layers"])), run[0]["steps"])
        for run in zip(*found)
    ]


def rows_of(name: str, store: Path, batches: list[int], fanout: str, max_steps: int) -> Iterator[list[str]]:
    """Lines of the table for a graph."""
    common = {"layers": 3, "fanout": fanout, "hidden": 16, "threads": 1}
    runs = {(batch, way): {**common, "batch_size": batch, **WAYS[way]} for batch in batches for way in WAYS}
    found: dict[tuple[int, str], tuple[Counts, int]] = {}
    for workers in (1, WORKERS):
        mine = {key: settings for key, settings in runs.items() if settings["workers"] == workers}
        began = time.perf_counter()
        found |= zip(mine, counts_of(store, list(mine.values()), max_steps), strict=True)
        print(f"{name}, {workers} workers: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    for batch, way in runs:
        counts, steps = found[batch, way]
        mini, alone = found[batch, "gsplit"][0], found[batch, "gdp, 1 worker"][0]
        mine, others = ((c.sampled_edges, c.computed_destinations, c.input_rows_read) for c in (mini, alone))
        if mine != others:
            sys.exit(f"{name}: gsplit did {mini}, one worker {alone}; they must be equal")
        yield [
            name, f"{batch:,}", f"{steps:,}", way, f"{counts.sampled_edges:,}",
            *(f"{rows:,}" for rows in counts.computed_destinations), f"{counts.input_rows_read:,}",
            f"{counts.sampled_edges / mini.sampled_edges:.2f}", f"{counts.input_rows_read / mini.input_rows_read:.2f}",
        ]  # fmt: skip


# The page


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def page(rows: list[list[str]], graphs: list[str]) -> str:
    import torch

    lines = [
        f"`python {' '.join(sys.argv)}`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} shared cores of {processor()}; "
        f"Python {platform.python_version()}, partita {partita.__version__}, torch {torch.__version__}. "
        "The counts depend on neither machine nor load.",
        "",
        "| graph | nodes | edges (both directions) | training nodes | cut by spring+ into 4 |",
        "|---|---|---|---|---|",
        *graphs,
        "",
        *("| " + " | ".join(cells) + " |" for cells in (HEAD, ["---"] * len(HEAD), *rows)),
    ]
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Put the text between the marks of a file that has them; else it becomes the file."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    before, found, rest = old.partition(MARKS[0])
    if found:
        text = f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=",".join(list(GRAPHS)[:-1]), help="names, with commas between")
    parser.add_argument("--batch", default="1024,4096", help="seeds of a step over all workers, with commas between")
    parser.add_argument("--fanout", default="15,10,5", help="of three layers, the first hop from the seed nodes first")
    parser.add_argument("--max-steps", type=int, default=100, help="of the epoch; fewer where it has fewer")
    parser.add_argument("--out", type=Path, help="file to write to")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batch.split(",")]
    rows, graphs = [], []
    for name in options.graphs.split(","):
        with tempfile.TemporaryDirectory(prefix="partita-redundancy-") as folder:
            whole, parts = Path(folder, "store"), Path(folder, "parts")
            GRAPHS[name](whole)
            cut = partita.partition(whole, parts, parts=WORKERS, algorithm="spring+").quality.edge_cut
            store = partita.open(str(parts))
            graphs.append(
                f"| {name} | {store.num_nodes:,} | {store.num_edges:,} | {len(store.split('train')):,} | {cut:.1%} |"
            )
            rows += rows_of(name, parts, batches, options.fanout, options.max_steps)
    text = page(rows, graphs)
    print(text)
    if options.out:
        write(options.out, text)


if __name__ == "__main__":
    main()
