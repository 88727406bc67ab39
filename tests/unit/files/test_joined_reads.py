"""Reads of many threads at once: the rows that each asked for, fewer bytes than each for itself, errors for all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from partita.core.errors import StoreError
from partita.files import joined_reads
from partita.files.joined_reads import JoinedReads
from partita.files.row_file import RowFile

ROWS, WIDTH = 20_000, 4


@pytest.fixture
def table(tmp_path) -> np.ndarray:
    values = np.random.default_rng(1).integers(0, 256, (ROWS, WIDTH), dtype=np.uint8)
    values.tofile(tmp_path / "rows")
    return np.memmap(tmp_path / "rows", np.uint8, "r", 0, (ROWS, WIDTH))


class HeldBack(RowFile):
    """A file whose first read lasts until others wait."""

    def read(self, rows, out, places):
        if not self.counts.rows:
            assert self.others_wait.wait(20)
        return super().read(rows, out, places)


def held_back(table: np.ndarray) -> tuple[HeldBack, threading.Event]:
    plain = RowFile.of(table)
    file = HeldBack(plain.path, plain.first_byte, plain.row_bytes, plain.num_rows)
    file.others_wait = threading.Event()
    return file, file.others_wait


def asked(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return np.sort(random.integers(0, ROWS, 500 * seed)), random.permutation(500 * seed)


def run(reads: JoinedReads, others_wait: threading.Event, threads: int) -> list[tuple[np.ndarray, int]]:
    """What each of some threads got, of which all but the first wait for it; and how many bytes it has read."""

    def ask(seed: int) -> tuple[np.ndarray, int]:
        rows, places = asked(seed)
        out = np.zeros((len(rows), WIDTH), np.uint8)
        return out, reads.read(rows, out, places)[1]

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(ask, 1)]
        while not reads._busy:
            pass
        futures += [pool.submit(ask, seed) for seed in range(2, threads + 1)]
        while len(reads._waiting) < threads - 1:
            pass
        others_wait.set()
        return [future.result() for future in futures]


@pytest.mark.parametrize("most", [1 << 20, 1000])
def test_those_that_wait_share_a_pass(table, monkeypatch, most) -> None:
    monkeypatch.setattr(joined_reads, "MOST_ROWS", most)
    file, others_wait = held_back(table)
    found = run(JoinedReads(file), others_wait, 6)
    for seed, (out, _) in enumerate(found, 1):
        rows, places = asked(seed)
        assert np.array_equal(out[places], table[rows])
    counts = [count for _, count in found]
    assert sum(count > 0 for count in counts) == 2  # the first, and one for all others
    assert sum(counts) == file.counts.bytes
    assert file.counts.rows == sum(500 * seed for seed in range(1, 7))
    assert file.counts.bytes < 3 * table.nbytes + 9000 * file.counts.reads


def test_a_thread_alone(table) -> None:
    reads, (rows, places) = JoinedReads(RowFile.of(table)), asked(3)
    for _ in range(2):
        out = np.zeros((len(rows), WIDTH), np.uint8)
        made, count = reads.read(rows, out, places)
        assert np.array_equal(out[places], table[rows])
        assert made > 0
        assert count >= len(np.unique(rows)) * WIDTH


def test_an_error_is_that_of_all_who_wait(table) -> None:
    file, others_wait = held_back(table)
    with file.path.open("r+b") as opened:
        opened.truncate(8192)
    reads = JoinedReads(file)

    def ask(seed: int) -> str:
        rows, places = asked(seed)
        with pytest.raises(StoreError, match="the file is cut short"):
            reads.read(rows, np.zeros((len(rows), WIDTH), np.uint8), places)
        return "refused"

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask, 1)]
        while not reads._busy:
            pass
        futures += [pool.submit(ask, seed) for seed in range(2, 5)]
        while len(reads._waiting) < 3:
            pass
        others_wait.set()
        assert [future.result() for future in futures] == ["refused"] * 4
    assert not reads._busy
