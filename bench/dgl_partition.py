"""DGL's partitioning of a graph store, to compare with. Runs where DGL 2.1 is installed; needs no Partita.

    pip install torch==2.1.0 torchdata==0.7.1 dgl==2.1.0 pydantic pyyaml pandas
    python bench/dgl_partition.py STORE --parts 4

Peak memory is the private memory (RssAnon) of the process above that after its imports.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import dgl
import numpy as np
import torch


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--whole", action="store_true", help="also write the parts (partition_graph)")
    arguments = parser.parse_args()
    base = most = private_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, private_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    began = time.perf_counter()
    indptr = torch.from_numpy(np.load(arguments.store / "indptr.npy"))
    indices = torch.from_numpy(np.load(arguments.store / "indices.npy").astype(np.int64))
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
    if arguments.whole:
        with tempfile.TemporaryDirectory(dir=arguments.store.parent) as folder:
            dgl.distributed.partition_graph(graph, "graph", arguments.parts, folder, part_method="metis")
    else:
        dgl.metis_partition_assignment(graph, arguments.parts)
    seconds = time.perf_counter() - began
    done.set()
    thread.join()
    print(f"{'partition_graph' if arguments.whole else 'metis_partition_assignment'}: {graph.num_edges():,} edges, "
          f"{seconds:.1f} s, peak {(most - base) / 2**20:,.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
