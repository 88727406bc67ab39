"""What rows from files refuse, and that nothing is kept that was never read."""

from __future__ import annotations

import pytest
import torch
from feature_tiers import FEW, NUM_NODES, Rows

from partita.core.errors import ConfigError
from partita.features import disk
from partita.features.disk import DiskRows
from partita.features.host import HostRows


def test_too_many_rows(monkeypatch) -> None:
    monkeypatch.setattr(disk, "MOST_ROWS", NUM_NODES - 1)
    with pytest.raises(ConfigError, match="70 rows are more than the 69 that can be looked ahead for"):
        DiskRows(Rows().host(), FEW, 2)


def test_rows_in_no_file() -> None:
    with pytest.raises(ConfigError, match="feature rows that are in no file cannot be read from there"):
        DiskRows(HostRows(Rows().column()), FEW, 2)


def test_too_little_memory() -> None:
    with pytest.raises(ConfigError, match="669 bytes have no room for a row: to know where 70 rows are takes 630"):
        DiskRows(Rows().host(), 669, 2)


def test_batches_that_were_prepared_and_not_read_leave_nothing_behind() -> None:
    """What they would have kept is not there, and must not be taken for it."""
    rows = Rows()
    tier = DiskRows(rows.host(), 10**5, 4)
    batches = [torch.arange(10 * n, 10 * n + 20) for n in range(5)]
    works = [tier.ask(ids) for ids in batches]
    for work in works:
        tier.announce(work)
    tier.prepare(works[0])  # and the next two with it
    assert torch.equal(tier.read(works[0]), rows.wanted(batches[0]))
    tier.restart()
    works = [tier.ask(ids) for ids in batches[1:]]
    for work in works:
        tier.announce(work)
    for work, ids in zip(works, batches[1:], strict=True):
        tier.prepare(work)
        assert torch.equal(tier.read(work), rows.wanted(ids))
    found = tier.disk_reads()
    assert found.asked == 100
    assert found.kept == 30  # half of each batch but the first after the restart
