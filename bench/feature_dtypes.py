"""What features cost in bytes and accuracy, stored as float32, float16, int8 and int4.

``python bench/feature_dtypes.py [--graphs tolokers,cora_ml] [--seeds 5]`` ingests each graph once for each dtype,
trains the same model with the same seeds on each store, in one thread, and prints a Markdown table.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import partita
from partita import kernels
from partita.core.options import format_bytes

DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
DTYPES = ("float32", "float16", "int8", "int4")
FULL: dict[str, Any] = {
    "model": "sage", "layers": 2, "hidden": 64, "norm": "layer", "activation": "relu", "dropout": 0.5,
    "fanout": (-1,), "batch_size": 10**9, "prefetch": 0, "lr": 0.01, "weight_decay": 5e-4, "patience": 0,
}  # fmt: skip
SAMPLED = FULL | {"fanout": (10, 5), "batch_size": 1024, "lr": 0.003, "weight_decay": 0.0}
GRAPHS: dict[str, tuple[str, dict[str, Any]]] = {
    "tolokers": ("10 numbers", FULL | {"epochs": 30, "lr": 0.03, "metric": "roc_auc"}),
    "cora_ml": ("2,879 weights of words", FULL | {"epochs": 30}),
    "oewn2024": ("128 numbers", SAMPLED | {"epochs": 10}),
    "amazon_computers": ("767 zeros and ones", SAMPLED | {"epochs": 10, "batch_size": 256}),
    "coauthor_cs": ("6,805 counts of words", SAMPLED | {"epochs": 5, "batch_size": 256}),
}
"""Name of a file -> what its features are, and how a model is trained on them."""


def measure(store: partita.GraphStore, settings: dict[str, Any], seeds: int, folder: Path) -> list[float]:
    """The metric on the test split, in points, of every seed."""
    found = []
    for seed in range(seeds):
        out = folder / f"{store.path.name}-{seed}"
        changes = {"seed": seed, "eval_every": settings["epochs"]}
        run = partita.Trainer(store, out=out, config=partita.Config.make({**settings, **changes})).fit()
        if run.status != "finished":
            raise SystemExit(f"the run was {run.status}")
        found.append(100 * run.metrics["test"][settings.get("metric", "accuracy")])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="names, by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels.set_threads(1)
    print("| graph | features | metric | dtype | bytes of the rows | test, mean ± std | against float32 |")
    print("|---|---|---|---|---|---|---|")
    for name in options.graphs.split(","):
        what, settings = GRAPHS[name]
        exact = list[float]()
        for dtype in DTYPES:
            with tempfile.TemporaryDirectory(prefix="partita-dtypes-") as folder:
                path = Path(folder) / dtype
                partita.ingest(
                    options.data / f"{name}.npz", path, undirected=True, deduplicate=True, feature_dtype=dtype
                )
                store = partita.open(str(path))
                found = measure(store, settings, options.seeds, Path(folder))
                size = sum(store.metadata.columns[each].bytes for each in ("x", "levels_x") if store.has(each))
            exact = exact or found
            mean, spread = statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0
            cells = [name, what, settings.get("metric", "accuracy"), dtype, format_bytes(size)]
            cells += [f"{mean:.2f} ± {spread:.2f}", f"{mean - statistics.mean(exact):+.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
