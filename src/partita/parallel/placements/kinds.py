"""What a strategy is made of: the tables of placements and of input placements, one line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from partita.core.registry import Registry

if TYPE_CHECKING:
    from partita.comm.axis import Axis
    from partita.core.protocols import Placement
    from partita.parallel.block_worker import BlockWorker


@dataclass(frozen=True)
class CacheRule:
    """What a worker reads, and so what is worth caching there.

    Kaihao Ma et al., "APT", section 3.2, "Cache configuration".

    Attributes:
        reads: ``any`` node's row, or only rows of nodes that the worker ``owned``.
        counts: with the policy ``strategy``, whose reads count: those of ``all`` workers, or its ``own``.
    """

    reads: Literal["any", "owned"] = "any"
    counts: Literal["all", "own"] = "all"


@dataclass(frozen=True)
class PlacementKind:
    """What is known of a placement before there is one: its line in :data:`PLACEMENTS`.

    Attributes:
        make: the placement of this worker, from what draws and computes blocks, the workers of the axis, and the
            feature columns that this worker reads (a slice with a start and a stop). There are no workers of an axis
            (``None``) where all that the strategy names is not ``collective``.
        sentence: who computes what, for reports; without a full stop.
        collective: workers exchange something.
        needs_owners: it matters which worker owns a node, so the store needs a part for every worker.
        inputs: the input placement at layer 1 where a strategy names none; where that slices columns, no other is
            possible.
        first_layer_only: it is for layer 1 (input side).
        cache_rule: what a worker reads where the placement is that of layer 1.
    """

    make: Callable[[BlockWorker, Axis, slice], Placement]
    sentence: str
    collective: bool = True
    needs_owners: bool = False
    inputs: str = "direct"
    first_layer_only: bool = False
    cache_rule: CacheRule = CacheRule()


@dataclass(frozen=True)
class InputPlacement:
    """How input rows are read.

    Attributes:
        sentence: who reads what, for reports; without a full stop.
        by_owner: the owner of a node reads its row, once per step, and ships it to all who ask.
        sliced: every worker reads its own columns of all rows that anybody needs.
        cache_rule: what a worker reads, where that does not depend on the placement of layer 1.
    """

    sentence: str
    by_owner: bool = False
    sliced: bool = False
    cache_rule: CacheRule | None = None

    @property
    def collective(self) -> bool:
        """Whether workers exchange something, or read for one another."""
        return self.by_owner or self.sliced


PLACEMENTS: Registry[PlacementKind] = Registry(
    "placement",
    {
        "data": "partita.parallel.placements.data:KIND",
        "destination": "partita.parallel.placements.destination:KIND",
        "source": "partita.parallel.placements.source:KIND",
        "feature": "partita.parallel.placements.feature:KIND",
    },
    setting="strategy",
)
"""Who computes the rows of a layer."""

INPUT_PLACEMENTS: Registry[InputPlacement] = Registry(
    "input placement",
    {
        "direct": InputPlacement("every worker reads the input rows that it needs"),
        "by-owner": InputPlacement(
            "input rows are read by the worker that owns the node, and sent to those who need them",
            by_owner=True,
            cache_rule=CacheRule("owned"),  # GSplit (Polisetty et al.), whose caches hold different nodes
        ),
        "columns": InputPlacement("every worker reads its columns of all input rows that any needs", sliced=True),
    },
    setting="strategy",
)
"""Who reads input rows: the input placement of a strategy."""


def goes_with(inputs: str, first: str) -> bool:
    """Whether an input placement goes with a placement at layer 1: slices of columns only with those that want them."""
    wanted = PLACEMENTS.find(first).inputs
    return inputs == wanted or not any(INPUT_PLACEMENTS.find(name).sliced for name in (inputs, wanted))
