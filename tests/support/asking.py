"""Who asks whom for what, worked out by brute force with Python sets: no code of the engine but the draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from steps import KEY, Step

from partita.core.keys import Purpose
from partita.core.records import RemoteDraws, Traffic
from partita.parallel.engine import Engine
from partita.parallel.placements.source_rows import SourceRows
from partita.parallel.placements.source_states import SourceStates

Numbers = dict[str, int]
WAYS: dict[str, Any] = {"states": SourceStates, "rows": SourceRows}
"""Of the placement by source."""
"""What the bytes of a layer follow from, by the names of the arguments of its placement's formula."""


@dataclass
class Expected:
    """What a step should cost.

    Attributes:
        numbers: over all workers, for each layer, layer 1 first: which formula of the placement, and its numbers.
        input_rows: that come from other workers; ``None`` where rows are read where they are asked for.
        remote: drawn by others, per layer.
        computed: rows computed, per layer and worker.
        edges: edges drawn, per layer, over all workers.
        read: distinct input rows per worker.
    """

    numbers: list[tuple[str, Numbers]]
    input_rows: int | None
    remote: list[RemoteDraws]
    computed: list[list[int]]
    edges: list[int]
    read: list[int]

    def layers(self, engine: Engine) -> list[Traffic]:
        """Bytes of each layer, over all workers: the formulas are those of the placements, the numbers are not."""
        found = []
        for layer, (placement, (way, numbers)) in enumerate(zip(engine.placements, self.numbers, strict=True), start=1):
            priced: Any = WAYS[way](placement.worker, placement.axis) if way else placement  # type: ignore[attr-defined]
            found.append(priced.traffic(layer, **numbers) if numbers else Traffic())
        return found

    def inputs(self, engine: Engine) -> Traffic:
        """Bytes of level 0."""
        found: Any = engine.inputs
        return Traffic() if self.input_rows is None else found.traffic(self.input_rows)


@dataclass
class Asked:
    """A layer as all workers ask for it.

    Attributes:
        step: the step.
        layer: its number.
        drawn: the neighbors of every node.
        owner: of every node.
        by: distinct nodes that each worker asks for.
    """

    step: Step
    layer: int
    drawn: dict[int, list[int]]
    owner: dict[int, int]
    by: list[set[int]]

    @property
    def workers(self) -> range:
        return range(len(self.by))

    def away(self, by: list[set[int]]) -> int:
        """Requests for nodes of others."""
        return sum(self.owner[v] != w for w in self.workers for v in by[w])

    def owned(self, by: list[set[int]]) -> list[set[int]]:
        """What each worker is asked for as an owner."""
        return [{v for share in by for v in share if self.owner[v] == w} for w in self.workers]

    def around(self, nodes: set[int]) -> set[int]:
        """Nodes and their neighbors."""
        return nodes | {u for v in nodes for u in self.drawn[v]}


Answer = tuple[tuple[str, Numbers], list[set[int]], list[set[int]]]
"""The way and its numbers; nodes that each worker draws for; those whose rows of the layer below it needs."""


def data(asked: Asked) -> Answer:
    return ("", {}), asked.by, [asked.around(share) for share in asked.by]


def destination(asked: Asked) -> Answer:
    work = asked.owned(asked.by)
    return ("", {"remote_destinations": asked.away(asked.by)}), work, [asked.around(share) for share in work]


def feature(asked: Asked) -> Answer:
    below = [asked.around(share) for share in asked.by]
    numbers = {
        "others": len(asked.by) - 1,
        "destinations": sum(map(len, asked.by)),
        "sources": sum(map(len, below)),
        "edges": sum(len(asked.drawn[v]) for share in asked.by for v in share),
    }
    return ("", numbers), asked.by, [set().union(*below)] * len(below)


def source(asked: Asked) -> Answer:
    owner, drawn = asked.owner, asked.drawn
    pairs = {(w, v, o) for w in asked.workers for v in asked.by[w] for o in {owner[u] for u in [v, *drawn[v]]}}
    numbers = {
        "remote_destinations": asked.away(asked.by),
        "remote_pairs": sum(w != o for w, _, o in pairs),
        "remote_edges": sum(owner[u] != w for w in asked.workers for v in asked.by[w] for u in drawn[v]),
    }
    around = [asked.around(share) for share in asked.by]
    sources = asked.away(around)
    way = ("states", numbers)
    if asked.step.kind.startswith("gat") and rows_are_cheaper(asked, numbers, sources):
        way = ("rows", {"remote_sources": sources})
    return way, asked.by, asked.owned(around)


ANSWERS: dict[str, Callable[[Asked], Answer]] = {
    "data": data,
    "destination": destination,
    "source": source,
    "feature": feature,
}
"""Placements by name; one that brings none has no oracle by brute force."""


def neighbors(step: Step, layer: int) -> dict[int, list[int]]:
    """The draws of every node of the graph, as if all were asked for."""
    topology = step.topology()
    nodes = torch.arange(step.store.num_nodes).to(topology.id_dtype)
    found = topology.sample(nodes, KEY.at(Purpose.SAMPLE, layer), step.fanouts[layer - 1])
    bounds, indices = found.indptr.tolist(), found.indices.tolist()
    return {v: indices[bounds[v] : bounds[v + 1]] for v in range(step.store.num_nodes)}


def rows_are_cheaper(asked: Asked, numbers: Numbers, sources: int) -> bool:
    """Whether projected sources are fewer bytes than states of attention, written out for float64."""
    step = asked.step
    last = asked.layer == len(step.fanouts)
    heads = 2 if last else 3
    columns = step.classes if last else step.hidden // heads
    states = heads * (columns + 2) * numbers["remote_pairs"]
    queries = heads * (numbers["remote_destinations"] + numbers["remote_pairs"])
    by_states = 8 * (2 * numbers["remote_pairs"] + numbers["remote_edges"]) + 2 * 8 * (states + queries)
    return 8 * sources + 2 * 8 * heads * columns * sources < by_states


def expected(step: Step, placements: tuple[str, ...], inputs: str, shares: list[list[int]]) -> Expected:
    """Follow the requests of all workers from the seeds down.

    Args:
        step: the step.
        placements: layer 1 first.
        inputs: level 0.
        shares: seeds of each worker; a worker owns the part of its number.

    Raises:
        KeyError: there is no oracle for a placement, see :data:`ANSWERS`.
    """
    offsets = step.part_offsets().tolist()
    owner = {v: part for part in range(len(offsets) - 1) for v in range(offsets[part], offsets[part + 1])}
    by = [set(share) for share in shares]
    found = Expected([], None, [], [], [], [])
    for layer in range(len(step.fanouts), 0, -1):
        asked = Asked(step, layer, neighbors(step, layer), owner, by)
        numbers, work, by = ANSWERS[placements[layer - 1]](asked)
        found.numbers.insert(0, numbers)
        found.edges.insert(0, sum(len(asked.drawn[v]) for share in work for v in share))
        found.computed.insert(0, [len(share) for share in work])
        away = [v for w, share in enumerate(work) for v in share if owner[v] != w] if step.split_topology else []
        found.remote.insert(0, RemoteDraws(len(away), sum(len(asked.drawn[v]) for v in away)))
    if inputs == "by-owner":
        last = Asked(step, 0, {}, owner, by)
        found.input_rows, by = last.away(by), last.owned(by)
    elif inputs == "columns":
        found.input_rows, by = 0, [set().union(*by)] * len(by)
    elif inputs != "direct":
        raise KeyError(f"there is no oracle for the input placement {inputs}")
    found.read = [len(share) for share in by]
    return found
