"""Speed of the CPU kernels on an R-MAT graph: ``python bench/kernels.py [--scale 19] [--edges 24]`` prints a table."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch

from partita import kernels
from partita.core.keys import Purpose, StepKey
from partita.kernels import Relabeller

FANOUTS = (15, 10, 5)  # seed layer first
BATCH = 1024


def rmat(scale: int, log_edges: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """``indptr`` and int32 ``indices`` of an R-MAT graph (0.57, 0.19, 0.19, 0.05) with shuffled ids."""
    draw = np.random.default_rng(seed)
    edges = 1 << log_edges
    row, column = np.zeros(edges, np.int32), np.zeros(edges, np.int32)
    for _ in range(scale):
        u = draw.random(edges, np.float32)
        down, right = u >= 0.76, ((u >= 0.57) & (u < 0.76)) | (u >= 0.95)
        row, column = row * 2 + down, column * 2 + right
    shuffle = draw.permutation(1 << scale).astype(np.int32)
    row, column = shuffle[row], shuffle[column]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=1 << scale))])
    return torch.from_numpy(indptr), torch.from_numpy(column[np.argsort(row, kind="stable")])


def best(work: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of several calls, after one that is not timed."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


class Sampler:
    """Samples whole batches of a graph."""

    def __init__(self, indptr: torch.Tensor, indices: torch.Tensor, fuse: bool = False) -> None:
        self.indptr, self.indices, self.fuse = indptr, indices, fuse
        self.num_nodes = indptr.shape[0] - 1

    def batch(self, step: int, relabeller: Relabeller, weights: torch.Tensor | None = None) -> int:
        """Sample the batch of one step; edges drawn."""
        key = StepKey(0, 0, step)
        dst = self.indices[kernels.keyed_permutation(0, BATCH, self.num_nodes, step)].unique()
        total = 0
        for layer, fanout in zip(range(len(FANOUTS), 0, -1), FANOUTS):
            layer_key = key.at(Purpose.SAMPLE, layer)
            sampled = kernels.sample_neighbors(self.indptr, self.indices, dst, dst, layer_key, fanout, weights=weights)
            total += sampled.indices.shape[0]
            if not (self.fuse and layer == 1):
                dst, _ = kernels.relabel(dst, sampled.indices, relabeller)
        return total


def report(name: str, value: float, unit: str) -> None:
    print(f"{name:<70}{value:>10.1f} {unit}", flush=True)


def side_by_side(sampler: Sampler, mode: Literal["table", "hash"]) -> float:
    """Seconds for 16 batches in two Python threads, as the trainer runs them."""
    scratch = [Relabeller(sampler.num_nodes, mode) for _ in range(2)]

    def work(thread: int) -> None:
        with kernels.limited(1):
            for step in range(thread, 16, 2):
                sampler.batch(step, scratch[thread])

    with ThreadPoolExecutor(2) as pool:
        return best(lambda: list(pool.map(work, range(2))))


def bench_sampling(indptr: torch.Tensor, indices: torch.Tensor) -> None:
    weights = torch.from_numpy(np.random.default_rng(1).integers(1, 2**32, indices.shape[0], dtype=np.uint32))
    for fuse in (False, True):
        sampler = Sampler(indptr, indices, fuse)
        for mode in ("table", "hash"):
            what = f"sample {'(layer 1 not relabeled)' if fuse else 'and relabel'}, {mode}"
            for threads in (1, 2):
                relabeller = Relabeller(sampler.num_nodes, mode)
                with kernels.limited(threads):
                    edges = sum(sampler.batch(step, relabeller) for step in range(8))
                    seconds = best(lambda s=sampler, r=relabeller: [s.batch(step, r) for step in range(8)])
                report(f"{what}, {threads} thread(s) a call", edges / seconds / 1e6, "M edges/s")

            edges = sum(sampler.batch(step, relabeller) for step in range(16))
            report(f"{what}, 2 batches side by side", edges / side_by_side(sampler, mode) / 1e6, "M edges/s")
    sampler = Sampler(indptr, indices)
    relabeller = Relabeller(sampler.num_nodes)
    edges = sampler.batch(0, relabeller, weights)
    report(
        "sample by weight and relabel", edges / best(lambda: sampler.batch(0, relabeller, weights)) / 1e6, "M edges/s"
    )


def bench_rows() -> None:
    draw = torch.Generator().manual_seed(0)
    store = torch.randn(1 << 19, 128, generator=draw)
    half = store.half()
    ids = torch.randint(0, 1 << 19, (62_566,), generator=draw, dtype=torch.int32)
    long_ids = ids.long()
    nbytes = ids.shape[0] * 128
    report("gather 62,566 x 128 float32", nbytes * 4 / best(lambda: kernels.gather_rows(store, ids)) / 1e9, "GB/s read")
    report("  torch indexing, the same", nbytes * 4 / best(lambda: store[long_ids]) / 1e9, "GB/s read")
    report("gather 62,566 x 128 float16", nbytes * 2 / best(lambda: kernels.gather_rows(half, ids)) / 1e9, "GB/s read")

    dst, src, fanout, width = 31_278, 62_566, 5, 256
    indptr = torch.arange(0, dst * fanout + 1, fanout)
    indices = torch.randint(0, src, (dst * fanout,), generator=draw, dtype=torch.int32)
    x, grad = torch.randn(src, width, generator=draw), torch.randn(dst, width, generator=draw)
    x16 = x.half()
    weight, per_head = torch.rand(dst * fanout, generator=draw), torch.rand(dst * fanout, 4, generator=draw)
    transposed = kernels.transpose(indptr, indices, src)
    adjacency = torch.sparse_csr_tensor(indptr, indices.long(), torch.ones(dst * fanout), (dst, src))
    original = torch.arange(dst)
    size = f"{dst:,} x {src:,} x {width}, fanout {fanout}"
    for threads in (1, 2):
        with kernels.limited(threads):
            for name, work in {
                f"aggregate mean float32 {size}": lambda: kernels.aggregate(x, indptr, indices, reduce="mean"),
                "aggregate weighted": lambda: kernels.aggregate(x, indptr, indices, weight),
                "aggregate 4 heads": lambda: kernels.aggregate(x, indptr, indices, per_head),
                "aggregate float16": lambda: kernels.aggregate(x16, indptr, indices, reduce="mean"),
                "aggregate from the store, 128 columns float32": lambda: kernels.aggregate(store, indptr, indices * 8),
                "aggregate from the store, 128 columns float16": lambda: kernels.aggregate(half, indptr, indices * 8),
                "backward mean": lambda: kernels.aggregate_backward(grad, transposed, indptr, src, reduce="mean"),
                "weight gradient, 4 heads": lambda: kernels.aggregate_weight_grad(grad, x, indptr, indices, 4),
                "segment max": lambda: kernels.segment_max(x, indptr, indices),
                "transpose": lambda: kernels.transpose(indptr, indices, src),
                "dropout of the destinations": lambda: kernels.dropout(grad, original, 1, 0.5),
            }.items():
                report(f"{name}, {threads} thread(s)", best(work) * 1e3, "ms")
    report("  torch sparse CSR x dense, all threads", best(lambda: adjacency @ x) * 1e3, "ms")
    report("  torch.nn.functional.dropout, all threads", best(lambda: torch.dropout(grad, 0.5, True)) * 1e3, "ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int, default=19, help="log2 of the number of nodes")
    parser.add_argument("--edges", type=int, default=24, help="log2 of the number of edges")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
    indptr, indices = rmat(options.scale, options.edges)
    print(f"R-MAT, {indptr.shape[0] - 1:,} nodes, {indices.shape[0]:,} edges; {torch.get_num_threads()} torch threads")
    bench_sampling(indptr, indices)
    bench_rows()


if __name__ == "__main__":
    main()
