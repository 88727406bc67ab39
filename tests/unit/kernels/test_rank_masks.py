"""Masks of workers, compiled and by numpy, against sets of workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.kernels import rank_masks

WORKERS = 6
GROUPS = np.array([0b000111, 0b111000], np.uint64)
masks_of = st.lists(st.integers(0, 2**WORKERS - 1), max_size=12)


def as_sets(masks) -> list[set[int]]:
    return [{worker for worker in range(64) if int(mask) >> worker & 1} for mask in masks]


@st.composite
def blocks(draw):
    """``indptr``, ``indices``, the number of sources, masks of the destinations and of the sources."""
    asked = draw(masks_of)
    num_src = len(asked) + draw(st.integers(0, 5))
    rows = [draw(st.lists(st.integers(0, num_src - 1), max_size=4)) for _ in asked] if num_src else []
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.array([source for row in rows for source in row], np.int32)
    of_sources = draw(st.lists(st.integers(0, 2**WORKERS - 1), min_size=num_src, max_size=num_src))
    return indptr, indices, num_src, np.array(asked, np.uint64), np.array(of_sources, np.uint64)


@given(blocks())
def test_to_and_from_sources(both, block):
    indptr, indices, num_src, asked, of_sources = block
    wanted = as_sets(asked) + [set() for _ in range(num_src - len(asked))]
    joined = as_sets(of_sources[: len(asked)])
    for i, who in enumerate(as_sets(asked)):
        for source in indices[indptr[i] : indptr[i + 1]]:
            wanted[source] = wanted[source] | who
            joined[i] |= as_sets(of_sources)[source]
    for found in both(lambda: rank_masks.to_sources(indptr, indices, asked, num_src)):
        assert as_sets(found) == wanted
    for found in both(lambda: rank_masks.from_sources(indptr, indices, of_sources)):
        assert as_sets(found) == joined


@given(masks_of, st.data())
def test_counts(both, masks, data):
    given = np.array(masks, np.uint64)
    weights = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(masks), max_size=len(masks))), np.int64)
    sets = as_sets(masks)
    for found in both(lambda: rank_masks.count(given, WORKERS)):
        assert found.tolist() == [sum(w in who for who in sets) for w in range(WORKERS)]
    for found in both(lambda: rank_masks.count(given, WORKERS, weights)):
        assert found.tolist() == [sum(n for who, n in zip(sets, weights) if w in who) for w in range(WORKERS)]


@given(masks_of, st.data())
def test_pairs(both, left, data):
    right = data.draw(st.lists(st.integers(0, 2**WORKERS - 1), min_size=len(left), max_size=len(left)))
    away, met = np.zeros(WORKERS, int), np.zeros(WORKERS, int)
    for asking, giving in zip(as_sets(left), as_sets(right)):
        for group in as_sets(GROUPS):
            for worker in asking & group:
                away[worker] += len((giving & group) - {worker})
            for worker in giving & group:
                met[worker] += len(asking & group)
    masks = np.array(left, np.uint64), np.array(right, np.uint64)
    for found in both(lambda: rank_masks.count_pairs(*masks, GROUPS, WORKERS)):
        assert found[0].tolist() == away.tolist()
        assert found[1].tolist() == met.tolist()


@pytest.mark.parametrize("worker", [0, 31, 63])
def test_any_of_64_workers(both, worker):
    mask, everybody = np.array([1 << worker], np.uint64), np.array([2**64 - 1], np.uint64)
    for found in both(lambda: rank_masks.count(mask, 64)):
        assert np.flatnonzero(found).tolist() == [worker]
    for away, met in both(lambda: rank_masks.count_pairs(mask, everybody, everybody, 64)):
        assert away[worker] == 63
        assert met.tolist() == [1] * 64
    for found in both(lambda: rank_masks.to_sources(np.array([0, 1]), np.array([1]), mask, 2)):
        assert as_sets(found) == [{worker}, {worker}]
