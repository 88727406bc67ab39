"""Tensors as the arrays that compiled loops take."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def bits(x: Tensor) -> np.ndarray:
    """float16 as uint16 and bfloat16 as int16, which numba does not have on the CPU; anything else as it is."""
    if x.dtype == torch.float16:
        return x.view(torch.int16).numpy().view(np.uint16)
    return x.view(torch.int16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def or_empty(values: Tensor | None, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array, or an empty one of the same type: one compiled version serves both."""
    return np.empty(shape, dtype) if values is None else values.numpy()
