"""Features in arrays by name: dense (``x``), or the parts of a sparse matrix by rows (``x_indptr`` and so on)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from partita.core.errors import InputError
from partita.sources.arrays import ArrayFile, Taker

PARTS = ("indptr", "indices", "data", "shape")
_DENSE_BYTES = 8 << 20


class FeatureArrays:
    """The features that begin with one name.

    Args:
        path: of the file, or what stands for it in messages.
        arrays: all of the file.
        name: ``"x"``, or the like.

    Attributes:
        names: of the arrays that are features.
        num_rows: of nodes that have them.
        first: the array that stands for them in messages.

    Raises:
        InputError: parts are missing, or do not fit each other.
    """

    def __init__(self, path: Path, arrays: Mapping[str, ArrayFile], name: str) -> None:
        self._path, self._name = path, name
        self._parts = {part: arrays[f"{name}_{part}"] for part in PARTS if f"{name}_{part}" in arrays}
        self._dense = arrays.get(name)
        if self._dense is not None:
            self.first = self._dense.expect("fiub", 2)
            if self.first.shape[1] == 0:
                raise self.first.fail("has no columns", "Leave the array out")
            self.num_rows = self.first.shape[0]
            self.says = name
        else:
            self.num_rows, self._width = self._sparse_shape()
            self.first = self._parts["data"]
            self.says = f"{name}_shape"

    @staticmethod
    def find(path: Path, arrays: Mapping[str, ArrayFile], name: str) -> FeatureArrays | None:
        """Those of a name, or ``None`` where there are none."""
        there = name in arrays or f"{name}_indptr" in arrays
        return FeatureArrays(path, arrays, name) if there else None

    def blocks(self) -> Iterator[tuple[int, Shaped[np.ndarray, "n F"]]]:
        """Runs of rows with the number of their first."""
        return self._densified() if self._dense is None else self._dense.blocks()

    def _sparse_shape(self) -> tuple[int, int]:
        for part in PARTS:
            if part not in self._parts:
                what = f"has no array '{self._name}_{part}', but the other parts of sparse features"
                raise InputError(
                    what, where=str(self._path), fix=f"Write {', '.join(f'{self._name}_{each}' for each in PARTS)}"
                )
        shape, indptr = self._parts["shape"].expect("iu", 1), self._parts["indptr"].expect("iu", 1)
        values = [int(value) for value in shape.load()] if shape.shape == (2,) else []
        if len(values) != 2 or values[0] < 0 or values[1] < 1:
            raise shape.fail("does not hold the numbers of nodes and of features", "Fix it, or leave the features out")
        if indptr.shape[0] != values[0] + 1:
            raise indptr.fail(f"has {indptr.shape[0]} entries, needs {values[0] + 1}")
        return values[0], values[1]

    def _densified(self) -> Iterator[tuple[int, Shaped[np.ndarray, "n F"]]]:
        width = self._width
        indptr = self._parts["indptr"].load().astype(np.int64)
        indices, data = self._parts["indices"].expect("iu", 1), self._parts["data"].expect("fiub", 1)
        if len(indices) != len(data):
            raise indices.fail(f"has {len(indices)} entries, '{self._name}_data' has {len(data)}")
        if indptr[0] != 0 or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
            raise self._parts["indptr"].fail(f"is not a list of offsets from 0 to {len(data)}, never descending")
        columns = Taker(indices.stream(0, len(data)), indices.dtype)
        values = Taker(data.stream(0, len(data)), data.dtype)
        step = max(1, _DENSE_BYTES // max(1, 4 * width))
        for row in range(0, self.num_rows, step):
            part = indptr[row : row + step + 1]
            size = int(part[-1] - part[0])
            column = columns.take(size).astype(np.int64)
            if size and not 0 <= column.min() <= column.max() < width:
                raise indices.fail(f"holds a column that is not in 0..{width - 1}")
            block = np.zeros((len(part) - 1, width), np.float32)
            rows = np.repeat(np.arange(len(part) - 1), np.diff(part))
            np.add.at(block, (rows, column), values.take(size).astype(np.float32))
            yield row, block
