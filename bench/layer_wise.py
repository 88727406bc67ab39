"""Layer-wise sampling against a plain PyTorch version: batches a second, one thread each, and one after the other.

    python bench/layer_wise.py

DSP's setting (its Table 7): batches of 1024 seeds, 1000 edges for each of two layers, here on R-MAT graphs. The plain
version draws uniformly with replacement over all edges of the frontier, as FastGCN does: degrees, running sums, random
integers, a search, and unique ids. It knows no keys, so it draws something else on every call and on every number of
workers. Medians over batches; the ways take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import partita
from partita import kernels
from partita.comm.group import Group
from partita.core.keys import fold
from partita.sample.samplers import LayerWise
from partita.sample.topology import LocalTopology, as_tensor

BATCH, BUDGET, LAYERS = 1024, 1000, 2


def plain(indptr: torch.Tensor, indices: torch.Tensor, dst: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One layer in plain PyTorch: the drawn edges, by destination, and their distinct sources."""
    degrees = indptr[dst + 1] - indptr[dst]
    totals = degrees.cumsum(0)
    draws = torch.randint(int(totals[-1]), (BUDGET,)).sort().values
    row = torch.searchsorted(totals, draws, right=True)
    slot = draws - (totals - degrees)[row]
    drawn = indices[indptr[dst[row]] + slot].long()
    src, local = torch.unique(torch.cat([dst, drawn]), return_inverse=True)
    return row, drawn, src, local[len(dst) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", type=int, nargs="+", default=[16, 18, 20])
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels.set_threads(1)
    print(
        "| nodes | edges | plain PyTorch, ms | with replacement, ms | without, ms | edges of the frontiers, thousands |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
        for scale in options.scales:
            store = partita.GraphStore.open(
                partita.generate_rmat(Path(name) / str(scale), scale=scale, edge_factor=16, undirected=True)
            )
            indptr, indices = as_tensor(store.indptr), as_tensor(store.indices)
            sampler = LayerWise([BUDGET] * LAYERS, Group.alone())
            relabel = kernels.Relabeller(store.num_nodes)
            topologies = {
                way: LocalTopology(store, replace=way == "with") for way in ("with", "without")
            }  # fmt: skip
            taken: dict[str, list[float]] = {"plain": [], "with": [], "without": []}
            seen = 0
            for step in range(options.batches + 2):
                seeds = torch.randperm(store.num_nodes, generator=torch.Generator().manual_seed(step))[:BATCH]
                begun = time.perf_counter()
                dst = seeds
                for _ in range(LAYERS):
                    dst = plain(indptr, indices, dst)[2]
                taken["plain"].append(time.perf_counter() - begun)
                for way, topology in topologies.items():
                    begun = time.perf_counter()
                    dst = seeds.int()
                    for layer in range(LAYERS, 0, -1):
                        found = sampler.draw(topology, dst, fold(step, layer), layer)
                        seen += int(topology.degrees(dst).sum()) if way == "without" else 0
                        dst, _ = kernels.relabel(dst, found.indices, relabel)
                    taken[way].append(time.perf_counter() - begun)
            a, b, c = (1000 * statistics.median(each[2:]) for each in taken.values())
            frontier = seen / (options.batches + 2) / 1000
            print(
                f"| 2^{scale} | {store.num_edges / 1e6:.1f} M | {a:.2f} | {b:.2f} | {c:.2f} | {frontier:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
