"""How many edges between two ends are there at a time, by brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.tasks.links.reverse_times import _until

edges = st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3)), max_size=30)


@given(edges, edges)
def test_counts(some, wanted) -> None:
    pairs, times = (np.array([edge[at] for edge in some], np.int64) for at in (0, 1))
    asked, until = (np.array([edge[at] for edge in wanted], np.int64) for at in (0, 1))
    found = _until(pairs, times, asked, until)
    assert found.tolist() == [sum(p == pair and t <= last for p, t in some) for pair, last in wanted]
