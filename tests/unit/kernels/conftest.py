"""What the kernel tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpu_imports import gpu_kernels

from partita import kernels


def _both(work):
    with kernels.use("cpu"):
        compiled = work()
    with kernels.use("reference"):
        return compiled, work()


@pytest.fixture(scope="session")
def both():
    """A function that gives the result of ``work()`` with the compiled kernels and with the reference."""
    return _both


@pytest.fixture(scope="module")
def interpreted() -> Iterator[None]:
    """The GPU kernels in Triton's interpreter, until the module's tests are done; skipped without triton."""
    with gpu_kernels(interpreted=True):
        yield
