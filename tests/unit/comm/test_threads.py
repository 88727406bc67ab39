"""Workers as threads."""

from __future__ import annotations

import pytest
import torch
from meters import bytes_sent

from partita.comm.threads import ThreadContext, ThreadGroups


def test_rows_travel_there_and_gradients_back() -> None:
    def work(context: ThreadContext) -> tuple[list[float], list[float]]:
        group = context.group()
        rows = torch.full((3, 2), float(group.rank + 1)).requires_grad_()
        send = [1, 2] if group.rank == 0 else [3, 0]
        receive = group.exchange_counts(torch.tensor(send)).tolist()
        got = group.exchange_rows(rows, send, receive)
        (got * (10 + group.rank)).sum().backward()
        assert rows.grad is not None
        return got[:, 0].tolist(), rows.grad[:, 0].tolist()

    groups = ThreadGroups(2)
    assert groups.run(work) == [([1, 2, 2, 2], [10, 11, 11]), ([1, 1], [10, 10, 10])]
    assert bytes_sent(groups)["forward"] == bytes_sent(groups)["backward"] == 5 * 2 * 4
    assert bytes_sent(groups)["metadata"] == 16


def test_sums_and_axes() -> None:
    def work(context: ThreadContext) -> list[float]:
        totals = []
        for axis in ("all", "hosts", "workers"):
            value = torch.tensor([float(10**context.mesh.rank)])
            context.group(axis).sum_([value])
            totals.append(value.item())
        assert context.group("workers", "sample").gather(context.mesh.rank) == [
            2 * context.mesh.host + i for i in (0, 1)
        ]
        return totals

    assert ThreadGroups(4, hosts=2).run(work) == [
        [1111, 101, 11], [1111, 1010, 11], [1111, 101, 1100], [1111, 1010, 1100]
    ]  # fmt: skip


def test_one_error_ends_all() -> None:
    def work(context: ThreadContext) -> None:
        if context.mesh.rank == 1:
            raise ValueError("mine")
        context.group().exchange_counts(torch.tensor([1, 1, 1]))

    with pytest.raises(ValueError, match="mine"):
        ThreadGroups(3).run(work)


def test_counts_that_do_not_fit_are_noticed() -> None:
    def work(context: ThreadContext) -> None:
        context.group().exchange(torch.ones(2, 1), [1, 1], [1, 2], "ids")

    with pytest.raises(RuntimeError, match="expected"):
        ThreadGroups(2).run(work)
