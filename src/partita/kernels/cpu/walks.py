"""Random walks, compiled. The draws are those of :mod:`partita.kernels.reference`, bit for bit.

A walk is a chain of dependent reads, so the walks of a start go side by side: one step of all of them is drawn and its
cache lines asked for, before the ids are read.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt32
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty, run
from partita.kernels.cpu.draws import LANE_MASK, ONE, WORDS_PER_PICK, U, below, fold
from partita.kernels.cpu.excluded import directory, excluded_within, step_over
from partita.kernels.intrinsics import prefetch

ZERO = U(0)
RESTART, SINK = -1, -2  # in place of a position


def random_walks(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    start: Int[Tensor, "n"],
    start_original: Int[Tensor, "n"],
    key: int,
    walks: int,
    length: int,
    threshold: int,
    weights: UInt32[Tensor, "M"] | None,
    excluded: Int[Tensor, "k"],
    out: Int[Tensor, "nR columns"],
) -> None:
    """See :func:`partita.kernels.reference.random_walks`."""
    weight = or_empty(weights, (0,), np.dtype(np.uint32))
    run(
        walk_loop, threads.even_bounds(start.shape[0], out.numel() * WORDS_PER_PICK),
        indptr, indices, weight, weights is not None, *directory(excluded), start, start_original, U(key), walks,
        length, U(threshold), out,
    )  # fmt: skip


def walk_step(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    ids: Int[Tensor, "n"],
    draws: Int[Tensor, "n"],
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
    out: Int[Tensor, "n"],
) -> None:
    """See :func:`partita.kernels.reference.walk_step`."""
    weight = or_empty(weights, (0,), np.dtype(np.uint32))
    run(
        step_loop, threads.even_bounds(ids.shape[0], ids.shape[0] * WORDS_PER_PICK),
        indptr, indices, first_edge, weight, weights is not None, *directory(excluded), ids, draws, out,
    )  # fmt: skip


def walk_draws(
    start_original: Int[Tensor, "n"],
    key: int,
    walks: int,
    step: int,
    threshold: int,
    draws: Int[Tensor, "nR"],
    restarts: Bool[Tensor, "nR"],
) -> None:
    """See :func:`partita.kernels.reference.walk_draws`."""
    bounds = threads.even_bounds(start_original.shape[0], draws.shape[0] * 4)
    run(draw_loop, bounds, start_original, U(key), walks, step, U(threshold), draws, restarts)


def top_visits(
    nodes: Int[Tensor, "nR columns"], start: Int[Tensor, "n"], walks: int, k: int
) -> tuple[Int[Tensor, "n_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.top_visits`."""
    steps, count = nodes.numpy(), start.shape[0]
    ids, counts = np.empty((count, k), steps.dtype), np.empty((count, k), np.int32)
    rows = np.zeros(count + 1, np.int64)
    run(top_visits_loop, threads.even_bounds(count, steps.size * 8), steps, start, walks, k, ids, counts, rows[1:])
    there = np.arange(k) < rows[1:, None]
    np.cumsum(rows, out=rows)
    return torch.from_numpy(rows), torch.from_numpy(ids[there]), torch.from_numpy(counts[there])


@njit
def _position(indptr, first, weights, weighted, excluded, marks, node, draw):
    """Position of the in-edge that a walk takes from a node; :data:`SINK` where there is none."""
    begin, end = indptr[node] - first, indptr[node + 1] - first
    low, high = excluded_within(excluded, marks, begin, end)
    left = end - begin - (high - low)
    if left == 0:
        return SINK
    if not weighted:
        return step_over(excluded, low, high, begin + below(draw, left))
    total = ZERO
    for position in range(begin, end):
        total += U(weights[position])
    for k in range(low, high):
        total -= U(weights[excluded[k]])
    if total == ZERO:
        return SINK
    goal, running, position = U(below(draw, total)), ZERO, begin - 1
    while running <= goal:
        position += 1
        if low < high and excluded[low] == position:
            low += 1
        else:
            running += U(weights[position])
    return position


@njit(nogil=True, cache=True)
def step_loop(indptr, indices, first, weights, weighted, excluded, marks, ids, draws, out, low, high):
    """Where walks ``low`` to ``high`` go from ``ids``; -1 where there is nowhere to go."""
    for i in range(low, high):
        position = _position(indptr, first, weights, weighted, excluded, marks, ids[i], U(draws[i]))
        out[i] = -1 if position == SINK else indices[position]


@njit(nogil=True, cache=True)
def draw_loop(original, key, walks, step, threshold, moves, restarts, low, high):
    """The draws of one step of all walks of starts ``low`` to ``high``."""
    for i in range(low, high):
        node_key = fold(key, U(original[i]))
        for r in range(walks):
            h = fold(fold(node_key, U(r)), U(step))
            moves[i * walks + r] = np.int64(fold(h, ZERO))
            restarts[i * walks + r] = (fold(h, ONE) & LANE_MASK) < threshold


@njit(nogil=True, cache=True)
def walk_loop(
    indptr, indices, weights, weighted, excluded, marks, start, original, key, walks, length, threshold, out,
    low, high,
):  # fmt: skip
    """All walks of starts ``low`` to ``high``."""
    keys, positions = np.empty(walks, np.uint64), np.empty(walks, np.int64)
    num_nodes = indptr.shape[0] - 1
    for i in range(low, high):
        home = start[i]
        node_key = fold(key, U(original[i]))
        for r in range(walks):
            keys[r] = fold(node_key, U(r))
            out[i * walks + r, 0] = home
        for s in range(length):
            for r in range(walks):
                node = out[i * walks + r, s]
                if node < 0 or node >= num_nodes:  # the latter from a damaged column, which the caller sees
                    continue
                h = fold(keys[r], U(s))
                if (fold(h, ONE) & LANE_MASK) < threshold:
                    positions[r] = RESTART
                    continue
                positions[r] = _position(indptr, 0, weights, weighted, excluded, marks, node, fold(h, ZERO))
                prefetch(indices, positions[r])
            for r in range(walks):
                node, position = out[i * walks + r, s], positions[r]
                if node >= num_nodes or node < -1:
                    out[i * walks + r, s + 1] = node
                elif node < 0 or (position == SINK and node == home):
                    out[i * walks + r, s + 1] = -1
                elif position < 0:
                    out[i * walks + r, s + 1] = home
                else:
                    out[i * walks + r, s + 1] = indices[position]
                    prefetch(indptr, np.int64(indices[position]))


@njit(nogil=True, cache=True)
def top_visits_loop(nodes, start, walks, k, ids, counts, kept, low, high):
    """The ``k`` most visited nodes of each start; ``kept[i]`` says how many there are.

    A small hash table numbers the nodes by first visit. Its entries hold ``base + number``, and ``base`` grows from
    start to start, so that it is never cleared. A counting sort by visits, which is stable, then gives the order.
    """
    columns = nodes.shape[1]
    most = walks * (columns - 1)
    size = 4
    while size < 2 * most:
        size *= 2
    mask, base = U(size - 1), np.int64(1)
    table, found = np.zeros(size, np.int64), np.empty(most, nodes.dtype)
    times, begins = np.empty(most, np.int64), np.empty(most + 2, np.int64)
    for i in range(low, high):
        home, number = start[i], 0
        for r in range(i * walks, (i + 1) * walks):
            for s in range(1, columns):
                node = nodes[r, s]
                if node < 0:
                    break
                if node == home:
                    continue
                place = fold(ZERO, U(node)) & mask
                while True:
                    known = table[place] - base
                    if known < 0:
                        table[place] = base + number
                        found[number] = node
                        times[number] = 1
                        number += 1
                        break
                    if found[known] == node:
                        times[known] += 1
                        break
                    place = (place + ONE) & mask
        base += number
        largest = np.int64(0)
        for j in range(number):
            largest = max(largest, times[j])
        begins[: largest + 1] = 0
        for j in range(number):
            begins[largest - times[j] + 1] += 1
        for c in range(1, largest + 1):
            begins[c] += begins[c - 1]
        kept[i] = min(number, k)
        for j in range(number):
            at = begins[largest - times[j]]
            begins[largest - times[j]] += 1
            if at < k:
                ids[i, at] = found[j]
                counts[i, at] = times[j]
