"""PyG's example loop (GraphSAGE on sampled neighbors) with our loader and with PyG's: accuracy and time.

    python bench/loaders.py [--graphs amazon_computers coauthor_cs] [--seeds 3] [--epochs 10]

Both sides get the same graph, model, initial weights and loop; only the line that makes the loader differs. PyG's
sampling needs pyg-lib or torch-sparse; without them only our side is measured. The loaders take turns, epoch by epoch.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch_geometric import typing as available
from torch_geometric.nn import GraphSAGE

import partita

DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
FANOUTS, BATCH = [10, 10], 512


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    """As in PyG's examples."""
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = functional.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: Any, mask: torch.Tensor) -> float:
    """On the whole graph, the same for both."""
    model.eval()
    out = model(data.x, data.edge_index).argmax(dim=1)
    return float((out[mask] == data.y[mask]).float().mean())


def loaders(store: partita.GraphStore, data: Any, seed: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "partita": partita.NeighborLoader(store, FANOUTS, "train", batch_size=BATCH, shuffle=True, seed=seed)
    }
    if available.WITH_PYG_LIB or available.WITH_TORCH_SPARSE:
        from torch_geometric.loader import NeighborLoader

        made["PyG, its data"] = NeighborLoader(
            data, FANOUTS, input_nodes=data.train_mask, batch_size=BATCH, shuffle=True
        )
        ids = torch.from_numpy(store.split("train").copy())
        made["PyG, our store"] = NeighborLoader(
            partita.pyg_stores(store), FANOUTS, input_nodes=ids, batch_size=BATCH, shuffle=True
        )
    return made


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=["amazon_computers", "coauthor_cs"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Using 'NeighborSampler' without a 'pyg-lib'")
    print("| graph | loader | test accuracy | seconds per epoch | batches alone | beside PyG on its data |")
    print("|---|---|---|---|---|---|")
    for graph in options.graphs:
        with tempfile.TemporaryDirectory() as folder:
            partita.ingest(DATA / f"{graph}.npz", Path(folder) / "graph", undirected=True, deduplicate=True)
            store = partita.open(Path(folder) / "graph")
            data = partita.to_pyg(store)
            right: dict[str, list[float]] = {}
            epochs: dict[str, list[float]] = {}
            alone: dict[str, list[float]] = {}
            for seed in range(options.seeds):
                sides = {}
                for name, loader in loaders(store, data, seed).items():
                    torch.manual_seed(seed)
                    model = GraphSAGE(store.num_features, 128, 2, store.num_classes, dropout=0.5)
                    sides[name] = model, torch.optim.Adam(model.parameters(), lr=0.003), loader
                for _ in range(options.epochs):
                    for name, side in sides.items():
                        epochs.setdefault(name, []).append(timed(lambda side=side: train(*side)))
                for name, (model, _, loader) in sides.items():
                    right.setdefault(name, []).append(accuracy(model, data, data.test_mask))
                    alone.setdefault(name, []).extend(timed(lambda loader=loader: list(loader)) for _ in range(3))
            base = statistics.median(epochs.get("PyG, its data", [float("nan")]))
            for name in right:
                took = statistics.median(epochs[name])
                spread = statistics.pstdev(right[name])
                print(
                    f"| {graph} | {name} | {statistics.mean(right[name]):.2%} ± {spread:.2%} | {took:.2f} | "
                    f"{statistics.median(alone[name]):.2f} | {base / took:.2f}x |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
