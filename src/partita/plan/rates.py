"""How fast a machine does what a training step consists of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from partita.plan.ways import Ways

_PARTS = ("together", "ways")
"""What is a part of another measurement."""


@dataclass(frozen=True)
class PerBlock:
    """What a layer takes, in seconds or in bytes, as a sum.

    Attributes:
        fixed: in any case.
        destination, source, edge: for each of the block.
    """

    fixed: float
    destination: float
    source: float
    edge: float

    def of(self, block: Float[np.ndarray, "3"]) -> float:
        """Of a block with so many destinations, sources and edges."""
        return self.fixed + float(block @ np.array([self.destination, self.source, self.edge]))

    @classmethod
    def fitted(cls, blocks: Float[np.ndarray, "n 3"], taken: Float[np.ndarray, "n"]) -> PerBlock:
        """The rates, none of them negative, from which measured blocks deviate least, in squares of relative errors."""
        columns = np.column_stack([np.ones(len(blocks)), blocks]) / taken[:, None]
        best, least = np.zeros(4), np.inf
        for chosen in map(list, chain.from_iterable(combinations(range(4), size) for size in range(1, 5))):
            rates, *_ = np.linalg.lstsq(columns[:, chosen], np.ones(len(blocks)), rcond=None)
            error = float(((columns[:, chosen] @ rates - 1) ** 2).sum())
            if (rates >= 0).all() and error < least:
                best, least = np.zeros(4), error
                best[chosen] = rates
        return cls(*best.tolist())


@dataclass(frozen=True)
class PerRow:
    """What an input row of a node type takes.

    Attributes:
        read: seconds for it to be read into a tensor.
        encode: seconds for the encoder of a typed graph to bring it to the width of layer 1, forward and backward.
        kept: bytes that are kept for that, with the result.
        give: seconds for its learnt row to be looked up by the owner, for itself or for another worker, and for the
            gradient to be added to others.
        move: seconds for its learnt row to be moved by the optimizer.
    """

    read: float
    encode: float = 0.0
    kept: float = 0.0
    give: float = 0.0
    move: float = 0.0


@dataclass(frozen=True)
class Rates:
    """What a planner knows of a machine, for one model and store; means over the workers.

    Attributes:
        sampled_edge: seconds for an edge to be drawn and its source to be numbered.
        inputs: of an input row of each node type; an untyped graph has one type.
        handled_id: seconds for an id that travels to be sorted by owner, and numbered where it arrives.
        handled_byte: seconds for a byte of a row that travels to be picked before, or added to others after.
        moved_byte: seconds for a byte of an input row to be copied to where it is wanted, once it has come: where rows
            of several workers come together, none is read in its place.
        stages: seconds of each layer, forward and backward, layer 1 (input side) first.
        kept: bytes that each layer keeps from forward to backward, with its output.
        together: a step through all layers takes so many times what the layers take by themselves, each over and over,
            with its rows in the processor's cache.
        tier_byte: seconds for a byte of an input row from each of :data:`~partita.core.records.TIERS`; empty where
            that is not known, and ``inputs`` says what a row takes, wherever it is.
        ways: how many times as long each layer takes from parts, by :attr:`~partita.core.estimates.LayerEstimate.way`.
        file_byte: seconds for a byte of input rows that are read from files, where a read of a file counts as
            :data:`~partita.files.row_file.GAP_BYTES`; 0 where rows are in memory.
        file_idle: of these, what a worker's processor may do something else.
        tiered: seconds and bytes, as of ``stages`` and ``kept``, of layer 1 where it is given input rows that were read
            before; empty where it always is, and ``stages`` says it.
        composed: seconds and bytes, as of ``stages`` and ``kept``, of layer 1 where it is given rows that are not
            encoded, and composes the encoder with its own maps; empty where it cannot.
        optimizer: seconds of a step of the optimizer.
        model_bytes: of the parameters, their gradients, and what the optimizer remembers.
    """

    sampled_edge: float
    inputs: tuple[PerRow, ...]
    handled_id: float
    handled_byte: float
    stages: tuple[PerBlock, ...]
    kept: tuple[PerBlock, ...]
    together: float
    optimizer: float
    model_bytes: float
    composed: tuple[PerBlock, ...] = ()
    file_byte: float = 0.0
    file_idle: float = 0.0
    tier_byte: tuple[float, ...] = ()
    ways: Ways = field(default_factory=dict)
    tiered: tuple[PerBlock, ...] = ()
    moved_byte: float = 0.0

    def way(self, name: str, layer: int) -> float:
        """How many times as long the layer of that position takes in a way; 1 where it was not measured."""
        return self.ways[name][layer] if name in self.ways else 1.0

    def reading(self, rows: Int64[np.ndarray, "T"]) -> float:
        """Seconds to read so many rows of each node type."""
        return float(np.dot([each.read for each in self.inputs], rows))

    def encoding(self, rows: Int64[np.ndarray, "T"]) -> float:
        """Seconds to encode so many rows of each node type."""
        return float(np.dot([each.encode for each in self.inputs], rows))

    def learning(self, given: Int64[np.ndarray, "T"], moved: Int64[np.ndarray, "T"]) -> float:
        """Seconds of an owner who gives and moves so many learnt rows of each node type."""
        give, move = ([getattr(each, name) for each in self.inputs] for name in ("give", "move"))
        return float(np.dot(give, given) + np.dot(move, moved))

    def to_json(self) -> dict[str, Any]:
        """As a file holds it."""
        return asdict(self)

    @classmethod
    def of_workers(cls, rates: Sequence[Rates]) -> Rates:
        """The same measurements on several workers: the mean, and of times as parts of others the median, as one worker
        that was disturbed in one of the two is far off."""

        def of(values: Sequence[Any], middle: Callable[[Sequence[float]], float]) -> Any:
            if isinstance(values[0], dict):
                return {
                    name: of([each[name] for each in values], statistics.median if name in _PARTS else middle)
                    for name in values[0]
                }
            if isinstance(values[0], (list, tuple)):
                return [of(items, middle) for items in zip(*values, strict=True)]
            return middle(values)

        return cls.from_json(of([each.to_json() for each in rates], statistics.fmean))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Rates:
        """The inverse of :meth:`to_json`."""
        per_block = ("stages", "kept", "composed", "tiered")
        layers = {name: tuple(PerBlock(**layer) for layer in values.get(name, ())) for name in per_block}
        inputs = tuple(PerRow(**of_type) for of_type in values["inputs"])
        ways = {name: tuple(of_layer) for name, of_layer in values.get("ways", {}).items()}
        more = {"inputs": inputs, "tier_byte": tuple(values.get("tier_byte", ())), "ways": ways}
        return cls(**{**values, **layers, **more})
