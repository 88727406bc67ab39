"""What it costs to compute a layer from parts, beside computing it as a whole: measured on blocks of one worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from partita.comm.axis import Axis, make_axis
from partita.comm.threads import ThreadGroups
from partita.core.errors import ConfigError
from partita.parallel.block_worker import BlockWork, BlockWorker
from partita.parallel.placements.data import Data
from partita.parallel.placements.feature import Feature
from partita.parallel.placements.source import Source
from partita.parallel.placements.source_rows import SourceRows
from partita.parallel.placements.source_states import SourceStates

Ways = Mapping[str, tuple[float, ...]]
"""For each :attr:`~partita.core.estimates.LayerEstimate.way` how many times as long each layer takes, layer 1 first."""


def measure_ways(
    worker: BlockWorker, works: Sequence[BlockWork], first: int, median: Callable[[Callable[[], object]], float]
) -> Ways:
    """Compute the blocks of a step in every way that a placement knows, all parts on this worker.

    Args:
        worker: of one process, whose input rows arrive as tensors.
        works: of each layer, layer 1 first, as the placement ``data`` draws them.
        first: the lowest layer to measure, 1 or 2; lower ones are taken to be as this one.
        median: seconds of what it is given.
    """
    topology = worker.topology
    offsets = torch.tensor([0, topology.num_nodes * topology.slots])
    axis = make_axis(ThreadGroups(1).contexts[0], "all", offsets)
    found: dict[str, list[float]] = {name: [] for name in ("states", "rows", "slices")}
    for layer, work in enumerate(works, start=1):
        if layer < first:
            continue
        whole = _seconds(worker, Data(worker), Data(worker).expand, layer, work, median)
        for name, times in found.items():
            placement, expand = _way(name, worker, axis, layer)
            seconds = None if placement is None else _seconds(worker, placement, expand, layer, work, median)
            times.append(1.0 if seconds is None else seconds / whole)
    return {name: (*times[:1] * (first - 1), *times) for name, times in found.items()}


def _way(name: str, worker: BlockWorker, axis: Axis, layer: int) -> tuple[Any, Callable[..., Any]]:
    """What computes a layer in that way, and what gives it its work; ``None`` where no run does that."""
    of = worker.layer(layer)
    if name == "slices":
        feature = Feature(worker, axis, slice(0, worker.model.widths[0]))
        return (feature if layer == 1 and of.columns is not None else None), feature.expand
    placement: Any = SourceStates(worker, axis) if name == "states" else SourceRows(worker, axis)
    try:
        Source(worker, axis).check(layer)
    except ConfigError:
        return None, placement.expand
    if name == "rows" and not SourceRows.fits(of):
        return None, placement.expand

    def expand(layer: int, requests: Tensor, key: Any) -> Any:
        drawn = worker.split(layer).divisible(worker.draw(layer, requests, key, relabel=False))
        return placement.draft(layer, drawn)[1](key)

    return placement, expand


def _seconds(
    worker: BlockWorker, placement: Any, expand: Callable[..., Any], layer: int, work: BlockWork,
    median: Callable[[Callable[[], object]], float],
) -> float:  # fmt: skip
    """Forward and backward."""
    own, below = expand(layer, work.block.dst, work.key)
    h = torch.randn(len(below), worker.model.widths[layer - 1], dtype=worker.dtype, requires_grad=layer > 1)

    def compute() -> None:
        out = placement.forward(layer, own, h)
        out.backward(torch.ones_like(out))

    return median(compute)
