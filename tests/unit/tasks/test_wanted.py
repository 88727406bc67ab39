"""What a step on edges needs: which of the negatives are the end whose place they take."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.tasks.links.wanted import _equal

NODES = st.lists(st.integers(0, 6), max_size=9)


@settings(max_examples=200)
@given(NODES, NODES)
def test_negatives_that_rows_share_are_found_however_often_they_occur(own, candidates) -> None:
    ends, shared = (torch.tensor(each, dtype=torch.int64) for each in (own, candidates))
    found = _equal(ends, shared).tolist()
    wanted = [[row, column] for row, end in enumerate(own) for column, node in enumerate(candidates) if node == end]
    assert sorted(found) == wanted
    assert _equal(ends, shared.expand(len(ends), -1)).tolist() == wanted
