"""Where the learnt rows of a worker are, with what their optimizer remembers of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.core.records import DiskReads

READ_AHEAD, WRITTEN_BEHIND = 3, 4
"""Steps whose rows are read from a file before they are computed, and whose rows may wait to be written to it."""
STEPS_HELD = READ_AHEAD + WRITTEN_BEHIND + 1
"""Steps whose rows are in memory because they are read, moved or written."""
_UPDATE_BYTES = 2**20
"""Of rows that are moved at once: what is computed on the way then stays in the processor's cache."""


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


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """Learnt rows of this worker that will be read in a step, by whomever.

    Attributes:
        rows: int64 (n), their numbers among those of the worker; distinct.
    """

    rows: Int64[Tensor, "n"]


@runtime_checkable
class LearntTable(Protocol):
    """Rows of one type, numbered from 0, and what is remembered of each: arrays by name, the first one ``"rows"``.

    Attributes:
        widths: columns of each array.
        dtype: of all arrays.
        window: before a step's rows are prepared, those of so many steps behind it should be announced; 0: none need be
            announced, or prepared.
    """

    widths: Mapping[str, int]
    dtype: torch.dtype
    window: int

    @property
    def num_rows(self) -> int:
        """Of the table."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held, at most."""
        ...

    def read(self, at: Int64[Tensor, "n"], asked: Asked | None = None) -> Float[Tensor, "n w"]:
        """Copies of rows.

        Args:
            at: which; those of ``asked``, where that is given, in that order.
            asked: what was announced and prepared. Its rows must be moved before others are read.
        """
        ...

    def move(
        self, optimizer: RowOptimizer, at: Int64[Tensor, "n"], gradient: Float[Tensor, "n w"], lr: float, step: int
    ) -> None:
        """Move distinct rows; all that were read as announced, in any order, or any others."""
        ...

    def piece(self, start: int, stop: int) -> Mapping[str, Float[Tensor, "n _"]]:
        """Some rows of all arrays; not to be written to."""
        ...

    def put(self, start: int, arrays: Mapping[str, Float[Tensor, "n _"]]) -> None:
        """Overwrite rows from ``start`` on, of all arrays or some. What was announced is taken back."""
        ...

    def look_at(self, window: int) -> None:
        """Know so many steps ahead, before the first is announced."""
        ...

    def announce(self, asked: Asked) -> None:
        """Say that rows will be read, behind those announced before, once each."""
        ...

    def prepare(self, asked: Asked) -> None:
        """See to announced rows before they are read, in the order of announcements, perhaps in another thread."""
        ...

    def restart(self) -> None:
        """Take back what was announced and not read."""
        ...

    def disk_reads(self) -> DiskReads:
        """What was read from files so far."""
        ...


class MemoryTable:
    """All in memory, that of the host or of a device, where its rows are given and moved.

    Args:
        num_rows: of the table; zeros at first.
        widths: see :class:`LearntTable`.
        dtype: of all arrays.
        device: that has them.
    """

    window = 0

    def __init__(
        self, num_rows: int, widths: Mapping[str, int], dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        self.widths, self.dtype, self._device = widths, dtype, device or torch.device("cpu")
        shapes = {name: (num_rows, width) for name, width in widths.items()}
        self._arrays = {name: torch.zeros(shape, dtype=dtype, device=self._device) for name, shape in shapes.items()}
        self._rows = self._arrays["rows"]
        self._slots = {name: array for name, array in self._arrays.items() if name != "rows"}

    @property
    def num_rows(self) -> int:
        """Of the table."""
        return len(self._rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays; a device's are none of the host's."""
        return sum(array.nbytes for array in self._arrays.values()) * (self._device.type == "cpu")

    def read(self, at: Int64[Tensor, "n"], asked: Asked | None = None) -> Float[Tensor, "n w"]:
        """See :class:`LearntTable`."""
        return self._rows.index_select(0, at.to(self._device))

    def move(
        self, optimizer: RowOptimizer, at: Int64[Tensor, "n"], gradient: Float[Tensor, "n w"], lr: float, step: int
    ) -> None:
        """See :class:`LearntTable`."""
        if self._device.type == "cpu":
            move_rows(optimizer, self._rows, self._slots, at, gradient, lr, step)
        else:
            optimizer.update(self._rows, self._slots, at.to(self._device), gradient, lr, step)

    def piece(self, start: int, stop: int) -> Mapping[str, Float[Tensor, "n _"]]:
        """See :class:`LearntTable`; in host memory."""
        return {name: array[start:stop].cpu() for name, array in self._arrays.items()}

    def put(self, start: int, arrays: Mapping[str, Float[Tensor, "n _"]]) -> None:
        """See :class:`LearntTable`."""
        for name, rows in arrays.items():
            self._arrays[name][start : start + len(rows)] = rows

    def look_at(self, window: int) -> None:
        """Nothing: all is at hand."""

    def announce(self, asked: Asked) -> None:
        """Nothing either."""

    def prepare(self, asked: Asked) -> None:
        """Nothing either."""

    def restart(self) -> None:
        """Nothing either."""

    def disk_reads(self) -> DiskReads:
        """None."""
        return DiskReads()


def move_rows(
    optimizer: RowOptimizer,
    rows: Float[Tensor, "N w"],
    slots: Mapping[str, Float[Tensor, "N _"]],
    at: Int64[Tensor, "n"],
    gradient: Float[Tensor, "n w"],
    lr: float,
    step: int,
) -> None:
    """Let an optimizer move rows, as many at once as fit into a processor's cache."""
    some = max(1, _UPDATE_BYTES // max(1, rows.shape[1] * rows.element_size()))
    for each, values in zip(at.split(some), gradient.split(some), strict=True):
        optimizer.update(rows, slots, each, values, lr, step)
