"""The inner loop of PageRank along sampling."""

from __future__ import annotations

from partita.kernels.compile import compiled


@compiled
def walk_back(  # type: ignore[no-untyped-def]
    indptr, indices, first_edge, low, high, visits, walked
):
    """Send the visits of the nodes ``low`` to ``high`` along their in-edges, in equal shares."""
    for v in range(low, high):
        begin, end = indptr[v], indptr[v + 1]
        if begin < end:
            share = visits[v] / (end - begin)
            for e in range(begin - first_edge, end - first_edge):
                walked[indices[e]] += share
