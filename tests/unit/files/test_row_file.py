"""Rows from files: the very bytes, in few reads, whatever lies between; and what is said where they are not there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.core.errors import StoreError
from partita.files import io_threads
from partita.files.row_file import RowFile


def saved(path: Path, rows: np.ndarray) -> RowFile:
    np.save(path, rows)
    found = RowFile.of(np.load(path, mmap_mode="r"))
    assert found is not None
    return found


def read(file: RowFile, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    out = np.zeros((len(rows), file.width), np.uint8)
    file.read(rows, out, places)
    return out


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (5000, 36), np.uint8)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_rows(tmp_path_factory, table, data) -> None:
    file = saved(tmp_path_factory.mktemp("rows") / "x.npy", table)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(table) - 1), max_size=300))), np.int64)
    begin = data.draw(st.integers(0, 35))
    part = file.columns(begin, data.draw(st.integers(0, 36 - begin)))
    places = np.random.default_rng(len(rows)).permutation(len(rows))
    found = read(part, rows, places)
    assert (found[places] == table[rows, begin : begin + part.width]).all()


@pytest.mark.parametrize("direct", [True, False])
def test_rows_that_are_near_are_read_together(tmp_path, table, monkeypatch, direct) -> None:
    if not direct:
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    file = saved(tmp_path / "x.npy", table)
    rows = np.arange(0, 5000, 7)
    assert (read(file, rows, np.arange(len(rows))) == table[rows]).all()
    assert file.counts.rows == len(rows)
    assert file.counts.reads <= io_threads.THREADS
    assert len(table) * 36 * 0.9 < file.counts.bytes < len(table) * 36 + 8192 * io_threads.THREADS
    assert direct or not file.direct
    file.counts.reads = 0
    far = np.array([0, 4999])
    read(file, far, np.arange(2))
    assert file.counts.reads == 2


@pytest.mark.parametrize("columns", [3000, 700_000])
def test_rows_longer_than_a_read(tmp_path, columns) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (5, columns), np.uint8)
    file = saved(tmp_path / "x.npy", rows)
    assert (read(file, np.array([0, 1, 4]), np.array([2, 0, 1])) == rows[[1, 4, 0]]).all()


def test_a_file_that_was_cut_short(tmp_path, table) -> None:
    file = saved(tmp_path / "x.npy", table)
    with open(tmp_path / "x.npy", "r+b") as opened:
        opened.truncate(128 + 4000 * 36)
    assert (read(file, np.array([10, 3999]), np.arange(2)) == table[[10, 3999]]).all()
    with pytest.raises(StoreError, match=r"x\.npy: the file is cut short"):
        read(file, np.array([10, 4999]), np.arange(2))


def test_which_file_rows_are_in(tmp_path, table) -> None:
    np.save(tmp_path / "x.npy", table)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    part = RowFile.of(mapped[100:200])
    assert part is not None
    assert (part.num_rows, part.first_byte) == (100, 128 + 100 * 36)
    assert (read(part, np.array([5]), np.array([0])) == table[105]).all()
    assert RowFile.of(table) is None
    assert RowFile.of(mapped[::2]) is None
    assert RowFile.of(mapped[:, :4]) is None


def test_it_can_be_closed(tmp_path, table) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    file = saved(tmp_path / "x.npy", table)
    for _ in range(2):
        assert (read(file, np.array([7]), np.array([0])) == table[7]).all()
        file.close()
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before
