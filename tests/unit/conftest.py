"""Fixtures of unit tests."""

from __future__ import annotations

import pytest
from torch._C._profiler import _ExperimentalConfig


@pytest.fixture
def all_threads() -> _ExperimentalConfig:
    """Lets PyTorch's profiler record all threads. Skips the test where it cannot."""
    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        pytest.skip("the profiler of this PyTorch does not record all threads")
