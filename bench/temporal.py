"""Sampling not later than the times of seeds beside sampling without times: ``python bench/temporal.py``.

Batches of seeds on two graphs, one of which is R-MAT (a few nodes have most of the edges) and one whose edges are dealt
out evenly. Edges have random times, and every seed one of its own. Ways take turns in every step:

- without times: all edges may be drawn;
- uniform: of the edges that are not later than the time of the seed;
- last: the latest of these;
- batch: uniform, with one time for all seeds, so that they share what they have in common.

A step draws two layers and numbers their sources. Times are of the processor, on one thread; medians over steps. Seeds
share nothing where their times differ, so that more edges are drawn: what is compared is the time for each edge.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict

import numpy as np
import torch
from drawing import draw
from torch import Tensor

from partita import kernels
from partita.core.keys import StepKey
from partita.kernels import Relabeller
from partita.sample.temporal import SeedTimes, TemporalTopology, slots_for
from partita.sample.topology import ArrayTopology

FANOUTS = (10, 10)
SPAN = 10**6
"""Of times."""


def even(nodes: int, degree: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Rows of equal length."""
    indices = generator.integers(0, nodes, nodes * degree, dtype=np.int32)
    return torch.arange(0, nodes * degree + 1, degree), torch.from_numpy(indices)


def rmat(scale: int, degree: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """R-MAT with the usual probabilities (.57, .19, .19, .05); nodes are renumbered at random."""
    edges = degree << scale
    src, dst = np.zeros(edges, np.int32), np.zeros(edges, np.int32)
    for _ in range(scale):
        draw = generator.random(edges, dtype=np.float32)
        lower, right = draw >= 0.76, ((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95)
        src, dst = 2 * src + lower, 2 * dst + right
    names = generator.permutation(1 << scale).astype(np.int32)
    order = np.argsort(names[dst], kind="stable")
    counts = np.bincount(names[dst], minlength=1 << scale)
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])), torch.from_numpy(names[src][order])


def in_order(indptr: Tensor, generator: np.random.Generator) -> Tensor:
    """Random times, ascending in every row."""
    times = generator.integers(0, SPAN, int(indptr[-1]))
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr.numpy()))
    order = np.argsort(rows * SPAN + times)
    return torch.from_numpy(times[order])


def measure(name: str, indptr: Tensor, indices: Tensor, steps: int, batch: int, seed: int) -> None:
    """Print a row for each way."""
    generator = np.random.default_rng(seed)
    nodes = len(indptr) - 1
    plain, edge_time = ArrayTopology(indptr, indices), in_order(indptr, generator)
    slots = slots_for(batch)
    own = SeedTimes(torch.from_numpy(generator.integers(SPAN // 2, SPAN, nodes)), slots)
    common = SeedTimes(torch.full((nodes,), SPAN * 3 // 4), slots)
    ways = {
        "without times": (plain, None),
        "uniform": (TemporalTopology(plain, edge_time, slots), own),
        "last": (TemporalTopology(plain, edge_time, slots, last=True), own),
        "batch": (TemporalTopology(plain, edge_time, slots), common),
    }
    scratch = {way: Relabeller(topology.num_nodes) for way, (topology, _) in ways.items()}
    spent, edges, rows = (defaultdict[str, list[float]](list) for _ in range(3))
    for step in range(steps + 3):
        seeds = torch.from_numpy(generator.choice(nodes, batch, replace=False))
        names = list(ways)
        for way in names[step % len(names) :] + names[: step % len(names)]:
            topology, times = ways[way]
            begun = time.process_time()
            key, ids = StepKey(seed, 0, step), seeds
            if times is not None:
                key = StepKey(seed, 0, step, times=times.of(seeds))
                assert key.times is not None
                ids = times.requests(seeds, key.times)
            drawn, sources = draw(topology, ids, key, FANOUTS, scratch[way])
            used = time.process_time() - begun
            if step >= 3:
                spent[way].append(used)
                edges[way].append(drawn)
                rows[way].append(sources)
    base = statistics.median(a / b for a, b in zip(spent["without times"], edges["without times"], strict=True))
    for way in ways:
        each = statistics.median(a / b for a, b in zip(spent[way], edges[way], strict=True))
        print(
            f"| {name} | {way} | {statistics.median(edges[way]):,.0f} | {statistics.median(rows[way]):,.0f} "
            f"| {1e3 * statistics.median(spent[way]):.2f} | {1e9 * each:.1f} | {base / each:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=19, help="2^scale nodes")
    parser.add_argument("--degree", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=41)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels.set_threads(1)
    generator = np.random.default_rng(options.seed)
    print("| graph | way | edges | sources | ms a step | ns an edge | speed, to that without times |")
    print("|---|---|---|---|---|---|---|")
    for name, made in (
        ("even", even(1 << options.scale, options.degree, generator)),
        ("R-MAT", rmat(options.scale, options.degree, generator)),
    ):
        measure(name, *made, options.steps, options.batch_size, options.seed)


if __name__ == "__main__":
    main()
