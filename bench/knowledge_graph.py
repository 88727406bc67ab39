"""Training of a knowledge graph: Partita beside a plain program in PyTorch, edges a second.

    python bench/knowledge_graph.py wn18rr.npz [--threads 1] [--epochs 6] [--repetitions 3] [--precision bf16]
        [--device cuda]

Both learn a row of 200 columns for every node, score with ComplEx, and take for every batch of 1024 edges 512 tails and
512 heads at random that all edges of the batch share, with a softmax over the negatives of each side, no penalty, and
Adam of the rows that a step has reached. The plain program is what one would write: sparse gradients of
``torch.nn.Embedding``, ``torch.optim.SparseAdam``, one matrix product per side; it draws its negatives with
``torch.randint``. They take turns; a figure is the median over all epochs but the first of every turn. Processor time
is that of all threads, which other work on the machine changes less.

With ``--device cuda`` both train on a GPU: the plain program has all rows there, Partita keeps them in host memory.

With ``--precision bf16`` both also compute their products in bfloat16, the plain program under ``torch.autocast``.

Threads of OpenMP that wait do not spin here, as in the command ``partita``; ``OMP_WAIT_POLICY=ACTIVE`` lets them.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import partita
from partita.tasks.links.edges import message_edges

WIDTH, BATCH, NEGATIVES, LR = 200, 1024, 512, 0.003
Figures = list[tuple[float, float, float]]
"""Of every epoch seconds, processor seconds and the loss."""


class Plain(nn.Module):
    """ComplEx with negatives that a batch shares."""

    def __init__(self, nodes: int, relations: int) -> None:
        super().__init__()
        self.nodes = nn.Embedding(nodes, WIDTH, sparse=True)
        self.relations = nn.Parameter(torch.empty(relations, WIDTH))
        bound = WIDTH**-0.5
        nn.init.uniform_(self.nodes.weight, -bound, bound)
        nn.init.xavier_uniform_(self.relations)

    def forward(self, batch: Tensor, negatives: Tensor) -> Tensor:
        """The loss of a batch (B, 3); negatives (2, K) are tails and heads."""
        source, target, kind = batch.unbind(1)
        rows = self.nodes(torch.cat([source, target, negatives.view(-1)]))
        heads, tails, candidates = rows.split([len(batch), len(batch), negatives.numel()])
        a, b = heads.chunk(2, 1)
        c, d = self.relations[kind].chunk(2, 1)
        e, f = tails.chunk(2, 1)
        for_tails = torch.cat([a * c - b * d, a * d + b * c], 1)
        for_heads = torch.cat([e * c + f * d, f * c - e * d], 1)
        other_tails, other_heads = candidates.chunk(2)
        own, first = (for_tails * tails).sum(1, keepdim=True), torch.zeros_like(source)
        of_tails = (for_tails @ other_tails.T).masked_fill(negatives[0] == target[:, None], -torch.inf)
        of_heads = (for_heads @ other_heads.T).masked_fill(negatives[1] == source[:, None], -torch.inf)
        losses = [functional.cross_entropy(torch.cat([own, each], 1), first) for each in (of_tails, of_heads)]
        return (losses[0] + losses[1]) / 2


def plain(store: partita.Store, edges: Tensor, epochs: int, precision: str, device: str) -> Figures:
    """Train with the plain program."""
    model, figures = Plain(store.num_nodes, len(store.schema.relations)).to(device), Figures()
    edges = edges.to(device)
    sparse, dense = torch.optim.SparseAdam([model.nodes.weight], lr=LR), torch.optim.Adam([model.relations], lr=LR)
    for _ in range(epochs):
        begun, used, total = time.perf_counter(), time.process_time(), torch.zeros((), device=device)
        for rows in torch.randperm(len(edges), device=device).split(BATCH):
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                loss = model(edges[rows], torch.randint(store.num_nodes, (2, NEGATIVES), device=device))
            for optimizer in (sparse, dense):
                optimizer.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            total += loss.detach() * len(rows)
        mean = float(total) / len(edges)  # waits for the device
        figures.append((time.perf_counter() - begun, time.process_time() - used, mean))
    return figures


class Enough(Exception):
    """All epochs are measured; what comes after them is of no interest."""


def ours(store: partita.Store, epochs: int, threads: int, precision: str, device: str) -> Figures:
    """Train with Partita."""
    figures, used = Figures(), [time.process_time()]

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            used.append(time.process_time())
            figures.append((event["seconds"], used[-1] - used[-2], event["loss"]))
            if len(figures) == epochs:
                raise Enough

    with tempfile.TemporaryDirectory(prefix="partita-kg-") as folder, contextlib.suppress(Enough):
        partita.Trainer(
            store, out=Path(folder, "run"), task="links", model="none", embed=str(WIDTH), hidden=WIDTH, lr=LR,
            decoder="complex", penalty=0.0, loop_negatives=False, embed_lr=LR, batch_size=BATCH, negatives=NEGATIVES,
            epochs=epochs, eval_every=0, threads=threads, precision=precision, device=device,
            callbacks=[note],
        ).fit()  # fmt: skip
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("triples", type=Path, help="a file that partita ingest takes, or a store")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="partita-kg-store-") as folder:
        path = options.triples
        if not path.is_dir():
            path = Path(folder, "store")
            partita.ingest(options.triples, path)
        store = partita.open(path)
        edges = message_edges(store, list(range(len(store.schema.relations))))
        found: dict[str, Figures] = defaultdict(list)
        losses: dict[str, list[float]] = defaultdict(list)
        for _ in range(options.repetitions):
            for precision in dict.fromkeys(["float32", options.precision]):
                for name, figures in (
                    (f"plain PyTorch, {precision}", plain(store, edges, options.epochs, precision, options.device)),
                    (f"Partita, {precision}", ours(store, options.epochs, options.threads, precision, options.device)),
                ):
                    found[name] += figures[1:]
                    losses[name].append(figures[-1][2])
    print(f"{len(edges):,} edges, {options.threads} thread(s), torch {torch.__version__}")
    print(f"| | edges/s | edges per processor second | ms a step | loss after {options.epochs} epochs |")
    print("|---|---|---|---|---|")
    steps = -(-len(edges) // BATCH)
    for name, figures in found.items():
        wall, used = (statistics.median(each[at] for each in figures) for at in (0, 1))
        print(
            f"| {name} | {len(edges) / wall:,.0f} | {len(edges) / used:,.0f} | {wall / steps * 1e3:.1f} "
            f"({used / steps * 1e3:.1f} of processor time) | {np.median(losses[name]):.3f} |"
        )


if __name__ == "__main__":
    main()
