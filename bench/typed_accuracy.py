"""Accuracy of typed models on DBLP (four types of nodes, six relations), beside the same models made of PyG's layers.

``python bench/typed_accuracy.py [--seeds 5] [--epochs 40]`` prints a markdown table. Both sides take all neighbors,
make one batch of all training nodes, and keep the epoch of the best validation accuracy. They share the splits and
nothing else: the PyG side reads the graph from its file and has its own training loop. ``sage`` is trained by Partita
alone: the same graph, whose relations count alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

import partita

warnings.filterwarnings("ignore")
DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data")) / "hetero_dblp_heco.npz"
HIDDEN, HEADS, DROPOUT, LR, DECAY = 64, 4, 0.5, 0.003, 5e-4
Rows = dict[str, Tensor]


class Graph:
    """The file's arrays: features by type, edges by relation in both directions, labels of authors."""

    def __init__(self, split: int) -> None:
        file = np.load(DATA)
        names = [str(name) for name in file["node_type_names"]]
        kinds, self.y = file["node_type"], torch.from_numpy(file["y"])
        first = {name: int(np.argmax(kinds == at)) for at, name in enumerate(names)}
        self.sizes = {name: int((kinds == at).sum()) for at, name in enumerate(names)}
        self.x = {name: self._features(file, name) for name in names}
        self.edges = dict[tuple[str, str, str], Tensor]()
        for number, name in enumerate(map(str, file["edge_type_names"])):
            ends = file["edge_index"][:, file["edge_type"] == number].astype(np.int64)
            source, target = (names[kinds[end[0]]] for end in ends)
            local = torch.from_numpy(ends - np.array([[first[source]], [first[target]]]))
            self.edges[source, name, target] = local
            self.edges[target, f"rev_{name}", source] = local.flip(0)
        labeled = str(file["target_node_type"])
        begin = first[labeled]
        self.target, self.y = labeled, self.y[begin : begin + self.sizes[labeled]]
        self.splits = [
            torch.from_numpy(np.flatnonzero(file[f"{part}_mask"][split]) - begin) for part in ("train", "val", "test")
        ]

    def _features(self, file: np.lib.npyio.NpzFile, name: str) -> Tensor | None:
        if f"x_{name}" in file.files:
            return torch.from_numpy(file[f"x_{name}"]).float()
        if f"x_{name}_indptr" not in file.files:
            return None
        x = np.zeros(file[f"x_{name}_shape"], np.float32)
        rows = np.repeat(np.arange(len(x)), np.diff(file[f"x_{name}_indptr"]))
        x[rows, file[f"x_{name}_indices"]] = file[f"x_{name}_data"]
        return torch.from_numpy(x)


class Relational(nn.Module):
    """PyG's R-GCN takes one matrix of all nodes."""

    def __init__(self, graph: Graph, below: int, above: int) -> None:
        super().__init__()
        self.conv = pyg.RGCNConv(below, above, len(graph.edges))
        begins = dict(zip(graph.sizes, np.cumsum([0, *graph.sizes.values()])))
        moved = [
            edges + torch.tensor([[begins[source]], [begins[target]]])
            for (source, _, target), edges in graph.edges.items()
        ]
        self.index = torch.cat(moved, dim=1)
        self.kinds = torch.repeat_interleave(torch.tensor([each.shape[1] for each in moved]))
        self.sizes = list(graph.sizes.values())

    def forward(self, x: Rows, edges: object) -> Rows:
        out = self.conv(torch.cat(list(x.values())), self.index, self.kinds)
        return dict(zip(x, out.split(self.sizes), strict=True))


def each_relation(make: Callable[[], nn.Module], graph: Graph) -> nn.Module:
    return pyg.HeteroConv({triple: make() for triple in graph.edges}, aggr="sum")


def hgt(graph: Graph, below: int, above: int, last: bool) -> nn.Module:
    conv = pyg.HGTConv(below, HIDDEN, (list(graph.sizes), list(graph.edges)), HEADS)
    if last:  # as Partita's: attention as wide as its input, mapped to the classes
        conv.out_lin = pyg.HeteroDictLinear(HIDDEN, above, types=list(graph.sizes))
    return conv


def layer(kind: str, graph: Graph, below: int, above: int, last: bool) -> nn.Module:
    if kind == "rgcn":
        return Relational(graph, below, above)
    if kind == "hetero-sage":
        return each_relation(lambda: pyg.SAGEConv(below, above), graph)
    if kind == "rgat":
        columns, options = (above, {"concat": False}) if last else (above // HEADS, {})
        return each_relation(lambda: pyg.GATConv(below, columns, HEADS, add_self_loops=False, **options), graph)
    return hgt(graph, below, above, last)


class Peer(nn.Module):
    """Two layers of PyG, behind a linear map for each type; types without features have a learnt vector."""

    def __init__(self, kind: str, graph: Graph, classes: int) -> None:
        super().__init__()
        widths = {name: 1 if x is None else x.shape[1] for name, x in graph.x.items()}
        self.lins = nn.ModuleDict({name: nn.Linear(width, HIDDEN, bias=width > 1) for name, width in widths.items()})
        self.first = layer(kind, graph, HIDDEN, HIDDEN, False)
        self.norm = nn.LayerNorm(HIDDEN)
        self.last = layer(kind, graph, HIDDEN, classes, True)

    def forward(self, graph: Graph) -> Tensor:
        x = {
            name: self.lins[name](torch.ones(graph.sizes[name], 1) if rows is None else rows)
            for name, rows in graph.x.items()
        }
        hidden = self.first(x, graph.edges)
        hidden = {
            name: functional.dropout(self.norm(rows).relu(), DROPOUT, self.training) for name, rows in hidden.items()
        }
        return self.last(hidden, graph.edges)[graph.target]


def of_pyg(kind: str, seed: int, epochs: int, split: int) -> float:
    torch.manual_seed(seed)
    graph = Graph(split)
    model = Peer(kind, graph, int(graph.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=DECAY)
    train, val, test = graph.splits
    best, found = -1.0, 0.0
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(graph)[train], graph.y[train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(graph).argmax(1) == graph.y).float()
        if float(right[val].mean()) > best:
            best, found = float(right[val].mean()), float(right[test].mean())
    return found


def of_partita(kind: str, seed: int, epochs: int, folder: Path, split: int) -> float:
    store = folder / f"store{split}"
    if not store.exists():
        partita.ingest(DATA, store, undirected=True, split_index=split)
    options = {"heads": HEADS} if kind in ("rgat", "hgt") else {}
    run = partita.Trainer(
        store, out=folder / "run", overwrite=True, model=kind, layers=2, hidden=HIDDEN, fanout=-1, batch_size=10**6,
        epochs=epochs, lr=LR, weight_decay=DECAY, optimizer="adam", dropout=DROPOUT, seed=seed, prefetch=0, **options,
    )  # fmt: skip
    return run.fit().record["metrics"]["test"]["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--models", default="rgcn,hetero-sage,rgat,hgt,sage")
    options = parser.parse_args()
    print("| model | Partita, test | PyG, test | difference |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.models.split(","):
            ours, theirs, begun = list[float](), list[float](), time.monotonic()
            for seed in range(options.seeds):
                ours.append(100 * of_partita(kind, seed, options.epochs, Path(folder), seed % 3))
                if kind != "sage":
                    theirs.append(100 * of_pyg(kind, seed, options.epochs, seed % 3))
            cells = [f"{statistics.mean(each):.1f} ± {statistics.stdev(each):.1f}" for each in (ours, theirs) if each]
            if theirs:
                differences = [one - other for one, other in zip(ours, theirs)]
                error = statistics.stdev(differences) / len(differences) ** 0.5
                cells.append(f"{statistics.mean(differences):+.2f} (± {error:.2f})")
            print(f"| {' | '.join([kind, *cells])} | {'' if theirs else '| |'}", flush=True)
            print(f"<!-- {time.monotonic() - begun:.0f} s: {ours} {theirs} -->", flush=True)


if __name__ == "__main__":
    main()
