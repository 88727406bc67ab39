"""Typed graphs: Partita beside PyTorch Geometric and DGL, sampling and epochs, on graphs of IGB-Heterogeneous' shape.

    python bench/peers/typed/compare.py --shape tiny --out typed_measured.csv
    python bench/peers/typed/compare.py --shape small --models rgcn --repetitions 3

The peers get the virtual environments of ``bench/peers/environments.py``. Every contender is a process that stays;
within each repetition they take turns, in an order that changes. All have the same graph (features float16, 128
columns, unless ``--features`` says otherwise), the same training papers in batches of the same size, the same number of
neighbors of every relation and layer, an encoder for each node type, the same widths, and the same number of threads.
A row of the CSV file is one repetition; the table shows medians. Peak memory is private memory with the graph and its
features, where a library holds them; pages of Partita's files belong to the system's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
from environments import DEFAULT_CACHE, cache_folder, make  # noqa: E402
from processes import Process  # noqa: E402
from rows import append_row  # noqa: E402

CONTENDERS = {"Partita": None, "PyG": "pyg", "DGL": "dgl"}
FIELDS = (
    "shape", "model", "stage", "contender", "variant", "repetition", "seconds", "edges", "steps", "first_loss",
    "last_loss", "peak_private_bytes", "error",
)  # fmt: skip


def make_graph(folder: Path, shape: str, scale: float, features: int, seeds: int) -> Path:
    """A store, and the same as plain arrays for the peers."""
    import partita
    from partita.graph.generate_typed import SHAPES, generate_typed

    print(f"making the graph: {shape}, {features} features", file=sys.stderr, flush=True)
    folder.mkdir(parents=True)
    papers = SHAPES[shape].num_nodes["paper"] * scale
    generate_typed(
        folder / "store", shape=shape, scale=scale, num_features=features, dtype="float16",
        split=(min(0.9, seeds / papers), 1 / papers, 0),
    )  # fmt: skip
    store = partita.open(str(folder / "store"))
    schema = store.schema
    assert schema is not None
    arrays = {"indptr": store.indptr, "indices": store.indices, "edge_type": store.edge_type}
    for number, name in enumerate(schema.node_types):
        arrays[f"x_{number}"] = store.x_of(name)
    for name, array in {**arrays, "y": store.y, "train": store.split("train")}.items():
        np.save(folder / f"{name}.npy", array)
    about = {
        "node_types": schema.node_types, "num_nodes": schema.num_nodes,
        "relations": [[each.source, each.name, each.target] for each in schema.relations],
        "classes": store.num_classes,
    }  # fmt: skip
    (folder / "about.json").write_text(json.dumps(about))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["tiny", "small"], default="tiny")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--models", default="rgcn,rgat")
    parser.add_argument("--stages", default="sample,epoch")
    parser.add_argument("--fanout", default="10,10", help="seed side first, neighbors of every relation")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=16, help="batches of an epoch")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--peers", default="PyG,DGL")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    parser.add_argument("--out", type=Path, default=Path("typed_measured.csv"))
    options = parser.parse_args()
    pythons = {"Partita": Path(sys.executable)}
    for peer in filter(None, options.peers.split(",")):
        made = make(str(CONTENDERS[peer]), cache_folder(options.cache))
        pythons[peer] = made.python
        print(peer, made.missing or "", flush=True)
    with tempfile.TemporaryDirectory(prefix="partita-typed-") as temporary:
        folder = Path(temporary)
        graph = make_graph(
            folder / "graph", options.shape, options.scale, options.features, options.steps * options.batch_size
        )
        processes = {
            name: Process(f"typed/run_{name.lower()}.py", python, options.threads, folder / f"{name}.log", {})
            for name, python in pythons.items()
        }
        rows = []
        try:
            for name, process in processes.items():
                print(name, process.about.get("versions", process.about), flush=True)
            for model in options.models.split(","):
                for stage in options.stages.split(","):
                    rows += measure(options, graph, processes, model, stage)
        finally:
            for name, process in processes.items():
                process.end()
                errors = (folder / f"{name}.log").read_text()
                if "Error" in errors:
                    print(errors[-2000:], file=sys.stderr)
    print(table(rows))


def measure(
    options: argparse.Namespace, graph: Path, processes: dict[str, Process], model: str, stage: str
) -> list[dict[str, Any]]:
    """All repetitions of a stage of a model."""
    command = {
        "graph": str(graph), "stage": stage, "model": model, "fanout": [int(n) for n in options.fanout.split(",")],
        "hidden": options.hidden, "heads": options.heads, "batch_size": options.batch_size, "lr": 0.003, "epochs": 2,
    }  # fmt: skip
    entrants = [
        (name, variant)
        for name, process in processes.items()
        for variant in process.about.get("variants", {}).get(stage, [])
        if stage != "sample" or model == options.models.split(",")[0]  # it knows nothing of models
    ]
    rows = []
    for repetition in range(options.repetitions):
        for place in range(len(entrants)):
            name, variant = entrants[(place + repetition) % len(entrants)]
            answer = processes[name].ask(**command, variant=variant)
            losses = answer.get("losses") or ["", ""]
            row = {field: answer.get(field, "") for field in FIELDS} | {
                "shape": options.shape, "model": model, "stage": stage, "contender": name, "variant": variant,
                "repetition": repetition, "first_loss": losses[0], "last_loss": losses[-1],
            }  # fmt: skip
            rows.append(row)
            append_row(options.out, FIELDS, row)
            told = answer.get("error") or f"{answer['seconds']:.4g} s, {answer['edges']:,} edges"
            print(model, stage, name, variant, told, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Medians in markdown, with the ratio to Partita's."""
    lines = [
        "| model | stage | contender | seconds | ns per edge | ratio | peak MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    kept = [row for row in rows if row["error"] == ""]
    ours: dict[tuple[str, str], float] = {}
    for model, stage, contender, variant in dict.fromkeys(
        (row["model"], row["stage"], row["contender"], row["variant"]) for row in kept
    ):
        mine = [row for row in kept if (row["model"], row["stage"]) == (model, stage)]
        mine = [row for row in mine if (row["contender"], row["variant"]) == (contender, variant)]
        seconds = statistics.median(row["seconds"] for row in mine)
        edges = statistics.median(row["edges"] for row in mine)
        peak = statistics.median(row["peak_private_bytes"] for row in mine) / 2**20
        ours.setdefault((model, stage), seconds)
        name = f"{contender}, {variant}" if variant else contender
        lines.append(
            f"| {model} | {stage} | {name} | {seconds:.3g} | {1e9 * seconds / edges:.1f} | "
            f"{seconds / ours[model, stage]:.2f} | {peak:,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
