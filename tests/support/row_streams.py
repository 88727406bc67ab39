"""Small graphs grouped by destination, and what a partition of them costs, counted edge by edge."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from partita.partitioning.edge_streams import RowStream


@st.composite
def row_streams(draw, weights=False):
    num_nodes = draw(st.integers(1, 16))
    rows = draw(st.lists(st.lists(st.integers(0, num_nodes - 1), max_size=8), min_size=num_nodes, max_size=num_nodes))
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    src = np.array([u for row in rows for u in row], dtype=np.int32)
    weight = None
    if weights:
        weight = np.array(draw(st.lists(st.integers(0, 4), min_size=len(src), max_size=len(src))), dtype=np.uint32)
    return RowStream(indptr, src, weight)


def edges_of(stream):
    dst = np.repeat(np.arange(stream.num_nodes), np.diff(stream._indptr))
    weight = stream._weight if stream.weighted else np.ones(len(dst), dtype=int)
    return list(zip(stream._src.tolist(), dst.tolist(), weight.tolist()))


def replicas(stream, parts):
    return len({(parts[v], u) for u, v, _ in edges_of(stream) if parts[u] != parts[v]})


def cut_weight(stream, parts):
    return sum(w for u, v, w in edges_of(stream) if parts[u] != parts[v])


def both_ways(stream):
    """The same edges, each in both directions."""
    pairs = [(u, v) for u, v, _ in edges_of(stream)]
    pairs = sorted(((u, v) for a, b in pairs for u, v in ((a, b), (b, a))), key=lambda pair: pair[1])
    counts = np.bincount([v for _, v in pairs], minlength=stream.num_nodes)
    return RowStream(np.concatenate([[0], np.cumsum(counts)]), np.array([u for u, _ in pairs], dtype=np.int32))
