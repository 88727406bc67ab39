"""Drawing a layer as a whole; the rules are in :mod:`partita.kernels.reference`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain, count, repeat, takewhile

import torch
from jaxtyping import Int, UInt32
from torch import Tensor

from partita.core.keys import below, fold
from partita.kernels.reference.draws import NEVER, code, log_of
from partita.kernels.reference.excluded import remaining

SPARED_BITS = 6
"""Bits of L that the clock of a node leaves out, so that sums over many arrivals do not overflow."""


def slot_arrivals(slot_key: int, weight: int, replace: bool) -> Iterator[int]:
    """Times of a slot's arrivals, ascending; without end with replacement."""
    log = 0
    for a in count() if replace else range(1):
        log += log_of(fold(slot_key, a))
        yield code(log, weight)


def node_arrivals(node_key: int, degree: int, replace: bool) -> Iterator[tuple[int, int]]:
    """Times and slots of the arrivals at a node without weights, ascending; without end with replacement."""
    log = 0
    seen: set[int] = set()
    for a in count():
        if not replace and len(seen) == degree:
            return
        draw = fold(node_key, a)
        log += log_of(draw) >> SPARED_BITS
        slot = below(fold(draw, 1), degree)
        if replace or slot not in seen:
            seen.add(slot)
            yield code(log, degree) + (SPARED_BITS << 55), slot


def _arrivals(
    indptr: Int[Tensor, "N_1"],
    node: int,
    node_key: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> Iterator[Iterator[tuple[int, int]]]:
    """Times and positions of the arrivals by each clock of a node."""
    row = remaining(excluded, int(indptr[node]) - first_edge, int(indptr[node + 1]) - first_edge).tolist()
    if weights is not None:
        for slot, position in enumerate(row):
            weight = int(weights[position])
            if weight:
                yield zip(slot_arrivals(fold(node_key, slot), weight, replace), repeat(position))
    elif row:
        yield ((time, row[slot]) for time, slot in node_arrivals(node_key, len(row), replace))


def arrival_times(
    indptr: Int[Tensor, "N_1"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    wanted: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> Int[Tensor, "wanted"]:
    """The smallest distinct times of arrivals, ascending, filled up with :data:`NEVER`."""
    best: list[int] = []
    for node, original in zip(dst.tolist(), dst_original.tolist()):
        for clock in _arrivals(indptr, node, fold(key, original), replace, weights, first_edge, excluded):
            for time, _ in clock:
                if len(best) == wanted and time >= best[-1]:
                    break
                at = bisect_left(best, time)
                if best[at : at + 1] != [time]:
                    best.insert(at, time)
                    del best[wanted:]
    return torch.tensor(best + [NEVER] * (wanted - len(best)), dtype=torch.int64)


def pick_arrivals(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    before: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """``indptr`` and ``indices`` of the arrivals before a time, and where among the given edges each of them is."""
    positions: list[int] = []
    counts = [0]
    for node, original in zip(dst.tolist(), dst_original.tolist()):
        clocks = _arrivals(indptr, node, fold(key, original), replace, weights, first_edge, excluded)
        early = (takewhile(lambda arrival: arrival[0] < before, clock) for clock in clocks)
        positions += sorted(position for _, position in chain.from_iterable(early))
        counts.append(len(positions))
    at = torch.tensor(positions, dtype=torch.int64)
    return torch.tensor(counts), indices[at], at
