"""What presampled weights buy: GSplit's Figure 5 on graphs with communities, and the same weights for streaming.

    python bench/presampled_weights.py --out docs/partitioning_measured.md --svg docs/images/presampled.svg

For every graph, share of training nodes, weighting and partitioner: the expected share of cut edges in sampled
mini-batches, and the load imbalance, the largest over the mean number of sampled edges of a part; means over several
seeds of the partitioner. Weights come from one presampling (seed 0), and what is measured is another one (seed 1), so
that no weighting is judged by the very samples it was fitted to.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from partitioners import DATA, put, table

import partita
from partita.partitioning.edge_streams import StoreStream
from partita.partitioning.job import prepare
from partita.partitioning.options import PartitionOptions
from partita.partitioning.quality import quality

GRAPHS = (
    "amazon_computers", "coauthor_cs", "deezer_ro_genres", "facebook_pagepage", "oewn2024", "tolokers", "sbm",
)  # fmt: skip
VARIANTS = (
    ("random", "none"),
    ("metis", "none"), ("metis", "degree"), ("metis", "node"), ("metis", "edges"), ("metis", "presample"),
    ("spring", "none"), ("spring", "presample"),
    ("spring+", "none"), ("spring+", "edges"), ("spring+", "presample"),
)  # fmt: skip


def store_of(name: str, folder: Path, train: float):
    """A graph with a seeded split of its own, whatever its source brings."""
    path, split = folder / name, (train, 0.1, 0.9 - train)
    if name == "sbm":
        partita.generate_sbm(
            path, num_nodes=50_000, num_classes=32, average_degree=16, num_features=0, split=split, overwrite=True
        )
        return path
    arrays = {key: value for key, value in np.load(DATA / f"{name}.npz").items() if not key.endswith("_mask")}
    np.savez(folder / "graph.npz", **arrays)
    partita.ingest(folder / "graph.npz", path, undirected=True, deduplicate=True, split=split, overwrite=True)
    return path


def measure(name: str, folder: Path, train: float, arguments: argparse.Namespace) -> dict[tuple[str, str], np.ndarray]:
    """Cross-edge share and imbalance of every variant, means over the seeds."""
    path = store_of(name, folder, train)
    judge = folder / f"{name}-judge"
    shutil.rmtree(judge, ignore_errors=True)
    shutil.copytree(path, judge)
    for place, seed in ((path, 0), (judge, 1)):
        partita.presample(
            place, fanout=arguments.fanout, batch_size=arguments.batch_size, epochs=arguments.epochs, seed=seed
        )
    store, other = partita.open(path), partita.open(judge)
    found = {}
    for algorithm, weights in VARIANTS:
        values = []
        for seed in range(2, 2 + arguments.seeds):
            wanted = PartitionOptions(
                parts=arguments.parts, algorithm=algorithm, weights=weights, seed=seed, memory_limit="4GiB"
            )
            job = prepare(store, wanted)
            seen = quality(
                StoreStream(other), job.assign(), arguments.parts, node_weight=other.presample_node,
                edge_weight=other.presample_edge,
            )  # fmt: skip
            values.append((seen.cross_edge_share, seen.sampled_edges.balance))
        found[algorithm, weights] = np.mean(values, axis=0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--train", type=float, nargs="+", default=[0.02, 0.6])
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    text = []
    for train in arguments.train:
        with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
            found = {name: measure(name, Path(folder), train, arguments) for name in arguments.graphs}
        body = []
        for variant in VARIANTS:
            cells = [found[name][variant] for name in arguments.graphs]
            cells.append(np.mean(cells, axis=0))
            body.append([*variant, *(f"{100 * cross:.1f} / {balance:.2f}" for cross, balance in cells)])
        text.append(f"{train:.0%} of the nodes train (cut edges in %, imbalance):\n")
        text.append(table(["partitioner", "weights", *arguments.graphs, "mean"], body) + "\n")
        if arguments.svg and train == arguments.train[0]:
            arguments.svg.parent.mkdir(parents=True, exist_ok=True)
            flat = {(name, *variant): values for name in found for variant, values in found[name].items()}
            arguments.svg.write_text(figure(flat, list(arguments.graphs)))
    put(arguments.out, "presampled", "\n".join(text))


def figure(found: dict[tuple[str, str, str], np.ndarray], graphs: list[str]) -> str:
    """Two rows of bars: cross edges in per cent, imbalance of sampled edges above 1."""
    shown = [("random", "none"), ("metis", "none"), ("metis", "node"), ("metis", "presample"), ("spring+", "presample")]
    colors = ["#9aa5b1", "#7b9acc", "#4a78b5", "#1f4e8c", "#d1791b"]
    bar, gap, height, left, top = 15, 22, 150, 60, 46
    group = bar * len(shown) + gap
    width = left + group * len(graphs) + 10
    most = (100.0, max(1.0, *(max(found[g, *v][1] - 1 for v in shown) for g in graphs)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {2 * height + 150}" font-family="sans-serif" '
        f'font-size="11" role="img" aria-label="Cross edges and load imbalance by weighting">',
        f'<rect width="{width}" height="{2 * height + 150}" fill="white"/>',
    ]
    for i, (algorithm, weights) in enumerate(shown):
        label = algorithm if weights == "none" else f"{algorithm}, {weights} weights"
        x = left + i * 122
        parts.append(f'<rect x="{x}" y="12" width="11" height="11" fill="{colors[i]}"/>')
        parts.append(f'<text x="{x + 15}" y="22">{label}</text>')
    for row, (title, index) in enumerate((("cut edges in mini-batches, %", 0), ("imbalance, max/mean - 1", 1))):
        base = top + (row + 1) * height + row * 50
        parts.append(f'<text x="{left}" y="{base - height - 4}" font-weight="bold">{title}</text>')
        for tick in range(5):
            y, value = base - (height - 24) * tick / 4, most[index] * tick / 4
            text = f"{value:.0f}" if index == 0 else f"{value:.2f}"
            parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - 10}" y2="{y:.1f}" stroke="#e3e7ec"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{text}</text>')
        for g, name in enumerate(graphs):
            for i, variant in enumerate(shown):
                value = found[name, *variant][index]
                value = 100 * value if index == 0 else value - 1
                tall = (height - 24) * value / most[index]
                x = left + g * group + gap / 2 + i * bar
                parts.append(
                    f'<rect x="{x:.1f}" y="{base - tall:.1f}" width="{bar - 2}" height="{max(tall, 0.5):.1f}" '
                    f'fill="{colors[i]}"><title>{name}, {", ".join(variant)}: {value:.3g}</title></rect>'
                )
            center = left + g * group + group / 2
            parts.append(f'<text x="{center:.0f}" y="{base + 15}" text-anchor="middle">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
