"""Accuracy of links: on Cora as VGAE's paper splits it, on other graphs beside PyG, and on a knowledge graph.

    python bench/link_accuracy.py cora [--seeds 10]
    python bench/link_accuracy.py peers [--seeds 3]
    python bench/link_accuracy.py knowledge [--seeds 3] [--models distmult,complex] [--all-nodes] [--device cuda]

Each prints a markdown table: means, and standard deviations over seeds. A seed stands for a split of its own where
edges are held out here (5 % for validation, 10 % for tests), and for the initial values, the order and the negatives.
The epoch is that of the best validation; figures are of the test edges.

``peers``: both sides have two GCN layers, of learnt rows where there are no features, scalar products, binary
cross-entropy with one uniform negative for each edge, all neighbors, and the same splits; edges of a batch and their
reverses carry no messages in it. Both are judged by the same code on the same pairs. The PyG side has its own training
loop, over ``GCNConv``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import partita
from partita.infer.known_answers import LinkQueries, known_answers
from partita.infer.links import no_edges
from partita.infer.ranking import count_better
from partita.nn.decoders import build_decoder
from partita.tasks.links.metrics import auc, average_precision, link_metrics, realistic_ranks

warnings.filterwarnings("ignore")
DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
CORA = {
    "model": "gcn", "layers": 2, "hidden": 64, "norm": "none", "fanout": -1, "lr": 0.01, "batch_size": 1024,
    "loss": "bpr", "epochs": 60, "eval_every": 5, "metric": "auc",
}  # fmt: skip
HIDDEN, DROPOUT, LR, BATCH, EVERY = 64, 0.5, 0.01, 16384, 5
KNOWLEDGE = {
    "hidden": 400, "negatives": 2048, "epochs": 100, "eval_every": 10, "schedule": "cosine",
}  # fmt: skip
DISTMULT = {
    "hidden": 400, "negatives": 8192, "batch_size": 2048, "lr": 0.015, "epochs": 40, "eval_every": 8,
    "schedule": "cosine", "reciprocal": True,
}  # fmt: skip
ALL_NODES = {
    "hidden": 400, "negative_sampler": "all", "batch_size": 2048, "lr": 0.015, "epochs": 40, "eval_every": 8,
    "schedule": "cosine",
}  # fmt: skip
DECODERS = "distmult,complex"
Metrics = dict[str, float]


def split(name: str, seed: int, folder: Path) -> Path:
    """A graph with 15 % of its edges held out."""
    whole, links = folder / name, folder / f"{name}-{seed}"
    if not whole.exists():
        with np.load(DATA / f"{name}.npz") as file:
            both = bool(file["both_directions"])
        partita.ingest(DATA / f"{name}.npz", whole, undirected=not both)
    partita.split_links(whole, links, val=0.05, test=0.1, seed=seed)
    return links


def of_partita(store: Path, folder: Path, seed: int, **settings: Any) -> Metrics:
    """Test metrics of a run."""
    run = partita.Trainer(store, out=folder / "run", overwrite=True, task="links", seed=seed, **settings).fit()
    return dict(run.record["metrics"]["test"])


class Encoder(nn.Module):
    """Two layers of PyG over features, or over learnt rows."""

    def __init__(self, features: Tensor | None, nodes: int) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.rows = None if features is not None else nn.Parameter(torch.empty(nodes, HIDDEN))
        if self.rows is not None:
            nn.init.xavier_uniform_(self.rows)
        self.first = GCNConv(HIDDEN if features is None else features.shape[1], HIDDEN)
        self.second = GCNConv(HIDDEN, HIDDEN)

    def forward(self, features: Tensor | None, edges: Tensor) -> Tensor:
        x = self.rows if features is None else features
        hidden = functional.dropout(self.first(x, edges).relu(), DROPOUT, self.training)
        return self.second(hidden, edges)


def of_pyg(path: Path, seed: int, epochs: int) -> Metrics:
    """Test metrics of the same model in plain PyG."""
    torch.manual_seed(seed)
    store = partita.open(path)
    indices = torch.from_numpy(np.asarray(store.indices).astype(np.int64))
    edges = torch.stack([indices, torch.repeat_interleave(torch.from_numpy(np.diff(store.indptr)))])
    seeds = edges[:, edges[0] < edges[1]]
    low, high = edges.min(0).values, edges.max(0).values
    pairs = low * store.num_nodes + high
    features = None if store.x is None else torch.from_numpy(np.asarray(store.x)).float()
    model = Encoder(features, store.num_nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    best, found = -1.0, Metrics()
    for epoch in range(1, epochs + 1):
        model.train()
        for some in torch.randperm(seeds.shape[1]).split(BATCH):
            positive = seeds[:, some]
            kept = ~torch.isin(pairs, positive[0] * store.num_nodes + positive[1])
            negative = torch.randint(store.num_nodes, (len(some),))
            rows = model(features, edges[:, kept])
            heads = rows[positive[0]]
            scores = (heads * rows[positive[1]]).sum(1), (heads * rows[negative]).sum(1)
            loss = (functional.softplus(-scores[0]) + functional.softplus(scores[1])).mean() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % EVERY and epoch != epochs:
            continue
        model.eval()
        with torch.no_grad():
            rows = model(features, edges)
            val = judged(store, rows, "val")
            if val["auc"] > best:
                best, found = val["auc"], judged(store, rows, "test")
    return found


def judged(store: partita.Store, rows: Tensor, part: str) -> Metrics:
    """AUC and AP beside pairs that are no edges, filtered ranks among all nodes; scores are scalar products."""
    links = torch.from_numpy(store.held_out_edges(part)[0].astype(np.int64).T.copy())
    others = no_edges(store, links, part, both_ways=True)
    decoder, ranks = build_decoder("dot", rows.shape[1], 1), []
    positive, negative = ((rows[each[:, 0]] * rows[each[:, 1]]).sum(1) for each in (links, others))
    for side, given in (("tail", links[:, 0]), ("head", links[:, 1])):
        queries = LinkQueries.of(store, links, side)
        known = known_answers(store, queries, both_ways=True)
        better = count_better(decoder, queries, rows[given], positive, rows, 0, store.node_types, known=known)
        ranks.append(realistic_ranks(*better))
    scores = positive.double().numpy(), negative.double().numpy()
    return {"auc": auc(*scores), "ap": average_precision(*scores), **link_metrics(np.concatenate(ranks))}


def row(name: str, found: list[Metrics], metrics: tuple[str, ...], begun: float) -> None:
    """Print means and deviations."""
    cells = []
    for metric in metrics:
        values = [each[metric] for each in found]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        cells.append(f"{statistics.mean(values):.3f} ± {deviation:.3f}")
    print(f"| {name} | {' | '.join(cells)} |  <!-- {time.monotonic() - begun:.0f} s -->", flush=True)


def table(metrics: tuple[str, ...], rows: Iterator[tuple[str, Callable[[int], Metrics]]], seeds: int) -> None:
    """A row for each way to get metrics from a seed."""
    print(f"| | {' | '.join(metrics)} |\n|---|{'---|' * len(metrics)}")
    for name, measure in rows:
        begun = time.monotonic()
        row(name, [measure(seed) for seed in range(seeds)], metrics, begun)


def cora(options: argparse.Namespace, folder: Path) -> None:
    stores = [split("cora", seed, folder) for seed in range(options.seeds)]
    ours = lambda seed: of_partita(stores[seed], folder, seed, threads=options.threads, **CORA)  # noqa: E731
    table(("auc", "ap", "mrr"), iter([("Partita, GCN and scalar products", ours)]), options.seeds)


def peers(options: argparse.Namespace, folder: Path) -> None:
    for name, rows in (("facebook_pagepage", ""), ("topo_email_enron", str(HIDDEN))):
        print(f"\n{name}")
        table(("auc", "ap", "mrr", "hits@10"), beside(name, rows, options, folder), options.seeds)


def beside(
    name: str, rows: str, options: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, Callable[[int], Metrics]]]:
    """Both sides on a graph; ``rows`` are the columns of learnt rows."""
    stores = [split(name, seed, folder) for seed in range(options.seeds)]
    settings = {
        "model": "gcn", "layers": 2, "hidden": HIDDEN, "norm": "none", "dropout": DROPOUT, "fanout": -1, "lr": LR,
        "batch_size": BATCH, "epochs": options.epochs, "eval_every": EVERY, "metric": "auc",
        "decoder": "dot", "threads": options.threads, **({"embed": rows, "embed_lr": LR} if rows else {}),
    }  # fmt: skip
    yield "Partita", lambda seed: of_partita(stores[seed], folder, seed, **settings)
    yield "PyG", lambda seed: of_pyg(stores[seed], seed, options.epochs)


def knowledge(options: argparse.Namespace, folder: Path) -> None:
    store = folder / "kg_wn18rr"
    partita.ingest(DATA / "kg_wn18rr.npz", store)

    def way(name: str) -> tuple[str, Callable[[int], Metrics]]:
        more = ALL_NODES if options.all_nodes else DISTMULT if name == "distmult" else KNOWLEDGE
        settings = {"model": "none", "decoder": name, "threads": options.threads, "device": options.device, **more}
        return name, lambda seed: of_partita(store, folder, seed, **settings)

    table(("mrr", "hits@1", "hits@3", "hits@10"), map(way, options.models.split(",")), options.seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cora", "peers", "knowledge"])
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--models", default=DECODERS, help="decoders on the knowledge graph")
    parser.add_argument("--all-nodes", action="store_true", help="knowledge: all nodes are negatives of every edge")
    parser.add_argument("--device", default="cpu", help="of knowledge")
    parser.add_argument("--epochs", type=int, default=40, help="of peers")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    options.seeds = options.seeds or (10 if options.what == "cora" else 3)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="partita-links-") as folder:
        {"cora": cora, "peers": peers, "knowledge": knowledge}[options.what](options, Path(folder))


if __name__ == "__main__":
    main()
