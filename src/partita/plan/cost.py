"""What a step costs: counts of rows, edges and bytes times measured rates. Nothing here knows a strategy by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int64

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
    """What some steps cost, added up. A step takes as long as its slowest worker.

    Attributes:
        steps: how many.
        seconds: of the slowest worker of each step.
        counts: edges and rows over all workers.
        traffic: bytes over all workers.
        gradient_bytes: likewise.
        memory_bytes: of the worker and the step that takes most.
        latency: seconds of ``seconds.exchange`` that are for messages, however small.
        row_bytes: of the input rows that each of :data:`~partita.core.records.TIERS` gives, over all workers.
        files: what is read from files of these, over all workers.
    """

    counts: Counts
    steps: int = 0
    seconds: Seconds = field(default_factory=Seconds)
    traffic: Traffic = field(default_factory=Traffic)
    gradient_bytes: int = 0
    memory_bytes: int = 0
    latency: float = 0.0
    row_bytes: tuple[int, ...] = tier_rows()
    files: FileReads = field(default_factory=FileReads)

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
        self.steps += 1
        seconds, latency = zip(*cost.of_step(shares), strict=True)
        self.seconds += max(seconds, key=lambda each: each.total)
        self.latency += max(latency)
        self.counts = sum((share.counts for share in shares), self.counts)
        self.traffic = sum((share.traffic for share in shares), self.traffic)
        self.gradient_bytes += summed
        self.row_bytes = tuple(map(sum, zip(self.row_bytes, *(share.row_bytes for share in shares), strict=True)))
        self.files = sum((share.files for share in shares), self.files)
        self.memory_bytes = max(self.memory_bytes, *(cost.memory(share) for share in shares))


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
        cache: bytes that every worker keeps input rows in, of other hosts or of files.

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
        cache: int,
    ) -> None:
        self._engine, self._rates, self._links = engine, rates, links
        self._row_bytes, self._ahead, self._cache = row_bytes, ahead, cache
        self._encodes = not (rates.composed and engine.composes_encoder)
        self._stages, self._kept = rates.stages, rates.kept
        if not self._encodes:
            seconds, kept = rates.composed
            self._stages, self._kept = (seconds, *rates.stages[1:]), (kept, *rates.kept[1:])
        self._over, self._mesh = shares_of_links(axis, mesh), mesh
        # Input rows of other hosts come over their link, whatever workers place along.
        self._reached = [*self._over] if mesh.hosts == 1 else [*dict.fromkeys([*self._over, "other_host"])]
        link = "other_host" if mesh.hosts > 1 else "same_host"
        # Beside the gradients, workers add up in every step what they have done. A ring leaves each host once; links
        # were measured with all workers of a host at once.
        at_once = mesh.workers if mesh.hosts > 1 else 1
        summed = [sum_bytes(each, mesh.size) / at_once for each in (parameter_bytes, _SETTLED_BYTES)]
        self.gradients = sum(links.seconds_of_sum(link, each) for each in summed) if mesh.size > 1 else 0.0

    def of_step(self, shares: Sequence[WorkerEstimate]) -> list[tuple[Seconds, float]]:
        """Of each worker what it does in a step, and what of its ``exchange`` is for messages, however small they are.

        What leaves a host for others shares its link, so it takes as long as if each of its workers sent the mean.
        """
        of_workers, found = [self._over_links(share) for share in shares], list[tuple[Seconds, float]]()
        for rank, share in enumerate(shares):
            exchange = latency = 0.0
            for link, own in of_workers[rank].items():
                sent = own
                if link == "other_host":
                    first = rank - rank % self._mesh.workers
                    sent = np.mean([each[link] for each in of_workers[first : first + self._mesh.workers]], axis=0)
                exchange += sum(self._links.seconds_to_send(link, num_bytes) for num_bytes in sent.ravel().tolist())
                latency += np.count_nonzero(sent) * self._links.seconds_to_send(link, 1)
            found.append((self._of_worker(share, exchange), latency))
        return found

    def _over_links(self, share: WorkerEstimate) -> dict[str, Float64[np.ndarray, "M 4"]]:
        """Bytes of each message and kind over each link. Of input rows it is known; others go to all workers alike."""
        messages = np.array([part.values() for part in self._messages(share)], np.float64)
        found = {link: self._over.get(link, 0.0) * messages for link in self._reached}
        rows = {"same_host": share.row_bytes[TIERS.index("peers")], "other_host": share.row_bytes[TIERS.index("hosts")]}
        if any(rows.values()):
            for link, sent in found.items():
                sent[0] = rows[link] / sum(rows.values()) * messages[0]
        return found

    def _of_worker(self, share: WorkerEstimate, exchange: float) -> Seconds:
        rates, sent = self._rates, share.traffic
        encoding = rates.encoding(share.taken) if self._encodes else 0.0
        layers = zip(self._stages, share.blocks, strict=True)
        return Seconds(
            sample=rates.sampled_edge * share.counts.sampled_edges + rates.handled_id * sent.ids / ID_BYTES,
            exchange=exchange,
            load=self._load(share),
            compute=rates.together * (sum(stage.of(block) for stage, block in layers) + encoding)
            + rates.handled_byte * (sent.features + sent.forward + sent.backward)
            + rates.optimizer,
            gradients=self.gradients,
        )

    def _load(self, share: WorkerEstimate) -> float:
        rates = self._rates
        if rates.tier_byte:
            return float(np.dot(rates.tier_byte, share.row_bytes))
        if not self._engine.inputs.prefetchable:  # the first layer reads them, and its time says so
            return 0.0
        return rates.reading(share.read) + rates.file_byte * share.files.cost

    def memory(self, share: WorkerEstimate) -> int:
        """Private memory that a worker takes for a step, above what it takes to be there at all.

        What forward keeps for backward, and once more the most that a layer keeps, for gradients on their way through
        it; a batch in the making at every stage and those that wait; the model and its optimizer; caches.
        """
        encoded = _of_rows([each.kept for each in self._rates.inputs], share.taken) if self._encodes else 0.0
        kept = [layer.of(block) for layer, block in zip(self._kept, share.blocks, strict=True)]
        batch = _INDEX_BYTES * float(share.blocks.sum())
        if self._engine.inputs.prefetchable:
            batch += _of_rows(self._row_bytes, share.read)
        batches = 1 + (1 + self._engine.inputs.prefetchable) * self._ahead
        return int(encoded + sum(kept) + max(kept) + batches * batch + self._rates.model_bytes + self._cache)

    def _messages(self, share: WorkerEstimate) -> list[Traffic]:
        """Those of each part of the engine; that which says how many ids come by itself."""
        return [*share.messages, *(Traffic(ids=_COUNT_BYTES if part.ids else 0) for part in share.messages)]


def _of_rows(price: Sequence[float], rows: Int64[np.ndarray, "T"]) -> float:
    """Of rows of all node types, at a price each."""
    return float(np.dot(price, rows))


def shares_of_links(axis: str, mesh: Mesh) -> dict[str, float]:
    """Which part of what a worker sends along an axis goes over which link, if it sends to all others alike."""
    if axis != "all" or mesh.hosts == 1:
        return {"other_host" if axis == "hosts" else "same_host": 1.0}
    far = (mesh.size - mesh.workers) / (mesh.size - 1)
    return {"other_host": far} if mesh.workers == 1 else {"same_host": 1 - far, "other_host": far}
