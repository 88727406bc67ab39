"""Learnt rows: a table of trainable rows for the nodes of a type, each on the worker that owns it.

Rows are pulled from their owners when a batch is computed, and never ahead: no worker keeps a copy beyond a step, so
there is none that could be old. Their gradients go the same way back. The owner adds up what all workers send, in the
order of their ranks, and moves the rows: the same bits in every repetition with so many workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Tensor

from partita import kernels
from partita.comm.group import Group
from partita.comm.routing import bucket
from partita.core.keys import GOLDEN
from partita.core.node_types import NodeTypes
from partita.core.records import DiskReads
from partita.features.learnt_tables import Asked, LearntTable, MemoryTable, RowOptimizer
from partita.graph.hashing import fold_array, mix64_inplace

BLOCK_BYTES = 2**20
"""What is made, sent or written of a table at once."""

MakeTable = Callable[[str, int, Mapping[str, int], torch.dtype], LearntTable]
"""Makes a table of zeros: of what it is, rows, columns of its arrays, dtype."""

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


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a type that this worker owns, and what the optimizer remembers of them.

    Attributes:
        name: of the type.
        kind: its number.
        first: the first of the rows.
        held: where they are.
    """

    name: str
    kind: int
    first: int
    held: LearntTable

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.held.widths["rows"]

    @property
    def rows(self) -> Float[Tensor, "n w"]:
        """All of the rows."""
        return self.held.piece(0, self.held.num_rows)["rows"]


@dataclass(frozen=True, eq=False, slots=True)
class Pull:
    """Rows of a type that this worker wants in a step, and those that are wanted of it.

    Attributes:
        kind: number of the type.
        order: to sort what it wants by owner; ``None`` where there is a single worker.
        send: how many rows of each worker it wants.
        receive: how many each worker wants of it.
        own: int64 (m) of the own rows, those that are wanted, by rank.
        asked: the same, none of them twice.
        places: int64 (m) where each is among these; ``None``: they are the same.
    """

    kind: int
    order: Int64[Tensor, "n"] | None
    send: Sequence[int]
    receive: Sequence[int]
    own: Int64[Tensor, "m"]
    asked: Asked
    places: Int64[Tensor, "m"] | None


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
        make: makes the tables; in memory by default.
        sampling: the same workers, for the thread that samples, where tables look ahead.

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
        make: MakeTable | None = None,
        sampling: Group | None = None,
    ) -> None:
        make = make or (lambda what, rows, widths, dtype: MemoryTable(rows, widths, dtype))
        self.owners, self.group, self.steps = owners, group, 0
        self._sampling = sampling or group
        self._optimizer, self._dtype = optimizer, dtype
        self.tables: dict[int, Table] = {}
        for kind, (name, width) in enumerate(zip(names, widths, strict=True)):
            if not width:
                continue
            first, last = owners.range_of(kind, group.rank)
            columns = {"rows": width, **optimizer.slots(width)}
            held = make(f"learnt rows of '{name}'", last - first, columns, dtype)
            self.tables[kind] = Table(name, kind, first, held)
        self._pulled: list[tuple[Pull, Tensor]] = []
        self._gradients: list[_Gradient] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> LearntRows:
        """Itself: a copy of a model shares the tables."""
        return self

    @property
    def num_bytes(self) -> int:
        """Of memory that is held, at most, of the rows of this worker and of what is remembered of them."""
        return sum(table.held.num_bytes for table in self.tables.values())

    @property
    def looks_ahead(self) -> bool:
        """Whether rows of a table should be announced, and prepared, before they are read; the same on all workers."""
        return self.window > 0

    def initialize(self, key_of: Callable[[str], int], bound_of: Callable[[int], float], original: Original) -> None:
        """Fill the own rows uniformly in +-bound; sends nothing.

        An entry is a function of a key, the node's original index and the column, whoever owns the row.

        Args:
            key_of: 64-bit, from the name of the type.
            bound_of: from the number of columns.
            original: original indices of rows of a type.
        """
        for table in self.tables.values():
            width, key, count = table.width, key_of(table.name), table.held.num_rows
            step = max(1, BLOCK_BYTES // (8 * width))
            for start in range(0, count, step):
                stop = min(start + step, count)
                numbers = original(table.kind, np.arange(table.first + start, table.first + stop))
                drawn = keyed_uniform(key, numbers, width)
                rows = torch.from_numpy((2.0 * drawn - 1.0) * bound_of(width)).to(self._dtype)
                table.held.put(start, {**self.nothing(table.kind, stop - start), "rows": rows})

    def ask(self, kind: int, numbers: Int64[Tensor, "n"]) -> Pull | None:
        """Tell the owners of rows that a step will read them; at sampling time.

        Returns:
            What :meth:`read` is to be given; ``None`` where nobody looks ahead, so that they are asked when they are
            read.
        """
        return self._pull(kind, numbers, self._sampling) if self.tables[kind].held.window else None

    def _pull(self, kind: int, numbers: Int64[Tensor, "n"], group: Group) -> Pull:
        if group.size == 1:
            return Pull(kind, None, (), (), numbers, Asked(numbers), None)
        order, send = bucket(self.owners.of_rows(kind, numbers), group.size)
        receive = group.exchange_counts(torch.tensor(send)).tolist()
        table = self.tables[kind]
        own = group.exchange(numbers[order], send, receive, "ids") - table.first
        if not table.held.window:
            return Pull(kind, order, send, receive, own, Asked(own), None)
        distinct, places = np.unique(own.numpy(), return_inverse=True)
        asked = Asked(torch.from_numpy(distinct))
        return Pull(kind, order, send, receive, own, asked, torch.from_numpy(places.reshape(-1)))

    def read(self, kind: int, numbers: Int64[Tensor, "n"], pull: Pull | None = None) -> Float[Tensor, "n w"]:
        """Rows of a type from their owners: the table as it is, for evaluation and for training.

        Where gradients are computed they are leaves, whose gradients :meth:`collect` takes.

        Args:
            kind: number of the type.
            numbers: distinct rows.
            pull: what :meth:`ask` has returned for them.
        """
        group = self.group
        pull = pull or self._pull(kind, numbers, group)
        rows = self.tables[kind].held.read(pull.asked.rows, pull.asked)
        if pull.order is not None:
            wanted = rows if pull.places is None else rows.index_select(0, pull.places)
            answers = group.exchange(wanted, pull.receive, pull.send, "features")
            rows = torch.empty_like(answers)
            rows[pull.order] = answers
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._pulled.append((pull, rows))
        return rows

    @property
    def record_bytes(self) -> int:
        """Of a row with all that is remembered of it, of the type with the longest."""
        records = [sum(table.held.widths.values()) for table in self.tables.values()]
        return max(records, default=0) * self._dtype.itemsize

    def look_at(self, window: int) -> None:
        """Know so many steps ahead, before the first is announced."""
        for table in self.tables.values():
            table.held.look_at(window)

    @property
    def window(self) -> int:
        """Steps that should be announced behind the one that is prepared; 0: none need be."""
        return max((table.held.window for table in self.tables.values()), default=0)

    def announce(self, pull: Pull) -> None:
        """Say that rows will be read, behind those announced before, once each."""
        self.tables[pull.kind].held.announce(pull.asked)

    def prepare(self, pull: Pull) -> None:
        """See to announced rows before they are read, in the order of announcements, perhaps in another thread."""
        self.tables[pull.kind].held.prepare(pull.asked)

    def restart(self) -> None:
        """Take back what was announced and not read."""
        for table in self.tables.values():
            table.held.restart()

    def disk_reads(self) -> DiskReads:
        """What was read from files so far."""
        return sum((table.held.disk_reads() for table in self.tables.values()), DiskReads())

    def collect(self) -> None:
        """Bring the gradients of what was read since the last time to the owners, and add them up."""
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for pull, leaf in self._pulled:
            values = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            if pull.order is not None:
                values = self.group.exchange(values[pull.order], pull.send, pull.receive, "backward")
            found.setdefault(pull.kind, []).append((pull.own, values))
        self._pulled.clear()
        self._gradients = [self._summed(kind, parts) for kind, parts in sorted(found.items())]

    def _summed(self, kind: int, parts: list[tuple[Tensor, Tensor]]) -> _Gradient:
        if self.group.size == 1 and len(parts) == 1:
            return _Gradient(kind, *parts[0])
        return _Gradient(kind, *add_up(*(torch.cat(each) for each in zip(*parts, strict=True))))

    def squared_norm(self) -> float:
        """The sum of the squares of all collected gradients, over all workers."""
        total = torch.zeros(1, dtype=torch.float64)
        for each in self._gradients:
            total += float(each.values.double().square().sum())
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
            values = each.values if factor == 1.0 else each.values * factor
            self.tables[each.kind].held.move(self._optimizer, each.at, values, lr, self.steps)
        self._gradients = []

    def blocks(self) -> Iterator[tuple[int, int, int, int]]:
        """All tables in pieces of bounded size, in the order of their rows; the same on all workers.

        Gives the type's number, the worker that has the piece, its first row and one past its last.
        """
        for kind, table in self.tables.items():
            step = max(1, BLOCK_BYTES // (sum(table.held.widths.values()) * self._dtype.itemsize))
            for rank, (low, high) in enumerate(pairwise(self.owners.bounds[kind].tolist())):
                for start in range(low, high, step):
                    yield kind, rank, start, min(start + step, high)

    def size_of(self, kind: int) -> int:
        """Rows of a type, over all workers."""
        return int(self.owners.bounds[kind][-1])

    def piece(self, kind: int, start: int, stop: int) -> Mapping[str, Tensor]:
        """Rows of all arrays of this worker, by name; not to be written to."""
        table = self.tables[kind]
        return table.held.piece(start - table.first, stop - table.first)

    def put(self, kind: int, start: int, arrays: Mapping[str, Tensor]) -> None:
        """Overwrite rows of this worker, from ``start`` on."""
        table = self.tables[kind]
        table.held.put(start - table.first, arrays)

    def nothing(self, kind: int, rows: int = 0) -> dict[str, Tensor]:
        """So many rows of zeros, or none, of all arrays."""
        widths = self.tables[kind].held.widths
        return {name: torch.zeros((rows, width), dtype=self._dtype) for name, width in widths.items()}


def add_up(at: Int64[Tensor, "n"], values: Float[Tensor, "n w"]) -> tuple[Int64[Tensor, "m"], Float[Tensor, "m w"]]:
    """The distinct ones of some rows, ascending, and the sums of what belongs to each, in the order it is given in."""
    distinct, place = np.unique(at.numpy(), return_inverse=True)
    picks = torch.from_numpy(place.reshape(-1))
    by_row = kernels.transpose(torch.arange(len(at) + 1), picks, len(distinct))
    summed = kernels.aggregate(values.contiguous(), by_row.indptr, by_row.edge, reduce="sum")
    return torch.from_numpy(distinct), summed


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
        if rows.device.type == "cpu":
            kernels.adam_rows(rows, *moments, at, gradient, betas=self.betas, eps=self.eps, size=size)
            return
        mean, square = (each.index_select(0, at) for each in moments)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        for each, values in zip(moments, (mean, square), strict=True):
            each.index_copy_(0, at, values)
        rows.index_add_(0, at, mean.div_(square.sqrt_().add_(self.eps)), alpha=-size)


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
