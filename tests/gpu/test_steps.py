"""Training steps on a device against one process on the host: the cases that a simulated device also runs."""

from __future__ import annotations

from functools import partial

import device_steps
import pytest
import torch
from device_steps import Place, Stores
from torch import Tensor


def copied(tensor: Tensor) -> Tensor:
    """A copy of a tensor in host memory; one that is there already is an error."""
    assert tensor.is_cuda
    return tensor.cpu()


BACKWARD_HERE = partial(torch.autograd.set_multithreading_enabled, False)
"""Workers are threads here. PyTorch has one thread for all backward passes of a device, which exchanges would block."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


@pytest.mark.parametrize("check", device_steps.STEPS)
def test_a_step_on_a_device_is_that_of_one_process(stores, device, check) -> None:
    check(Place(torch.device(device, 0), Tensor.pin_memory, copied, BACKWARD_HERE), stores)
