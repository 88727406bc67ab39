"""What isolation costs in accuracy: exact training, Grappa and its parts, SDT-GNN, on the same graphs and seeds.

    python bench/isolated_accuracy.py --out docs/isolated_measured.csv --table isolated_table.md [--minutes 60]

Every row of the CSV file is one run; a run that is in it already is not made again, so the script can be stopped and
started at will. Runs are made in the order of what is asked first: SAGE of three layers on every graph, then the main
columns for other layers, seeds and depths, then the rest. Settings are the same for all runs of a graph, none was
tuned: three things keep the whole affordable, for all ways alike: features wider than 512 columns are projected to
256 random directions, batches are sampled, and the best of a few evaluations on the validation split picks the
weights.

One worker trains all views of an epoch one after the other (phases). With sdt-gnn a view's batch is 1024 divided by
the number of parts, so that every view makes as many steps as exact training.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rows import append_row, read_rows

import partita

DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
GRAPHS = ("tolokers", "amazon_computers", "facebook_pagepage", "coauthor_cs", "oewn2024", "sbm_200k", "blogcatalog")
METRIC = {"tolokers": "roc_auc"}
FANOUTS = {2: "10,10", 3: "10,5,5", 4: "10,5,3,3"}
SETTINGS: dict[str, Any] = {
    "hidden": 64, "batch_size": 1024, "epochs": 30, "eval_every": 5, "lr": 0.005, "dropout": 0.3,
    "checkpoint_minutes": 1000.0, "threads": 1,
}  # fmt: skip
SWEEP = {"views": "tournament"}
SDT = {"preset": "sdt-gnn"}
# Name -> partitioner, settings. "exact" needs no parts.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("", {}),
    "grappa": ("spring+", SWEEP),
    "grappa, no correction": ("spring+", {**SWEEP, "coverage": "none"}),
    "fixed parts": ("spring+", {"views": "cyclic"}),
    "grappa, one-hop halo": ("spring+", {**SWEEP, "halo": "one-hop"}),
    "grappa, one-hop+edges": ("spring+", {**SWEEP, "halo": "one-hop+edges"}),
    "grappa, random chunks": ("random", SWEEP),
    "sdt-gnn, spring": ("spring", SDT),
    "sdt-gnn, metis": ("metis", SDT),
    "sdt-gnn, random": ("random", SDT),
}
KEY = ("graph", "model", "layers", "parts", "way", "seed")
FIELDS = (*KEY, "test", "val", "best_epoch", "coverage", "seconds")
MODELS = ("sage", "gcn", "gat")
ORDER = [("sage", 3), ("gcn", 3), ("gat", 3), ("sage", 2), ("sage", 4), ("gcn", 2), ("gcn", 4), ("gat", 2), ("gat", 4)]
MAIN = ("grappa", "grappa, no correction", "fixed parts", "grappa, one-hop halo", "sdt-gnn, spring")


def cases(seeds: int, graphs: list[str]) -> Iterator[tuple[str, ...]]:
    """Keys of all runs, what matters most first; some come twice."""
    every = list(WAYS)[1:]
    plan = [
        (ORDER[:1], every, range(1)),
        (ORDER[1:3], MAIN, range(1)),
        (ORDER[:1], MAIN, range(1, 3)),
        (ORDER[3:], MAIN, range(1)),
        (ORDER[:1], MAIN, range(3, seeds)),
        (ORDER, every, range(seeds)),
    ]
    for kinds, ways, of_seeds in plan:
        for seed, (model, layers), graph in itertools.product(of_seeds, kinds, graphs):
            for parts, way in [(0, "exact"), *itertools.product((4, 16), ways)]:
                if seed < seeds:
                    yield graph, model, str(layers), str(parts), way, str(seed)


def make_store(graph: str, folder: Path) -> Path:
    """The graph, undirected, with a random split where it has none, and features of at most 512 columns."""
    path = folder / graph
    if path.exists():
        return path
    if graph == "sbm_200k":
        partita.generate_sbm(
            path, num_nodes=200_000, num_classes=16, average_degree=8, homophily=0.65, num_features=32, noise=0.8,
            split=(0.1, 0.05, 0.2),
        )  # fmt: skip
        return path
    with np.load(DATA / f"{graph}.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    source = DATA / f"{graph}.npz"
    if "x_indptr" in arrays and arrays["x_shape"][1] > 512:
        kept = {key: array for key, array in arrays.items() if not key.startswith("x_")}
        source = folder / f"{graph}.npz"
        np.savez(source, x=projected(arrays), **kept)
    split = {} if "train_mask" in arrays else {"split": (0.6, 0.2, 0.2)}
    if arrays.get("train_mask", np.empty(0)).ndim == 2:
        split["split_index"] = 0
    partita.ingest(source, path, undirected=True, deduplicate=True, **split)
    return path


def projected(arrays: dict[str, np.ndarray], width: int = 256) -> np.ndarray:
    """Rows of a sparse matrix, scaled to length 1, in random directions (Johnson and Lindenstrauss)."""
    rows, columns = arrays["x_shape"]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (columns, width)).astype(np.float32) / np.sqrt(width)
    found = np.zeros((rows, width), np.float32)
    indptr, indices, data = arrays["x_indptr"], arrays["x_indices"], arrays["x_data"].astype(np.float32)
    for row in range(rows):
        at = slice(indptr[row], indptr[row + 1])
        if indptr[row + 1] > indptr[row]:
            found[row] = data[at] @ signs[indices[at]] / np.linalg.norm(data[at])
    return found * np.sqrt(width)


def run(key: tuple[str, ...], folder: Path) -> dict[str, Any]:
    graph, model, layers, parts, way, seed = key
    store = make_store(graph, folder)
    partitioner, settings = WAYS[way]
    if partitioner:
        cut = folder / f"{graph}-{parts}-{partitioner}"
        if not cut.exists():
            partita.partition(store, cut, parts=int(parts), algorithm=partitioner)
        store = cut
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    metric = METRIC.get(graph, "accuracy")
    if model == "gat":
        settings = {**settings, "heads": 4}
    if settings.get("preset") == "sdt-gnn":  # every view makes as many steps as exact training
        settings = {**settings, "batch_size": SETTINGS["batch_size"] // int(parts)}
    events: list[dict[str, Any]] = []
    started = time.perf_counter()
    of_run = {
        "model": model,
        "layers": int(layers),
        "fanout": FANOUTS[int(layers)],
        "seed": int(seed),
        "metric": metric,
    }
    summary = partita.Trainer(store, out=out, callbacks=[events.append], **{**SETTINGS, **of_run, **settings}).fit()
    best = summary.record["best"]
    covered = [event["coverage"] for event in events if "coverage" in event]
    return {
        **dict(zip(KEY, key, strict=True)),
        "test": round(summary.metrics["test"][metric], 5),
        "val": round(best["value"], 5),
        "best_epoch": best["epoch"],
        "coverage": round(statistics.mean(covered), 4) if covered else 1.0,
        "seconds": round(time.perf_counter() - started, 1),
    }


def table(rows: list[dict[str, str]]) -> str:
    """Mean and standard deviation of the test metric in percent, by graph and way; exact, and differences from it."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        at = tuple(row[name] for name in KEY[:-1])
        found.setdefault(at, {})[row["seed"]] = 100 * float(row["test"])
    ways = list(WAYS)[1:]
    lines = []
    for model, layers in ORDER:
        body = []
        for graph, parts in itertools.product(GRAPHS, ("4", "16")):
            exact = found.get((graph, model, str(layers), "0", "exact"))
            if not exact:
                continue
            cells = []
            for way in ways:
                runs = found.get((graph, model, str(layers), parts, way), {})
                both = sorted(runs.keys() & exact.keys())
                cells.append(shown([runs[seed] - exact[seed] for seed in both], signed=True))
            if any(cells):
                body.append(f"| {graph} | {parts} | {shown(list(exact.values()))} | {' | '.join(cells)} |")
        if body:
            lines += ["", f"**{model.upper()}, {layers} layers**", ""]
            lines += [f"| graph | parts | exact | {' | '.join(ways)} |", "|---|---|---|" + "---|" * len(ways), *body]
    return "\n".join(lines).strip() + "\n"


def summary(rows: list[dict[str, str]]) -> str:
    """One line a model, depth and number of parts: over the graphs, the mean and the median difference from exact."""
    ways = [way for way in WAYS if way in MAIN]
    exact = {
        (r["graph"], r["model"], r["layers"], r["seed"]): 100 * float(r["test"]) for r in rows if r["way"] == "exact"
    }
    lines = [f"| layers | parts | graphs | {' | '.join(ways)} |", "|---|---|---|" + "---|" * len(ways)]
    for (model, layers), parts in itertools.product(
        sorted(ORDER, key=lambda kind: (MODELS.index(kind[0]), kind[1])), ("4", "16")
    ):
        of_graph: dict[str, dict[str, list[float]]] = {}
        for row in rows:
            if (row["model"], row["layers"], row["parts"]) == (model, str(layers), parts) and row["way"] in ways:
                base = exact[row["graph"], model, str(layers), row["seed"]]
                found = of_graph.setdefault(row["graph"], {})
                found.setdefault(row["way"], []).append(100 * float(row["test"]) - base)
        whole = [
            {way: statistics.mean(found[way]) for way in ways} for found in of_graph.values() if len(found) == len(ways)
        ]
        if whole:
            cells = [[graph[way] for graph in whole] for way in ways]
            shown_cells = [f"{statistics.mean(cell):+.1f}, {statistics.median(cell):+.1f}" for cell in cells]
            lines.append(f"| {model} {layers} | {parts} | {len(whole)} | {' | '.join(shown_cells)} |")
    return "\n".join(lines) + "\n"


def shown(values: list[float], *, signed: bool = False) -> str:
    """``-0.53 ± 0.12 (3)``: mean, standard deviation, number of seeds."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):+.2f}" if signed else f"{statistics.mean(values):.2f}"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean}{spread} ({len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("isolated_measured.csv"))
    parser.add_argument("--table", type=Path, help="Markdown file for the tables; default: printed")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so long; 0: only the tables")
    parser.add_argument("--work", type=Path, help="folder for stores, kept; default: a temporary one")
    options = parser.parse_args()
    done = {tuple(row[name] for name in KEY) for row in read_rows(options.out)}
    stop = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
        folder = options.work or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for key in cases(options.seeds, options.graphs):
            if time.monotonic() > stop:
                break
            if key not in done:
                done.add(key)
                row = run(key, folder)
                append_row(options.out, FIELDS, row)
                print(*key, f"{100 * row['test']:.2f}", f"{row['seconds']:.0f} s", flush=True)
    rows = read_rows(options.out)
    text = table(rows) + "\n" + summary(rows)
    if options.table:
        options.table.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
