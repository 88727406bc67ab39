"""Rows summed before or after they are projected, and sums of rows by their width: ``python bench/sums.py``.

The first table is of GraphSAGE layers, forward and backward, on blocks of random edges: the sources are projected and
the products summed, or the rows are summed and the sums projected. Layers sum first, but on blocks with more edges for
each source than ``partita.nn.layers.base.SHARED_FROM``. Inner layers need the gradients of rows, the first does not.

The second is of the mean over the neighbors of every fourth node of an R-MAT graph, forward.

One thread, processor time, medians; ways take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

import partita
from partita import kernels
from partita.core.memory import keeping_freed
from partita.core.records import Block
from partita.nn.layers import SAGE, base

BLOCKS = ((1024, 5, 5_500), (5_000, 10, 42_000), (20_000, 15, 110_000), (5_000, 100, 20_000))
"""Destinations, edges of each, and sources."""
WIDTHS = ((256, 32), (256, 8), (128, 16), (64, 8))
ROWS = (16, 32, 64, 128, 256)


def measured(ways: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Milliseconds of each way."""
    spent = defaultdict[str, list[float]](list)
    for _ in range(repetitions):
        for name, work in ways.items():
            begun = time.process_time()
            work()
            spent[name].append(1e3 * (time.process_time() - begun))
    return {name: statistics.median(each) for name, each in spent.items()}


def block_of(destinations: int, degree: int, sources: int, generator: np.random.Generator) -> Block:
    """Edges from random sources, and the same grouped by source."""
    indptr = torch.arange(destinations + 1) * degree
    indices = torch.from_numpy(generator.integers(0, sources, destinations * degree, dtype=np.int32))
    src = torch.arange(sources, dtype=torch.int32)
    by_source = kernels.transpose(indptr, indices, sources)
    return Block(src[:destinations], src, indptr, indices, src[:destinations].long(), transposed=by_source)


def orders(block: Block, widths: tuple[int, int], inner: bool, repetitions: int) -> dict[str, float]:
    """Milliseconds of a layer either way."""
    layer, rows = SAGE(*widths), torch.randn(block.num_src, widths[0], requires_grad=inner)
    grad = torch.randn(block.num_dst, widths[1])

    def work(shared_from: float) -> None:
        base.SHARED_FROM = shared_from  # type: ignore[assignment]
        layer.zero_grad()
        rows.grad = None
        layer(block, rows).backward(grad)

    return measured({"project": lambda: work(-1), "sum": lambda: work(float("inf"))}, repetitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=19, help="of the R-MAT graph: 2^scale nodes")
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    print("| destinations | edges of each | sources | in | out | layer | project first, ms | sum first, ms | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    with keeping_freed(), tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
        for sizes in BLOCKS:
            block = block_of(*sizes, generator)
            for widths in WIDTHS:
                for inner in (True, False):
                    of = orders(block, widths, inner, options.repetitions)
                    kind = "inner" if inner else "first"
                    numbers = " | ".join(f"{each:,}" for each in (*sizes, *widths))
                    ratio = of["project"] / of["sum"]
                    print(f"| {numbers} | {kind} | {of['project']:.1f} | {of['sum']:.1f} | {ratio:.2f} |", flush=True)
        path = partita.generate_rmat(Path(folder, "g"), scale=options.scale, edge_factor=16, undirected=True)
        store = partita.GraphStore.open(path)
        indptr = torch.from_numpy(store.indptr[: store.num_nodes // 4 + 1].copy())
        indices = torch.from_numpy(store.indices[: int(indptr[-1])].copy())
        print(f"\nMean over {len(indices):,} edges:\n\n| columns | ms | ns an edge |\n|---|---|---|")
        for columns in ROWS:
            x = torch.randn(store.num_nodes, columns)
            mean = {"mean": lambda x=x: kernels.aggregate(x, indptr, indices, reduce="mean")}
            milliseconds = measured(mean, options.repetitions)["mean"]
            print(f"| {columns} | {milliseconds:.1f} | {1e6 * milliseconds / len(indices):.1f} |", flush=True)


if __name__ == "__main__":
    main()
