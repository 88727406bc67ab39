"""A dry run: how often training will read each input row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int, Int32
from torch import Tensor

from partita.core import progress
from partita.core.keys import StepKey
from partita.parallel.engine import Engine


def input_frequencies(
    engine: Engine,
    num_nodes: int,
    steps: int,
    share: Callable[[int], Int[Tensor, "B"]],
    key: Callable[[int], StepKey],
) -> Int32[Tensor, "N"]:
    """Sample some steps without training, and count in how many of them this worker reads each input row.

    A row counts where it is looked up in a worker's own tiers: at who asks for it, or at its owner where that reads
    for all (``by-owner``). All workers call this with the same number of steps.

    Args:
        engine: of this worker.
        num_nodes: N.
        steps: how many.
        share: this worker's seeds of a step.
        key: names a step.

    Returns:
        int32 (N), of this worker alone.
    """
    counts = torch.zeros(num_nodes, dtype=torch.int32)
    with progress.task("dry run", total=steps, unit="steps") as task:
        for step in range(steps):
            work = engine.sample(share(step), key(step)).inputs
            counts[work.reads.long().cpu()] += 1  # a repeated id is written twice, not counted twice
            task.advance()
    return counts
