"""The order of the seeds: which of them make up the batch of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.core.keys import Purpose, StepKey, fold
from partita.kernels import keyed_permutation

Examples = Callable[[Int[Tensor, "B ..."], StepKey], Int[Tensor, "B ..."]]


class SeedOrder:
    """A new pseudo-random order of the seeds for every epoch, known at any place without holding it.

    The order is a function of (seed, epoch) and of the seeds' places in the list, so two stores of the same graph
    give the same batches if both list the seeds in ascending original index.

    With times, a step has seeds that follow one another in time, and it is the batches whose order is pseudo-random.
    Seeds of equal times that do not fit into one batch are in a new pseudo-random order in every epoch, too. The batch
    that has fewer seeds comes last, and is of another place in time in every epoch.

    Args:
        seeds: store ids in ascending original index, or other seeds of a task in an order as fixed.
        seed: the run's seed.
        batch_size: seeds of one step over all workers (the global batch); the last step of an epoch has the rest.
        examples: what the seeds of a step become, with what is drawn for them by its key, such as negative edges;
            ``None``: they are as they are.
        times: when each seed is asked about; ``None``: batches do not go by time.

    Attributes:
        seeds, batch_size, examples: as given.

    Raises:
        ValueError: ``batch_size`` is below 1.
    """

    def __init__(
        self,
        seeds: Int[Tensor, "S ..."],
        seed: int,
        batch_size: int,
        examples: Examples | None = None,
        *,
        times: Int64[Tensor, "S"] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size {batch_size}: must be at least 1")
        self.seeds = seeds
        self.batch_size = batch_size
        self.examples, self._seed = examples, seed
        self._key = fold(int(Purpose.SEED_ORDER), seed)
        self._by_time: Int64[Tensor, "S"] | None = None
        self._bounds = torch.zeros(1, dtype=torch.int64)
        """Where seeds of equal times begin and end among those in order of time."""
        if times is not None:
            ordered, self._by_time = times.sort(stable=True)
            self._bounds = _bounds(ordered)
        self._last: tuple[tuple[int, int, int] | None, Tensor, Tensor] = None, seeds[:0], seeds[:0]

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.seeds.shape[0] // self.batch_size)

    def size(self, step: int) -> int:
        """Seeds of a step over all workers; the last step of an epoch may have fewer."""
        return min(self.batch_size, self.seeds.shape[0] - step * self.batch_size)

    def batch(self, epoch: int, step: int) -> Int[Tensor, "B ..."]:
        """The seeds of one step.

        Args:
            epoch: 0-based.
            step: 0-based within the epoch.

        Raises:
            IndexError: the epoch has no such step.
        """
        if not 0 <= step < self.num_steps:
            raise IndexError(f"step {step} of an epoch of {self.num_steps} steps")
        start = step * self.batch_size
        found = self.between(epoch, start, min(start + self.batch_size, self.seeds.shape[0]))
        return found if self.examples is None else self.examples(found, StepKey(self._seed, epoch, step))

    def between(self, epoch: int, start: int, stop: int) -> Int[Tensor, "B ..."]:
        """The seeds at places ``start`` to ``stop - 1`` of an epoch's order; the last answer is kept."""
        return self._found(epoch, start, stop)[1]

    def numbers(self, epoch: int, start: int, stop: int) -> Int64[Tensor, "B"]:
        """Which of :attr:`seeds` these are."""
        return self._found(epoch, start, stop)[0]

    def _found(self, epoch: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        (asked, numbers, found), seeds, question = self._last, self.seeds, (epoch, start, stop)
        if asked != question:
            key = fold(self._key, epoch)
            if self._by_time is None:
                numbers = keyed_permutation(start, stop, seeds.shape[0], key, device=seeds.device)
            else:
                numbers = self._in_time(start, stop, key, self._by_time)
            found = seeds.index_select(0, numbers)
            self._last = question, numbers, found
        return numbers, found

    def _in_time(self, start: int, stop: int, key: int, by_time: Int64[Tensor, "S"]) -> Int64[Tensor, "B"]:
        """Numbers of the seeds at some places, where batches are of seeds that follow one another in time."""
        size, count = self.batch_size, by_time.shape[0]
        full, rest = divmod(count, size)
        short = fold(key, full) % (full + 1)  # before that batch are those of the last step
        found = list[Tensor]()
        while start < stop:
            step = start // size
            until = min(stop, (step + 1) * size)
            batch = short if step == full else int(keyed_permutation(step, step + 1, full, key))
            begin = batch * size + rest * (step < full and batch >= short)
            places = torch.arange(start, until, device=by_time.device) + (begin - step * size)
            found.append(self._mixed(places, begin, begin + self.size(step), key))
            start = until
        return by_time[torch.cat(found)] if found else by_time[:0]

    def _mixed(self, places: Int64[Tensor, "n"], begin: int, end: int, key: int) -> Int64[Tensor, "n"]:
        """Places in the order of time that lie in a batch, where seeds of equal times are permuted unless the batch has
        all of them."""
        bounds, first = self._bounds, int(places[0])
        last = first + places.shape[0] - 1
        at = torch.searchsorted(bounds, torch.tensor([begin, end - 1]), right=True)
        for group in set(at.tolist()):
            low, high = bounds[group - 1 : group + 1].tolist()
            start, stop = max(low, first), min(high, last + 1)
            if start < stop and (low < begin or high > end):
                mixed = keyed_permutation(start - low, stop - low, high - low, fold(key, low), device=places.device)
                places[start - first : stop - first] = mixed + low
        return places


def _bounds(ordered: Int64[Tensor, "S"]) -> Int64[Tensor, "n_1"]:
    """Where equal ones begin among sorted ones, and where the last of them end."""
    if not len(ordered):
        return torch.zeros(1, dtype=torch.int64)
    changes = torch.nonzero(ordered[1:] != ordered[:-1])[:, 0] + 1
    return torch.cat([changes.new_zeros(1), changes, changes.new_tensor([len(ordered)])]).cpu()
