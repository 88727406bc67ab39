"""Where the edges of links are: codes and groups against a search of every row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import kernels

RELATIONS = 3


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([1, 4, 40]), st.sampled_from([3, 30, 900]), st.sampled_from([0, 1, 9, 300]),
    st.booleans(), st.sampled_from(["all", "one", "each", "untyped"]), st.sampled_from([torch.int32, torch.int64]),
)  # fmt: skip
def test_every_link_has_its_edges(both, seed, nodes, longest, links, backward, typed, dtype) -> None:
    random = np.random.default_rng(seed)
    degrees = random.integers(0, longest + 1, nodes) * (random.random(nodes) < 0.8)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
    row, count = np.repeat(np.arange(nodes), degrees), int(indptr[-1])
    indices = torch.from_numpy(random.integers(0, nodes, count)).to(dtype)
    kinds = random.integers(0, RELATIONS, count)
    kinds = torch.from_numpy(kinds[np.lexsort((kinds, row))].astype(np.uint8))
    columns = [random.integers(0, nodes, links), random.integers(0, nodes, links)]
    relations, meant = None, torch.full((links,), -5)
    if typed == "each":
        columns.append(random.integers(0, RELATIONS, links))
        relations = torch.from_numpy(random.integers(-1, RELATIONS, RELATIONS))
        meant = relations[columns[2]]
    elif typed == "one":
        relations = torch.tensor([int(random.integers(-1, RELATIONS))])
        meant = relations.expand(links)
    given = torch.from_numpy(np.stack(columns, axis=1))
    found, wanted = both(
        lambda: kernels.locate_edges(
            indptr, indices, None if typed == "untyped" else kinds, given, relations, backward=backward
        )
    )
    assert found[0].dtype == torch.int32
    assert all(torch.equal(one, other) for one, other in zip(found, wanted))
    codes, offsets, positions = (column.tolist() for column in found)
    for (source, target, *_), kind, code in zip(given.tolist(), meant.tolist(), codes):
        dst, src = (source, target) if backward else (target, source)
        edges = range(int(indptr[dst]), int(indptr[dst + 1]))
        own = [e for e in edges if int(indices[e]) == src and (relations is None or int(kinds[e]) == kind)]
        if code < -1:
            assert len(own) > 1
            assert own == positions[offsets[-2 - code] : offsets[-1 - code]]
        else:
            assert own == [code] * (code >= 0)


def test_wrong_links_are_refused() -> None:
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32)
    kinds = torch.zeros(2, dtype=torch.uint8)
    with pytest.raises(IndexError, match="links"):
        kernels.locate_edges(indptr, indices, None, torch.tensor([[0, 2]]))
    with pytest.raises(IndexError, match="relations"):
        kernels.locate_edges(indptr, indices, kinds, torch.tensor([[0, 1, 1]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="number of edges"):
        kernels.locate_edges(indptr, indices[:1], None, torch.tensor([[0, 1]]))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 30, 400]), st.integers(1, 3), st.integers(0, 5))
def test_positions_of_some_links_are_gathered(both, seed, chosen, sides, groups) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 6, groups)
    codes = torch.from_numpy(random.integers(-1 - groups, 100, (50, sides)))
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
    positions = torch.from_numpy(100 + random.permutation(200)[: int(offsets[-1])])
    links = torch.from_numpy(random.integers(0, 50, chosen))
    found, wanted = both(lambda: kernels.gather_positions(codes, offsets, positions, links))
    assert torch.equal(found, wanted)
    meant = set[int]()
    for code in codes[links].flatten().tolist():
        several = positions[offsets[-2 - code] : offsets[-1 - code]].tolist() if code < -1 else []
        meant.update(several or [code] * (code >= 0))
    assert found.tolist() == sorted(meant)
    with pytest.raises(IndexError, match="links"):
        kernels.gather_positions(codes, offsets, positions, torch.tensor([50]))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([1, 2, 50, 3000]), st.sampled_from([1, 100, 2**33]), st.sampled_from([1, 40])
)
def test_positions_are_in_order_however_they_lie(both, seed, chosen, span, groups) -> None:
    """Spread, in one place with one far away, and groups that are repeated so often that they would be many more."""
    random = np.random.default_rng(seed)
    far = int(random.integers(0, 2**40))
    codes = random.integers(0, span, (chosen, 2)) + far * (random.random((chosen, 2)) < random.choice([0, 1 / chosen]))
    codes[random.random((chosen, 2)) < random.choice([0, 0.1, 1])] = -2 - random.integers(0, groups)
    offsets = np.concatenate([[0], np.cumsum(random.integers(2, 200, groups))])
    positions = torch.from_numpy(random.integers(0, span, offsets[-1]))
    links = torch.from_numpy(random.integers(0, chosen, chosen))
    found, wanted = both(
        lambda: kernels.gather_positions(torch.from_numpy(codes), torch.from_numpy(offsets), positions, links)
    )
    assert torch.equal(found, wanted)
