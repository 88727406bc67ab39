"""Sampling, relabeling and permutations; the rules are in :mod:`partita.kernels.reference`."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt32
from torch import Tensor

from partita.core.keys import below, fold
from partita.kernels.reference.draws import FEISTEL_ROUNDS, arrival_time, fold_all
from partita.kernels.reference.excluded import remaining
from partita.kernels.reference.relations import Drawn, Runs, drawn_by_run
from partita.kernels.relabeller import Relabeller


def pick_uniform(node_key: int, degree: int, fanout: int, replace: bool) -> list[int]:
    """Slots drawn for one destination."""
    if fanout < 0 or (degree <= fanout and not replace) or degree == 0:
        return list(range(degree))
    if replace:
        return [below(fold(node_key, s), degree) for s in range(fanout)]
    picks: dict[int, None] = {}
    for s in range(fanout):
        bound = degree - fanout + s
        slot = below(fold(node_key, s), bound + 1)
        picks[bound if slot in picks else slot] = None
    return list(picks)


def pick_weighted(node_key: int, weights: UInt32[np.ndarray, "d"], fanout: int, replace: bool) -> list[int]:
    """Slots drawn for one destination whose in-edges have ``weights``."""
    slots = np.flatnonzero(weights).tolist()
    if fanout < 0 or (len(slots) <= fanout and not replace) or not slots:
        return slots
    if replace:
        totals = np.cumsum(weights, dtype=np.uint64)
        goals = [below(fold(node_key, s), int(totals[-1])) for s in range(fanout)]
        return np.searchsorted(totals, np.array(goals, np.uint64), side="right").tolist()
    times = ((arrival_time(fold(node_key, j), int(weights[j])), j) for j in slots)
    return sorted(j for _, j in heapq.nsmallest(fanout, times))


def sample_neighbors(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanout: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """``indptr``, ``indices`` of the sample, and where among the given edges every sampled one is."""
    rows, weight = indptr.numpy(), None if weights is None else weights.numpy()
    counts: list[int] = [0]
    positions: list[int] = []
    for node, original in zip(dst.tolist(), dst_original.tolist()):
        row = remaining(excluded, int(rows[node]) - first_edge, int(rows[node + 1]) - first_edge)
        if weight is None:
            slots = pick_uniform(fold(key, original), len(row), fanout, replace)
        else:
            slots = pick_weighted(fold(key, original), weight[row], fanout, replace)
        positions.extend(row[slots].tolist() if slots else ())
        counts.append(len(positions))
    at = torch.tensor(positions, dtype=torch.int64)
    return torch.tensor(counts), indices[at] if len(indices) or not len(at) else at, at


def relation_bounds(
    indptr: Int[Tensor, "N_1"],
    edge_type: Shaped[Tensor, "M"],
    dst: Int[Tensor, "D"],
    relations: Int[Tensor, "C"],
    first_edge: int,
) -> Int[Tensor, "DC 2"]:
    """Where in the store the edges of each relation of each destination begin and end, by destination."""
    rows, kinds, found = indptr.numpy(), edge_type.numpy(), list[tuple[int, int]]()
    for node in dst.tolist():
        begin, end = int(rows[node]), int(rows[node + 1])
        row = kinds[begin - first_edge : end - first_edge]
        for relation in relations.tolist():
            low, high = np.searchsorted(row, relation, "left"), np.searchsorted(row, relation, "right")
            found.append((begin + int(low), begin + int(high)))
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 2)


def relation_runs(
    indptr: Int[Tensor, "N_1"],
    edge_type: Shaped[Tensor, "M"],
    dst: Int[Tensor, "D"],
    chosen: Sequence[bool],
    first_edge: int,
) -> Runs:
    """The edges of each chosen relation in the rows of destinations; ``chosen`` says so of all relations."""
    relations = torch.tensor(list(chosen)).nonzero().reshape(-1)
    return Runs.of(relation_bounds(indptr, edge_type, dst, relations, first_edge), relations)


def sample_relations(*given: Any) -> Drawn:
    """A number of in-edges of each relation for every destination; arguments as of the other implementations."""
    return drawn_by_run(relation_bounds, sample_neighbors, *given)


def relabel(
    dst: Int[Tensor, "D"], ids: Int[Tensor, "E"], relabeller: Relabeller
) -> tuple[Int[Tensor, "S"], Int[Tensor, "E"]]:
    """``src`` and local indices of a sample's store ids; the scratch is not used."""
    local = {node: i for i, node in enumerate(dst.tolist())}
    if len(local) != dst.shape[0]:
        raise ValueError("a node is twice among the destinations")
    numbers = [local.setdefault(node, len(local)) for node in ids.tolist()]
    return torch.tensor(list(local), dtype=ids.dtype), torch.tensor(numbers, dtype=torch.int32)


def gcn_coefficients(
    store_indptr: Int[Tensor, "N_1"],
    self_loops: Int[Tensor, "N"] | None,
    dst: Int[Tensor, "D"],
    src: Int[Tensor, "S"] | None,
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    weight: Float[Tensor, "E"],
    self_weight: Float[Tensor, "D"],
) -> None:
    """Fill ``weight`` and ``self_weight``."""
    dst = dst.long()
    sources = indices.long() if src is None else src.long()[indices.long()]
    degree = (store_indptr[1:] - store_indptr[:-1]).double()
    norm = degree + 1 if self_loops is None else degree + 1 - self_loops
    counts = indptr[1:] - indptr[:-1]
    at = torch.repeat_interleave(counts)
    scaled = (degree[dst] / counts)[at] / (norm[sources] * norm[dst][at]).sqrt()
    weight.copy_(scaled.masked_fill(sources == dst[at], 0.0))
    self_weight.copy_(1 / norm[dst])


def count_distinct(ids: Int[Tensor, "n"], num_nodes: int) -> int:
    """Number of distinct ids."""
    return torch.unique(ids).shape[0]


def keyed_permutation(start: int, n: int, key: int, out: Int[Tensor, "m"]) -> None:
    """Fill ``out`` with places ``start``, ``start + 1``... of the permutation."""
    bits = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << bits) - 1)
    rounds = [fold(key, r) for r in range(FEISTEL_ROUNDS)]
    value = np.arange(start, start + out.shape[0], dtype=np.uint64)
    walking = np.ones(value.shape, bool)
    while walking.any():
        left, right = value[walking] >> np.uint64(bits), value[walking] & mask
        for round_key in rounds:
            drawn = fold_all(np.full(right.shape, round_key, np.uint64), right)
            left, right = right, left ^ (drawn & mask)
        value[walking] = (left << np.uint64(bits)) | right
        walking = value >= n
    out.copy_(torch.from_numpy(value.astype(np.int64)))
