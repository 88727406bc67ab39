"""Features of edges on their way from a source into a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from partita.core.errors import InputError


class EdgeFeatures:
    """Features of edges in the order of the source, in a file, until it is known in which rows the edges are.

    Args:
        path: of the file, which is made.
        dtype: of the features.
        allow_nan: features need not be finite.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], *, allow_nan: bool) -> None:
        self._path, self._dtype, self._allow_nan = path, dtype, allow_nan
        self._width = self._count = 0

    @property
    def width(self) -> int:
        """A; 0 before the first rows."""
        return self._width

    def put(self, rows: Shaped[np.ndarray, "n A"], where: Callable[[int], str]) -> None:
        """Those of the next edges.

        Raises:
            InputError: a value is not finite or does not fit the dtype, or there are not as many columns as
                before.
        """
        if self._width not in (0, rows.shape[1]):
            what = f"the edge has {rows.shape[1]} features, not {self._width}"
            raise InputError(what, where=where(0), fix="Give every edge the same number of features")
        self._width = rows.shape[1]
        with np.errstate(over="ignore"):
            kept = rows.astype(self._dtype)
        if not self._allow_nan and not np.isfinite(kept).all():
            row, column = (int(at) for at in np.argwhere(~np.isfinite(kept))[0])
            value = rows[row, column]
            fits = np.isfinite(value)
            what = f"feature {column} of the edge is {value}, which "
            what += f"does not fit {self._dtype.name}" if fits else "is not finite"
            fix = "Use feature_dtype=float32" if fits else "Correct it, or give --allow-nan"
            raise InputError(what, where=where(row), fix=fix)
        with self._path.open("ab") as file:
            kept.tofile(file)
        self._count += len(rows)

    def rows(self) -> Float[np.ndarray, "n A"]:
        """All of them, mapped into memory."""
        if not self._count:
            return np.empty((0, max(1, self._width)), self._dtype)
        return np.memmap(self._path, self._dtype, "r", shape=(self._count, self._width))
