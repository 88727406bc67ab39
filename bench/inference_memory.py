"""Full-graph inference over features larger than memory: rows read in order beside rows read by each edge.

``python bench/inference_memory.py`` computes all nodes of an R-MAT graph with SAGE, in a process of its own for each
way:

- memory: rows are mapped, and all in the system's cache of pages, which nobody limits;
- by edge: each block of nodes reads the rows of its neighbors where they lie, in a control group whose memory is the
  graph's edges, some room, and a tenth of the features;
- by edge at random: likewise, and the system is told that rows are not read in order (``MADV_RANDOM``);
- in order: the file is read from its beginning to its end for each block of nodes, in a control group of the same size.

Printed are seconds, by the nodes that were done within the limit where not all were, and what was read from the disk.
Control groups need the right to make them (``/sys/fs/cgroup/memory``).
"""

from __future__ import annotations

import os

# As the command does: threads that spin while they wait make small steps very slow on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import contextlib
import json
import resource
import tempfile
import threading
import time
from pathlib import Path

import torch
from limited import drop, limit_memory, not_in_order, one_way, read_all

import partita
from partita import kernels
from partita.core import progress
from partita.features.rows import FeatureColumn
from partita.infer.layerwise import LayerwiseInference
from partita.infer.memory_need import own_limit
from partita.nn.model import build_model
from partita.sample.topology import LocalTopology, as_tensor

WAYS = ("memory", "by edge", "by edge at random", "in order")
SETTINGS = ("hidden", "layers", "limit", "threads", "room", "model")
"""Names of options that every way reads."""


class Display:
    """Counts the nodes that are done, of all layers."""

    def __init__(self) -> None:
        self.done, self.begun = 0.0, time.perf_counter()

    def start(self, *_: object) -> Display:
        return self

    def stop(self, task: progress.Bar) -> None: ...

    def advance(self, amount: float = 1) -> None:
        self.done += amount


def bytes_read() -> int:
    """From disks, by this process."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def child(options: argparse.Namespace) -> None:
    """One of the ways; prints a JSON object."""
    torch.set_num_threads(options.threads)
    graph = Path(options.folder) / "graph"
    for name in ("x.npy", "indices.npy", "indptr.npy"):
        (read_all if options.way == "memory" else drop)(graph / name)
    store = partita.open(graph)
    assert store.x is not None
    features, edges = store.x.nbytes, store.indices.nbytes + store.indptr.nbytes
    model = build_model(
        options.model, in_width=store.num_features, hidden=options.hidden, out_width=10, layers=options.layers
    )
    column = FeatureColumn(as_tensor(store.x))
    kernels.load()
    if options.way != "memory":
        limit_memory(features // 10 + edges + options.room)
    if options.way == "by edge at random":
        not_in_order(store.x)
    in_order = None if options.way == "in order" else False
    inference = LayerwiseInference(model, LocalTopology(store), column, in_order=in_order, memory_limit=own_limit(1))
    bar, before = Display(), bytes_read()
    total = options.layers * store.num_nodes

    def say() -> None:
        spent = time.perf_counter() - bar.begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        read, share = bytes_read() - before, bar.done / total
        found = {"seconds": spent, "share": share, "read": read, "peak": peak, "limit": inference.memory_limit}
        print(json.dumps(found), flush=True)

    def give_up() -> None:
        say()
        os._exit(0)

    timer = threading.Timer(options.limit, give_up)
    timer.daemon = True
    timer.start()
    with progress.shown_by(bar):
        for _ in inference.run():
            pass
    timer.cancel()
    timer.join()  # else it may let go of tensors while Python ends, which torch aborts on
    say()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=22, help="nodes are 2 to this")
    parser.add_argument("--degree", type=int, default=8, help="edges of a node")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=150, help="seconds of a way")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--room", type=int, default=1 << 30, help="bytes for the process and its buffers")
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
            partita.generate_rmat(
                folder / "graph", scale=options.scale, edge_factor=options.degree, num_features=options.width,
                num_classes=10,
            )  # fmt: skip
        store = partita.open(folder / "graph")
        assert store.x is not None
        print(f"{store.num_nodes:,} nodes, {store.num_edges:,} edges, {store.x.nbytes / 2**30:.1f} GiB of features\n")
        print("| rows | done | seconds | GB read | peak resident MiB | of which inference allows itself |")
        print("|---|---|---|---|---|---|")
        for way in options.ways.split(","):
            found = one_way(__file__, way, folder, options, SETTINGS)
            if "error" in found:
                print(f"| {way} | {found['error']} | | | | |")
                continue
            cells = (f"{found['seconds']:.1f}", f"{found['read'] / 1e9:.1f}", f"{found['peak'] >> 20:,}")
            print(f"| {way} | {found['share']:.1%} | {' | '.join(cells)} | {found['limit'] >> 20:,} |", flush=True)


if __name__ == "__main__":
    main()
