"""Tensors as the arrays that compiled loops take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partita.kernels import threads


def run(loop: Callable[..., object], bounds: list[int], *arguments: Any) -> None:
    """Call ``loop(*arguments, low, high)`` for ranges of rows, side by side; tensors come to it as arrays."""
    given = [value.numpy() if isinstance(value, Tensor) else value for value in arguments]
    threads.run(lambda low, high: loop(*given, low, high), bounds)


def bits(x: Tensor) -> np.ndarray:
    """float16 as uint16 and bfloat16 as int16, which numba does not have on the CPU; anything else as it is."""
    if x.dtype == torch.float16:
        return x.view(torch.int16).numpy().view(np.uint16)
    return x.view(torch.int16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def or_empty(values: Tensor | None, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array, or an empty one of the same type: one compiled version serves both."""
    return np.empty(shape, dtype) if values is None else values.numpy()
