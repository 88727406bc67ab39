"""Buckets, first appearances, gathers, and the way of a request and its answer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.comm.routing import Route, RowPick, bucket, first_appearance, order_backward, to_all
from partita.comm.threads import ThreadContext, ThreadGroups

IDS = st.lists(st.integers(0, 9), max_size=30)


@given(owners=IDS)
def test_a_bucket_keeps_the_order_within_an_owner(owners: list[int]) -> None:
    order, counts = bucket(torch.tensor(owners, dtype=torch.int64), 10)
    assert order.tolist() == sorted(range(len(owners)), key=lambda i: owners[i])
    assert counts == [owners.count(owner) for owner in range(10)]


@given(ids=IDS, dtype=st.sampled_from([torch.int32, torch.int64]))
def test_first_appearance_is_that_of_a_dict(ids: list[int], dtype: torch.dtype) -> None:
    distinct, place = first_appearance(torch.tensor(ids, dtype=dtype))
    assert distinct.tolist() == list(dict.fromkeys(ids))
    assert distinct.dtype == dtype
    assert distinct[place].tolist() == ids


@given(picks=st.lists(st.integers(0, 4), max_size=20))
def test_a_gather_has_the_gradient_of_indexing(picks: list[int]) -> None:
    index = torch.tensor(picks, dtype=torch.int64)
    rows = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(len(picks), 3, dtype=torch.float64)
    found = RowPick.of(index, 5)(rows)
    assert torch.equal(found, rows[index])
    (gradient,) = torch.autograd.grad((found * cotangent).sum(), rows)
    (wanted,) = torch.autograd.grad((rows[index] * cotangent).sum(), rows)
    torch.testing.assert_close(gradient, wanted)


def test_a_tie_brings_backward_there_without_a_gradient() -> None:
    visited = []
    source = torch.ones(3, 2, requires_grad=True)
    skipped = source * 2
    skipped.register_hook(visited.append)

    class Visit(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            return rows.clone()

        @staticmethod
        def backward(ctx, gradient):
            visited.append(gradient)
            return gradient

    out = order_backward(torch.ones(0, 4), Visit.apply(skipped))
    out.sum().backward()
    assert visited
    assert all((gradient == 0).all() for gradient in visited)
    with torch.no_grad():
        plain = torch.ones(1, 1)
        assert order_backward(plain, source) is plain


@pytest.mark.parametrize("size", [1, 2, 4])
def test_answers_come_back_in_the_order_of_the_requests(size: int) -> None:
    """The owner of id i answers with (i, owner); the gradient is the number of times that a row was asked for."""

    def work(context: ThreadContext) -> None:
        group = context.group()
        ids = (torch.arange(11) * (3 + group.rank)) % 12 if group.rank != 1 else torch.empty(0, dtype=torch.int64)
        route, asked = Route.ask(group, ids % size, ids)
        assert (asked % size == group.rank).all()
        table = torch.stack([torch.arange(12.0), torch.full((12,), float(group.rank))], 1).requires_grad_()
        answered = route.answer(group, table[asked])
        assert answered[:, 0].tolist() == ids.tolist()
        assert answered[:, 1].tolist() == (ids % size).tolist()
        answered.sum().backward()
        assert table.grad is not None
        assert table.grad[:, 0].tolist() == [asked.tolist().count(i) for i in range(12)]
        halves = route.answer_inputs(group, table.detach()[asked].half())
        assert halves.dtype == torch.float16
        assert halves[:, 0].tolist() == ids.tolist()
        assert route.remote(group.rank) == int((ids % size != group.rank).sum())

    ThreadGroups(size).run(work)


def test_everybody_gets_everything() -> None:
    def work(context: ThreadContext) -> list[int]:
        group = context.group()
        mine = torch.arange(group.rank) + 10 * group.rank
        return to_all(group, mine, range(3), "ids").tolist()

    assert ThreadGroups(3).run(work) == [[10, 20, 21]] * 3
