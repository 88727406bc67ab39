"""Made-up rows of nodes, queries for links and known answers, for brute force."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from partita.core.node_types import NodeTypes
from partita.infer.known_answers import KnownAnswers, LinkQueries

WIDTH = 4


@st.composite
def cases(draw: st.DrawFn):
    """A graph of rows: few distinct values, so that many scores are equal; types in parts; queries; answers."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes, kinds = draw(st.integers(1, 30)), draw(st.integers(1, 3))
    parts = draw(st.integers(1, 3))
    offsets = np.sort(generator.integers(0, nodes + 1, parts * kinds + 1))
    offsets[0], offsets[-1] = 0, nodes
    rows = torch.from_numpy(generator.integers(-1, 2, (nodes, WIDTH)).astype(np.float32))
    count = draw(st.integers(0, 8))
    types = NodeTypes(offsets, kinds)
    true = generator.integers(0, nodes, count)
    queries = LinkQueries(
        draw(st.sampled_from(["tail", "head"])),
        generator.integers(0, nodes, count),
        generator.integers(0, 3, count),
        true,
        types.of(true),
    )
    known = {(int(q), int(node)) for q in range(count) for node in range(nodes) if generator.random() < 0.2}
    cuts = [0, *sorted(draw(st.lists(st.integers(0, nodes), max_size=2))), nodes]
    return types, rows, queries, known, cuts, draw(st.sampled_from([1, 300, 5000, 1 << 20]))


def as_known(pairs: set[tuple[int, int]], queries: int, nodes: int) -> KnownAnswers:
    flat = np.array(sorted(q * nodes + node for q, node in pairs), np.int64)
    return KnownAnswers(nodes, np.arange(queries), flat)
