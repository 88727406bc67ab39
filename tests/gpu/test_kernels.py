"""The GPU kernels on a device, against the reference: the cases that also run in Triton's interpreter."""

from __future__ import annotations

import gpu_cases
import pytest


@pytest.mark.parametrize("check", [*gpu_cases.DRAWS, *gpu_cases.SAMPLES, *gpu_cases.ROWS, *gpu_cases.HOST_COLUMNS])
def test_a_device_gives_what_the_reference_gives(device, check):
    check(device)
