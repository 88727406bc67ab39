"""Features stored as small integers: what they stand for, and how they are made of numbers.

Column c of a row is ``q * scale[c] + offset[c]``, where q is an integer of 0 to 255 (int8) or 0 to 15 (int4). An int8
column holds q - 128; an int4 column two values a byte, the first in the low half, and half a byte of zeros at the end
of a row of an odd number of columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Integer, Shaped

BITS = {"int8": 8, "int4": 4}
"""Names of dtypes of small rows -> bits of a value."""
STORED = {"|i1": "int8", "|u1": "int4"}
"""Dtype of the rows in a store, as numpy spells it -> name."""
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Levels:
    """What the small integers of a column of features stand for.

    Attributes:
        dtype: ``"int8"`` or ``"int4"``.
        scale: float32 (F), of each column; 0 of a constant one.
        offset: float32 (F), of each column: its least value.
    """

    dtype: str
    scale: Float32[np.ndarray, "F"]
    offset: Float32[np.ndarray, "F"]

    @classmethod
    def between(cls, dtype: str, low: Float32[np.ndarray, "F"], high: Float32[np.ndarray, "F"]) -> Levels:
        """Equal steps from the least to the largest value of each column, both finite.

        Raises:
            OverflowError: a difference is no float32; its argument is the number of the column.
        """
        spread = high.astype(np.float64) - low
        if (spread > _LARGEST).any():
            raise OverflowError(int(np.argmax(spread > _LARGEST)))
        return cls(dtype, (spread / (2 ** BITS[dtype] - 1)).astype(np.float32), low.astype(np.float32))

    @classmethod
    def of_blocks(cls, dtype: str, blocks: Iterable[Float[np.ndarray, "n F"]], width: int) -> Levels:
        """Those of rows that come in blocks; without rows all are 0. Raises as :meth:`between`."""
        low, high = np.full(width, np.inf, np.float32), np.full(width, -np.inf, np.float32)
        for rows in blocks:
            low, high = (
                np.minimum(low, rows.min(axis=0, initial=np.inf)),
                np.maximum(high, rows.max(axis=0, initial=-np.inf)),
            )
        empty = low > high
        return cls.between(dtype, np.where(empty, 0, low), np.where(empty, 0, high))

    @property
    def width(self) -> int:
        """F."""
        return len(self.scale)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Of the rows in a store."""
        return np.dtype(next(stored for stored, name in STORED.items() if name == self.dtype))

    @property
    def row_bytes(self) -> int:
        """Of a row in a store."""
        return -(-self.width * BITS[self.dtype] // 8)

    def as_column(self) -> Float32[np.ndarray, "2 F"]:
        """As a store keeps them: scales, then offsets."""
        return np.stack([self.scale, self.offset])

    def stored(self, rows: Float[np.ndarray, "n F"]) -> Shaped[np.ndarray, "n B"]:
        """Rows of small integers, each value rounded to the nearest step; what lies outside goes to the ends."""
        step = np.where(self.scale > 0, self.scale.astype(np.float64), 1.0)
        steps = np.rint((rows.astype(np.float64) - self.offset) / step).clip(0, 2 ** BITS[self.dtype] - 1)
        small = np.where(self.scale > 0, steps, 0).astype(np.uint8)
        if self.dtype == "int8":
            return (small ^ np.uint8(128)).view(np.int8)
        if self.width % 2:
            small = np.pad(small, ((0, 0), (0, 1)))
        return small[:, ::2] | (small[:, 1::2] << np.uint8(4))

    def values(self, stored: Integer[np.ndarray, "n B"]) -> Float32[np.ndarray, "n F"]:
        """What rows of small integers stand for."""
        if self.dtype == "int8":
            small = stored.view(np.uint8) ^ np.uint8(128)
        else:
            pairs = np.stack([stored & np.uint8(15), stored >> np.uint8(4)], axis=2)
            small = pairs.reshape(len(stored), -1 if stored.size else 2 * stored.shape[1])[:, : self.width]
        return small.astype(np.float32) * self.scale + self.offset


class SmallRows:
    """Rows of small integers, read as the float32 numbers that they stand for, like an array of these.

    Args:
        stored: int8 or uint8 (N, B).
        levels: what they stand for.

    Attributes:
        stored, levels: as given.
        dtype: float32.
        shape: (N, F).
    """

    ndim = 2
    dtype = np.dtype(np.float32)
    itemsize = 4

    def __init__(self, stored: Shaped[np.ndarray, "N B"], levels: Levels) -> None:
        self.stored, self.levels = stored, levels
        self.shape = (len(stored), levels.width)

    @property
    def size(self) -> int:
        """N times F."""
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Float32[np.ndarray, "..."]:
        of_rows, *of_columns = key if isinstance(key, tuple) else (key,)
        rows = self.stored[of_rows]
        found = self.levels.values(rows) if rows.ndim == 2 else self.levels.values(rows[None])[0]
        return found[(..., *of_columns)] if of_columns else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Shaped[np.ndarray, "N F"]:
        if copy is False:
            raise ValueError("rows of small integers are no array of numbers without a copy")
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def astype(self, dtype: Any) -> Shaped[np.ndarray, "N F"]:
        """All rows, in memory, as another dtype."""
        return self[:].astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"SmallRows({self.shape[0]:,} rows of {self.shape[1]:,} columns, {self.levels.dtype})"
