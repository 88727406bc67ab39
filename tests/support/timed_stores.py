"""Random graphs whose edges, nodes and seeds have times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import partita
from partita.graph.store import GraphStore

ALWAYS = np.iinfo(np.int64).min
N, WIDTH = 300, 6


def stored_with_times(folder: Path, *, typed: bool) -> GraphStore:
    """A random graph in two parts. Nodes are asked about at one of a dozen times.

    Args:
        folder: to write in.
        typed: of three types, of which two have times of their own.
    """
    random = np.random.default_rng(6)
    kind, edges = np.arange(N) * 3 // N, random.integers(0, N, (2, 12 * N))
    arrays: dict[str, Any] = {
        "edge_index": edges,
        "edge_time": np.where(random.random(12 * N) < 0.1, ALWAYS, random.integers(0, 60, 12 * N)),
        "seed_time": random.integers(20, 32, N) * 2,
        "y": random.integers(0, 2, N),
    }
    if typed:
        names = np.array([f"{a}{b}" for a in "uve" for b in "uve"])
        arrays |= {"node_type": kind, "node_type_names": np.array(list("uve")), "edge_type_names": names}
        arrays |= {"edge_type": 3 * kind[edges[0]] + kind[edges[1]], "target_node_type": np.array("u")}
        arrays["y"] = np.where(kind == 0, arrays["y"], -1)
        arrays["node_time"] = np.where(kind > 0, random.integers(0, 60, N), ALWAYS)
        arrays |= {f"x_{name}": random.normal(size=(N // 3, 3 + at)) for at, name in enumerate("uv")}
    else:
        arrays["x"] = random.normal(size=(N, WIDTH)).astype(np.float32)
    np.savez(folder / "g.npz", **arrays)
    partita.ingest(folder / "g.npz", folder / "whole")
    partita.partition(folder / "whole", folder / "two", parts=2, algorithm="random")
    return GraphStore.open(folder / "two")
