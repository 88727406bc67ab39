"""Derived columns from arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jaxtyping import Integer
from numpy import ndarray

from partita.graph.derived import DerivedColumns
from partita.graph.metadata import StoreMetadata


def add_columns(
    path: str | os.PathLike[str], columns: Mapping[str, Integer[ndarray, "_"]], **notes: Any
) -> StoreMetadata:
    """Add derived columns, int64 (N) or uint32 (E) by name, to a store, or replace them; returns its new metadata.

    Raises:
        ValueError: an unknown name, or an array of another length or dtype.
    """
    with DerivedColumns(path) as adding:
        for name, array in columns.items():
            column = adding.allocate(name)
            if (array.dtype, array.shape) != (column.dtype, column.shape):
                raise ValueError(f"{name}: {array.dtype} {array.shape} is not {column.dtype} {column.shape}")
            column[:] = array
        return adding.finish(**notes)
