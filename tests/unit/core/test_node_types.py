"""Ranges of ids by part and type, against a list of the type of every node."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.core.node_types import NodeTypes


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_types_and_rows_of_ids_and_back(parts: int, count: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=parts * count, max_size=parts * count))
    types = NodeTypes(np.concatenate([[0], np.cumsum(sizes)]), count)
    kind_of = np.repeat(np.arange(parts * count) % count, sizes)
    ids = np.arange(len(kind_of))
    assert np.array_equal(types.of(ids), kind_of)
    for kind in range(count):
        mine = ids[kind_of == kind]
        assert types.size(kind) == len(mine)
        assert np.array_equal(types.all_ids(kind), mine)
        assert np.array_equal(types.rows(mine), np.arange(len(mine)))
        assert np.array_equal(types.ids(kind, np.arange(len(mine))), mine)
        bounds = np.arange(len(ids) + 1)
        assert np.array_equal(types.before(kind, bounds), [(mine < bound).sum() for bound in bounds])
        starts = types.offsets[::count]
        assert np.array_equal(types.bounds(kind), types.before(kind, starts))
