"""What the kernel tests share."""

from __future__ import annotations

import pytest

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
