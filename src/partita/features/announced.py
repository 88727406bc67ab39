"""Batches that are announced ahead, and what is kept of their rows: by a run, and by who foresees a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Bool, Int64

from partita.features.look_ahead import Kept, LookAhead

Batch = TypeVar("Batch")


class AnnouncedBatches(Generic[Batch]):
    """What is kept of the rows of batches follows from the sets of rows that the batches read, in their order.

    It depends neither on how far threads have come, nor on the order of the rows of a batch. So it can be foreseen by
    who knows these sets.

    Args:
        num_rows: N, of the table; at most :data:`~partita.features.look_ahead.MOST_ROWS`.
        slots: how many rows there is room for.
        ahead: batches that are known behind the first one that is not decided yet, at most.
        together: batches that are decided at once, at most.
        rows_of: the rows of a batch, int64, none of them twice.

    Attributes:
        ahead: as given.
    """

    def __init__(
        self, num_rows: int, slots: int, ahead: int, together: int, rows_of: Callable[[Batch], Int64[np.ndarray, "n"]]
    ) -> None:
        self._num_rows, self._slots, self.ahead, self._together = num_rows, slots, ahead, together
        self._rows_of = rows_of
        self._announced = deque[Batch]()
        self._known = 0  # of these, the first ones that the window knows

    @cached_property
    def _window(self) -> LookAhead:
        """Made when it is first needed: who only foresees what others do holds many tiers at once."""
        return LookAhead(self._num_rows, self._slots, self.ahead + 1)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held."""
        return self._window.num_bytes

    def announce(self, batch: Batch) -> None:
        """Say that a batch will be read, behind those announced before; also while another thread decides."""
        self._announced.append(batch)

    def is_next(self, batch: Batch) -> bool:
        """Whether a batch is the first of those that are not decided yet."""
        return bool(self._announced) and self._announced[0] is batch

    def decide(self) -> list[tuple[Batch, Kept]]:
        """Decide for the first of the announced batches, one at least.

        Raises:
            IndexError: none is announced.
        """
        # Others that are announced already are none of its business: what is kept must not depend on threads.
        while self._known < min(len(self._announced), self.ahead + 1):
            self._window.announce(np.sort(self._rows_of(self._announced[self._known])))
            self._known += 1
        found = list[tuple[Batch, Kept]]()
        for _ in range(max(1, min(self._together, self._known))):
            batch = self._announced.popleft()
            self._known -= 1
            found.append((batch, self._as_given(self._rows_of(batch), self._window.take())))
        return found

    @staticmethod
    def _as_given(rows: Int64[np.ndarray, "n"], found: Kept) -> Kept:
        """What was decided for ascending rows, for the same rows in the order of the batch."""
        order = np.argsort(rows)
        slots = np.empty_like(found.slots)
        slots[order] = found.slots
        return Kept(slots, order[found.kept].astype(np.int32), found.into)

    def restart(self, *, lost: bool) -> None:
        """Take back what was announced and not decided.

        Args:
            lost: rows that were to be kept never came, so nothing counts as kept.
        """
        if lost:
            self._window.forget_rows()
        self._announced.clear()
        self._known = 0
        if "_window" in self.__dict__:
            self._window.forget_announced()

    def foresee(self, batches: Sequence[Int64[np.ndarray, "_"]], begins: Sequence[bool]) -> list[Bool[np.ndarray, "_"]]:
        """Of consecutive batches which rows will be kept when their turn comes, if none is kept before the first.

        Args:
            batches: the rows of each.
            begins: whether each begins an epoch: it is announced when those before it are decided.
        """
        imagined = AnnouncedBatches[Int64[np.ndarray, "_"]](
            self._num_rows, self._slots, self.ahead, self._together, lambda rows: rows
        )
        hits = list[Bool[np.ndarray, "_"]]()
        for epoch in epochs(begins):
            for rows in batches[epoch]:
                imagined.announce(rows)
            while len(hits) < epoch.stop:
                hits += [kept.slots >= 0 for _, kept in imagined.decide()]
        return hits


def epochs(begins: Sequence[bool]) -> list[slice]:
    """Where the epochs of consecutive batches are; ``begins``: whether each begins one."""
    starts = [0, *(number for number, first in enumerate(begins) if first and number), len(begins)]
    return [slice(*each) for each in pairwise(starts)]
