"""What a step costs: counts of rows, edges and bytes times measured rates. Nothing here knows a strategy by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float64, Int64

from partita.comm.group import sum_bytes
from partita.core.estimates import FileReads
from partita.core.mesh import Mesh
from partita.core.plan import Seconds
from partita.core.records import ID_BYTES, TIERS, Counts, Traffic, tier_rows
from partita.parallel.engine import Engine
from partita.parallel.forecast import WorkerEstimate
from partita.plan.links import Links
from partita.plan.rates import Rates

_INDEX_BYTES = 8
"""Of an edge, a source or a destination of a block, with what is made of it for backward."""
_COUNT_BYTES, _SETTLED_BYTES = 8, 256


@dataclass
class Estimate:
    """What some steps cost, added up.

    Attributes:
        taken: of each step, see :class:`StepCost`, its seconds, and what of their ``exchange`` is for messages, however
            small.
        epoch: steps of an epoch.
        cold: so many of the first steps took what later ones do not, as no rows were kept yet.
        counts: edges and rows over all workers, of the first epoch, as are the bytes.
        traffic: bytes over all workers.
        far: what of these goes from one host to another.
        gradient_bytes: likewise.
        memory_bytes: of the worker and the step that takes most.
        row_bytes: of the input rows that each of :data:`~partita.core.records.TIERS` gives, over all workers.
        files: what is read from files of these, over all workers.
    """

    counts: Counts
    epoch: int
    taken: list[tuple[Seconds, float]] = field(default_factory=list)
    cold: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    far: float = 0.0
    gradient_bytes: int = 0
    memory_bytes: int = 0
    row_bytes: tuple[int, ...] = tier_rows()
    files: FileReads = field(default_factory=FileReads)

    @property
    def steps(self) -> int:
        """How many."""
        return len(self.taken)

    @property
    def seconds(self) -> Seconds:
        """Of all steps of the first epoch together."""
        return sum((seconds for seconds, _ in self.taken[: self.epoch]), Seconds())

    @property
    def latency(self) -> float:
        """Likewise, what of ``exchange`` is for messages."""
        return sum(latency for _, latency in self.taken[: self.epoch])

    @property
    def step(self) -> tuple[Seconds, float]:
        """The mean of the steps that are not cold, of both."""
        seconds, latency = zip(*self.taken[self.cold :], strict=True)
        return sum(seconds, Seconds()).scaled(1 / len(seconds)), sum(latency) / len(latency)

    def between(self, first: int, last: int) -> tuple[Seconds, float]:
        """The mean of the steps ``first`` to ``last - 1``, of both; for those of them that are not there, that of
        :attr:`step`."""
        there, (seconds, latency) = self.taken[first:last], self.step
        count = last - first
        others = count - len(there)
        seconds = sum((each for each, _ in there), seconds.scaled(others)).scaled(1 / count)
        return seconds, (sum(each for _, each in there) + others * latency) / count

    @property
    def row_sources(self) -> dict[str, int]:
        """Bytes of input rows by where they are read, over all workers.

        In memory and in files they are counted where they are read, for this worker or for others; those that arrive
        from other workers and other hosts are counted once more.
        """
        bytes_ = dict(zip(TIERS, self.row_bytes, strict=True))
        here = bytes_["cache"] + bytes_["host"]
        return {
            "memory": here - self.files.bytes,
            "files": self.files.bytes,
            "workers": bytes_["peers"],
            "hosts": bytes_["hosts"],
        }

    def add(self, cost: Cost, shares: Sequence[WorkerEstimate], summed: int) -> None:
        """Add a step, as ``cost`` prices each worker's share; ``summed``: bytes of gradients that all workers send."""
        step = cost.of_step(shares)
        self.taken.append((step.seconds, step.latency))
        self.memory_bytes = max(self.memory_bytes, *(cost.memory(share) for share in shares))
        if len(self.taken) > self.epoch:
            return
        self.counts = sum((share.counts for share in shares), self.counts)
        self.traffic = sum((share.traffic for share in shares), self.traffic)
        self.far += sum(float(cost.far(share).sum()) for share in shares)
        self.gradient_bytes += summed
        self.row_bytes = tuple(map(sum, zip(self.row_bytes, *(share.row_bytes for share in shares), strict=True)))
        self.files = sum((share.files for share in shares), self.files)


@dataclass(frozen=True, eq=False)
class StepCost:
    """What all workers do in a step.

    While a trainer computes a batch, the next ones are sampled and their rows read and sent, so a step takes as long as
    what is busy longest: a worker's processor, a stage, or the links. At an exchange workers wait for each other, so
    what their trainers do between two exchanges takes as long as that of the slowest.

    Attributes:
        workers: of each worker, of all stages.
        busy: (W) what of this its processor is busy with; in the rest it waits for messages and files.
        parts: (K + 1, W) seconds of each trainer by itself: for the input rows, and for each layer.
        exchanges: (K + 1) whether the trainers exchange something for it.
        waits: seconds in which all trainers wait for messages and sums, or do the same.
        ahead: seconds of other things that go on at the same time: sampling, reading rows, and all that is sent.
        latency: what of ``exchange`` is for messages, however small.
    """

    workers: tuple[Seconds, ...]
    busy: Float64[np.ndarray, "W"]
    parts: Float64[np.ndarray, "_ W"]
    exchanges: Bool[np.ndarray, "_"]
    waits: float
    ahead: tuple[float, ...]
    latency: float

    @property
    def seconds(self) -> Seconds:
        """Of the slowest worker, by what its threads are busy with, so divided that they add up to the whole."""
        slowest = max(self.workers, key=lambda each: each.total)
        apart = self.exchanges[1:] | self.exchanges[:-1]
        between = np.add.reduceat(self.parts, np.concatenate([[0], np.flatnonzero(apart) + 1]))
        trainers = self.waits + float(between.max(axis=1).sum())
        took = max(float(self.busy.max()), trainers, *self.ahead)
        return slowest.scaled(took / slowest.total) if slowest.total else slowest


class Cost:
    """Prices the steps of one strategy.

    Args:
        engine: of the strategy.
        axis: the workers among whom the strategy places.
        mesh: of any worker.
        rates: of the model on the machine.
        links: between the workers.
        parameter_bytes: of the model.
        row_bytes: of an input row of each node type; an untyped graph has one.
        ahead: how many batches may wait behind each stage before the trainer.
        held: bytes that every worker keeps input rows in, of other hosts or of files, and learnt rows.

    Attributes:
        gradients: seconds in which the workers sum gradients, and what they have done, in a step.
    """

    def __init__(
        self,
        engine: Engine,
        axis: str,
        mesh: Mesh,
        rates: Rates,
        links: Links,
        *,
        parameter_bytes: int,
        row_bytes: Sequence[int],
        ahead: int,
        held: int,
    ) -> None:
        self._engine, self._rates, self._links = engine, rates, links
        self._row_bytes, self._ahead, self._held = row_bytes, ahead, held
        self._encodes = not (rates.composed and engine.composes_encoder)
        self._stages, self._kept = rates.stages, rates.kept
        if rates.tiered and engine.inputs.prefetchable:
            seconds, kept = rates.tiered
            self._stages, self._kept = (seconds, *rates.stages[1:]), (kept, *rates.kept[1:])
        if not self._encodes:
            seconds, kept = rates.composed
            self._stages, self._kept = (seconds, *rates.stages[1:]), (kept, *rates.kept[1:])
        self._far, self._mesh = _share_of_other_hosts(axis, mesh), mesh
        link = "other_host" if mesh.hosts > 1 else "same_host"
        # Beside the gradients, workers add up in every step what they have done. A ring leaves each host once; links
        # were measured with all workers of a host at once.
        at_once = mesh.workers if mesh.hosts > 1 else 1
        summed = [sum_bytes(each, mesh.size) / at_once for each in (parameter_bytes, _SETTLED_BYTES)]
        self.gradients = sum(links.seconds_of_sum(link, each) for each in summed) if mesh.size > 1 else 0.0
        self._idle = sum(links.idle_while_summing(link, each) for each in summed) if mesh.size > 1 else 0.0

    def of_step(self, shares: Sequence[WorkerEstimate]) -> StepCost:
        """What all workers do in a step."""
        sent = np.sum([_as_array(share.messages) for share in shares], axis=0)
        learns = any(share.given.any() for share in shares)
        spent, idle, latency = self._exchanges(shares)
        # Ids are sent ahead, and so are input rows that are not learnt.
        waited_for = np.zeros(spent.shape, bool)
        waited_for[0 if learns else 1 : len(self._stages) + 1, 1:] = True
        parts = np.array([self._by_itself(share) for share in shares])
        workers = [
            self._of_worker(share, float(spent.sum()), sum(own))
            for share, own in zip(shares, parts.tolist(), strict=True)
        ]
        parts[:, 0] *= learns
        files = np.array([share.files.cost for share in shares])
        return StepCost(
            workers=tuple(workers),
            busy=np.array([each.total for each in workers]) - idle - self._idle - self._rates.file_idle * files,
            parts=parts.T,
            exchanges=(sent * waited_for[: len(sent)]).any(axis=1)[: len(self._stages) + 1],
            waits=float(spent[waited_for].sum()) + self.gradients + self._rates.optimizer,
            ahead=(
                max(each.sample for each in workers) + float(spent[:, 0].sum()),
                max(each.load for each in workers) + float(spent[0, 1:].sum()) * (not learns),
                float(spent.sum()) - latency + self.gradients,
            ),
            latency=latency,
        )

    def _exchanges(self, shares: Sequence[WorkerEstimate]) -> tuple[Float64[np.ndarray, "N 4"], float, float]:
        """Seconds of each message and kind; what of all of them processors are idle; what is for messages, however
        small."""
        over_links = self._over_links(shares)
        spent, idle, latency = np.zeros_like(next(iter(over_links.values()))), 0.0, 0.0
        for link, messages in over_links.items():
            sizes = messages[messages > 0].tolist()
            spent[messages > 0] += [self._links.seconds_to_send(link, num_bytes) for num_bytes in sizes]
            idle += sum(self._links.idle_while_sending(link, num_bytes) for num_bytes in sizes)
            latency += len(sizes) * self._links.seconds_to_send(link, 1) if sizes else 0.0
        return spent, idle, latency

    def _over_links(self, shares: Sequence[WorkerEstimate]) -> dict[str, Float64[np.ndarray, "N 4"]]:
        """Bytes of each message and kind over each link, of the worker or the host that sends most.

        Behind the messages stand those that say how many ids come. What leaves a host for others shares its link, so it
        takes as long as if each of its workers sent the mean.
        """
        near, far = [], []
        for share in shares:
            messages, away = _as_array(share.messages), self.far(share)
            counts = np.zeros_like(messages)
            counts[messages[:, 0] > 0, 0] = _COUNT_BYTES
            near.append(np.concatenate([messages - away, (1 - self._far) * counts]))
            far.append(np.concatenate([away, self._far * counts]))
        of_hosts = np.array(far).reshape(self._mesh.hosts, self._mesh.workers, *far[0].shape).mean(axis=1)
        return {"same_host": np.max(near, axis=0), "other_host": of_hosts.max(axis=0)}

    def far(self, share: WorkerEstimate) -> Float64[np.ndarray, "M 4"]:
        """Bytes of each message and kind that go from one host to another."""
        found = self._far * _as_array(share.messages)
        for at, known in enumerate(share.far):
            if known is not None:
                found[at] = known.values()
        return found

    def _of_worker(self, share: WorkerEstimate, exchange: float, by_itself: float) -> Seconds:
        rates = self._rates
        return Seconds(
            sample=rates.sampled_edge * share.counts.sampled_edges + rates.handled_id * share.traffic.ids / ID_BYTES,
            exchange=exchange,
            load=self._load(share),
            compute=by_itself + rates.optimizer,
            gradients=self.gradients,
        )

    def _by_itself(self, share: WorkerEstimate) -> list[float]:
        """What a worker computes, without what all do alike: for input rows, and for each layer."""
        rates = self._rates
        found = [rates.learning(share.given, share.moved)]
        for layer, (stage, block, way) in enumerate(zip(self._stages, share.blocks, share.ways, strict=True)):
            encoding = rates.encoding(share.taken) if layer == 0 and self._encodes else 0.0
            found.append(rates.together * (rates.way(way, layer) * stage.of(block) + encoding))
        rows = [sent.total - sent.ids for sent in share.messages[: len(found)]]
        return [seconds + rates.handled_byte * each for seconds, each in zip(found, rows, strict=True)]

    def _load(self, share: WorkerEstimate) -> float:
        rates = self._rates
        if rates.tier_byte:
            return float(np.dot(rates.tier_byte, share.row_bytes))
        if not self._engine.inputs.prefetchable:  # the first layer reads them, and its time says so
            return 0.0
        seconds = rates.reading(share.read) + rates.file_byte * share.files.cost
        if self._engine.inputs.collective:  # each worker sorts what it asks for, and puts together what comes
            seconds += rates.moved_byte * sum(share.row_bytes) + rates.handled_id * float(share.taken.sum())
        return seconds

    def memory(self, share: WorkerEstimate) -> int:
        """Private memory that a worker takes for a step, above what it takes to be there at all.

        What forward keeps for backward, and once more the most that a layer keeps, for gradients on their way through
        it; a batch in the making at every stage and those that wait; the model and its optimizer; caches, and tables of
        learnt rows.
        """
        encoded = _of_rows([each.kept for each in self._rates.inputs], share.taken) if self._encodes else 0.0
        kept = [layer.of(block) for layer, block in zip(self._kept, share.blocks, strict=True)]
        batch = _INDEX_BYTES * float(share.blocks.sum())
        if self._engine.inputs.prefetchable:
            batch += _of_rows(self._row_bytes, share.read)
        batches = 1 + (1 + self._engine.inputs.prefetchable) * self._ahead
        return int(encoded + sum(kept) + max(kept) + batches * batch + self._rates.model_bytes + self._held)


def _of_rows(price: Sequence[float], rows: Int64[np.ndarray, "T"]) -> float:
    """Of rows of all node types, at a price each."""
    return float(np.dot(price, rows))


def _as_array(messages: Sequence[Traffic]) -> Float64[np.ndarray, "M 4"]:
    return np.array([(each.ids, each.features, each.forward, each.backward) for each in messages], np.float64)


def _share_of_other_hosts(axis: str, mesh: Mesh) -> float:
    """Which part of what a worker sends along an axis goes to other hosts, if it sends to all others alike."""
    if axis != "all":
        return float(axis == "hosts")
    return (mesh.size - mesh.workers) / (mesh.size - 1) if mesh.hosts > 1 else 0.0
