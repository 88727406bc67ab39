"""A cache that gives up what was used longest ago, against brute force; and the estimate of large ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.features.lru import LeastRecentlyUsed


def brute(batches: list[list[int]], slots: int) -> int:
    """Hits, where a row is there if fewer than ``slots`` others were used since."""
    used, hits = list[int](), 0
    for batch in batches:
        there = used[-slots:] if slots else []
        hits += sum(row in there for row in batch)
        used = [row for row in used if row not in batch] + batch
    return hits


@given(
    st.lists(st.lists(st.integers(0, 20), max_size=12, unique=True), max_size=12),
    st.integers(0, 25),
)
def test_small_caches_are_followed_exactly(batches, slots) -> None:
    found = LeastRecentlyUsed(slots)
    for batch in batches:
        found.use(np.array(batch, np.int64))
    assert found.hits == brute(batches, slots)


@pytest.mark.parametrize("slots", [5_000, 40_000])
def test_large_caches_are_estimated(slots) -> None:
    random = np.random.default_rng(slots)
    batches = [np.unique((random.pareto(0.8, 9_000) * 3_000).astype(np.int64) % 200_000) for _ in range(30)]
    found, exact = LeastRecentlyUsed(slots), LeastRecentlyUsed(slots)
    exact._bits, exact._slots = 0, slots
    for batch in batches:
        found.use(batch)
        exact.use(batch)
    assert found._bits > 0
    assert found.hits == pytest.approx(exact.hits, rel=0.05)
