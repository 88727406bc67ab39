"""The GPU kernels of sampling in Triton's interpreter, against the reference."""

from __future__ import annotations

import gpu_cases
import pytest

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("check", gpu_cases.SAMPLES)
def test_gpu_is_the_reference(check):
    check("cpu")
