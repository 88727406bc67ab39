"""Which strategies come into question."""

from __future__ import annotations

from itertools import pairwise, product

from partita.core.mesh import Mesh
from partita.parallel.placements.kinds import INPUT_PLACEMENTS, PLACEMENTS, goes_with
from partita.parallel.strategies import PLAIN, STRATEGIES, Strategy

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
    data = STRATEGIES.find(PLAIN).of(layers)
    if mesh.size == 1:
        return [data]
    lists = [STRATEGIES.find(name).of(layers) for name in STRATEGIES] + _lists(layers)
    axes = ["all"] if 1 in (mesh.hosts, mesh.workers) else ["workers", "hosts", "all"]
    found = [data]
    for axis in axes:
        found += [Strategy(each.inputs, each.placements, axis) for each in lists if each != data]
    return list(dict.fromkeys(found))


def _lists(layers: int) -> list[Strategy]:
    found = []
    above = [name for name in PLACEMENTS if not PLACEMENTS.find(name).first_layer_only]
    for inputs, *placements in product(INPUT_PLACEMENTS, PLACEMENTS, *[above] * (layers - 1)):
        changes = sum(a != b for a, b in pairwise(placements))
        if goes_with(inputs, placements[0]) and (layers <= ALL_UP_TO or changes <= 1):
            found.append(Strategy(inputs, tuple(placements)))
    return found
