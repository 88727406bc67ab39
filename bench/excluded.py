"""What it costs to draw without the edges that a step predicts: ``python bench/excluded.py`` prints a table.

Batches of edges with as many random nodes; their ends are the seeds, and with their reverses they carry no messages.
They are looked for anew in every step, as in training. Steps with and without take turns; every figure is the median
over all steps, and so is the ratio of a pair. Times are those of processors, of all threads together, so that they mean
something beside other work, too.

Graphs: R-MAT, of which a few nodes have most of the edges, and one whose edges are dealt out evenly.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import partita
from partita.core.keys import StepKey
from partita.core.records import TargetEdges
from partita.kernels import Relabeller
from partita.sample.blocks import sample_block
from partita.sample.topology import ArrayTopology, LocalTopology

FANOUTS = (10, 10)


def sampled(topology: ArrayTopology, seeds: torch.Tensor, key: StepKey, scratch: Relabeller) -> int:
    """All layers of a step, their sources numbered; returns how many edges were drawn."""
    requests, edges = seeds, 0
    for layer in range(len(FANOUTS), 0, -1):
        block = sample_block(topology, requests, key, layer, FANOUTS[layer - 1], relabel=scratch)
        assert block.src is not None
        requests, edges = block.src, edges + block.num_edges
    return edges


def measure(name: str, topology: ArrayTopology, batch: int, steps: int) -> None:
    """Print a row of the table."""
    random, indptr, indices = np.random.default_rng(0), topology.arrays()["indptr"], topology.arrays()["indices"]
    scratch, times, ratios, edges = Relabeller(topology.num_nodes), ([], []), [], 0
    for step in range(steps + 3):
        at = torch.from_numpy(random.integers(0, len(indices), batch))
        dst, src = torch.searchsorted(indptr, at, right=True) - 1, indices[at].long()
        others = torch.from_numpy(random.integers(0, topology.num_nodes, batch))
        seeds = torch.cat([dst, src, others]).unique().to(topology.id_dtype)
        spent = [0.0, 0.0]
        for which in (0, 1) if step % 2 else (1, 0):
            begun = time.process_time()
            pairs = torch.cat([dst, src]), torch.cat([src, dst])
            excluded = TargetEdges(*pairs) if which else None
            edges = sampled(topology, seeds, StepKey(0, 0, step, excluded), scratch)
            spent[which] = 1000 * (time.process_time() - begun)
        if step >= 3:
            for column, each in zip(times, spent):
                column.append(each)
            ratios.append(spent[1] / spent[0])
    with_all, without = (statistics.median(column) for column in times)
    print(
        f"| {name} | {len(indices):,} | {edges:,} | {with_all:.2f} | {without:.2f} | "
        f"{100 * (statistics.median(ratios) - 1):+.1f} % |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=19, help="nodes are 2 to this")
    parser.add_argument("--degree", type=int, default=16, help="edges of a node, each of which goes both ways")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=101)
    options = parser.parse_args()
    nodes = 1 << options.scale
    pairs = np.random.default_rng(1).integers(0, nodes, (options.degree * nodes, 2))
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    rows = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 1], minlength=nodes))])
    even = ArrayTopology(torch.from_numpy(rows), torch.from_numpy(pairs[:, 0].astype(np.int32)))
    print(f"fanouts {FANOUTS}, batches of {options.batch:,} edges; processor time, ms a step\n")
    print("| graph | edges | drawn | all edges | without targets | ratio |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
        path = partita.generate_rmat(
            Path(folder) / "g", scale=options.scale, edge_factor=options.degree, undirected=True
        )
        skewed = LocalTopology(partita.GraphStore.open(path))
        for name, topology in (("even", even), ("R-MAT", skewed)):
            measure(name, topology, options.batch, options.steps)


if __name__ == "__main__":
    main()
