"""Sampling by time, Partita beside PyG's operation: ``python bench/peers/temporal/compare.py`` prints a table.

The graphs are those of ``bench/temporal.py``, but nodes have the times, as PyG's operation wants it: an edge has that
of its source, and a seed asks about its own. Two layers are drawn, and their sources numbered; one thread, processor
time, medians over the steps of all repetitions, in which both take turns. PyG's draws fewer edges, as it leaves out
what is later after it has drawn: what is compared is the time for each edge.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from partita import kernels
from partita.core.keys import StepKey
from partita.kernels import Relabeller
from partita.sample.temporal import SeedTimes, TemporalTopology, slots_for
from partita.sample.topology import ArrayTopology

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
from drawing import draw  # noqa: E402
from environments import DEFAULT_CACHE, cache_folder, make  # noqa: E402
from temporal import FANOUTS, SPAN, even, rmat  # noqa: E402

Figures = dict[str, list[float]]
WARMUP = 3


def ours(arrays: dict[str, np.ndarray]) -> Figures:
    """Partita's figures for each step."""
    indptr, indices, times = (torch.from_numpy(arrays[name]) for name in ("indptr", "indices", "times"))
    slots = slots_for(arrays["seeds"].shape[1])
    topology = TemporalTopology(ArrayTopology(indptr, indices), times[indices.long()], slots)
    asked, scratch = SeedTimes(times, slots), Relabeller(topology.num_nodes)
    figures: Figures = {"seconds": [], "edges": [], "nodes": []}
    for step, seeds in enumerate(torch.from_numpy(arrays["seeds"])):
        begun = time.process_time()
        key = StepKey(0, 0, step, times=asked.of(seeds))
        assert key.times is not None
        edges, nodes = draw(topology, asked.requests(seeds, key.times), key, FANOUTS, scratch)
        for name, value in (("seconds", time.process_time() - begun), ("edges", edges), ("nodes", nodes)):
            figures[name].append(value)
    return figures


def graph(name: str, scale: int, degree: int, steps: int, batch: int) -> dict[str, np.ndarray]:
    """A graph whose rows are in the order of their sources' times, and the seeds of every step."""
    generator = np.random.default_rng(0)
    indptr, indices = even(1 << scale, degree, generator) if name == "even" else rmat(scale, degree, generator)
    nodes = len(indptr) - 1
    times = generator.integers(0, SPAN, nodes)
    rows = np.repeat(np.arange(nodes), np.diff(indptr.numpy()))
    order = np.argsort(rows * SPAN + times[indices.numpy()], kind="stable")
    seeds = np.stack([generator.choice(nodes, batch, replace=False) for _ in range(steps + WARMUP)])
    return {"indptr": indptr.numpy(), "indices": indices.numpy()[order], "times": times, "seeds": seeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=19, help="2^scale nodes")
    parser.add_argument("--degree", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the peers' environments are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels.set_threads(1)
    made = make("pyg", cache_folder(options.cache))
    if any("torch-sparse" in packages for packages in made.missing):
        why = "; ".join(made.missing.values())
        parser.error(f"torch-sparse cannot be installed in {made.python.parent.parent} ({why}); its logs are there")
    print("| graph | | edges in a step | nodes | ms a step | ns an edge | to Partita |")
    print("|---|---|---|---|---|---|---|")
    for name in ("even", "R-MAT"):
        arrays = graph(name, options.scale, options.degree, options.steps, options.batch_size)
        found: dict[str, Figures] = {each: {} for each in ("Partita", "PyG (torch-sparse)")}
        with tempfile.TemporaryDirectory(prefix="partita-peers-") as folder:
            path = Path(folder, "graph.npz")
            np.savez(path, **arrays)  # type: ignore[arg-type]
            given = json.dumps({"arrays": str(path), "fanouts": list(FANOUTS[::-1])})
            for _ in range(options.repetitions):
                done = subprocess.run(
                    [str(made.python), str(HERE / "run_pyg.py"), given], capture_output=True, text=True, check=True
                )
                for who, figures in zip(found, (ours(arrays), json.loads(done.stdout.splitlines()[-1])), strict=True):
                    for key in ("seconds", "edges", "nodes"):
                        found[who].setdefault(key, []).extend(figures[key][WARMUP:])
        each = {
            who: statistics.median(a / b for a, b in zip(of["seconds"], of["edges"], strict=True))
            for who, of in found.items()
        }
        for who, of in found.items():
            edges, nodes, seconds = (statistics.median(of[key]) for key in ("edges", "nodes", "seconds"))
            ratio = each[who] / each["Partita"]
            print(
                f"| {name} | {who} | {edges:,.0f} | {nodes:,.0f} | {1e3 * seconds:.2f} | {1e9 * each[who]:.1f} "
                f"| {ratio:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
