"""Keys, errors, progress, memory and records."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.core import memory, progress
from partita.core.errors import InputError, PartitaError, is_disk_full, nearest
from partita.core.keys import GOLDEN, MASK64, Purpose, StepKey, fold, mix64
from partita.core.records import Block, Counts

WORDS = st.integers(0, MASK64)


def test_folding_small_numbers_into_zero_is_the_splitmix64_stream() -> None:
    # First outputs of SplitMix64 seeded with 0, from the generator's public test vectors.
    assert [fold(0, i) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(WORDS, WORDS)
def test_mixing_is_a_bijection_on_what_it_was_tried_on(a, b) -> None:
    assert (mix64(a) == mix64(b)) == (a == b)
    assert 0 <= mix64(a) <= MASK64


@given(WORDS, st.integers(0, 2**70))
def test_folding_stays_in_64_bits(key, value) -> None:
    assert 0 <= fold(key, value) <= MASK64
    assert fold(key, value) == mix64((key + GOLDEN * (value + 1)) % 2**64)


def test_every_part_of_a_step_key_matters() -> None:
    keys = {
        StepKey(seed, epoch, step).at(purpose, layer)
        for seed in range(3)
        for epoch in range(3)
        for step in range(3)
        for purpose in Purpose
        for layer in range(3)
    }
    assert len(keys) == 3**4 * len(Purpose)


def test_errors_say_where_what_and_how_to_mend_it() -> None:
    error = InputError("the weight is negative", where="edges.csv line 3", fix="Give weights >= 0")
    assert isinstance(error, PartitaError)
    assert str(error) == "edges.csv line 3: the weight is negative. Give weights >= 0"
    assert str(PartitaError("bad")) == "bad"
    assert (error.what, error.exit_code) == ("the weight is negative", 2)


def test_nearest() -> None:
    assert nearest("epohcs", ["epochs", "lr"]) == "Did you mean 'epochs'?"
    assert nearest("zzz", ["b", "a"]) == "Known names: a, b"


def test_disk_full() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, ""))
    assert not is_disk_full(OSError(errno.ENOENT, ""))


def test_progress_is_silent_without_a_display_and_ends_on_error() -> None:
    class Display:
        def __init__(self) -> None:
            self.log: list[object] = []

        def start(self, description: str, total: float | None, unit: str) -> Display:
            self.log.append((description, total, unit))
            return self

        def advance(self, amount: float = 1) -> None:
            self.log.append(amount)

        def stop(self, task: progress.Bar) -> None:
            self.log.append("stopped")

    with progress.task("alone", total=3) as task:
        task.advance()
    display = Display()

    def fail() -> None:
        with progress.shown_by(display), progress.task("sort", total=2, unit="edges") as task:
            task.advance(2)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert display.log == [("sort", 2, "edges"), 2, "stopped"]


def test_private_memory_counts_arrays_but_not_maps(tmp_path) -> None:
    path = tmp_path / "big.npy"
    np.save(path, np.zeros(4_000_000))
    before = memory.private_bytes()
    mapped = np.load(path, mmap_mode="r")
    assert mapped.sum() == 0
    assert memory.private_bytes() - before < 8_000_000
    peak = memory.PeakMemory()
    held = np.ones(25_000_000)
    peak.look()
    del held
    peak.look()
    assert 150_000_000 < peak.peak_bytes < 300_000_000
    assert memory.available_bytes() > 0


@given(st.lists(st.tuples(*[st.integers(0, 2**40)] * 5), max_size=5))
def test_counts_add_up_in_any_grouping(rows) -> None:
    counts = [Counts(a, (b, c), d, e) for a, b, c, d, e in rows]
    left = sum(counts, Counts.zero(2))
    right = Counts.zero(2)
    for count in reversed(counts):
        right = count + right
    assert left == right
    assert Counts.from_json(left.to_json()) == left


def test_a_block_as_pyg_sees_it() -> None:
    block = Block(
        dst=torch.tensor([5, 3]),
        src=torch.tensor([5, 3, 9]),
        indptr=torch.tensor([0, 2, 3]),
        indices=torch.tensor([2, 1, 2], dtype=torch.int32),
        dst_original=torch.tensor([5, 3]),
    )
    assert (block.num_dst, block.num_src, block.num_edges) == (2, 3, 3)
    assert block.edge_index().tolist() == [[2, 1, 2], [0, 0, 1]]
    with pytest.raises(ValueError, match="not de-duplicated"):
        block.with_(src=None).edge_index()
