"""What PyTorch's profiler shows of the kernels."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from partita import kernels
from partita.core import profiling
from partita.kernels import dispatch

INDPTR, INDICES = torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0], dtype=torch.int32)
NODES = torch.arange(3)


def some_of_each_kind() -> None:
    kernels.sample_neighbors(INDPTR, INDICES, NODES, NODES, 1, 1)
    kernels.gather_rows(torch.ones(3, 2), INDICES)
    kernels.aggregate(torch.ones(3, 2), INDPTR, INDICES)
    kernels.arrival_times(INDPTR, NODES, NODES, 1, 2)
    kernels.random_walks(INDPTR, INDICES, NODES, NODES, 1, walks=1, length=2)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_kernels_have_names_in_a_profile_of_all_threads(name, all_threads) -> None:
    with kernels.use(name):
        some_of_each_kind()  # nothing of it is in the profile
        with profile(activities=[ProfilerActivity.CPU], experimental_config=all_threads) as found:
            assert dispatch.implementation().__name__ == f"partita.kernels.{name}"
            some_of_each_kind()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(some_of_each_kind).result()
        names = Counter(event.name for event in found.events() if event.name.startswith(profiling.PREFIX))
    shown = ("sample_neighbors", "gather_rows", "aggregate", "arrival_times", "random_walks")
    assert names == {f"partita::{kernel}": 2 for kernel in shown}


def test_without_a_profiler_nothing_is_wrapped(monkeypatch) -> None:
    with kernels.use("reference"):
        assert dispatch.implementation() is sys.modules["partita.kernels.reference"]
        with profile(activities=[ProfilerActivity.CPU]):
            assert dispatch.implementation() is not sys.modules["partita.kernels.reference"]
        assert dispatch.implementation() is sys.modules["partita.kernels.reference"]
    monkeypatch.delitem(sys.modules, "torch.autograd.profiler")
    assert not profiling.profiled()


def test_an_error_of_a_kernel_comes_through() -> None:
    twice = torch.tensor([1, 1])
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(ValueError, match="twice"):
        kernels.relabel(twice, INDICES, kernels.Relabeller(3))
