"""Edges larger than memory: read as they are drawn beside mapped into memory: ``python bench/topology_memory.py``.

SAGE with three layers of 64 columns on an undirected R-MAT graph with few features, fanout 15,10,5, batches of 256.
The ways, each in a process of its own:

- memory: edges are mapped, and all in the system's cache of pages, which nobody limits;
- mapped: the same in a control group whose memory is room for batches, the features, and a part of the edges;
- mapped at random: likewise, and the system is told that edges are not read in order (``MADV_RANDOM``);
- from files: ``--topology-memory`` is that part, in a control group of the same size.

Printed are seconds of the last epoch, medians over repetitions, and what was read. Control groups need the right to
make them (``/sys/fs/cgroup/memory``). The disk's own speed is measured beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import tempfile
from pathlib import Path

from feature_memory import disk, train
from limited import drop, limit_memory, not_in_order, read_all, rows_of_ways

import partita

WAYS = ("memory", "mapped", "mapped at random", "from files")
SETTINGS = ("fanout", "epochs", "limit", "threads", "room", "part", "hidden", "prefetch", "batch_size")
"""Names of options that every way reads."""


def child(options: argparse.Namespace) -> None:
    """One of the ways; prints a JSON object."""
    store = partita.open(Path(options.folder) / "graph")
    assert store.x is not None
    memory, file = int(options.part * store.indices.nbytes), store.path / "indices.npy"
    read_all(store.path / "x.npy")
    if options.way == "memory":
        read_all(file)
    else:
        drop(file)
        drop(store.path / "x.npy")  # whose pages are to count for the control group
        limit_memory(memory + store.x.nbytes + store.indptr.nbytes + options.room)
    if options.way == "mapped at random":
        not_in_order(store.indices)
    settings = {"topology_memory": memory, "prefetch": options.prefetch} if options.way == "from files" else {}
    found = train(store, Path(options.folder), options, settings)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    said = {"seconds": found["seconds"], "steps": found.get("steps"), "reads": found.get("edge_reads"), "peak": peak}
    print(json.dumps(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=23, help="nodes are 2 to this")
    parser.add_argument("--degree", type=int, default=16, help="undirected edges of a node")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=30720, help="of an epoch, about")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--fanout", default="15,10,5")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--part", type=float, default=0.1, help="of the edges that memory is for")
    parser.add_argument("--prefetch", type=int, default=16, help="threads that sample, and so read, from files")
    parser.add_argument("--limit", type=float, default=120, help="seconds of an epoch, where its first steps must do")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--room", type=int, default=700 << 20, help="bytes for batches")
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
            share = options.seeds / 2**options.scale
            partita.generate_rmat(
                folder / "graph", scale=options.scale, edge_factor=options.degree, num_features=options.width,
                num_classes=10, split=(share, share / 10, share / 10), undirected=True,
            )  # fmt: skip
        store = partita.open(folder / "graph")
        print(f"{store.num_nodes:,} nodes, {store.num_edges:,} edges, {store.indices.nbytes / 2**30:.2f} GiB of edges")
        print(f"disk: {disk(store.path / 'indices.npy')}\n")
        rows_of_ways("edges", __file__, folder, options, SETTINGS)


if __name__ == "__main__":
    main()
