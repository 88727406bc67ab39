"""Features larger than memory: read by their next use beside mapped into memory: ``python bench/feature_memory.py``.

SAGE with three layers of 256 columns on an R-MAT graph, fanout 15,10,5, batches of 1024. The ways, each in a process of
its own:

- memory: rows are mapped, and all in the system's cache of pages, which nobody limits;
- mapped: the same in a control group whose memory is the graph's edges, room for batches, and a tenth of the features;
- mapped at random: likewise, and the system is told that rows are not read in order (``MADV_RANDOM``);
- next use: ``--feature-memory`` is the tenth, in a control group of the same size.

Printed are seconds of the last epoch, medians over repetitions, and what was read. Control groups need the right to
make them (``/sys/fs/cgroup/memory``). The disk's own speed is measured beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import resource
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limited import drop, limit_memory, not_in_order, read_all, rows_of_ways

import partita
from partita.train import trainer as trainer_module

WAYS = ("memory", "mapped", "mapped at random", "next use")
SETTINGS = ("fanout", "epochs", "look_ahead", "limit", "threads", "room", "hidden", "batch_size")
"""Names of options that every way reads."""


class Enough(Exception):
    """What is measured is measured."""


def train(
    store: partita.Store, folder: Path, options: argparse.Namespace, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The last epoch, or what its time would be by the steps that were made within the limit."""
    trainer_module.STEP_EVENTS = 1
    found, begun = dict[str, Any](), [time.perf_counter()]

    def note(event: dict[str, Any]) -> None:
        nonlocal found
        spent = time.perf_counter() - begun[0]
        if event["event"] == "epoch":
            found = dict(event)
            begun[0] = time.perf_counter()
            if event["epoch"] + 1 == options.epochs:
                raise Enough
        elif event["event"] == "step" and spent > options.limit:
            found = {"seconds": spent * steps / event["step"], "steps": event["step"]}
            raise Enough

    trainer = partita.Trainer(
        store, out=folder / "run", overwrite=True, model="sage", layers=len(options.fanout.split(",")),
        hidden=options.hidden, fanout=tuple(map(int, options.fanout.split(","))), batch_size=options.batch_size,
        epochs=options.epochs, eval_every=0, threads=options.threads, callbacks=[note], checkpoint_minutes=10**6,
        **settings,
    )  # fmt: skip
    steps = trainer.job.views.seed_order.num_steps  # type: ignore[attr-defined]
    with contextlib.suppress(Enough):
        trainer.fit(progress=False)
    return found


def child(options: argparse.Namespace) -> None:
    """One of the ways; prints a JSON object."""
    store = partita.open(Path(options.folder) / "graph")
    assert store.x is not None
    features, edges = store.x.nbytes, store.indices.nbytes + store.indptr.nbytes
    memory, file = features // 10, store.path / "x.npy"
    if options.way == "memory":
        read_all(file)
    else:
        drop(file)
        limit_memory(memory + edges + options.room)
    if options.way == "mapped at random":
        not_in_order(store.x)
    ahead = {"feature_memory": memory, "look_ahead": options.look_ahead}
    found = train(store, Path(options.folder), options, ahead if options.way == "next use" else {})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    said = {"seconds": found["seconds"], "steps": found.get("steps"), "reads": found.get("feature_reads"), "peak": peak}
    print(json.dumps(said))


def disk(file: Path) -> str:
    """Reads a second, and bytes a second, past the cache."""
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    size = os.fstat(descriptor).st_size
    said = []
    for length, count in ((4096, 16000), (1 << 20, 1000)):

        def some(seed: int, length: int = length, count: int = count) -> None:
            generator, buffer = random.Random(seed), mmap.mmap(-1, length)
            for _ in range(count // 8):
                os.preadv(descriptor, [buffer], generator.randrange(max(1, size // length - 1)) * length)

        threads = [threading.Thread(target=some, args=(seed,)) for seed in range(8)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
        rate = count / seconds
        said.append(f"{rate:,.0f} reads of {length >> 10:,} KiB a second ({rate * length / 1e6:,.0f} MB/s)")
    os.close(descriptor)
    return "; ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=23, help="nodes are 2 to this")
    parser.add_argument("--degree", type=int, default=8, help="edges of a node")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=300, help="of an epoch, about")
    parser.add_argument("--fanout", default="15,10,5")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--look-ahead", type=int, default=0)
    parser.add_argument("--limit", type=float, default=120, help="seconds of an epoch, where its first steps must do")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--room", type=int, default=2 << 30, help="bytes for batches")
    parser.add_argument("--store", type=Path, help="that an earlier call has made, or where to make it")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        child(options)
        return
    with contextlib.ExitStack() as stack:
        folder = options.store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="partita-bench-")))
        if not (folder / "graph").exists():
            folder.mkdir(exist_ok=True)
            share = options.batch_size * options.steps / 2**options.scale
            partita.generate_rmat(
                folder / "graph", scale=options.scale, edge_factor=options.degree, num_features=options.width,
                num_classes=10, split=(share, share / 10, share / 10),
            )  # fmt: skip
        store = partita.open(folder / "graph")
        assert store.x is not None
        print(f"{store.num_nodes:,} nodes, {store.num_edges:,} edges, {store.x.nbytes / 2**30:.1f} GiB of features")
        print(f"disk: {disk(store.path / 'x.npy')}\n")
        rows_of_ways("rows", __file__, folder, options, SETTINGS)


if __name__ == "__main__":
    main()
