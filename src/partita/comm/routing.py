"""How requests find their owners and rows find their way back, shared by all placements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Shaped
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from partita import kernels
from partita.comm.group import Group
from partita.core.records import Transposed


def bucket(owner: Int64[Tensor, "n"], size: int) -> tuple[Int64[Tensor, "n"], list[int]]:
    """Sort by owner, stably.

    Args:
        owner: position of the owner of every item.
        size: number of workers.

    Returns:
        The items' positions in sorted order; the number of items of each owner.
    """
    if owner.device.type != "cpu":
        return torch.sort(owner, stable=True).indices, torch.bincount(owner, minlength=size).tolist()
    # numpy sorts 16-bit keys by radix.
    order = np.argsort(owner.numpy().astype(np.int16), kind="stable")
    return torch.from_numpy(order), torch.bincount(owner, minlength=size).tolist()


def first_appearance(ids: Int[Tensor, "n"]) -> tuple[Int[Tensor, "m"], Int64[Tensor, "n"]]:
    """Distinct ids in the order of their first appearance, and where among them each id is."""
    if ids.device.type != "cpu":
        return _first_by_sorting(ids)
    _, first, inverse = np.unique(ids.numpy(), return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return ids[torch.from_numpy(first[order])], torch.from_numpy(rank[inverse.reshape(-1)])


def _first_by_sorting(ids: Int[Tensor, "n"]) -> tuple[Int[Tensor, "m"], Int64[Tensor, "n"]]:
    """:func:`first_appearance` by sorts and scans alone, which a device has.

    A stable sort brings equal ids together, the first to appear in front.
    """
    ordered, order = torch.sort(ids, stable=True)
    front = torch.ones_like(ordered, dtype=torch.bool)
    front[1:] = ordered[1:] != ordered[:-1]
    first = order[front]
    new = torch.zeros_like(front)
    new[first] = True
    number = (new.cumsum(0) - 1)[first]
    place = torch.empty_like(order)
    place[order] = number[front.cumsum(0) - 1]
    return ids[new], place


@dataclass(frozen=True, slots=True)
class RowPick:
    """Rows picked by index. The gradient is summed per row, in the order of the picks: nothing scatters.

    Attributes:
        index: (n) row of each pick.
        by_row: the picks grouped by row.
    """

    index: Int64[Tensor, "n"]
    by_row: Transposed

    @classmethod
    def of(cls, index: Int64[Tensor, "n"], num_rows: int) -> RowPick:
        """Sort the picks for the backward pass; ``num_rows`` is the number of rows to pick from."""
        return cls(index, kernels.transpose(torch.arange(index.shape[0] + 1, device=index.device), index, num_rows))

    def __call__(self, rows: Float[Tensor, "m F"]) -> Float[Tensor, "n F"]:
        """Pick; half precision is widened to float32."""
        return _Gather.apply(kernels.widened(rows), self)


@dataclass(frozen=True, slots=True)
class Route:
    """The way of requests to the owners of their nodes, and of the answers back.

    Attributes:
        send: number of requests to each worker.
        receive: number of requests from each worker.
        back: puts answers, which come sorted by owner, into the order of the requests; ``None`` where they are.
    """

    send: tuple[int, ...]
    receive: tuple[int, ...]
    back: RowPick | None

    @classmethod
    def ask(cls, group: Group, owner: Int64[Tensor, "n"], ids: Int[Tensor, "n"]) -> tuple[Route, Int[Tensor, "m"]]:
        """Send ids to their owners.

        Returns:
            The route, and the ids that the others ask of this worker, by asking worker, in the order of asking.
        """
        if group.size == 1:
            return cls((ids.shape[0],), (ids.shape[0],), None), ids
        order, send = bucket(owner, group.size)
        receive = group.exchange_counts(torch.tensor(send)).tolist()
        asked = group.exchange(ids[order].long(), send, receive, "ids").to(ids.dtype)
        return cls(tuple(send), tuple(receive), RowPick.of(torch.argsort(order), order.shape[0])), asked

    def answer(self, group: Group, rows: Float[Tensor, "m F"]) -> Float[Tensor, "n F"]:
        """Send each asking worker its rows; returns those of the own requests, in their order. Differentiable."""
        if group.size == 1:
            return rows
        rows = group.exchange_rows(kernels.widened(rows), self.receive, self.send)
        return rows if self.back is None else self.back(rows)

    def answer_inputs(self, group: Group, rows: Shaped[Tensor, "m F"]) -> Shaped[Tensor, "n F"]:
        """The same for input rows of any type: no gradient."""
        rows = group.exchange(rows, self.receive, self.send, "features")
        return rows if self.back is None else rows[self.back.index]

    def remote(self, rank: int) -> int:
        """Number of requests to other workers."""
        return sum(self.send) - self.send[rank]


def to_all(group: Group, rows: Shaped[Tensor, "n ..."], receive: Sequence[int], kind: str) -> Shaped[Tensor, "m ..."]:
    """Send the same rows to every worker; ``receive`` says how many come from each."""
    repeated = rows.repeat(group.size, *[1] * (rows.dim() - 1))
    return group.exchange(repeated, [rows.shape[0]] * group.size, receive, kind)


def order_backward(rows: Float[Tensor, "n F"], *to: Tensor) -> Float[Tensor, "n F"]:
    """The rows, made to depend on other tensors that get no gradient through them.

    The backward passes of exchanges must run on every worker, in the same order. Autograd runs what the loss depends
    on, dependent results first; so what has no other order is given one.
    """
    to = tuple(tensor for tensor in to if tensor.requires_grad)
    return _Tie.apply(rows, *to) if to and torch.is_grad_enabled() else rows


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, gather: RowPick) -> Tensor:
        ctx.gather = gather
        return rows.index_select(0, gather.index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        by_row = ctx.gather.by_row
        return kernels.aggregate(grad.contiguous(), by_row.indptr, by_row.edge, reduce="sum"), None


class _Tie(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, *to: Tensor) -> Tensor:
        ctx.count = len(to)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, *[None] * ctx.count
