"""How old rows are at the time at which a seed is asked about: a part of the input of typed models.

A row of a database is of a time: a purchase of yesterday says something else than one of last year. Where neighbors are
sampled by time, the input row of node v for a seed of time t is ::

    encoder(x_v) + E_type(v) phi((t - time of v) / unit)

which RelBench's models do likewise (arXiv 2407.20060). ``phi`` is fixed, and its columns are between 0 and 8: one that
grows with the logarithm of the age, and others that fall by half in times from 4 units to 1/512 of one, so that sums of
them over neighbors are counts in which old rows count less. The unit is a number of the units of the store's times, so
that rows in days and in microseconds have the same features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from partita.core.node_types import NodeTypes
from partita.graph.times import ALWAYS
from partita.nn import initialize

HALVINGS = tuple(4.0 / 2**n for n in range(12))
"""In how many units columns of the features fall by half."""
COLUMNS = 1 + len(HALVINGS)
"""Of the features of an age."""
_LARGEST = torch.iinfo(torch.int64).max
_FINEST = -9
"""Power of two: ages below so many units are hardly told apart."""


def age_features(ages: Int64[Tensor, "n"], unit: float) -> Float[Tensor, "n C"]:
    """``log2(1 + 512 a) / 9`` and ``2^(-a / h)`` for every h of :data:`HALVINGS`, where a is the age in units.

    Args:
        ages: 0 or more; below 0: there is none, and all features are 0.
        unit: above 0.

    Returns:
        float64 (n, 13).
    """
    known = (ages >= 0).unsqueeze(1)
    a = ages.double().clamp(min=0).unsqueeze(1) / unit
    falling = torch.exp2(-a / torch.tensor(HALVINGS, dtype=a.dtype, device=a.device))
    return torch.cat([torch.log1p(a * 2.0**-_FINEST) / torch.log(a.new_tensor(2.0)) / -_FINEST, falling], 1) * known


@dataclass(frozen=True, eq=False)
class RowTimes:
    """The times of the rows of a store.

    Attributes:
        of_nodes: int64 (N); the smallest integer, and the largest one, stand for no time.
        types: of the nodes.
        latest: time at which all is known: later ones, such as that of seeds without a time, count as this one.
    """

    of_nodes: Int64[Tensor, "N"]
    types: NodeTypes
    latest: int

    def __deepcopy__(self, memo: object) -> RowTimes:
        """Itself: copies of a model read the same store."""
        return self

    def ages(self, nodes: Int[Tensor, "n"], times: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """How old rows of nodes are at times, at least 0; -1 where a row has no time."""
        born, now = self.of_nodes[nodes.long()], times.clamp(max=self.latest)
        ages = now - born
        ages = torch.where(ages < 0, _LARGEST, ages)  # what 64 bits cannot hold came out negative
        ages = torch.where(now < born, 0, ages)
        return torch.where((born == ALWAYS) | (born == _LARGEST), -1, ages)


@dataclass(frozen=True, slots=True)
class RowAges:
    """What is known of the ages of rows, of one type of nodes after the other.

    Attributes:
        at: where the rows of each type are among all rows.
        features: (_, 13) of their ages.
    """

    at: tuple[Int64[Tensor, "_"], ...]
    features: tuple[Float[Tensor, "_ C"], ...]


class AgeEncoder(nn.Module):
    """Adds to the rows of nodes ``E_t phi``, where t is the type of each and phi the features of its age.

    Args:
        kinds: numbers of the types whose rows have times; those of others stay as they are.
        out_width: columns of rows.
        unit: of ages, see the module.

    Attributes:
        kinds, unit: as given.
        source: the times of rows; they are no parameters. Whoever trains or evaluates sets it.
    """

    def __init__(self, kinds: Sequence[int], out_width: int, unit: float) -> None:
        super().__init__()
        self.kinds, self.unit = tuple(kinds), unit
        self.source: RowTimes | None = None
        self.lins = nn.ModuleList(initialize.linear(COLUMNS, out_width, bias=False) for _ in self.kinds)

    def of(self, requests: Int[Tensor, "S"], times: Int64[Tensor, "T"], slots: int) -> RowAges:
        """What is to be known of the ages of rows.

        Args:
            requests: nodes at times, see :mod:`partita.sample.temporal`.
            times: of the batch.
            slots: of the requests.

        Raises:
            ValueError: there is no :attr:`source` of times.
        """
        if self.source is None:
            raise ValueError("the model reads how old rows are, and there are no times of rows")
        nodes = requests.long() // slots
        ages = self.source.ages(nodes, times[requests.long() % slots])
        kinds = torch.from_numpy(self.source.types.of(nodes.numpy()))
        at = tuple(torch.nonzero(kinds == kind).flatten() for kind in self.kinds)
        dtype = next(self.parameters()).dtype
        return RowAges(at, tuple(age_features(ages[where], self.unit).to(dtype) for where in at))

    def forward(self, rows: Float[Tensor, "S out"], ages: RowAges) -> Float[Tensor, "S out"]:
        """The rows with what their ages add. Every map is used, also for no row, so that each gets a gradient."""
        lins: Any = self.lins
        terms = torch.cat([lin(features) for lin, features in zip(lins, ages.features, strict=True)])
        return rows.index_add(0, torch.cat(ages.at), terms.to(rows.dtype))
