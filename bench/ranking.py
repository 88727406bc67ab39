"""Filtered ranks of all held-out links among all nodes: ``python bench/ranking.py STORE [--decoder complex]``.

Rows are random, which does not change the work: both ends of every link of the split are ranked among all nodes of
their type, but for those that make another edge of the graph or of a split. Medians; processor time is of all threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Literal

import torch

import partita
from partita.infer.known_answers import LinkQueries, known_answers
from partita.infer.ranking import count_better
from partita.nn.decoders import build_decoder
from partita.tasks.links.edges import RELATION, SOURCE, TARGET, held_out_edges

SIDES: tuple[Literal["tail", "head"], ...] = ("tail", "head")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--decoder", default="complex")
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    store = partita.open(options.store)
    kinds = list(range(len(store.schema.relations)))
    links = held_out_edges(store, options.split, kinds)
    rows = torch.randn(store.num_nodes, options.width, generator=torch.Generator().manual_seed(0))
    decoder = build_decoder(options.decoder, options.width, len(kinds))
    heads, tails, relations = rows[links[:, SOURCE]], rows[links[:, TARGET]], links[:, RELATION]
    wall, used = [], []
    for _ in range(options.repetitions + 1):
        begun, before = time.perf_counter(), time.process_time()
        with torch.no_grad():
            true = decoder(heads, tails, relations)
            for side in SIDES:
                queries = LinkQueries.of(store, links, side)
                count_better(
                    decoder, queries, heads if side == "tail" else tails, true, rows, 0, store.node_types,
                    known=known_answers(store, queries),
                )  # fmt: skip
        wall.append(time.perf_counter() - begun)
        used.append(time.process_time() - before)
    seconds, processor = (statistics.median(each[1:]) for each in (wall, used))
    scores = 2 * len(links) * store.num_nodes
    print(
        f"{options.decoder}, {options.width} columns: {len(links):,} links, both ends among {store.num_nodes:,} nodes: "
        f"{seconds:.2f} s, {processor:.2f} s of processor time, {scores / seconds / 1e6:,.0f} million scores a second"
    )


if __name__ == "__main__":
    main()
