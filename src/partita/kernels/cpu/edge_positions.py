"""Where the edges of links are, compiled: row by row, of which each is sorted and then searched for its links."""
# mypy: ignore-errors

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty
from partita.kernels.cpu.excluded import DIRECTORY, ascending_once, directory_of
from partita.kernels.excluded import made_once
from partita.kernels.intrinsics import prefetch
from partita.kernels.sorting import sort

_AHEAD = 16  # links ahead that are asked for
_MANY = 8  # more positions than this for each single one and group, and it is looked whether groups are repeated
_FEW = 8  # a row with more than so many edges for each of its links is reduced to what may be theirs
_SET_WORDS = 1 << 10
_WORDS_PER_EDGE = 64  # sorting an edge costs as much as streaming some of them; for cutting work into ranges


def locate_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    links: Int64[Tensor, "S columns"],
    relations: Int64[Tensor, "R"] | None,
    backward: bool,
    codes: Int[Tensor, "S"],
) -> tuple[Int[Tensor, "S"], Int64[Tensor, "C_1"], Int64[Tensor, "P"]]:
    """See :func:`partita.kernels.reference.locate_edges`."""
    rows, store, asked = indptr.numpy(), indices.numpy(), links.numpy()
    kinds = or_empty(edge_type, (0,), np.dtype(np.uint8))
    wanted = or_empty(relations if edge_type is not None else None, (0,), np.dtype(np.int64))
    column, out = 0 if backward else 1, codes.numpy()
    order = np.empty(len(asked), np.int32 if len(asked) < 2**31 else np.int64)
    begins = np.zeros(len(rows) + 1, np.int64)
    sort_links(asked, column, begins, order)
    bounds = threads.balanced_bounds(rows, _WORDS_PER_EDGE)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def work(low: int, high: int) -> None:
        found[low] = locate_loop(rows, store, kinds, asked, wanted, column, begins, order, out, low, high)

    threads.run(work, bounds)
    groups = 0
    for low, high in pairwise(bounds):
        if groups:
            renumber(out, order, begins[low], begins[high], groups)
        groups += len(found[low][0])
    sizes, positions = (np.concatenate([found[low][part] for low in sorted(found)]) for part in (0, 1))
    return codes, torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])), torch.from_numpy(positions)


@njit(nogil=True, cache=True)
def sort_links(links, column, begins, order):
    """Put links in the order of a node: those of node v are ``order[begins[v]:begins[v + 1]]``; begins are 0 before."""
    count = links.shape[0]
    for i in range(count):
        begins[links[i, column] + 2] += 1
    for node in range(2, begins.shape[0]):
        begins[node] += begins[node - 1]
    for i in range(count):
        place = begins[links[i, column] + 1]
        order[place] = i
        begins[links[i, column] + 1] = place + 1


@njit(nogil=True, cache=True)
def renumber(codes, order, low, high, groups):
    """Count the groups of some links on from others."""
    for i in range(low, high):
        if codes[order[i]] < -1:
            codes[order[i]] -= groups


@njit
def _longer(values, size):
    """A copy with room for as many again."""
    more = np.empty(2 * size, values.dtype)
    more[:size] = values
    return more


@njit(nogil=True, cache=True)
def locate_loop(indptr, indices, kinds, links, relations, column, begins, order, codes, low, high):
    """Codes of the links of nodes ``low`` to ``high``; returns sizes and positions of the groups.

    The edges of a row are sorted as numbers that are made of relation, source and place in the row.
    """
    num_nodes, typed = indptr.shape[0] - 1, relations.shape[0] > 0
    largest = relations.max() if typed else np.int64(0)  # so that no key is too large
    keys, group_of = np.empty(64, np.int64), np.empty(64, np.int64)
    sizes, groups = np.empty(16, np.int64), 0
    positions, size = np.empty(64, np.int64), 0
    marks = np.zeros(_SET_WORDS, np.uint64)
    for node in range(low, high):
        first, last = begins[node], begins[node + 1]
        begin, end = indptr[node], indptr[node + 1]
        if first == last:
            continue
        degree, shift = end - begin, 1
        while degree >> shift:
            shift += 1
        while keys.shape[0] < degree:
            keys, group_of = np.empty(2 * keys.shape[0], np.int64), np.empty(2 * keys.shape[0], np.int64)
        reduced = degree > _FEW * (last - first)
        if reduced:
            for i in range(first, last):
                source = links[order[i], 1 - column]
                marks[(source >> 6) & (_SET_WORDS - 1)] |= np.uint64(1) << np.uint64(source & 63)
        count, before, ascending = 0, np.int64(-1), True
        for place in range(degree):
            source = np.int64(indices[begin + place])
            if reduced and not (marks[(source >> 6) & (_SET_WORDS - 1)] >> np.uint64(source & 63)) & np.uint64(1):
                continue
            kind = np.int64(kinds[begin + place]) if typed else np.int64(0)
            if kind > largest:
                continue
            key = ((kind * num_nodes + source) << shift) | place
            ascending &= key > before
            keys[count] = before = key
            count += 1
        if not ascending:
            sort(keys[:count])
        several = False
        for i in range(first, last):
            prefetch(links, links.shape[1] * np.int64(order[min(i + _AHEAD, order.shape[0] - 1)]))
            link = order[i]
            source = links[link, 1 - column]
            if reduced:
                marks[(source >> 6) & (_SET_WORDS - 1)] = np.uint64(0)
            kind = np.int64(0)
            if typed:
                kind = relations[links[link, 2] if links.shape[1] > 2 else 0]
            codes[link] = -1
            if kind < 0:
                continue
            wanted = kind * num_nodes + source
            at, stop = 0, count
            while at < stop:
                middle = (at + stop) >> 1
                if keys[middle] >> shift < wanted:
                    at = middle + 1
                else:
                    stop = middle
            if at == count or keys[at] >> shift != wanted:
                continue
            if at + 1 < count and keys[at + 1] >> shift == wanted:
                if not several:
                    group_of[:count] = -1
                    several = True
                codes[link] = -2 - at  # for now: in the row
                group_of[at] = 0
            else:
                codes[link] = begin + (keys[at] & ((1 << shift) - 1))
        if not several:
            continue
        for at in range(count):
            if group_of[at] < 0:
                continue
            if groups == sizes.shape[0]:
                sizes = _longer(sizes, groups)
            group_of[at], sizes[groups] = groups, 0
            stop = at
            while stop < count and keys[stop] >> shift == keys[at] >> shift:
                if size == positions.shape[0]:
                    positions = _longer(positions, size)
                positions[size] = begin + (keys[stop] & ((1 << shift) - 1))
                size, stop = size + 1, stop + 1
                sizes[groups] += 1
            groups += 1
        for i in range(first, last):
            if codes[order[i]] < -1:
                codes[order[i]] = -2 - group_of[-2 - codes[order[i]]]
    return sizes[:groups].copy(), positions[:size].copy()


def gather_positions(
    codes: Int[Tensor, "S sides"],
    offsets: Int64[Tensor, "C_1"],
    positions: Int64[Tensor, "P"],
    links: Int64[Tensor, "n"],
) -> Int64[Tensor, "k"]:
    """See :func:`partita.kernels.reference.gather_positions`."""
    table, chosen = codes.numpy(), links.numpy()
    found, marks = gather_loop(table, offsets.numpy(), positions.numpy(), chosen)
    if not len(marks):
        if len(found):
            raise IndexError(f"links: {chosen.min()} to {chosen.max()}, but there are {len(table)} rows")
        return torch.from_numpy(found)
    gathered = torch.from_numpy(found)
    made_once(gathered, DIRECTORY, lambda: (found, marks))
    return gathered


@njit(nogil=True, cache=True)
def gather_loop(codes, offsets, positions, chosen):
    """Positions of all edges of some links, ascending, each once, and their directory.

    The directory is empty where there are none; and where one of the links is none, with a number for the positions.
    """
    count, sides = chosen.shape[0], codes.shape[1]
    found = np.empty(count * sides + 1, np.int64)
    for i in range(count):  # all are asked for before the first is read, as each is somewhere else in memory
        if not 0 <= chosen[i] < codes.shape[0]:
            return found[:1], found[:0]
        prefetch(codes, sides * chosen[i])
    alone, group = 0, found.shape[0] - 1  # from both ends: what is no position yet, or no group, is written over
    for i in range(count):
        for side in range(sides):
            code = np.int64(codes[chosen[i], side])
            found[alone], found[group] = code, -2 - code
            alone += code >= 0
            group -= code < -1
    groups, found = found[group + 1 :], found[:alone]
    if groups.shape[0]:
        found = with_groups(found, groups, offsets, positions)
    if not found.shape[0]:
        return found, found
    found = ascending_once(found)
    return found, directory_of(found)


@njit
def with_groups(alone, groups, offsets, positions):
    """Some positions, and those of groups; repeated where groups are, unless that makes them many more."""
    for group in groups:
        prefetch(offsets, group)
    size = alone.shape[0]
    for group in groups:
        prefetch(positions, offsets[group])
        size += offsets[group + 1] - offsets[group]
    if size > _MANY * (alone.shape[0] + groups.shape[0]):
        groups, size = ascending_once(groups), alone.shape[0]
        for group in groups:
            size += offsets[group + 1] - offsets[group]
    found, place = np.empty(size, np.int64), alone.shape[0]
    found[:place] = alone
    for group in groups:
        for at in range(offsets[group], offsets[group + 1]):
            found[place] = positions[at]
            place += 1
    return found
