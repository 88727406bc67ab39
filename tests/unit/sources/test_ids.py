"""Ids: the three ways of numbering agree with a dictionary, whatever the batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import InputError
from partita.sources import id_loops as kernels
from partita.sources import ids as module
from partita.sources.batch import Cells
from partita.sources.ids import IndexIds, IntIds, StringIds


def batch(*columns):
    return Cells([pa.array(column) for column in columns], ["source", "target"], lambda row: f"e.csv, line {row + 1}")


def dictionary(values):
    table = {}
    return [table.setdefault(value, len(table)) for value in values]


spread = st.one_of(
    st.integers(0, 50),
    st.integers(0, 2**63 - 1),
    st.integers(0, 60).map(lambda k: k << 40),
    st.integers(0, 40).map(lambda k: (1 << 24) + k),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(spread, min_size=1, max_size=40), min_size=1, max_size=6), st.booleans())
def test_integers_are_numbered_as_a_dictionary_does(parts, compiled):
    ids = IntIds(compiled=compiled)
    found = np.concatenate([ids.add_nodes(batch(np.array(part, np.int64)), 0) for part in parts])
    everything = [value for part in parts for value in part]
    assert found.tolist() == dictionary(everything)
    rank = ids.freeze()
    final = found if rank is None else rank[found]
    assert [ids.name(node) for node in final.tolist()] == [str(value) for value in everything]
    assert sorted(set(final.tolist())) == list(range(len(ids)))
    order = np.argsort([int(ids.name(node)) for node in range(len(ids))], kind="stable")
    assert order.tolist() == list(range(len(ids)))
    np.testing.assert_array_equal(ids.find(batch(np.array(everything, np.int64)), 0), final)


@pytest.mark.parametrize("step", [1, 16, 1 << 20, 1 << 40])
@pytest.mark.parametrize("shuffled", [False, True])
def test_tables_grow_and_change_their_kind(step, shuffled):
    values = np.arange(40_000, dtype=np.int64) * step
    if shuffled:
        values = np.random.default_rng(0).permutation(values)
    ids = IntIds()
    for part in np.array_split(np.concatenate([values, values]), 7):
        ids.add_nodes(batch(part), 0)
    assert len(ids) == len(values)
    ids.freeze()
    np.testing.assert_array_equal(ids.find(batch(values), 0), values // step)
    assert ids.find(batch(np.array([values.max() + 1])), 0).tolist() == [-1]


def test_a_direct_table_becomes_a_hash_table_and_back(monkeypatch):
    monkeypatch.setattr(module, "_LARGEST_DIRECT", 1 << 4)
    ids = IntIds()
    first = ids.add_nodes(batch(np.arange(1000)), 0)
    assert ids._direct
    second = ids.add_nodes(batch(np.array([5, 10**12, 7])), 0)
    assert not ids._direct
    assert first.tolist() == list(range(1000))
    assert second.tolist() == [5, 1000, 7]


def test_numbers_grow_to_64_bits():
    slots, keys = np.zeros(64, np.int64), np.empty(32, np.int64)
    out = np.empty(3, np.int64)
    assert kernels.insert(np.array([7, 2**62, 7]), 0, slots, keys, 0, out) == (3, 2)
    assert out.tolist() == [0, 1, 0]


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=4)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(names, names), min_size=1, max_size=60), st.integers(1, 60))
def test_names_are_numbered_row_by_row_whatever_the_batches(edges, size):
    ids, pairs = StringIds(), []
    for start in range(0, len(edges), size):
        part = edges[start : start + size]
        src, dst = ids.add_edges(batch([edge[0] for edge in part], [edge[1] for edge in part]))
        pairs += list(zip(src.tolist(), dst.tolist()))
    flat = dictionary([name for edge in edges for name in edge])
    assert pairs == list(zip(flat[0::2], flat[1::2]))
    assert ids.freeze() is None
    assert ids.find(batch([edge[0] for edge in edges]), 0).tolist() == flat[0::2]
    assert ids.name(0) == repr(edges[0][0])


def test_indices_are_kept_and_checked():
    ids = IndexIds()
    src, dst = ids.add_edges(batch([0, 5], [2, 1]))
    assert (src.tolist(), dst.tolist(), len(ids)) == ([0, 5], [2, 1], 6)
    assert ids.find(batch([5, 6]), 0).tolist() == [5, -1]
    ids = IndexIds(3, "x.npy")
    with pytest.raises(InputError, match=r"line 2, column target: id 3 is out of range: ids are 0\.\.2.*x\.npy"):
        ids.add_edges(batch([0, 1], [2, 3]))
    ids = IndexIds()
    ids.add_edges(batch([10**15], [0]))
    with pytest.raises(InputError, match="largest id is 1000000000000000"):
        ids.freeze()


@pytest.mark.parametrize("make", [IntIds, IndexIds])
def test_bad_integers(make):
    with pytest.raises(InputError, match="line 2, column source: id -4 is negative"):
        make().add_edges(batch([1, -4], [0, 0]))
    with pytest.raises(InputError, match="line 3, column target: the cell is empty"):
        make().add_edges(batch([1, 2, 3], [0, 0, None]))
    with pytest.raises(InputError, match="column source: holds double, not integers"):
        make().add_edges(batch([1.0], [0]))
    with pytest.raises(InputError, match="does not fit a signed 64-bit integer"):
        make().add_edges(Cells([pa.array([2**63], pa.uint64())] * 2, ["s", "t"], str))


def test_bad_names():
    with pytest.raises(InputError, match="line 2, column target: the id is empty"):
        StringIds().add_edges(batch(["a", "b"], ["c", ""]))
    with pytest.raises(InputError, match="holds double"):
        StringIds().add_edges(batch([1.5], ["c"]))
    with pytest.raises(InputError, match="UTF-8"):
        StringIds().add_edges(Cells([pa.array([b"\xff"]), pa.array([b"a"])], ["s", "t"], str))
