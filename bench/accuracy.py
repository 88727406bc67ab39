"""Accuracy on real graphs, beside the same model trained with PyG.

``python bench/accuracy.py [--graphs cora,tolokers] [--out docs/accuracy.md]`` prints a markdown table; see that page.
Both sides get one :class:`partita.Config`. They share the store's splits and nothing else: the PyG side reads the
graph from its file, samples nothing, and has its own training loop and metrics.
"""

from __future__ import annotations

import os

# As the command does: threads that spin while they wait make small steps very slow on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.utils import to_undirected

import partita
from partita import Config, GraphStore

DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
MARKS = ("<!-- measured: begin -->", "<!-- measured: end -->")
EVERYTHING = 10**9  # a batch of all training nodes
MADE_WIDTH = 64
MADE_HOPS = 4

# Partita against PyG: one recipe, and what validation accuracy asked to be changed for a graph.
SAGE = {
    "model": "sage", "layers": 2, "hidden": 64, "norm": "layer", "activation": "relu", "dropout": 0.5,
    "fanout": (-1,), "batch_size": EVERYTHING, "prefetch": 0,
    "optimizer": "adam", "lr": 0.01, "weight_decay": 5e-4, "epochs": 200, "patience": 50,
}  # fmt: skip
WIDE = SAGE | {"normalize_features": True, "epochs": 40, "eval_every": 2}
SAMPLED = {
    "fanout": (10, 10),
    "batch_size": 512,
    "epochs": 20,
    "patience": 8,
    "lr": 0.003,
    "eval_every": 1,
    "prefetch": 2,
}

# Kipf and Welling 2017 and Velickovic et al. 2018, where they differ from SAGE above.
GCN_CORA = SAGE | {
    "model": "gcn", "hidden": 16, "norm": "none", "input_dropout": 0.5, "normalize_features": True,
}  # fmt: skip
GAT_CORA = SAGE | {
    "model": "gat", "hidden": 64, "heads": 8, "norm": "none", "activation": "elu", "dropout": 0.6,
    "input_dropout": 0.6, "attn_dropout": 0.6, "normalize_features": True, "lr": 0.005, "epochs": 400, "patience": 100,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model on a graph.

    Attributes:
        graph: name of the file of :data:`DATA`.
        settings: of both sides; ``metric`` is the one that picks the checkpoint and is reported.
        seeds: how many at least.
        sampled: changes of the settings for a run on sampled mini-batches, if there is to be one.
    """

    graph: str
    settings: Mapping[str, Any]
    seeds: int = 3
    sampled: Mapping[str, Any] | None = None

    def config(self, seed: int, changes: Mapping[str, Any]) -> Config:
        return Config.make({**self.settings, **changes, "seed": seed}, where=self.graph)


ACCURACY, ROC_AUC, MICRO_F1 = ({"metric": name} for name in ("accuracy", "roc_auc", "micro_f1"))
CASES = (
    Case("cora", GCN_CORA | ACCURACY, seeds=5),
    Case("cora", GAT_CORA | ACCURACY, seeds=5),
    Case("cora", SAGE | ACCURACY, seeds=5),
    Case("cora_ml", SAGE | ACCURACY),
    Case("polblogs", SAGE | ACCURACY),
    Case("chameleon_filtered", SAGE | ACCURACY),
    Case("tolokers", SAGE | ROC_AUC | {"lr": 0.03, "weight_decay": 0.0, "epochs": 300, "eval_every": 2}),
    Case("blogcatalog", WIDE | ACCURACY),
    Case("amazon_computers", WIDE | ACCURACY | {"epochs": 150}, sampled=SAMPLED),
    Case("coauthor_cs", WIDE | ACCURACY),
    Case("facebook_pagepage", WIDE | ACCURACY),
    Case("deezer_ro_genres", SAGE | MICRO_F1 | {"epochs": 100, "eval_every": 2, "patience": 25}),
    Case("oewn2024", SAGE | ACCURACY | {"lr": 0.03, "epochs": 80, "eval_every": 2}, sampled=SAMPLED),
)


class Graph:
    """A graph's file, and the stores made of it, one per split."""

    def __init__(self, name: str, data: Path, folder: Path) -> None:
        self.name, self.path, self.folder = name, data / f"{name}.npz", folder
        with np.load(self.path, allow_pickle=False) as file:
            self.arrays = {key: file[key] for key in file.files if not key.endswith("names")}
        masks = self.arrays.get("train_mask")
        self.splits = len(masks) if masks is not None and masks.ndim == 2 else 1

    def store(self, split: int) -> GraphStore:
        path = self.folder / f"{self.name}-{split}"
        if not path.exists():
            made = None
            if self.made_features:
                made = self.folder / f"{self.name}.npy"
                np.save(made, self.x.numpy())
            partita.ingest(
                self.path, path, undirected=True, deduplicate=True, features=made,
                split_index=split if self.splits > 1 else None,
            )  # fmt: skip
        store = partita.open(str(path))
        if store.num_edges != self.edge_index.shape[1]:
            raise RuntimeError(f"{self.name}: {store.num_edges} edges in the store, {self.edge_index.shape[1]} in PyG")
        return store

    @property
    def made_features(self) -> bool:
        return not any(key == "x" or key.startswith("x_") for key in self.arrays)

    @cached_property
    def edge_index(self) -> Tensor:
        """Both directions of every edge, once."""
        return to_undirected(torch.from_numpy(self.arrays["edge_index"]).long(), num_nodes=len(self.y))

    @cached_property
    def adjacency(self) -> Tensor:
        """Row v holds the neighbors of v, as PyG's layers take it in place of edges."""
        order = self.edge_index[:, (self.edge_index[1] * len(self.y) + self.edge_index[0]).argsort()]
        indptr = torch.cat([torch.zeros(1).long(), order[1].bincount(minlength=len(self.y)).cumsum(0)])
        return torch.sparse_csr_tensor(indptr, order[0], torch.ones(order.shape[1]), (len(self.y), len(self.y)))

    @cached_property
    def y(self) -> Tensor:
        return torch.from_numpy(self.arrays["y"])

    @cached_property
    def x(self) -> Tensor:
        """Features (N, F); made ones where the file has none."""
        arrays = self.arrays
        if "x" in arrays:
            return torch.from_numpy(arrays["x"]).float()
        if self.made_features:
            return self._make_features()
        x = np.zeros(arrays["x_shape"], np.float32)
        x[np.repeat(np.arange(len(x)), np.diff(arrays["x_indptr"])), arrays["x_indices"]] = arrays["x_data"]
        return torch.from_numpy(x)

    def _make_features(self) -> Tensor:
        """Logarithm of the degree, and random signs averaged over neighbors so often that they tell communities."""
        num_nodes = len(self.y)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (num_nodes, MADE_WIDTH - 1))
        rows = torch.from_numpy(signs.astype(np.float32))
        degree = self.edge_index[1].bincount(minlength=num_nodes).float()[:, None]
        for _ in range(MADE_HOPS):
            rows = self.adjacency @ rows / degree.clamp(min=1)
            rows = rows / rows.std(0)
        return torch.cat([degree.log1p(), rows], dim=1)


class ConstantInput(pyg.SAGEConv):
    """The first layer: its input never changes, so the mean over the neighbors is computed once."""

    def propagate(self, *arguments: Any, **options: Any) -> Tensor:
        if not hasattr(self, "mean"):
            self.mean = super().propagate(*arguments, **options)
        return self.mean


class Peer(nn.Module):
    """The model of a :class:`Config` made of PyG's layers."""

    def __init__(self, config: Config, in_width: int, out_width: int) -> None:
        super().__init__()
        self.config = config
        widths = [in_width, *[config.hidden] * (config.layers - 1), out_width]
        self.convolutions = nn.ModuleList(
            self._layer(below, above, first=number == 1, last=number == config.layers)
            for number, (below, above) in enumerate(pairwise(widths), start=1)
        )
        norm: Callable[[int], nn.Module] = {"layer": nn.LayerNorm, "none": nn.Identity}[config.norm]
        self.norms = nn.ModuleList(norm(width) for width in widths[1:-1])

    def _layer(self, below: int, above: int, *, first: bool, last: bool) -> nn.Module:
        config = self.config
        if config.model == "gcn":
            return pyg.GCNConv(below, above, cached=True)
        if config.model == "gat":
            per_head = above if last else above // config.heads
            return pyg.GATConv(below, per_head, config.heads, concat=not last, dropout=config.attn_dropout)
        constant = first and config.input_dropout == 0
        return (ConstantInput if constant else pyg.SAGEConv)(below, above, aggr=config.aggregator)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        config = self.config
        if config.input_dropout:
            x = functional.dropout(x, config.input_dropout, self.training)
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            x = getattr(functional, config.activation)(norm(convolution(x, edges)))
            x = functional.dropout(x, config.dropout, self.training)
        return self.convolutions[-1](x, edges)


def train_with_pyg(graph: Graph, store: GraphStore, config: Config) -> dict[str, float]:
    """Metric of the best epoch on the validation and the test split."""
    torch.manual_seed(config.seed)
    x, edges = graph.x, graph.adjacency if config.model == "sage" else graph.edge_index
    if config.normalize_features:
        x = x / x.abs().sum(1, keepdim=True).clamp(min=1e-12)
    splits = {name: torch.from_numpy(store.split(name).copy()) for name in ("train", "val", "test")}
    several = graph.y.ndim == 2
    target = graph.y.float() if several else graph.y.long()
    loss_of = functional.binary_cross_entropy_with_logits if several else functional.cross_entropy
    metric = METRICS[config.metric]
    model = Peer(config, x.shape[1], store.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    best: dict[str, float] = {}
    waited = 0
    for epoch in range(1, config.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss_of(model(x, edges)[splits["train"]], target[splits["train"]]).backward()
        optimizer.step()
        if epoch % config.eval_every and epoch < config.epochs:
            continue
        model.eval()
        with torch.no_grad():
            output = model(x, edges)
        found = {name: metric(output[splits[name]], target[splits[name]]) for name in ("val", "test")}
        if not best or found["val"] > best["val"]:
            best, waited = found, 0
        else:
            waited += 1
            if 0 < config.patience <= waited:
                break
    return best


def train_with_partita(store: GraphStore, config: Config, out: Path) -> dict[str, float]:
    try:
        run = partita.Trainer(store, out=out, config=config).fit()
    finally:
        shutil.rmtree(out, ignore_errors=True)
    if run.status != "finished":
        sys.exit(f"the run was {run.status}")
    return {name: run.metrics[name][config.metric] for name in ("val", "test")}


def accuracy(output: Tensor, y: Tensor) -> float:
    return float((output.argmax(1) == y).double().mean())


def roc_auc(output: Tensor, y: Tensor) -> float:
    """Of two classes: the probability that one of the second scores above one of the first, ties counted half."""
    score = (output[:, 1] - output[:, 0]).numpy()
    values, place = np.unique(score, return_inverse=True)
    count = np.bincount(place, minlength=len(values))
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    positive = y.numpy() == 1
    above = rank[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(above / (positive.sum() * (~positive).sum()))


def micro_f1(output: Tensor, y: Tensor) -> float:
    predicted, true = output > 0, y > 0.5
    return float(2 * (predicted & true).sum() / (predicted.sum() + true.sum()).clamp(min=1))


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": accuracy, "roc_auc": roc_auc, "micro_f1": micro_f1,
}  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """What one side reached, a value per seed, in points, and its seconds per run."""

    val: list[float]
    test: list[float]
    seconds: list[float]

    @classmethod
    def none(cls) -> Scores:
        return cls([], [], [])

    def time(self, train: Callable[[], dict[str, float]]) -> None:
        began = time.perf_counter()
        found = train()
        self.seconds.append(time.perf_counter() - began)
        self.val.append(100 * found["val"])
        self.test.append(100 * found["test"])


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    case: Case
    store: GraphStore
    ours: Scores
    peers: Scores
    sampled: Scores

    @property
    def difference(self) -> list[float]:
        return [mine - other for mine, other in zip(self.ours.test, self.peers.test)]

    @property
    def error(self) -> float:
        """Standard error of the mean difference."""
        return statistics.stdev(self.difference) / len(self.difference) ** 0.5 if len(self.difference) > 1 else 0.0

    def cells(self) -> Iterator[str]:
        yield self.case.graph
        yield str(self.case.settings["model"])
        yield f"{self.store.num_nodes:,}"
        yield f"{self.store.num_edges:,}"
        yield str(self.case.settings["metric"])
        yield str(len(self.ours.test))
        yield spread(self.ours.val)
        yield spread(self.ours.test)
        yield spread(self.peers.test)
        yield f"{statistics.mean(self.difference):+.2f} (± {self.error:.2f})"
        yield spread(self.sampled.test) if self.sampled.test else ""
        yield f"{statistics.mean(self.ours.seconds):.1f} / {statistics.mean(self.peers.seconds):.1f}"


HEAD = (
    "graph", "model", "nodes", "edges", "metric", "seeds", "Partita, validation", "Partita, test", "PyG, test",
    "difference", "Partita, sampled, test", "seconds",
)  # fmt: skip


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0:.1f}"


def measure(case: Case, graph: Graph, options: argparse.Namespace) -> Row:
    """Run both sides; seeds are added while the difference of the two is not known well enough."""
    changes = {"threads": options.threads} | ({"epochs": options.epochs} if options.epochs else {})
    out = graph.folder / "run"
    row = Row(case, graph.store(0), Scores.none(), Scores.none(), Scores.none())
    least = options.seeds or case.seeds
    for seed in range(max(least, options.max_seeds)):
        if seed >= least and row.error <= options.error:
            break
        store = graph.store(seed % graph.splits)
        config = case.config(seed, changes)
        row.ours.time(lambda s=store, c=config: train_with_partita(s, c, out))
        row.peers.time(lambda s=store, c=config: train_with_pyg(graph, s, c))
        if case.sampled is not None and seed < least:
            config = case.config(seed, {**case.sampled, **changes})
            row.sampled.time(lambda s=store, c=config: train_with_partita(s, c, out))
        print(
            f"{case.graph} {config.model} seed {seed}: "
            + ", ".join(
                f"{name} {scores.test[-1]:.2f} (val {scores.val[-1]:.2f}, {scores.seconds[-1]:.1f} s)"
                for name, scores in (("partita", row.ours), ("pyg", row.peers), ("sampled", row.sampled))
                if scores.test
            ),
            file=sys.stderr,
            flush=True,
        )
    return row


def page(rows: list[Row], seconds: float) -> str:
    """The tables, and with what they were made."""
    memory = psutil.virtual_memory().total / 2**30
    versions = {name: sys.modules[name].__version__ for name in ("partita", "torch", "torch_geometric", "numpy")}
    table = [HEAD, ["---"] * len(HEAD), *(list(row.cells()) for row in rows)]
    lines = [
        f"`{' '.join(['python', *sys.argv])}`, {datetime.now(UTC):%Y-%m-%d}, {seconds / 60:.0f} minutes on "
        f"{os.cpu_count()} cores of {processor()} with {memory:.0f} GiB; Python {platform.python_version()}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items()),
        "",
        *("| " + " | ".join(cells) + " |" for cells in table),
    ]
    return "\n".join(lines)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def write(path: Path, text: str) -> None:
    """Put the text between the marks of a file that has them; else it becomes the file."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    before, found, rest = old.partition(MARKS[0])
    if found:
        text = f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", help="names, with commas between; default all")
    parser.add_argument("--models", help="names, with commas between; default all")
    parser.add_argument("--seeds", type=int, help="seeds of every model; default 5 on cora, 3 elsewhere")
    parser.add_argument("--max-seeds", type=int, default=10, help="seeds where the spread asks for more")
    parser.add_argument("--error", type=float, default=0.35, help="standard error of a difference that is good enough")
    parser.add_argument("--epochs", type=int, help="default: those of the recipe")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the graphs")
    parser.add_argument("--out", type=Path, help="file to write to")
    options = parser.parse_args()
    graphs, models = (set(given.split(",")) if given else None for given in (options.graphs, options.models))
    cases = [
        case
        for case in CASES
        if (not graphs or case.graph in graphs) and (not models or case.settings["model"] in models)
    ]
    if not cases:
        parser.error(f"no such case; there are {', '.join(dict.fromkeys(case.graph for case in CASES))}")
    warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
    torch.set_num_threads(options.threads)
    began = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory(prefix="partita-accuracy-") as folder:
        for name in dict.fromkeys(case.graph for case in cases):
            graph = Graph(name, options.data, Path(folder))
            rows += [measure(case, graph, options) for case in cases if case.graph == name]
    text = page(rows, time.perf_counter() - began)
    print(text)
    if options.out:
        write(options.out, text)


if __name__ == "__main__":
    main()
