"""Pages of maps: which rows lie in a file, what is asked for, and that nothing is lost that is given back."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from partita.core import mapped_pages
from partita.core.mapped_pages import GAP_BYTES, MappedPages
from partita.core.mapped_rows import mapped_rows
from partita.sample.topology import as_tensor

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what is mapped")


def resident_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def test_rows_in_shared_maps_are_known(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.arange(5000.0).reshape(1000, 5))
    read_only = as_tensor(np.load(tmp_path / "x.npy", mmap_mode="r"))
    found = MappedPages.of(read_only)
    assert found is not None
    assert (found.start, found.row_bytes, found.num_bytes) == (read_only.data_ptr(), 40, 40_000)
    assert MappedPages.of(read_only[100:]) is not None
    assert MappedPages.of(mapped_rows("x", 10, 3, torch.float32, prefix="x", folder=tmp_path, fix="")) is not None
    for other in (
        torch.zeros(100_000, 10), torch.zeros(0, 3), read_only[:, 1:], as_tensor(np.load(tmp_path / "x.npy", "c")),
    ):  # fmt: skip
        assert MappedPages.of(other) is None


def test_what_was_written_is_there_after_pages_are_given_back(tmp_path) -> None:
    rows = mapped_rows("x", 1 << 14, 256, torch.float32, prefix="x", folder=tmp_path, fix="")
    pages = MappedPages.of(rows)
    assert pages is not None
    rows[:] = torch.arange(1 << 14)[:, None]
    before = resident_bytes("RssFile") + resident_bytes("RssShmem")
    pages.give_back()
    assert before - resident_bytes("RssFile") - resident_bytes("RssShmem") > 12 * 2**20
    pages.ask(torch.arange(1 << 14))
    assert torch.equal(rows[:, 7], torch.arange(1 << 14).float())


def test_rows_that_lie_near_each_other_are_asked_for_together(monkeypatch) -> None:
    asked = list[tuple[int, int]]()

    def note(_: MappedPages, begin: int, end: int, advice: int) -> None:
        assert advice == mmap.MADV_WILLNEED
        asked.append((begin, end))

    monkeypatch.setattr(MappedPages, "_advise", note)
    monkeypatch.setattr(mapped_pages, "_ASKED_BYTES", 50_000)
    pages = MappedPages(0, 1000, 10**6)
    near = GAP_BYTES // 1000
    pages.ask(torch.tensor([3, 4, 5 + near, 7 + 2 * near, 8 + 2 * near]))
    assert asked == [(3000, 6000 + 1000 * near), (7000 + 2000 * near, 9000 + 2000 * near)]
    asked.clear()
    pages.ask(torch.arange(120))
    assert asked == [(0, 50_000), (50_000, 100_000), (100_000, 120_000)]
    asked.clear()
    pages.ask(torch.arange(0))
    assert asked == []
