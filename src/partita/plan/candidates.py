"""Which strategies come into question."""

from __future__ import annotations

from itertools import pairwise, product

from partita.core.mesh import Mesh
from partita.parallel.strategies import INPUT_PLACEMENTS, INPUTS, PLACEMENTS, STRATEGIES, Strategy, parse_strategy

ALL_UP_TO = 4
"""Layers of a model up to which all lists of placements are tried; of deeper ones those with one change in the list."""


def candidates(layers: int, mesh: Mesh) -> list[Strategy]:
    """All strategies for a model on so many workers: those with a name first, each list once.

    Whether the model's layers and the store allow a strategy is for :func:`~partita.parallel.strategies.build_engine`
    to say.

    Args:
        layers: of the model, K.
        mesh: of any worker.
    """
    data = Strategy("direct", ("data",) * layers)
    if mesh.size == 1:
        return [data]
    lists = [parse_strategy(name, layers) for name in STRATEGIES] + _lists(layers)
    axes = ["all"] if 1 in (mesh.hosts, mesh.workers) else ["workers", "hosts", "all"]
    found = [data]
    for axis in axes:
        found += [Strategy(each.inputs, each.placements, axis) for each in lists if each != data]
    return list(dict.fromkeys(found))


def name_of(strategy: Strategy) -> str:
    """The name of a strategy, or its list, as users write it."""
    for name in STRATEGIES:
        known = parse_strategy(name, len(strategy.placements))
        if (known.inputs, known.placements) == (strategy.inputs, strategy.placements):
            other = {"workers": "hosts", "hosts": "workers"}.get(strategy.axis)
            return name if other is None else f"{name}@{strategy.axis}+data@{other}"
    return str(strategy).removeprefix("direct,")


def _lists(layers: int) -> list[Strategy]:
    found = []
    for inputs, *placements in product(INPUTS, *[PLACEMENTS] * layers):
        sliced, changes = INPUT_PLACEMENTS[inputs].sliced, sum(a != b for a, b in pairwise(placements))
        fits = sliced == (placements[0] == "feature") and "feature" not in placements[1:]
        if fits and (layers <= ALL_UP_TO or changes <= 1):
            found.append(Strategy(inputs, tuple(placements)))
    return found
