"""Features as small integers, and stores that hold them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
from partita.core.errors import ConfigError, StoreError
from partita.graph.export import export
from partita.graph.metadata import StoreMetadata
from partita.graph.profile import inspect
from partita.graph.small import BITS, Levels, SmallRows
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.partitioning.shards import shard
from partita.testing.graphs import formula_store

EACH = pytest.mark.parametrize("dtype", BITS)


def levels_of(dtype, rows):
    return Levels.of_blocks(dtype, [rows], rows.shape[1])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(BITS)), st.integers(1, 7), st.integers(1, 9), st.integers(0, 99))
def test_values_are_within_half_a_step(dtype, width, count, seed):
    rows = np.random.default_rng(seed).normal(3, 10, (count, width)).astype(np.float32)
    rows[:, 0] = 5  # constant
    levels = levels_of(dtype, rows)
    stored = levels.stored(rows)
    assert stored.dtype == levels.stored_dtype
    assert stored.shape == (count, levels.row_bytes)
    assert levels.row_bytes == (width if dtype == "int8" else (width + 1) // 2)
    found = levels.values(stored)
    assert found.dtype == np.float32
    assert (np.abs(found - rows) <= levels.scale / 2 * 1.001 + 1e-5).all()
    assert levels.scale[0] == 0
    assert (found[:, 0] == 5).all()
    low, high = rows.min(0), rows.max(0)
    assert np.array_equal(found[rows.argmin(0), np.arange(width)], low)
    np.testing.assert_allclose(found[rows.argmax(0), np.arange(width)], high, rtol=1e-5, atol=1e-5)
    assert np.array_equal(levels.stored(found), stored)  # what is stored is stored again


@EACH
def test_zeros_stay_zeros_and_blocks_do_not_matter(dtype):
    rows = (np.random.default_rng(0).random((50, 5)) < 0.2).astype(np.float32)
    levels, whole = Levels.of_blocks(dtype, np.split(rows, 5), 5), levels_of(dtype, rows)
    assert np.array_equal(levels.as_column(), whole.as_column())
    found = levels.values(levels.stored(rows))
    assert np.array_equal(found == 0, rows == 0)
    np.testing.assert_allclose(found, rows, rtol=1e-6)


@EACH
def test_no_rows_and_too_wide_a_range(dtype):
    levels = levels_of(dtype, np.empty((0, 3), np.float32))
    assert levels.values(levels.stored(np.empty((0, 3), np.float32))).shape == (0, 3)
    with pytest.raises(OverflowError) as error:
        levels_of(dtype, np.array([[0, -3e38], [1, 3e38]], np.float32))
    assert error.value.args == (1,)


@EACH
def test_small_rows_are_read_as_an_array(dtype):
    rows = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    levels = levels_of(dtype, rows)
    small, found = SmallRows(levels.stored(rows), levels), levels.values(levels.stored(rows))
    assert (small.shape, len(small), small.size, small.dtype, small.ndim) == ((9, 5), 9, 45, np.float32, 2)
    assert np.array_equal(np.asarray(small), found)
    assert np.array_equal(small.astype(np.float16), found.astype(np.float16))
    of_rows = (3, slice(2, 7), np.array([8, 0]), found[:, 0] > 0)
    for key in (*of_rows, (slice(None), 2), (4, slice(1, 3)), (slice(0, 3), 1)):
        assert np.array_equal(small[key], found[key]), key
    assert dtype in repr(small)
    with pytest.raises(ValueError, match="without a copy"):
        np.array(small, copy=False)


@EACH
@pytest.mark.parametrize("width", [1, 5])
def test_stores_in_any_order_say_the_same(tmp_path, dtype, width):
    made = formula_store(tmp_path / "g", num_features=width, num_parts=2, dtype=dtype, names="strings")
    assert made.metadata.version == 2
    assert made.num_features == width
    assert made.summary()["feature_dtype"] == dtype
    plain = formula_store(tmp_path / "plain", num_features=width)
    assert plain.metadata.version == 1
    assert np.abs(np.asarray(made.x) - plain.x).max() <= made.levels_of("x").scale.max() / 2 * 1.001
    assert made.column("x").shape == (60, width if dtype == "int8" else (width + 1) // 2)
    verify(made.path)
    partita.partition(made, tmp_path / "new", parts=4, algorithm="random")
    new = GraphStore.open(tmp_path / "new")
    verify(new.path)
    assert np.array_equal(new.x[:], made.x[new.original_index])
    for host in range(2):
        part = GraphStore.open(shard(new, tmp_path / f"s{host}", host=host, hosts=2, hot_bytes=200).path)
        verify(part.path)
        rows, first = part.held("x")
        assert np.array_equal(part.levels_of("x").values(rows), new.x[first : first + len(rows)])
        ids, hot = part.hot
        assert len(ids)
        assert np.array_equal(part.levels_of("x").values(hot), new.x[ids])
    with np.load(export(new, tmp_path / "e.npz")) as arrays:
        assert arrays["x"].dtype == np.float32
        assert np.array_equal(arrays["x"], made.x[:])
    for asked in ("float16", "float32"):
        with pytest.raises(ConfigError, match="small integers, which partitioning keeps"):
            partita.partition(made, tmp_path / "no", parts=2, algorithm="random", feature_dtype=asked)
    assert not (tmp_path / "no").exists()
    assert inspect(made)["features"]["columns"] == width


def remade(store, path, **columns):
    """The store with other columns; ``None`` leaves one out."""
    with StoreWriter(path) as writer:
        for name in store.columns:
            column = columns.get(name, store.column(name))
            if name != "part_offsets" and column is not None:
                writer.write(name, column)
        return GraphStore.open(writer.finish_like(store.metadata, {}))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"levels_x": None}, "column 'x' is damaged: int8"),
        ({"levels_x": np.ones((2, 3), np.float32)}, "column 'x' is damaged"),
        ({"levels_x": np.ones((2, 4))}, "'levels_x' is damaged: float64"),
        ({"levels_x": np.ones(4, np.float32)}, "is damaged"),
        ({"x": np.ones((60, 4), np.float32)}, "column 'x' is damaged: float32"),
        ({"x": np.ones((60, 4), np.uint8)}, "column 'x' is damaged: uint8"),
        ({"x": None}, "'levels_x' is damaged: it belongs to no column of features"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, columns, message):
    store = formula_store(tmp_path / "g", num_features=4, dtype="int8")
    with pytest.raises(StoreError, match=message):
        remade(store, tmp_path / "new", **columns)


@pytest.mark.parametrize("wrong", [np.nan, -1.0, 3e38])
def test_verify_finds_levels_that_are_none(tmp_path, wrong):
    store = formula_store(tmp_path / "g", num_features=4, dtype="int4")
    levels = store.column("levels_x").copy()
    levels[0, 2] = wrong
    made = remade(store, tmp_path / "new", levels_x=levels)
    with pytest.raises(StoreError, match="column 'levels_x': feature 2 has a scale or an offset that is none"):
        verify(made.path)


def test_a_store_of_before_opens(tmp_path):
    path = formula_store(tmp_path / "g").path / "metadata.json"
    assert '"version": 1' in path.read_text()
    assert StoreMetadata.read(path.parent).version == 1
