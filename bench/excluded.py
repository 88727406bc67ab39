"""What it costs that the edges which a step predicts carry no messages: ``python bench/excluded.py`` prints two tables.

The first is of sampling alone. Batches of edges with as many random nodes; their ends are the seeds, and with their
reverses they carry no messages. Three ways take turns in every step: all edges carry messages; the targets are looked
for in the rows of their ends, which was the only way once, and is still that of targets from elsewhere; and it is known
where they are. What a way does for its targets in a step is in its time; that positions are found once, before the
first step, is printed below. Every figure is the median over all steps, and so is the ratio to the first way in the
same step. Times are those of the processor, on one thread, so that they mean something beside other work, too.

The second table is of whole steps of training, task links: batches, negatives, sampling, two layers ``sage``, scores,
loss, backward pass and optimizer.

Graphs: R-MAT, of which a few nodes have most of the edges, and one whose edges are dealt out evenly.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from drawing import draw

import partita
from partita.config import Config
from partita.core.keys import StepKey
from partita.core.records import TargetEdges
from partita.kernels import Relabeller
from partita.nn import ops
from partita.sample.blocks import sample_block
from partita.sample.targets import LinkPositions, TargetSide, target_edges
from partita.sample.topology import LocalTopology
from partita.tasks.links.edges import message_edges
from partita.tasks.links.task import LinkTask
from partita.tasks.task import key_of, seed_order

FANOUTS = (10, 10)
SIDES = (TargetSide(backward=False), TargetSide(backward=True))
WAYS = ("all edges", "searched", "known")
WARMUP = 5


class Times:
    """Processor times of ways that take turns, ms."""

    def __init__(self) -> None:
        self._of: dict[str, list[float]] = {way: [] for way in WAYS}

    def step(self, number: int, work: Callable[[str], object]) -> None:
        """All ways once, each of them first in one step of three."""
        first = number % len(WAYS)
        for way in WAYS[first:] + WAYS[:first]:
            begun = time.process_time()
            work(way)
            self._of[way].append(1000 * (time.process_time() - begun))

    def row(self) -> str:
        """Medians, and the ratios to the first way."""
        base, *others = (np.array(self._of[way][WARMUP:]) for way in WAYS)
        shown = [f"{statistics.median(base):.2f}"]
        shown += [f"{np.median(each):.2f} | {100 * (np.median(each / base) - 1):+.1f} %" for each in others]
        return " | ".join(shown)


def sampling(name: str, store: partita.GraphStore, batch: int, steps: int) -> str:
    """Print a row of the first table; returns what it took to find all positions."""
    random, topology = np.random.default_rng(0), LocalTopology(store)
    links = message_edges(store, None, undirected=True)
    positions = LinkPositions(store, links, SIDES)
    begun = time.process_time()
    codes, _, several = positions.find()
    spent = time.process_time() - begun
    scratch, times = Relabeller(topology.num_nodes), Times()
    for step in range(steps + WARMUP):
        numbers = torch.from_numpy(random.integers(0, len(links), batch))
        edges = links[numbers]
        others = torch.from_numpy(random.integers(0, topology.num_nodes, batch))
        seeds = torch.cat([edges.flatten(), others]).unique().to(topology.id_dtype)

        def work(way: str, step=step, numbers=numbers, edges=edges, seeds=seeds) -> int:
            excluded: TargetEdges | None = None
            if way != "all edges":
                excluded = target_edges(edges, SIDES, positions.of(numbers) if way == "known" else None)
            return draw(topology, seeds, StepKey(0, 0, step, excluded), FANOUTS, scratch)[0]

        times.step(step, work)
    drawn, _ = draw(topology, seeds, StepKey(0, 0, 0), FANOUTS, scratch)
    print(f"| {name} | {store.num_edges:,} | {drawn:,} | {times.row()} |", flush=True)
    megabytes = (codes.numel() * codes.element_size() + 8 * len(several)) / 1e6
    return f"{name}: {spent:.1f} s of the processor and {megabytes:.0f} MB for {len(links):,} edges"


def training(name: str, store: partita.GraphStore, batch: int, steps: int, width: int) -> None:
    """Print a row of the second table."""
    given = {"task": "links", "model": "sage", "layers": 2, "hidden": width, "batch_size": batch, "fanout": FANOUTS}
    task = LinkTask(store)
    config = Config.make({**given, "dropout": 0.0})
    config = config.model_copy(update=task.adjust(config))
    order = seed_order(task, task.seeds("train"), config)
    key_of(task, order, StepKey(0, 0, 0))  # finds all positions
    topology, scratch, times = LocalTopology(store), Relabeller(store.num_nodes), Times()
    rows = torch.from_numpy(np.random.default_rng(2).standard_normal((store.num_nodes, width), np.float32))
    layers = torch.nn.ModuleList(torch.nn.Linear(2 * width, width) for _ in FANOUTS)
    parameters = [*layers.parameters(), *task.decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.001)

    def work(way: str, step: int) -> None:
        seeds, key = order.batch(0, step), StepKey(0, 0, step)
        if way != "all edges":
            key = key_of(task, order, key)
        if way == "searched" and key.excluded is not None:
            key = replace(key, excluded=TargetEdges(*key.excluded.pairs()))
        requests, blocks = task.requests(seeds), []
        for layer in range(len(FANOUTS), 0, -1):
            block = sample_block(topology, requests, key, layer, FANOUTS[layer - 1], relabel=scratch)
            blocks.append(block)
            requests = block.src
        h = rows[requests.long()]
        for number, (block, linear) in enumerate(zip(reversed(blocks), layers)):
            h = linear(torch.cat([h[: block.num_dst], ops.aggregate(block, h, "mean")], dim=1))
            h = h if number else h.relu()
        loss = task.loss_sum(task.outputs(h, seeds), task.targets(seeds)) / len(seeds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for step in range(steps + WARMUP):
        times.step(step, lambda way, step=step: work(way, step))
    print(f"| {name} | {times.row()} |", flush=True)


def even(folder: Path, nodes: int, degree: int) -> partita.GraphStore:
    """A graph of edges between random nodes, each of which goes both ways."""
    pairs = np.random.default_rng(1).integers(0, nodes, (2, degree * nodes))
    partita.ingest((pairs[0], pairs[1]), folder / "even", undirected=True, self_loops="drop")
    return partita.GraphStore.open(folder / "even")


def table(*columns: str) -> None:
    print("\n|", " | ".join(columns), "|")
    print("|" + "---|" * len(columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=19, help="nodes are 2 to this")
    parser.add_argument("--degree", type=int, default=16, help="edges of a node, each of which goes both ways")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=101)
    parser.add_argument("--width", type=int, default=128, help="of rows, in whole steps")
    options = parser.parse_args()
    torch.set_num_threads(1)  # others wait busily for work, which counts
    print(f"fanouts {FANOUTS}, batches of {options.batch:,} edges; one thread, processor time, ms a step")
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
        path = partita.generate_rmat(
            Path(folder) / "g", scale=options.scale, edge_factor=options.degree, undirected=True
        )
        graphs: Sequence[tuple[str, partita.GraphStore]] = (
            ("even", even(Path(folder), 1 << options.scale, options.degree)),
            ("R-MAT", partita.GraphStore.open(path)),
        )
        table("graph", "edges", "drawn", "all edges", "searched", "ratio", "known", "ratio")
        found = [sampling(name, store, options.batch, options.steps) for name, store in graphs]
        print("\nPositions are found once:", "; ".join(found))
        print(f"\nWhole steps of training, rows of {options.width}:")
        table("graph", "all edges", "searched", "ratio", "known", "ratio")
        for name, store in graphs:
            training(name, store, options.batch, options.steps, options.width)


if __name__ == "__main__":
    main()
