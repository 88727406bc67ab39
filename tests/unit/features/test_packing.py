"""Rows of many batches in one pass: the very bytes of each batch, in fewer reads where they are dense."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import ResourceError, StoreError
from partita.core.files import map_array
from partita.features import packing
from partita.features.packing import PackedRows, foreseen_costs, is_worth_it, read_cost
from partita.files.row_file import RowFile


def saved(path: Path, rows: np.ndarray) -> RowFile:
    np.save(path, rows)
    found = RowFile.of(map_array(path))
    assert found is not None
    return found


def table(num_rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num_rows, width), np.uint8)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_batches(tmp_path_factory, data) -> None:
    """From two files, of some columns."""
    folder, width = tmp_path_factory.mktemp("pack"), data.draw(st.sampled_from([1, 24, 600, 5000]))
    rows = [table(300, width), table(40, width, 1)]
    begin = data.draw(st.integers(0, width - 1))
    part = data.draw(st.integers(1, width - begin))
    files = [saved(folder / f"{n}.npy", each).columns(begin, part) for n, each in enumerate(rows)]
    some = st.tuples(*(st.sets(st.integers(0, len(each) - 1), max_size=60) for each in rows))
    batches = [
        [np.array(sorted(each), np.int64) for each in pair]
        for pair in data.draw(st.lists(some, min_size=1, max_size=5))
    ]
    packed = PackedRows.of(files, batches)
    for number, batch in enumerate(batches):
        wanted = np.concatenate([each[chosen, begin : begin + part] for each, chosen in zip(rows, batch)])
        places = np.random.default_rng(number).permutation(len(wanted))
        out = np.zeros(wanted.shape, np.uint8)
        packed.read(number, places, out)
        assert (out[places] == wanted).all()


def test_more_than_there_is_room_for_before_it_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(packing, "_ALL_ROOM_BYTES", 1)
    rows = table(4000, 36)
    file, generator = saved(tmp_path / "x.npy", rows), np.random.default_rng(0)
    batches = [[np.sort(generator.choice(4000, 2500, replace=False))] for _ in range(3)]
    packed = PackedRows.of([file], batches)
    for number, (chosen,) in enumerate(batches):
        out = np.zeros((2500, 36), np.uint8)
        packed.read(number, np.arange(2500), out)
        assert (out == rows[chosen]).all()
    assert file.counts.rows == 7500


def test_when_it_is_worth_it(tmp_path) -> None:
    rows = table(100_000, 64)
    file, generator = saved(tmp_path / "x.npy", rows), np.random.default_rng(0)
    sparse = [[np.sort(generator.choice(100_000, 50, replace=False))] for _ in range(40)]
    assert is_worth_it([file], sparse)
    assert not is_worth_it([file], sparse[:1])
    assert not is_worth_it([file], [[np.arange(1000)], [np.arange(5000, 6000)]])  # each is one read
    assert not is_worth_it([file.columns(0, 0)], sparse)
    packed = PackedRows.of([file], sparse)
    assert file.counts.reads <= 2 * 100_000 * 64 // (1 << 20) + 2 * packing.THREADS
    assert packed.counts.sum() == 2000


def test_a_file_that_was_cut_short(tmp_path) -> None:
    file = saved(tmp_path / "x.npy", table(1000, 50))
    with open(tmp_path / "x.npy", "r+b") as opened:
        opened.truncate(128 + 500 * 50)
    with pytest.raises(StoreError, match=r"x\.npy: the file is cut short"):
        PackedRows.of([file], [[np.array([10, 900])], [np.array([20])]])


def test_a_full_disk(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = saved(tmp_path / "x.npy", table(1000, 50))
    monkeypatch.setattr(packing, "reserve", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ResourceError, match=r"rows of batches to come: .* of disk are needed") as caught:
        PackedRows.of([file], [[np.array([10, 900])], [np.array([20])]])
    assert "set TMPDIR to another disk" in str(caught.value)
    assert list(tmp_path.iterdir()) == [tmp_path / "x.npy"]


def test_a_file_that_cannot_be_written(tmp_path, monkeypatch) -> None:
    file = saved(tmp_path / "x.npy", table(1000, 50))

    def read_only(opened, _: int) -> None:
        with open(file.path, "rb") as other:
            os.dup2(other.fileno(), opened.fileno())

    monkeypatch.setattr(packing, "reserve", read_only)
    with pytest.raises(ResourceError, match=r"rows of batches to come could not be written\. Set TMPDIR"):
        PackedRows.of([file], [[np.array([10, 900])], [np.array([20])]])


def test_nothing_is_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = saved(tmp_path / "x.npy", table(1000, 50))
    packed = PackedRows.of([file], [[np.array([10, 900])], [np.array([20])]])
    assert list(tmp_path.iterdir()) == [tmp_path / "x.npy"]
    del packed


def test_what_reading_batches_takes(tmp_path: Path) -> None:
    """Each by itself, or its share of the pass, whichever is less."""
    file = saved(tmp_path / "rows.npy", table(20_000, 256))
    generator = np.random.default_rng(0)
    few = [[np.sort(generator.choice(20_000, 5, replace=False))] for _ in range(2)]
    assert foreseen_costs([file], few) == [read_cost(file, rows) for (rows,) in few]
    assert foreseen_costs([file], few[:1]) == foreseen_costs([file], few)[:1]
    counts = (30, 60, 120, 200, 300, 400)
    many = [[np.sort(generator.choice(20_000, count, replace=False))] for count in counts]
    assert (is_worth_it([file], few), is_worth_it([file], many)) == (False, True)
    alone, costs = [read_cost(file, rows) for (rows,) in many], foreseen_costs([file], many)
    assert sum(costs) < sum(alone)
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(costs[0] * counts[-1] / counts[0], rel=1e-3)
    nothing = [[np.empty(0, np.int64)]] * 3
    assert foreseen_costs([file], nothing) == [0, 0, 0]
