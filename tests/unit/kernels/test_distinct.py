"""Ids without repetition, and pairs of equal numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.kernels import distinct, equal_pairs

NODES = st.lists(st.integers(0, 6), max_size=9)
IDS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**40), st.integers(0, 2**63 - 1)), max_size=40)


@settings(max_examples=200)
@given(IDS)
def test_distinct_ids_and_places_are_those_of_numpy(ids) -> None:
    given = torch.tensor(ids, dtype=torch.int64)
    found, places = distinct(given)
    wanted, inverse = np.unique(given.numpy(), return_inverse=True)
    assert found.tolist() == wanted.tolist()
    assert places.tolist() == inverse.reshape(-1).tolist()
    assert given.tolist() == ids


@settings(max_examples=200)
@given(NODES, NODES)
def test_equal_numbers_are_found_however_often_they_occur(left, right) -> None:
    rows, columns = equal_pairs(torch.tensor(left, dtype=torch.int64), torch.tensor(right, dtype=torch.int64), 7)
    wanted = [(row, column) for row, one in enumerate(left) for column, other in enumerate(right) if one == other]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == wanted


def test_ids_below_zero_or_beyond_the_bound_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        distinct(torch.tensor([3, -1]))
    for left, right in ((-1, 0), (0, 2)):
        with pytest.raises(IndexError):
            equal_pairs(torch.tensor([left]), torch.tensor([right]), 2)
