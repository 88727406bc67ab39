"""Learnt rows: a table of trainable rows for the nodes of a type, each on the worker that owns it.

Rows are pulled from their owners when a batch is computed, and never ahead: no worker keeps a copy beyond a step, so
there is none that could be old. Their gradients go the same way back. The owner adds up what all workers send, in the
order of their ranks, and moves the rows: the same bits in every repetition with so many workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Tensor

from partita import kernels
from partita.comm.group import Group
from partita.comm.routing import bucket
from partita.core.keys import GOLDEN
from partita.core.node_types import NodeTypes
from partita.graph.hashing import fold_array, mix64_inplace

BLOCK_BYTES = 4 * 2**20
"""What is made, sent or written of a table at once."""

_UPDATE_BYTES = 2**20
"""Of rows that are moved at once: what is computed on the way then stays in the processor's cache."""

Allocate = Callable[[str, int, int, torch.dtype], Tensor]
"""Makes an array of zeros: of what it is, rows, columns, dtype."""

Original = Callable[[int, Int64[np.ndarray, "n"]], Integer[np.ndarray, "n"]]
"""Gives original indices of rows of a type."""


@dataclass(frozen=True)
class RowOwners:
    """Who owns the learnt rows of each type: a contiguous range of them, in order of rank.

    Attributes:
        bounds: of each type int64 (W+1): worker w owns the rows ``bounds[w]`` to ``bounds[w + 1] - 1``.
    """

    bounds: tuple[Int64[Tensor, "W_1"], ...]

    @classmethod
    def of(cls, types: NodeTypes, part_offsets: Int64[Tensor, "P_1"], workers: int) -> RowOwners:
        """The rows of a worker's part, where there is one for each worker; otherwise equal shares."""
        bounds = []
        for kind in range(types.count):
            if len(part_offsets) - 1 == workers:
                found = types.before(kind, part_offsets.numpy())
            else:
                found = types.size(kind) * np.arange(workers + 1) // workers
            bounds.append(torch.from_numpy(found.astype(np.int64)))
        return cls(tuple(bounds))

    def of_rows(self, kind: int, rows: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Rank of the owner of each row of a type."""
        return torch.searchsorted(self.bounds[kind][1:], rows, right=True)

    def range_of(self, kind: int, rank: int) -> tuple[int, int]:
        """First row of a worker, and one past its last."""
        first, last = self.bounds[kind][rank : rank + 2].tolist()
        return first, last


@runtime_checkable
class RowOptimizer(Protocol):
    """How rows move. Only rows that a step has reached do, and only theirs of what is remembered is changed."""

    def slots(self, width: int) -> Mapping[str, int]:
        """What is remembered of a row of so many columns: columns by name."""
        ...

    def update(
        self,
        rows: Float[Tensor, "N w"],
        slots: Mapping[str, Float[Tensor, "N _"]],
        at: Int64[Tensor, "n"],
        gradient: Float[Tensor, "n w"],
        lr: float,
        step: int,
    ) -> None:
        """Move some rows, in place, each by itself: a step may be made in several calls.

        Args:
            rows: the table.
            slots: what is remembered of every row; zeros before the first step.
            at: distinct rows.
            gradient: of each.
            lr: learning rate.
            step: how many steps were made, with this one.
        """
        ...


@dataclass
class Table:
    """The rows of a type that this worker owns, and what the optimizer remembers of them.

    Attributes:
        name: of the type.
        kind: its number.
        first: the first of the rows.
        rows: (n, w).
        slots: (n, _) by name.
    """

    name: str
    kind: int
    first: int
    rows: Float[Tensor, "n w"]
    slots: dict[str, Float[Tensor, "n _"]]

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The rows and the slots, by name."""
        return {"rows": self.rows, **self.slots}


@dataclass
class _Pulled:
    """Rows that were pulled in a step."""

    kind: int
    order: Tensor | None  # to sort by owner; None: a single worker
    send: Sequence[int]
    asked: Int64[Tensor, "m"]  # of the own rows, those that others or this worker have pulled, by rank
    receive: Sequence[int]
    leaf: Tensor


@dataclass
class _Gradient:
    """Summed gradients of rows of this worker."""

    kind: int
    at: Int64[Tensor, "n"]
    values: Float[Tensor, "n w"]


class LearntRows:
    """The tables of all types. All methods but the properties are collective: all workers call them in one order.

    Args:
        names: of the node types.
        widths: columns of each type's rows, 0 for types without.
        owners: who has which rows.
        group: of all workers, for the thread that computes.
        dtype: float32 or float64.
        optimizer: moves the rows.
        allocate: makes the arrays; in memory by default.

    Attributes:
        tables: by number of the type, of types with learnt rows.
        owners: as given.
        group: as given.
        steps: that were made.
    """

    def __init__(
        self,
        names: Sequence[str],
        widths: Sequence[int],
        owners: RowOwners,
        group: Group,
        dtype: torch.dtype,
        optimizer: RowOptimizer,
        allocate: Allocate | None = None,
    ) -> None:
        make = allocate or (lambda what, rows, width, dtype: torch.zeros((rows, width), dtype=dtype))
        self.owners, self.group, self.steps = owners, group, 0
        self._optimizer, self._dtype = optimizer, dtype
        self.tables: dict[int, Table] = {}
        for kind, (name, width) in enumerate(zip(names, widths, strict=True)):
            if not width:
                continue
            first, last = owners.range_of(kind, group.rank)
            rows = make(f"learnt rows of '{name}'", last - first, width, dtype)
            self.tables[kind] = Table(name, kind, first, rows, {})
        for table in self.tables.values():
            for slot, columns in optimizer.slots(table.rows.shape[1]).items():
                what = f"{slot} of the learnt rows of '{table.name}'"
                table.slots[slot] = make(what, len(table.rows), columns, dtype)
        self._pulled: list[_Pulled] = []
        self._gradients: list[_Gradient] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> LearntRows:
        """Itself: a copy of a model shares the tables."""
        return self

    @property
    def num_bytes(self) -> int:
        """Of the rows of this worker, and of what is remembered of them."""
        return sum(array.nbytes for table in self.tables.values() for array in table.arrays.values())

    def initialize(self, key_of: Callable[[str], int], bound_of: Callable[[int], float], original: Original) -> None:
        """Fill the own rows uniformly in +-bound; sends nothing.

        An entry is a function of a key, the node's original index and the column, whoever owns the row.

        Args:
            key_of: 64-bit, from the name of the type.
            bound_of: from the number of columns.
            original: original indices of rows of a type.
        """
        for table in self.tables.values():
            width, key = table.rows.shape[1], key_of(table.name)
            step = max(1, BLOCK_BYTES // (8 * width))
            for start in range(0, len(table.rows), step):
                stop = min(start + step, len(table.rows))
                numbers = original(table.kind, np.arange(table.first + start, table.first + stop))
                drawn = keyed_uniform(key, numbers, width)
                table.rows[start:stop] = torch.from_numpy((2.0 * drawn - 1.0) * bound_of(width))

    def read(self, kind: int, numbers: Int64[Tensor, "n"]) -> Float[Tensor, "n w"]:
        """Rows of a type from their owners: the table as it is, for evaluation and for training.

        Where gradients are computed they are leaves, whose gradients :meth:`collect` takes.

        Args:
            kind: number of the type.
            numbers: distinct rows.
        """
        table, group = self.tables[kind], self.group
        if group.size == 1:
            pulled = _Pulled(kind, None, (), numbers, (), table.rows.index_select(0, numbers))
        else:
            order, send = bucket(self.owners.of_rows(kind, numbers), group.size)
            receive = group.exchange_counts(torch.tensor(send)).tolist()
            asked = group.exchange(numbers[order], send, receive, "ids") - table.first
            answers = group.exchange(table.rows.index_select(0, asked), receive, send, "features")
            rows = torch.empty_like(answers)
            rows[order] = answers
            pulled = _Pulled(kind, order, send, asked, receive, rows)
        if torch.is_grad_enabled():
            pulled.leaf.requires_grad_()
            self._pulled.append(pulled)
        return pulled.leaf

    def collect(self) -> None:
        """Bring the gradients of what was read since the last time to the owners, and add them up."""
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for each in self._pulled:
            values = torch.zeros_like(each.leaf) if each.leaf.grad is None else each.leaf.grad
            if each.order is not None:
                values = self.group.exchange(values[each.order], each.send, each.receive, "backward")
            found.setdefault(each.kind, []).append((each.asked, values))
        self._pulled.clear()
        self._gradients = [self._summed(kind, parts) for kind, parts in sorted(found.items())]

    def _summed(self, kind: int, parts: list[tuple[Tensor, Tensor]]) -> _Gradient:
        if self.group.size == 1 and len(parts) == 1:
            return _Gradient(kind, *parts[0])
        at, values = (torch.cat(each) for each in zip(*parts, strict=True))
        distinct, place = np.unique(at.numpy(), return_inverse=True)
        picks = torch.from_numpy(place.reshape(-1))
        by_row = kernels.transpose(torch.arange(len(at) + 1), picks, len(distinct))
        summed = kernels.aggregate(values.contiguous(), by_row.indptr, by_row.edge, reduce="sum")
        return _Gradient(kind, torch.from_numpy(distinct), summed)

    def squared_norm(self) -> float:
        """The sum of the squares of all collected gradients, over all workers."""
        total = torch.zeros(1, dtype=torch.float64)
        for each in self._gradients:
            total += each.values.double().square().sum()
        self.group.sum_([total])
        return float(total)

    def update(self, lr: float, factor: float = 1.0) -> None:
        """Move the rows that the step has reached; sends nothing.

        Args:
            lr: learning rate.
            factor: of all gradients.
        """
        self.steps += 1
        for each in self._gradients:
            table = self.tables[each.kind]
            step = max(1, _UPDATE_BYTES // (table.rows.shape[1] * table.rows.element_size()))
            for at, values in zip(each.at.split(step), each.values.split(step), strict=True):
                values = values if factor == 1.0 else values * factor
                self._optimizer.update(table.rows, table.slots, at, values, lr, self.steps)
        self._gradients = []

    def blocks(self) -> Iterator[tuple[int, str, int, int, int]]:
        """All arrays in pieces of bounded size, in the order in which a checkpoint holds them; the same on all workers.

        Gives the type's number, the name of the array, the worker that has the piece, its first row and one past its
        last.
        """
        for kind, table in self.tables.items():
            for name, array in table.arrays.items():
                step = max(1, BLOCK_BYTES // (array.shape[1] * array.element_size()))
                for rank, (low, high) in enumerate(pairwise(self.owners.bounds[kind].tolist())):
                    for start in range(low, high, step):
                        yield kind, name, rank, start, min(start + step, high)

    def size_of(self, kind: int) -> int:
        """Rows of a type, over all workers."""
        return int(self.owners.bounds[kind][-1])

    def piece(self, kind: int, name: str, start: int, stop: int) -> Tensor:
        """Rows of an array of this worker."""
        table = self.tables[kind]
        return table.arrays[name][start - table.first : stop - table.first]


def keyed_uniform(key: int, numbers: Integer[np.ndarray, "n"], width: int) -> Float64[np.ndarray, "n w"]:
    """float64 (n, width) in [0, 1): a function of the key, each number and the column."""
    of_rows = fold_array(key, numbers)
    mixed = of_rows[:, None] + np.uint64(GOLDEN) * np.arange(1, width + 1, dtype=np.uint64)
    mix64_inplace(mixed.reshape(-1))  # a view
    return (mixed >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class LazyAdam:
    """Adam of the rows that a step has reached (Kingma and Ba, ICLR 2015), as ``torch.optim.SparseAdam``.

    Moments of other rows stay as they are; biases are corrected by the number of all steps. Two numbers per entry.

    Attributes:
        betas: how much of the moments is kept.
        eps: added to the denominator.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def slots(self, width: int) -> Mapping[str, int]:
        """Both moments."""
        return {"exp_avg": width, "exp_avg_sq": width}

    def update(
        self, rows: Tensor, slots: Mapping[str, Tensor], at: Tensor, gradient: Tensor, lr: float, step: int
    ) -> None:
        """See :class:`RowOptimizer`."""
        first, second = self.betas
        size = lr * (1 - second**step) ** 0.5 / (1 - first**step)
        moments = slots["exp_avg"], slots["exp_avg_sq"]
        kernels.adam_rows(rows, *moments, at, gradient, betas=self.betas, eps=self.eps, size=size)


@dataclass(frozen=True)
class RowAdagrad:
    """Adagrad with one number per row: the sum of the mean squares of its gradients.

    As PyTorch-BigGraph does (Lerer et al., "PyTorch-BigGraph: a large-scale graph embedding system", MLSys 2019).

    Attributes:
        eps: added to the denominator.
    """

    eps: float = 1e-10

    def slots(self, width: int) -> Mapping[str, int]:
        """The sum."""
        return {"sum": 1}

    def update(
        self, rows: Tensor, slots: Mapping[str, Tensor], at: Tensor, gradient: Tensor, lr: float, step: int
    ) -> None:
        """See :class:`RowOptimizer`."""
        total = slots["sum"].index_select(0, at).add_(gradient.square().mean(dim=1, keepdim=True))
        slots["sum"].index_copy_(0, at, total)
        rows.index_add_(0, at, gradient / total.sqrt_().add_(self.eps), alpha=-lr)


class RowSGD:
    """Stochastic gradient descent, which remembers nothing."""

    def slots(self, width: int) -> Mapping[str, int]:
        """Nothing."""
        return {}

    def update(
        self, rows: Tensor, slots: Mapping[str, Tensor], at: Tensor, gradient: Tensor, lr: float, step: int
    ) -> None:
        """See :class:`RowOptimizer`."""
        rows.index_add_(0, at, gradient, alpha=-lr)
