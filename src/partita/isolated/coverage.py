"""Coverage correction: how much a batch counts whose neighborhoods are only partly in the worker's view.

Grappa, section 3.4. S_v are the sampled in-neighbors of seed v, d_local(v) its in-neighbors in the parts of the view,
d_global(v) those in the whole graph. In typed graphs pairs of a seed and a relation take the place of seeds, see
:class:`~partita.isolated.neighborhoods.Neighborhoods`. The factor is one scalar per worker and batch, applied to the
worker's gradients before they are summed. All arithmetic is in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from partita.core.registry import Registry

Coverage = Callable[[Int[Tensor, "B"], Int[Tensor, "B"], Int[Tensor, "B"]], float]
"""``(sampled, d_local, d_global) -> factor``: of every seed, the number of sampled in-edges, and its degrees; in typed
graphs of every seed and relation."""


def no_correction(sampled: Int[Tensor, "B"], d_local: Int[Tensor, "B"], d_global: Int[Tensor, "B"]) -> float:
    """Always 1."""
    return 1.0


def uniform(sampled: Int[Tensor, "B"], d_local: Int[Tensor, "B"], d_global: Int[Tensor, "B"]) -> float:
    """Mean of d_local / d_global over the seeds (Eq. 10).

    A seed that has no in-neighbors at all counts as covered, 1; one that has some, but none in the view, as 0. The
    sampled counts do not matter. Of no seeds: 1.
    """
    _check(sampled, d_local, d_global)
    if len(d_local) == 0:
        return 1.0
    share = d_local.double() / d_global.double()
    return float(torch.where(d_global > 0, share, 1.0).mean())


def resampling(sampled: Int[Tensor, "B"], d_local: Int[Tensor, "B"], d_global: Int[Tensor, "B"]) -> float:
    """``sum |S_v| / sum(|S_v| d_global / d_local)``, the harmonic mean of the coverage weighted by |S_v|; in [0, 1].

    Eq. 12 of the paper is meant, which as printed lacks a term: it divides by 0 at full coverage, and shrinks with
    the size of the batch. 1 where nothing is missing; 0 where something is missing and no neighbor was sampled.
    """
    drawn, excess = _resampled(sampled, d_local, d_global)
    return drawn / (drawn + excess) if drawn else _of_nothing(d_local, d_global)


def resampling_raw(sampled: Int[Tensor, "B"], d_local: Int[Tensor, "B"], d_global: Int[Tensor, "B"]) -> float:
    """Eq. 12 as printed, ``1 / sum((d_global / d_local - 1) |S_v|)``, and not more than 1.

    At half coverage, 1000 seeds and 10 neighbors each it is 1e-4: only optimizers that do not feel the scale of
    gradients (Adam) train with it. 1 where nothing is missing; 0 where something is and no neighbor was sampled.
    """
    drawn, excess = _resampled(sampled, d_local, d_global)
    return 1 / max(1.0, excess) if drawn else _of_nothing(d_local, d_global)


def deficit(d_local: Int[Tensor, "B"], d_global: Int[Tensor, "B"]) -> float:
    """One minus :func:`uniform`: the mean share of the seeds' in-neighbors that are out of sight; 0 of no seeds."""
    return 1 - uniform(d_local, d_local, d_global)


def _resampled(sampled: Tensor, d_local: Tensor, d_global: Tensor) -> tuple[float, float]:
    """``sum |S_v|`` and ``sum |S_v| (d_global / d_local - 1)``; the latter is infinite where d_local is 0."""
    _check(sampled, d_local, d_global)
    seen = sampled > 0
    drawn, local = sampled[seen].double(), d_local[seen].double()
    return float(drawn.sum()), float((drawn * (d_global[seen].double() - local) / local).sum())


def _of_nothing(d_local: Tensor, d_global: Tensor) -> float:
    """The factor of a batch without sampled neighbors: there may be none to be seen anywhere."""
    return float(bool((d_local == d_global).all()))


def _check(sampled: Tensor, d_local: Tensor, d_global: Tensor) -> None:
    wrong = (sampled < 0) | (d_local < 0) | (d_local > d_global) | ((sampled > 0) & (d_global == 0))
    if bool(wrong.any()):
        seed = int(wrong.nonzero()[0])
        raise ValueError(
            f"seed {seed} of the batch: {int(sampled[seed])} sampled, {int(d_local[seed])} in-neighbors in the view, "
            f"{int(d_global[seed])} in the whole graph"
        )


COVERAGES: Registry[Coverage] = Registry(
    "coverage correction",
    {"none": no_correction, "uniform": uniform, "resampling": resampling, "resampling_raw": resampling_raw},
    setting="coverage",
)
"""By name. ``COVERAGES.register`` adds one's own."""


class Covered(NamedTuple):
    """Sums over batches: how much of the neighborhoods of their seeds was in the views.

    Attributes:
        batches: how many, one per worker and step.
        factors: sum of their factors.
        blind: those with factor 0: something is missing, and no neighbor was sampled.
        seeds: of the batches.
        deficits: sum over the seeds of 1 - d_local / d_global.
    """

    batches: float = 0.0
    factors: float = 0.0
    blind: float = 0.0
    seeds: float = 0.0
    deficits: float = 0.0

    def plus(self, other: Covered) -> Covered:
        """The sums of both."""
        return Covered(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def deficit(self) -> float:
        """Mean over the seeds; 0 of none."""
        return self.deficits / self.seeds if self.seeds else 0.0

    @property
    def factor(self) -> float:
        """Mean over the batches; 1 of none."""
        return self.factors / self.batches if self.batches else 1.0


NO_BATCHES = Covered()
"""No batch at all."""
