"""Columns of small integers, made of numbers at hand."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from partita.features.levels import Levels
from partita.features.rows import FeatureColumn
from partita.graph.small import Levels as StoredLevels


def small_column(
    x: Float[Tensor, "N F"],
    small: str,
    *,
    dtype: torch.dtype = torch.float32,
    scale: Float[Tensor, "N"] | None = None,
    dropout: float = 0.0,
) -> FeatureColumn:
    """Rows as ``ingest`` would store them.

    Args:
        x: finite numbers.
        small: ``"int8"`` or ``"int4"``.
        dtype, scale, dropout: of the column.
    """
    rows = x.float().numpy()
    levels = StoredLevels.of_blocks(small, [rows], rows.shape[1])
    return FeatureColumn(torch.from_numpy(levels.stored(rows)), dtype, scale, dropout, Levels.of(levels))
