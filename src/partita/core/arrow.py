"""Arrays of pyarrow as NumPy's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def as_numpy(array: pa.Array) -> np.ndarray:
    """The values of an array, without a copy where that can be; nulls become what pyarrow makes of them.

    pyarrow's own conversion imports pandas where that is installed, which takes longer than to read a small graph.
    """
    import pyarrow as pa  # which no help text waits for

    kind = array.type
    if array.null_count or not len(array):
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(kind):  # a bit each
        return np.from_dlpack(array.cast(pa.uint8())).view(np.bool_)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.from_dlpack(array)
    return array.to_numpy(zero_copy_only=False)
