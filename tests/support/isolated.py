"""What isolated training must compute, from lists of edges and plain loops, in one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from torch.nn import functional as F

from partita.comm.context import Context
from partita.comm.group import Group
from partita.config import Config
from partita.core.keys import StepKey
from partita.graph.column_specs import known
from partita.graph.store import GraphStore
from partita.nn.model import Model
from partita.parallel.engine import Engine
from partita.parallel.strategies import PLAIN, build_engine, parse_strategy
from partita.runs.checkpoint import latest_checkpoint
from partita.sample.topology import EDGE_ROWS, ArrayTopology, as_tensor
from partita.setup.inputs import DTYPES, open_rows
from partita.setup.sampler import make_sampler


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


def seen_from(store: GraphStore, parts: tuple[int, ...], halo: str) -> np.ndarray:
    """Which of the store's edges a view has, bool (E), from the definition."""
    owner = np.searchsorted(store.part_offsets[1:], np.arange(store.num_nodes), side="right")
    inside, around = np.isin(owner, parts), np.zeros(store.num_nodes, bool)
    src, dst = np.asarray(store.indices), np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    if halo == "none":
        return inside[src] & inside[dst]
    around[src[inside[dst] & ~inside[src]]] = True
    return inside[dst] | (around[dst] & inside[src] & (halo == "one-hop+edges"))


def filtered(store: GraphStore, parts: tuple[int, ...], halo: str, **settings: bool) -> ArrayTopology:
    """The whole store without the edges that a view has not: what sampling and layers of the view must agree with."""
    kept = seen_from(store, parts, halo)
    dst = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    rows = np.concatenate([[0], np.cumsum(np.bincount(dst[kept], minlength=store.num_nodes))])
    arrays = {
        spec.sampler: as_tensor(store.column(name)[kept] if spec.of == "edges" else store.column(name))
        for name, spec in known(store.columns).items()
        if spec.sampler
    }
    arrays |= {"indptr": torch.from_numpy(rows), "degree_offsets": as_tensor(store.indptr)}
    if store.schema is not None:
        arrays |= {"node_types": store.node_types, "num_relations": len(store.schema.relations)}
    edge_rows = {name: as_tensor(store.column(name)[kept]) for name in EDGE_ROWS if store.has(name)}
    return ArrayTopology(**arrays, edge_rows=edge_rows, **settings)


def engine_without(store: GraphStore, model: Model, config: Config, parts: tuple[int, ...], halo: str) -> Engine:
    """An engine over the whole store without the edges that a view has not."""
    topology = filtered(store, parts, halo, replace=config.replace, weighted=config.weighted)
    return build_engine(
        parse_strategy(PLAIN, config.layers), model, topology, open_rows(store, config),
        make_sampler(config, Group.alone(), store.schema), DTYPES[config.precision], Context.alone(),
        torch.tensor([0, store.num_nodes]),
    )  # fmt: skip


def filtered_epoch(
    store: GraphStore, model: Model, config: Config, assignment: tuple
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """An epoch of any model, all neighbors, one step of SGD per phase on all training nodes of its views.

    Returns:
        The weights after it, and the factors of the batches of all workers that have a view.
    """
    owner = np.searchsorted(store.part_offsets[1:], np.arange(store.num_nodes), side="right")
    train_ids, y, factors = store.split("train"), torch.from_numpy(np.array(store.y)).long(), []
    parameters = dict(model.named_parameters())
    for phase in assignment:
        of_views = [train_ids[np.isin(owner[train_ids], parts or ())] for parts in phase]
        total, step = sum(map(len, of_views)), {name: torch.zeros_like(each) for name, each in parameters.items()}
        for parts, seeds in zip(phase, of_views, strict=True):
            if parts is None:
                factors.append(1.0)  # of a worker without a view
                continue
            engine = engine_without(store, model, config, parts, config.halo)
            out = engine.forward(engine.sample(torch.from_numpy(seeds), StepKey(config.seed, 0, 0)))
            loss = F.cross_entropy(out, y[seeds], reduction="sum") / total
            counts = degrees_of_pairs(store, parts, config.halo, seeds, model.layers[-1].reads_relations)
            factors.append(_factor(config.coverage, *counts))
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for name, gradient in zip(parameters, found, strict=True):
                step[name] += 0 if gradient is None else factors[-1] * gradient
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter -= config.lr * step[name]
    return model.state_dict(), factors


def degrees_of_pairs(
    store: GraphStore, parts: tuple[int, ...], halo: str, seeds: np.ndarray, by_relation: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In-edges of the seeds in a view, from its parts, and in the graph; by relation those of every relation that leads
    to the type of a seed, seed after seed."""
    kept, inner = seen_from(store, parts, halo), seen_from(store, parts, "none")
    found = []
    for seed in seeds:
        edges = np.arange(store.indptr[seed], store.indptr[seed + 1])
        groups = [edges]
        if by_relation and store.schema is not None:
            kind = int(store.types(np.array([seed]))[0])
            leads = [at for at, (_, target) in enumerate(store.schema.ends.tolist()) if target == kind]
            groups = [edges[store.edge_type[edges] == at] for at in leads]
        found += [(kept[each].sum(), inner[each].sum(), len(each)) for each in groups]
    drawn, local, degree = np.array(found, np.int64).reshape(-1, 3).T
    return drawn, local, degree
