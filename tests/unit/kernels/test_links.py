"""Negatives of links: the compiled kernels against the reference, which says what they mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import kernels


def tables(nodes: int, generator: np.random.Generator):
    thresholds = generator.integers(0, 2**64, nodes, dtype=np.uint64)
    return torch.from_numpy(thresholds), torch.from_numpy(generator.integers(0, nodes, nodes))


@settings(max_examples=60)
@given(
    st.integers(1, 20), st.integers(0, 6), st.integers(0, 9), st.booleans(), st.booleans(), st.integers(0, 2**64 - 1)
)
def test_draws_are_those_of_the_reference(both, nodes, rows, count, weighted, mapped, key):
    generator = np.random.default_rng(key)
    first = torch.from_numpy(generator.integers(0, nodes, rows))
    size = torch.from_numpy(generator.integers(1, nodes + 1, rows)).clamp(max=nodes - first)
    alias = tables(nodes, generator) if weighted else None
    order = torch.from_numpy(generator.permutation(nodes)) if mapped else None
    cpu, reference = both(lambda: kernels.draw_candidates(key, first, size, count, alias=alias, order=order))
    assert torch.equal(cpu, reference)
    if not weighted and not mapped and cpu.numel():
        assert bool(((cpu >= first[:, None]) & (cpu < (first + size)[:, None])).all())


def test_wide_ranges(both):
    first, size = torch.tensor([0, 2**61]), torch.tensor([2**62, 2**40])
    cpu, reference = both(lambda: kernels.draw_candidates(2**63, first, size, 50))
    assert torch.equal(cpu, reference)
    assert len(set(cpu[0].tolist())) == 50


@settings(max_examples=60)
@given(
    st.integers(1, 12),
    st.integers(0, 50),
    st.integers(0, 6),
    st.integers(0, 9),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_links_are_those_of_the_reference(both, nodes, edges, rows, count, relations, tails, shared, seed):
    generator = np.random.default_rng(seed)
    target = np.sort(generator.integers(0, nodes, edges))
    kinds = generator.integers(0, relations, edges)
    order = np.lexsort((kinds, target))
    indptr = torch.from_numpy(np.searchsorted(target, np.arange(nodes + 1)))
    indices = torch.from_numpy(generator.integers(0, nodes, edges)).to(torch.int32 if seed % 2 else torch.int64)
    typed = relations > 1
    edge_type = torch.from_numpy(kinds[order].astype(np.uint8)) if typed else None
    ends = torch.from_numpy(generator.integers(0, nodes, rows))
    of = torch.from_numpy(generator.integers(0, relations, rows)) if typed else None
    shape = (1 if shared else rows, count)
    candidates = torch.from_numpy(generator.integers(0, nodes, shape)).expand(rows, -1)
    cpu, reference = both(lambda: kernels.find_links(indptr, indices, edge_type, ends, of, candidates, tails=tails))
    assert torch.equal(cpu, reference)


def test_what_does_not_fit_is_refused():
    one, two = torch.tensor([1]), torch.tensor([1, 2])
    with pytest.raises(ValueError, match="sizes"):
        kernels.draw_candidates(1, one, two, 3)
    with pytest.raises(ValueError, match="empty range"):
        kernels.draw_candidates(1, one, one - 1, 3)
    with pytest.raises(IndexError):
        kernels.draw_candidates(1, one, two[1:], 3, order=two)
    indptr, indices = torch.tensor([0, 1]), torch.tensor([0])
    with pytest.raises(IndexError, match="candidates"):
        kernels.find_links(indptr, indices, None, one - 1, None, one[None], tails=True)
    with pytest.raises(IndexError, match="given"):
        kernels.find_links(indptr, indices, None, one, None, one[None] - 1, tails=True)
    with pytest.raises(ValueError, match="relations"):
        kernels.find_links(indptr, indices, None, one - 1, one - 1, one[None] - 1, tails=True)
