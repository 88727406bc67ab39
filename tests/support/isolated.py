"""What isolated training must compute, from lists of edges and plain loops, in one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from torch.nn import functional as F

from partita.graph.store import GraphStore
from partita.runs.checkpoint import latest_checkpoint


def model_of(run: Path) -> dict[str, np.ndarray]:
    """The weights of the latest checkpoint."""
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    return load_file(latest / "model.safetensors")


def assert_same(run: Path, other: Path, tolerance: float = 0.0) -> None:
    """Two runs ended with the same model."""
    found, expected = model_of(run), model_of(other)
    assert found.keys() == expected.keys()
    largest = {name: max(np.abs(value).max(), 1e-30) for name, value in expected.items()}
    apart = {name: np.abs(found[name] - value).max() / largest[name] for name, value in expected.items()}
    assert max(apart.values()) <= tolerance, apart


def epochs_of(run: Path) -> list[dict]:
    """The epoch events of a run, without what depends on the clock."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        {name: value for name, value in event.items() if name not in ("seconds", "seeds_per_second")}
        for event in lines
        if event["event"] == "epoch"
    ]


def induced(store: GraphStore, parts: tuple[int, ...], halo: str) -> list[tuple[int, int]]:
    """Edges (source, target) of a view by store ids, from the definition."""
    owner = np.searchsorted(store.part_offsets[1:], np.arange(store.num_nodes), side="right")
    inside = np.isin(owner, parts)
    around: set[int] = set()
    edges = [(int(u), v) for v in range(store.num_nodes) for u in store.indices[store.indptr[v] : store.indptr[v + 1]]]
    if halo != "none":
        around = {u for u, v in edges if inside[v] and not inside[u]}
    kept = []
    for u, v in edges:
        if (inside[v] and (inside[u] or u in around)) or (halo == "one-hop+edges" and v in around and inside[u]):
            kept.append((u, v))
    return kept


def _mean_matrix(edges: list[tuple[int, int]], num_nodes: int) -> torch.Tensor:
    """Means over in-neighbors as a dense matrix (N, N), float64; parallel edges count as often as they are there."""
    matrix = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for u, v in edges:
        matrix[v, u] += 1
    return matrix / matrix.sum(1, keepdim=True).clamp(min=1)


def dense_epoch(
    store: GraphStore,
    weights: dict[str, torch.Tensor],
    assignment: tuple,
    halo: str,
    coverage: str,
    lr: float,
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """An epoch of two-layer SAGE: one step of SGD per phase, on all training nodes of its views.

    Returns:
        The weights after it, and the factors of the batches of all workers that have a view.
    """
    x = torch.from_numpy(np.array(store.x)).double()
    y, train_ids = torch.from_numpy(np.array(store.y)).long(), np.sort(store.split("train"))
    owner = np.searchsorted(store.part_offsets[1:], np.arange(store.num_nodes), side="right")
    degree, factors = np.diff(store.indptr), []
    for phase in assignment:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        of_views = [train_ids[np.isin(owner[train_ids], parts or ())] for parts in phase]
        total, step = sum(map(len, of_views)), {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        if total == 0:
            continue
        for parts, seeds in zip(phase, of_views, strict=True):
            if parts is None:
                factors.append(1.0)  # of a worker without a view
                continue
            seen, inner = induced(store, parts, halo), induced(store, parts, "none")
            mean, h = _mean_matrix(seen, store.num_nodes), x
            for layer in range(2):
                own = {
                    name.split("layer.")[1]: leaf
                    for name, leaf in leaves.items()
                    if name.startswith(f"stages.{layer}.")
                }
                h = F.linear(h, own["lin_r.weight"]) + F.linear(mean @ h, own["lin_l.weight"]) + own["lin_l.bias"]
                h = torch.relu(h) if layer == 0 else h
            loss = F.cross_entropy(h[seeds], y[seeds], reduction="sum") / total
            inside = np.bincount([v for _, v in inner], minlength=store.num_nodes)[seeds]
            drawn = np.bincount([v for _, v in seen], minlength=store.num_nodes)[seeds]
            factors.append(_factor(coverage, drawn, inside, degree[seeds]))
            for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                step[name] += factors[-1] * gradient
        weights = {name: leaf.detach() - lr * step[name] for name, leaf in leaves.items()}
    return weights, factors


def _factor(coverage: str, drawn: np.ndarray, inside: np.ndarray, degree: np.ndarray) -> float:
    if coverage == "uniform":
        return float(np.where(degree > 0, inside / np.maximum(degree, 1), 1.0).mean()) if len(degree) else 1.0
    if coverage == "resampling":
        some = drawn > 0
        if not some.any():
            return float((inside == degree).all())
        with np.errstate(divide="ignore"):
            return float(drawn[some].sum() / (drawn[some] * degree[some] / inside[some]).sum())
    return 1.0
