"""When the GPU kernels run, and what is said where they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from gpu_imports import gpu_kernels

from partita import kernels
from partita.kernels.dispatch import implementation

ON_A_DEVICE = SimpleNamespace(is_cuda=True)


def test_tensors_on_a_device_find_its_kernels(interpreted):
    for name in ("cpu", "reference"):
        with kernels.use(name):
            assert implementation(ON_A_DEVICE).__name__ == "partita.kernels.gpu"
            assert implementation(torch.zeros(1)).__name__ == f"partita.kernels.{name}"
    with kernels.use("gpu"):
        assert implementation(torch.zeros(1)).__name__ == "partita.kernels.gpu"


def test_every_kernel_of_the_reference_that_takes_a_device_is_there(interpreted):
    gpu, cpu = implementation(ON_A_DEVICE), implementation(torch.zeros(1))
    for name in (
        "sample_neighbors", "relabel", "gcn_coefficients", "gather_rows", "aggregate", "aggregate_weight_grad",
        "segment_max", "segment_max_backward", "transpose", "dropout", "edge_dropout", "count_distinct",
        "keyed_permutation", "norm_relu_dropout", "norm_relu_dropout_backward", "pair_edges",
        "expand_rows",
    ):  # fmt: skip
        assert list(getattr(gpu, name).__annotations__) == list(getattr(cpu, name).__annotations__)


def test_a_device_without_the_interpreter_takes_no_cpu_tensors():
    with gpu_kernels(interpreted=False), pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        kernels.use("gpu")


def test_importing_needs_neither_triton_nor_a_device():
    code = """
import sys
import torch
import partita.kernels as kernels
assert kernels.count_distinct(torch.tensor([1, 1, 2]), 3) == 2
assert "triton" not in sys.modules and not torch.cuda.is_initialized()
sys.modules["triton"] = None  # as if it were not installed
try:
    kernels.use("gpu")
except ImportError as error:
    assert "need triton" in str(error), error
else:
    raise AssertionError("triton was there")
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
