"""Names for what Partita does in the traces of PyTorch's profiler."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

PREFIX = "partita::"
"""What all names begin with, as those of PyTorch's own operations begin with ``aten::``."""


def profiled() -> bool:
    """Whether :mod:`torch.profiler` is on in this process; costs far less than a microsecond, and imports nothing."""
    # What torch.autograd._profiler_enabled() says is true only of the thread that has begun to profile.
    profiler = sys.modules.get("torch.autograd.profiler")
    return profiler is not None and profiler._is_profiler_enabled


def named(name: str) -> AbstractContextManager[object]:
    """A block that a profiler shows as ``partita::`` and the name; without one, nothing."""
    if not profiled():
        return nullcontext()
    from torch.autograd.profiler import record_function

    block: AbstractContextManager[object] = record_function(PREFIX + name)
    return block
