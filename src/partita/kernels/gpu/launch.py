"""How the kernels of a CUDA device are started, there or in Triton's interpreter.

Triton reads ``TRITON_INTERPRET`` when a kernel is decorated, that is when the modules of this folder are imported.
Kernels of the interpreter take CPU tensors (it copies those of a device to the host and back) and run as slow Python.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
"""Elements per program where every element is worked on by itself."""

LARGEST = tl.standard._elementwise_max
"""The larger of two, for ``tl.reduce``. The interpreter knows it, and reduces in numpy instead of one by one.

``tl.max`` and its like are kernels themselves, decorated when triton is imported. Where another library imported it
before ``TRITON_INTERPRET`` was set, the interpreter cannot call them; a combining function it need not call.
"""
SUM = tl.standard._sum_combine
"""As :data:`LARGEST`, the sum of two."""


@triton.jit
def _probe(x):
    return x


INTERPRETED = not isinstance(_probe, triton.JITFunction)
"""Whether the kernels of this import run in the interpreter."""

FUSION = False
"""Whether a product and a sum may be rounded as one. Not so: sums equal the reference's wherever their order does,
and kernels that wait for memory gain nothing by it."""

_ONE_AT_A_TIME = threading.Lock()  # the interpreter keeps its place in the grid in a global


def blocks(count: int, size: int) -> int:
    """Programs that ``count`` elements need, ``size`` each."""
    return -(-count // size)


def power_of_two(n: int) -> int:
    """The smallest that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def signed(key: int) -> int:
    """The same 64 bits as a signed integer, so that every key has one type."""
    return key - (1 << 64) if key >> 63 else key


def launch(kernel, grid: tuple[int, ...], like: Tensor, *args, num_warps: int = 4, **constants) -> None:
    """Run ``kernel`` on the device of ``like``; nothing if the grid is empty.

    Triton launches on the current device, whatever the tensors are on.
    """
    if 0 in grid:
        return
    if INTERPRETED:
        with _ONE_AT_A_TIME:
            kernel[grid](*args, **constants)
        return
    here: AbstractContextManager = nullcontext()
    if like.device.index != torch.cuda.current_device():
        here = torch.cuda.device(like.device)
    with here:
        kernel[grid](*args, num_warps=num_warps, enable_fp_fusion=FUSION, **constants)


def launch_each(kernel, num: int, like: Tensor, *args) -> None:
    """Run a kernel that works on ``num`` elements, its last argument, each by itself."""
    launch(kernel, (blocks(num, BLOCK),), like, *args, num, BLOCK=BLOCK)
