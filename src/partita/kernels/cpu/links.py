"""Negatives of links, compiled. The draws are those of :mod:`partita.kernels.reference`, bit for bit."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt64
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty, run
from partita.kernels.cpu.draws import U, below, fold
from partita.kernels.sorting import argsort

_EMPTY = np.empty(0, np.int64)
_DRAW = 4  # a draw costs about as much as this many streamed elements
SHORT = 64  # rows of so many edges are compared with every candidate: faster than to sort these


def draw_candidates(
    key: int,
    first: Int64[Tensor, "B"],
    size: Int64[Tensor, "B"],
    alias: tuple[UInt64[Tensor, "N"], Int64[Tensor, "N"]] | None,
    order: Int64[Tensor, "N"] | None,
    out: Int64[Tensor, "B K"],
) -> None:
    """See :func:`partita.kernels.draw_candidates`."""
    thresholds = np.empty(0, np.uint64) if alias is None else alias[0].numpy()
    others = _EMPTY if alias is None else alias[1].numpy()
    run(
        draw_loop, threads.even_bounds(len(first), out.numel() * _DRAW),
        U(key), first, size, thresholds, others, or_empty(order, (0,), np.dtype(np.int64)), out,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def draw_loop(key, first, size, thresholds, others, order, out, low, high):
    """The rows from ``low`` to ``high``; what is empty is not used."""
    weighted, mapped = thresholds.shape[0] > 0, order.shape[0] > 0
    for row in range(low, high):
        row_key, begin, nodes = fold(key, U(row)), first[row], size[row]
        if weighted:
            for place in range(out.shape[1]):
                draw = fold(row_key, U(place))
                node = begin + below(draw, nodes)
                out[row, place] = node if draw * U(nodes) < thresholds[node] else others[node]
        else:
            for place in range(out.shape[1]):
                out[row, place] = begin + below(fold(row_key, U(place)), nodes)
        if mapped:
            for place in range(out.shape[1]):
                out[row, place] = order[out[row, place]]


def find_links(
    indptr: Int64[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Int[Tensor, "M"] | None,
    given: Int64[Tensor, "B"],
    relations: Int64[Tensor, "B"] | None,
    candidates: Int64[Tensor, "_ K"],
    tails: bool,
    out: Bool[Tensor, "B K"],
) -> None:
    """See :func:`partita.kernels.find_links`; one row of candidates is that of all."""
    kinds = np.empty(0, np.uint8) if edge_type is None else edge_type.numpy()
    kind = np.zeros(len(given), np.int64) if relations is None else relations.numpy()
    arrays = (indptr, indices, kinds, given, kind, candidates, out)
    if not tails:
        run(sources_loop, threads.even_bounds(len(given), out.numel() * _DRAW), *arrays)
    elif len(candidates) == 1 and len(given) > 1:
        order = np.argsort(given.numpy(), kind="stable")
        bounds = threads.even_bounds(out.shape[1], out.numel() * _DRAW)
        run(shared_targets_loop, bounds, *arrays, order, given.numpy()[order])
    else:
        run(targets_loop, threads.even_bounds(len(given), out.numel() * _DRAW), *arrays)


@njit
def _run(indptr, kinds, node, kind):
    """The edges of a row that are of a relation; all of them without relations."""
    low, high = indptr[node], indptr[node + 1]
    if kinds.shape[0] == 0:
        return low, high
    end = high
    while low < high:
        middle = (low + high) // 2
        if np.int64(kinds[middle]) < kind:
            low = middle + 1
        else:
            high = middle
    begin, high = low, end
    while low < high:
        middle = (low + high) // 2
        if np.int64(kinds[middle]) <= kind:
            low = middle + 1
        else:
            high = middle
    return begin, low


@njit
def _first(values, value):
    """Where in ascending values one is, or would be."""
    low, high = 0, values.shape[0]
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def targets_loop(indptr, indices, kinds, given, kind, candidates, out, low, high):
    """Look through the row of every candidate for the given source."""
    for row in range(low, high):
        source = given[row]
        for column in range(candidates.shape[1]):
            begin, end = _run(indptr, kinds, candidates[row % candidates.shape[0], column], kind[row])
            for edge in range(begin, end):
                if indices[edge] == source:
                    out[row, column] = True
                    break


@njit(nogil=True, cache=True)
def shared_targets_loop(indptr, indices, kinds, given, kind, candidates, out, order, ascending, low, high):
    """Look up the source of every edge of the candidates ``low`` to ``high`` among those given."""
    for column in range(low, high):
        target = candidates[0, column]
        for edge in range(indptr[target], indptr[target + 1]):
            source = np.int64(indices[edge])
            at = _first(ascending, source)
            while at < ascending.shape[0] and ascending[at] == source:
                row = order[at]
                if kinds.shape[0] == 0 or np.int64(kinds[edge]) == kind[row]:
                    out[row, column] = True
                at += 1


@njit(nogil=True, cache=True)
def sources_loop(indptr, indices, kinds, given, kind, candidates, out, low, high):
    """Look up the source of every edge into the given nodes among the candidates."""
    shared = candidates.shape[0] == 1
    order = argsort(candidates[0]) if shared else np.empty(0, np.int64)
    for row in range(low, high):
        mine = candidates[0 if shared else row]
        begin, end = _run(indptr, kinds, given[row], kind[row])
        if end - begin <= SHORT:
            for edge in range(begin, end):
                source = np.int64(indices[edge])
                for column in range(mine.shape[0]):
                    out[row, column] |= mine[column] == source
            continue
        if not shared:
            order = argsort(mine)
        ascending = mine[order]
        for edge in range(begin, end):
            source = np.int64(indices[edge])
            at = _first(ascending, source)
            while at < ascending.shape[0] and ascending[at] == source:
                out[row, order[at]] = True
                at += 1
