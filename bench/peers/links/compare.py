"""Batches of links: Partita beside PyTorch Geometric and DGL's GraphBolt, sampling with negatives.

    python bench/peers/links/compare.py --out links_measured.csv
    python bench/peers/links/compare.py --scale 17 --repetitions 3

The peers get the virtual environments of ``bench/peers/environments.py``. All have the same R-MAT graph in both
directions and the same edges as seeds, 1024 a batch; a node drawn uniformly stands in for the destination of each, as
its negative; and from all these ends neighbors are drawn. *Without targets*: the edges of a batch and their reverses
carry no messages in it. Partita draws other edges in their place; GraphBolt takes them out of what was drawn, and fewer
remain; PyG's loader has nothing like it. Contenders take turns; a row of the CSV file is one repetition, the table
shows medians.
"""

from __future__ import annotations

import argparse
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
FIELDS = ("contender", "variant", "repetition", "seconds", "processor_seconds", "edges", "steps", "error")


def make_graph(folder: Path, scale: int, edges_per_node: int, seeds: int) -> Path:
    """A store, and the same as plain arrays for the peers."""
    import partita

    folder.mkdir(parents=True)
    path = partita.generate_rmat(
        folder / "store", scale=scale, edge_factor=edges_per_node, undirected=True, num_features=1, num_classes=2
    )
    store = partita.open(path)
    indptr, indices = np.asarray(store.indptr), np.asarray(store.indices).astype(np.int64)
    dst = np.repeat(np.arange(store.num_nodes), np.diff(indptr))
    between = np.flatnonzero(indices != dst)
    chosen = np.random.default_rng(0).permutation(between)[:seeds]
    arrays = {"indptr": indptr, "indices": indices, "positions": chosen}
    arrays["seeds"] = np.stack([indices[chosen], dst[chosen]], axis=1)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    print(f"{store.num_nodes:,} nodes, {store.num_edges:,} edges", flush=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=19, help="of the R-MAT graph: 2^scale nodes")
    parser.add_argument("--edges-per-node", type=int, default=16)
    parser.add_argument("--fanout", default="10,10", help="seed side first")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=24, help="batches of a repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--peers", default="PyG,DGL")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    parser.add_argument("--out", type=Path, default=Path("links_measured.csv"))
    options = parser.parse_args()
    pythons = {"Partita": Path(sys.executable)}
    for peer in filter(None, options.peers.split(",")):
        made = make(str(CONTENDERS[peer]), cache_folder(options.cache))
        pythons[peer] = made.python
        print(peer, made.missing or "", flush=True)
    with tempfile.TemporaryDirectory(prefix="partita-links-") as temporary:
        folder = Path(temporary)
        graph = make_graph(folder / "graph", options.scale, options.edges_per_node, options.steps * options.batch_size)
        processes = {
            name: Process(f"links/run_{name.lower()}.py", python, options.threads, folder / f"{name}.log", {})
            for name, python in pythons.items()
        }
        try:
            for name, process in processes.items():
                print(name, process.about.get("versions", process.about), flush=True)
            rows = measure(options, graph, processes)
        finally:
            for name, process in processes.items():
                process.end()
                errors = (folder / f"{name}.log").read_text()
                if "Error" in errors:
                    print(errors[-2000:], file=sys.stderr)
    print(table(rows))


def measure(options: argparse.Namespace, graph: Path, processes: dict[str, Process]) -> list[dict[str, Any]]:
    """All repetitions."""
    command = {
        "graph": str(graph), "stage": "sample", "fanout": [int(n) for n in options.fanout.split(",")],
        "batch_size": options.batch_size,
    }  # fmt: skip
    entrants = [
        (name, variant)
        for name, process in processes.items()
        for variant in process.about.get("variants", {}).get("sample", [])
    ]
    rows = []
    for repetition in range(options.repetitions):
        for place in range(len(entrants)):
            name, variant = entrants[(place + repetition) % len(entrants)]
            answer = processes[name].ask(**command, variant=variant)
            row = {field: answer.get(field, "") for field in FIELDS}
            row |= {"contender": name, "variant": variant, "repetition": repetition}
            rows.append(row)
            append_row(options.out, FIELDS, row)
            told = answer.get("error") or f"{answer['seconds']:.4g} s, {answer['edges']:,} edges"
            print(name, variant, told, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Medians in markdown, with the ratio to Partita's first variant."""
    lines = ["| contender | ms a batch | processor ms | edges a batch | ratio |", "|---|---|---|---|---|"]
    kept, ours = [row for row in rows if row["error"] == ""], 0.0
    for contender, variant in dict.fromkeys((row["contender"], row["variant"]) for row in kept):
        mine = [row for row in kept if (row["contender"], row["variant"]) == (contender, variant)]
        wall, used, edges = (
            statistics.median(row[field] / row["steps"] for row in mine)
            for field in ("seconds", "processor_seconds", "edges")
        )
        ours = ours or wall
        lines.append(
            f"| {contender}, {variant} | {1e3 * wall:.1f} | {1e3 * used:.1f} | {edges:,.0f} | {wall / ours:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
