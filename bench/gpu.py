"""What a GPU does in a second: edges sampled, rows gathered against plain copies, and epochs.

    python bench/gpu.py [--scale 20] [--features 128] [--device cuda]

The graph is an R-MAT graph of 2^scale nodes. Every number is the best of several rounds, the device idle before and
after each. Edges are sampled with fan-outs 15, 10, 5 for 1,024 seeds per batch, with all edges on the device, with half
of them there, and with none; rows are gathered from the device and from pinned host memory. A gather reads and writes
every byte once, as does the copy that it is compared with: from the device to itself, or from pinned memory to the
device. With ``--device cpu`` the same is done in host memory, to try the script out.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import partita
from partita import kernels
from partita.comm.device import take
from partita.core.keys import Purpose, StepKey
from partita.graph.store import GraphStore
from partita.sample.device import edge_bytes, on_device
from partita.sample.seeds import SeedOrder
from partita.sample.topology import ArrayTopology, LocalTopology, as_tensor

FANOUTS = (15, 10, 5)
BATCH = 1024
ROUNDS = 5


def best(work: Callable[[], None], device: torch.device) -> float:
    """Shortest time of a round, seconds; the first one, which compiles, does not count."""
    found = []
    for _ in range(ROUNDS + 1):
        _wait(device)
        begun = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - begun)
    return min(found[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def edges_per_second(topology: ArrayTopology, seeds: torch.Tensor, device: torch.device) -> float:
    """Of whole batches, relabeled, layer by layer."""
    relabeller = kernels.Relabeller(topology.num_nodes)
    batches = [SeedOrder(seeds, 0, BATCH).batch(0, step) for step in range(min(8, len(seeds) // BATCH))]
    edges = 0

    def draw() -> None:
        nonlocal edges
        edges = 0
        for step, batch in enumerate(batches):
            wanted = batch
            for layer, fanout in enumerate(FANOUTS):
                key = StepKey(0, 0, step).at(Purpose.SAMPLE, len(FANOUTS) - layer)
                sample = topology.sample(wanted, key, fanout)
                wanted, _ = kernels.relabel(wanted, sample.indices, relabeller)
                edges += len(sample.indices)

    seconds = best(draw, device)
    return edges / seconds


def gigabytes_per_second(x: torch.Tensor, device: torch.device) -> tuple[float, float]:
    """Of rows gathered at random, and of a copy of as many bytes."""
    ids = torch.randint(0, x.shape[0], (2**20,), device=device)
    out = torch.empty(len(ids), x.shape[1], device=device)
    size = out.numel() * out.element_size() / 1e9
    gather = best(lambda: void(kernels.gather_rows(x, ids, out=out)), device)
    rows = x[: len(ids)]
    copy = best(lambda: void(out[: len(rows)].copy_(rows, non_blocking=True)), device)
    return size / gather, rows.numel() * rows.element_size() / 1e9 / copy


def void(_: object) -> None:
    """Nothing."""


def epoch_seconds(store: GraphStore, out: Path, device: str) -> float:
    """Of the fastest epoch but the first."""
    seconds: list[float] = []

    def note(event: dict) -> None:
        if event["event"] == "epoch":
            seconds.append(event["seconds"])

    partita.Trainer(
        store, out=out, device=device, callbacks=[note], fanout=FANOUTS, batch_size=BATCH, epochs=4, eval_every=0,
        cache=store.held("x")[0].nbytes if device == "cuda" else 0,
    ).fit()  # fmt: skip
    return min(seconds[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    device = take(options.device, 0)
    with tempfile.TemporaryDirectory() as folder:
        store = partita.generate_rmat(
            Path(folder) / "g", scale=options.scale, num_features=options.features, num_classes=32, undirected=True,
            split=(0.1, 1e-4, 1e-4),
        )  # fmt: skip
        store = store if isinstance(store, GraphStore) else GraphStore.open(Path(folder) / "g")
        local = LocalTopology(store)
        seeds = as_tensor(store.split("train")).to(device)
        found: dict[str, float] = {}
        places = {"all": 2**62, "half": edge_bytes(local) // 2, "none": 0}
        for name, budget in places.items():
            topology = local if device.type == "cpu" else on_device(local, device, budget, pin=True)
            found[f"million edges/s, {name} on the device"] = edges_per_second(topology, seeds, device) / 1e6
        x = as_tensor(store.x)
        columns = {"the device": x.to(device), "pinned memory": x.pin_memory() if device.type == "cuda" else x}
        for name, column in columns.items():
            gather, copy = gigabytes_per_second(column, device)
            found[f"GB/s gathered from {name}"], found[f"GB/s copied from {name}"] = gather, copy
        found["seconds per epoch"] = epoch_seconds(store, Path(folder) / "run", options.device)
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(json.dumps({"device": what, **vars(options), **{k: round(v, 3) for k, v in found.items()}}, indent=2))


if __name__ == "__main__":
    main()
