"""The loops over the edges of a graph that is looked at, compiled where numba is at hand."""

from __future__ import annotations

import numpy as np

from partita.kernels.compile import compiled
from partita.kernels.sorting import sort


@compiled
def scan(first, indptr, source, out, parent, labels, ends, state):
    """Count edges, degrees and equal labels of some rows, and join the ends of every edge in ``parent``."""
    for row in range(len(indptr) - 1):
        node = first + row
        sources = source[indptr[row] : indptr[row + 1]].copy()
        sort(sources)
        for place in range(len(sources)):
            other = np.int64(sources[place])
            out[other] += 1
            if place > 0 and sources[place - 1] == other:
                state[1] += np.uint64(1)
            if other == node:
                state[0] += np.uint64(1)
                continue
            state[2] += _mix(np.uint64(other), np.uint64(node))
            state[3] += _mix(np.uint64(node), np.uint64(other))
            one, two = _find(parent, node), _find(parent, other)
            if one != two:
                parent[max(one, two)] = min(one, two)
            if len(labels) > 0 and labels[node] >= 0 and labels[other] >= 0:
                state[4] += np.uint64(1)
                state[5] += np.uint64(labels[node] == labels[other])
                ends[0, labels[node]] += 1
                ends[1, labels[other]] += 1


@compiled
def _mix(one, two):
    """A 64-bit hash of an ordered pair (the finalizer of SplitMix64, twice)."""
    value = one * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    for _ in range(2):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value = (value ^ (value >> np.uint64(31))) + two * np.uint64(0xD1342543DE82EF95)
    return value


@compiled
def _find(parent, node):
    """The root of a node's tree; halves the path to it."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compiled
def roots(parent):
    """The roots of all nodes."""
    found = np.empty_like(parent)
    for node in range(len(parent)):
        found[node] = _find(parent, node)
    return found
