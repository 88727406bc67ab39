"""Files that workers of a host share: seen by all, nameless, and a full disk is one clear error."""

from __future__ import annotations

import pytest
import torch

from partita.comm.group import Group
from partita.comm.threads import ThreadGroups
from partita.core.errors import ResourceError
from partita.infer import scratch as module
from partita.infer.scratch import Scratch


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.uint8])
def test_what_one_worker_writes_all_see(tmp_path, dtype) -> None:
    def work(context):
        scratch = Scratch(10, tmp_path, context.group("workers"))
        rows = scratch.of_host("rows", 6, 2, dtype)
        rows[context.mesh.worker] = 1 + context.mesh.rank
        scratch.barrier()
        return rows

    for rank, rows in enumerate(ThreadGroups(4, hosts=2).run(work)):
        assert rows.dtype == dtype
        assert rows[:, 0].tolist() == [1 + rank // 2 * 2, 2 + rank // 2 * 2, 0, 0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_share_makes_no_file(tmp_path) -> None:
    found = ThreadGroups(2).run(
        lambda context: Scratch(10, tmp_path / "none", context.group("workers")).of_host("rows", 0, 3, torch.float32)
    )
    assert [rows.shape for rows in found] == [(0, 3)] * 2


def test_a_full_disk(tmp_path, monkeypatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "posix_fallocate", full)
    with pytest.raises(ResourceError, match=r"rows: 320 bytes .*--memory-limit"):
        Scratch(10, tmp_path, Group.alone()).private("rows", 10, 4, torch.float64)
    with pytest.raises(ResourceError, match=r"rows: 320 bytes .*--memory-limit"):
        ThreadGroups(2).run(
            lambda context: Scratch(10, tmp_path, context.group("workers")).of_host("rows", 10, 4, torch.float64)
        )
    assert list(tmp_path.iterdir()) == []


def test_workers_that_do_not_see_the_same_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Group, "broadcast", lambda *_: str(tmp_path / "elsewhere"))
    with pytest.raises(ResourceError, match="the same TMPDIR"):
        ThreadGroups(2).run(
            lambda context: Scratch(10, tmp_path, context.group("workers")).of_host("rows", 10, 4, torch.float64)
        )
