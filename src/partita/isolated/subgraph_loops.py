"""Loops of :mod:`partita.isolated.subgraph`, apart because they load the compiler."""

from __future__ import annotations

import numpy as np

from partita.kernels.compile import compiled


@compiled
def number(ids: np.ndarray, starts: np.ndarray, stops: np.ndarray, bases: np.ndarray, found: np.ndarray) -> None:
    """Write the local id of every node, -1 where it is in no run; ids that follow each other are often in one run."""
    run, runs = 0, len(starts)
    for i in range(len(ids)):
        node = ids[i]
        if runs == 0 or node < starts[run] or node >= stops[run]:
            low, high = 0, runs
            while low < high:
                middle = (low + high) >> 1
                if stops[middle] <= node:
                    low = middle + 1
                else:
                    high = middle
            if low == runs or node < starts[low]:
                found[i] = -1
                continue
            run = low
        found[i] = node - starts[run] + bases[run]


@compiled
def fill_ranks(
    ids: np.ndarray, members: np.ndarray, first: np.ndarray, shift: int, base: int, ranks: np.ndarray
) -> None:
    """Write ``base`` plus the place in ``members`` of every id whose rank is below 0.

    Args:
        ids: of nodes; those looked for are among the members.
        members: ascending.
        first: for each ``id >> shift`` where in ``members`` to begin to look, and one entry more.
        shift: see above.
        base: what is added.
        ranks: int64, as long as ``ids``; entries below 0 are filled in.
    """
    for i in range(len(ids)):
        if ranks[i] < 0:
            node = np.int64(ids[i])
            low, high = first[node >> shift], first[(node >> shift) + 1]
            while low < high:
                middle = (low + high) >> 1
                if members[middle] < node:
                    low = middle + 1
                else:
                    high = middle
            ranks[i] = base + low


@compiled
def count_relations(
    ids: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_type: np.ndarray,
    below: int,
    whole: np.ndarray,
    unseen: np.ndarray,
    local: np.ndarray,
    everywhere: np.ndarray,
) -> None:
    """Count the in-edges of nodes by relation: of those from owned nodes, and of all that there are in the graph.

    Args:
        ids: of owned nodes.
        indptr, indices, edge_type: rows of the view.
        below: sources below this are owned.
        whole: running sums of the in-degrees in the whole graph.
        unseen: relations of the in-edges of owned nodes that the view leaves out, row by row; none where it has all.
        local, everywhere: (B, R), of zeros.
    """
    for i in range(len(ids)):
        node = ids[i]
        for edge in range(indptr[node], indptr[node + 1]):
            everywhere[i, edge_type[edge]] += 1
            if indices[edge] < below:
                local[i, edge_type[edge]] += 1
        if len(unseen):
            for edge in range(whole[node] - indptr[node], whole[node + 1] - indptr[node + 1]):
                everywhere[i, unseen[edge]] += 1
