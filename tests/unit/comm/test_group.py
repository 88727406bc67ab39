"""A group of one sends nothing; and what a sum costs."""

from __future__ import annotations

import pytest
import torch

from partita.comm.group import Group, sum_bytes
from partita.comm.meter import KINDS


def test_one_worker_gets_its_inputs() -> None:
    group = Group.alone()
    counts = torch.tensor([3])
    assert group.exchange_counts(counts) is counts
    rows = torch.arange(6.0).view(3, 2).requires_grad_()
    assert torch.equal(group.exchange(rows, [3], [3], "features"), rows)
    assert not group.exchange(rows, [3], [3], "features").requires_grad
    (group.exchange_rows(rows, [3], [3]) * 2).sum().backward()
    assert torch.equal(rows.grad, torch.full((3, 2), 2.0))
    values = torch.ones(2)
    group.sum_([values])
    assert torch.equal(values, torch.ones(2))
    assert group.gather((1, "x")) == [[1, "x"]]
    assert group.broadcast({"a": None}) == {"a": None}
    assert not any(sum(group.meter.snapshot()[kind].values()) for kind in KINDS)


@pytest.mark.parametrize(("send", "receive"), [([2], [3]), ([3], [2]), ([3, 0], [3])])
def test_counts_that_do_not_fit(send: list[int], receive: list[int]) -> None:
    with pytest.raises(ValueError, match="one count per worker"):
        Group.alone().exchange(torch.ones(3, 2), send, receive, "features")


@pytest.mark.parametrize(
    ("num_bytes", "size", "expected"), [(100, 1, 0), (100, 2, 100), (100, 3, 134), (100, 4, 150), (0, 4, 0)]
)
def test_bytes_of_a_sum(num_bytes: int, size: int, expected: int) -> None:
    assert sum_bytes(num_bytes, size) == expected
