"""What shared draws save: input rows of a batch, seconds of an epoch and accuracy, on real graphs, one thread.

    python bench/labor.py [--graphs facebook_pagepage tolokers] [--quick]

The same run of a two-layer ``sage`` with each sampler: fanouts of every node's own (``node``), shared ones (``labor``),
shared by both layers, and changing slowly over 64 steps. Wide features are projected at random to 128 columns, so that
matrix products are not all that takes time. A graph whose file has no split gets one of 60, 20 and 20 percent. Input
rows are those that a training batch reads, as a mean over all batches of an epoch; new ones are those that the batch
before it did not read. Seconds are those that the processor works for an epoch, evaluation every second epoch included,
the least of all seeds; the samplers take turns, seed by seed. The test metric (accuracy; of tolokers the area under the
ROC curve, both times 100) is that of the epoch with the best one for validation, as mean and standard deviation.
"""

from __future__ import annotations

import os

# As the command does: threads that spin while they wait make small steps very slow on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import partita
from partita import Config, GraphStore, kernels
from partita.comm.group import Group
from partita.core.keys import StepKey
from partita.sample.blocks import sample_block
from partita.sample.seeds import SeedOrder
from partita.sample.topology import LocalTopology
from partita.setup.sampler import make_sampler

DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
GRAPHS = ("facebook_pagepage", "tolokers", "amazon_computers", "coauthor_cs")
COLUMNS = 128
WAYS = {
    "node": {},
    "labor": {"sampler": "labor"},
    "labor, layers": {"sampler": "labor", "layer_dependency": True},
    "labor, 64 batches": {"sampler": "labor", "batch_dependency": 64},
}


def features(file: np.lib.npyio.NpzFile) -> np.ndarray:
    """Of all nodes, float32; wide ones with unit length, centered, projected to 128 columns and of unit spread."""
    if "x" in file.files:
        x = file["x"].astype(np.float32)
    else:
        x = np.zeros(file["x_shape"], np.float32)
        x[np.repeat(np.arange(len(x)), np.diff(file["x_indptr"])), file["x_indices"]] = file["x_data"]
    if x.shape[1] > COLUMNS:
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        x = (x - x.mean(0)) @ np.random.default_rng(0).normal(size=(x.shape[1], COLUMNS)).astype(np.float32)
    return x / np.maximum(x.std(), 1e-12) if x.shape[1] == COLUMNS else x


def store_of(name: str, folder: Path) -> GraphStore:
    """A graph's store, with a split of its own if its file has none."""
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        masks = {key: file[key] for key in file.files if key.endswith("_mask")}
        np.savez(folder / "graph.npz", edge_index=file["edge_index"], y=file["y"], x=features(file), **masks)
    several = any(mask.ndim == 2 for mask in masks.values())
    options = ({"split_index": 0} if several else {}) if masks else {"split": (0.6, 0.2, 0.2)}
    partita.ingest(folder / "graph.npz", folder / name, undirected=True, deduplicate=True, **options)
    return partita.open(folder / name)


def input_rows(store: GraphStore, config: Config) -> tuple[float, float]:
    """Rows that a batch reads, and those of them that the batch before it did not have: means over an epoch."""
    topology, sampler = LocalTopology(store), make_sampler(config, Group.alone())
    seeds = torch.from_numpy(store.split("train").copy())
    original = topology.original(seeds)
    order = SeedOrder(seeds[original.argsort()], config.seed, config.batch_size)
    relabel, rows, fresh, before = kernels.Relabeller(store.num_nodes), [], [], None
    for step in range(order.num_steps):
        block = None
        wanted = order.batch(0, step)
        for layer in range(config.layers, 0, -1):
            block = sample_block(topology, wanted, StepKey(config.seed, 0, step), layer, sampler, relabel=relabel)
            wanted = block.src
        held = np.zeros(store.num_nodes, bool)
        held[wanted.numpy()] = True
        rows.append(int(held.sum()))
        if before is not None:
            fresh.append(int((held & ~before).sum()))
        before = held
    return statistics.mean(rows), statistics.mean(fresh or rows)


def trained(store: GraphStore, config: Config, out: Path) -> tuple[float, float]:
    """CPU seconds of an epoch, and the metric on the test split."""
    trainer = partita.Trainer(store, out=out, config=config)
    began = time.process_time()
    run = trainer.fit()
    return (time.process_time() - began) / config.epochs, 100 * run.metrics["test"][config.metric]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--fanout", default="10,10")
    parser.add_argument("--quick", action="store_true", help="one seed, two epochs, the first graph")
    options = parser.parse_args()
    if options.quick:
        options.graphs, options.seeds, options.epochs = options.graphs[:1], 1, 2
    torch.set_num_threads(1)
    kernels.set_threads(1)
    print("| graph | sampler | input rows of a batch | of them new | CPU seconds of an epoch | test |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
        for graph in options.graphs:
            store = store_of(graph, Path(name))
            found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
            for seed in range(options.seeds):
                for way, settings in WAYS.items():
                    config = Config.make({
                        "model": "sage", "layers": 2, "hidden": 64, "fanout": options.fanout, "lr": 0.003,
                        "batch_size": options.batch_size, "epochs": options.epochs, "seed": seed, "threads": 1,
                        "prefetch": 0, "eval_every": 2, "metric": "roc_auc" if graph == "tolokers" else "accuracy",
                        **settings,
                    })  # fmt: skip
                    run = trained(store, config, Path(name) / f"{graph}-{seed}-{way}".replace(", ", "-"))
                    found[way].append((*input_rows(store, config), *run))
            for way, values in found.items():
                rows, fresh, seconds, test = (list(column) for column in zip(*values))
                spread = f" ± {statistics.stdev(test):.2f}" if len(test) > 1 else ""
                print(
                    f"| {graph} | {way} | {statistics.mean(rows):,.0f} | {statistics.mean(fresh):,.0f} | "
                    f"{min(seconds):.2f} | {statistics.mean(test):.2f}{spread} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
