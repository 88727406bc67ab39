"""Learnt rows in memory, and ten times the memory that they are given: ``python bench/learnt_rows.py``.

A row for every node of an R-MAT graph, whose edges reach a few nodes often and most nodes hardly ever; scalar products,
a softmax over nodes that a batch shares, Adam. Three ways, each in a process of its own:

- everything in memory;
- in files, but for a tenth (``--embed-memory``), with that and ``--room`` of private memory besides what the process
  had before (``RLIMIT_DATA``);
- the same in a control group whose memory, pages of files included, is the tenth and what a process takes that has
  loaded everything but the tables (where this process may make a group).

Printed are edges a second of the second epoch. The first one reaches most rows for the first time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import tempfile
from pathlib import Path
from typing import Any

from limited import groups_can_be_made, limit_memory, one_way

import partita
from partita.tasks.links.negatives import NEGATIVES

SETTINGS = ("scale", "degree", "width", "epochs", "threads", "room", "negatives", "look_ahead")
"""Names of options that every way reads."""


class Enough(Exception):
    """What is measured is measured."""


def private() -> int:
    """Bytes that ``RLIMIT_DATA`` counts."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def resident() -> int:
    """Bytes in memory at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def train(store: Path, folder: Path, options: argparse.Namespace, memory: str) -> float:
    """Edges a second of the last epoch."""
    found = []

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            found.append(event["seconds"])
            if len(found) == options.epochs:
                raise Enough

    with contextlib.suppress(Enough):
        trainer = partita.Trainer(
            store, out=folder / "run", overwrite=True, task="links", model="none", embed=str(options.width),
            hidden=options.width, decoder="dot", negative_sampler=options.negatives, batch_size=1024,
            negatives=256 if NEGATIVES.find(options.negatives).counted else 0,
            epochs=options.epochs, eval_every=0, checkpoint_minutes=10**6, embed_memory=memory,
            threads=options.threads, callbacks=[note], held_out="0,0.001", look_ahead=options.look_ahead,
        )  # fmt: skip
        edges = len(trainer.job.task.seeds("train"))
        trainer.fit(progress=False)
    return edges / found[-1]


def child(options: argparse.Namespace) -> None:
    """One of the ways; prints a JSON object."""
    memory, folder = "1TiB", Path(options.folder)
    if options.way != "memory":
        memory = str(options.bytes // 10)
        small = folder / "small"
        # What is loaded once is loaded, and is not counted.
        settings = argparse.Namespace(**{**vars(options), "width": 8, "epochs": 1})
        train(folder / "graph", small, settings, "1TiB")
    if options.way == "RLIMIT_DATA":
        limit = private() + options.bytes // 10 + options.room
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if options.way == "control group":
        limit_memory(resident() + options.bytes // 10 + options.room)
    speed = train(folder / "graph", folder, options, memory)
    print(json.dumps({"speed": speed, "resident": resident()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=21, help="nodes are 2 to this")
    parser.add_argument("--degree", type=int, default=1, help="edges of a node")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--room", type=int, default=128 << 20, help="bytes for batches")
    parser.add_argument("--negatives", default="joint", help="negative sampler")
    parser.add_argument("--look-ahead", type=int, default=0, help="batches")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.bytes = (1 << options.scale) * options.width * 4 * 3
    if options.way:
        child(options)
        return
    size = f"{options.bytes / 2**30:.1f} GiB"
    print(f"{1 << options.scale:,} rows of {options.width} columns with both moments: {size}\n")
    print("| tables | edges/s | to memory | resident at most, MiB |\n|---|---|---|---|")
    ways, first = ["memory", "RLIMIT_DATA"], None
    if groups_can_be_made():
        ways.append("control group")
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
        partita.generate_rmat(Path(folder) / "graph", scale=options.scale, edge_factor=options.degree)
        for way in ways:
            found = one_way(__file__, way, Path(folder), options, SETTINGS)
            if "error" in found:
                print(f"| {way} | {found['error']} | | |", flush=True)
                continue
            first = first or found["speed"]
            print(
                f"| {way} | {found['speed']:,.0f} | {found['speed'] / first:.2f} | {found['resident'] >> 20:,} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
