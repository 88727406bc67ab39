"""Training steps whose tensors are on a device, which is simulated: the picks and gradients are those of the host."""

from __future__ import annotations

from collections.abc import Iterator

import device_steps
import pytest
import simulated_device
from device_steps import PARTS, SEEDS, Place, Stores, run_there, typed_step
from gpu_imports import gpu_kernels
from simulated_device import DEVICE, DeviceTensor, launch_on_the_device, simulated
from simulated_streams import found_anywhere
from steps import Step
from torch import Tensor

from partita.comm.cuda_streams import device_tensors
from partita.features.tiers import CacheSettings
from partita.kernels import memory
from partita.parallel.engine import Engine, MiniBatch
from partita.sample import device as device_topology


def held(tensor: Tensor) -> Tensor:
    """What a tensor of the device holds; another one is an error."""
    assert isinstance(tensor, DeviceTensor)
    return tensor.held


SIMULATED = Place(DEVICE, simulated_device.pin, held, simulated)


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module", autouse=True)
def _device() -> Iterator[None]:
    with gpu_kernels(interpreted=True), pytest.MonkeyPatch.context() as patch:
        launch_on_the_device(patch)
        for module in (memory, device_topology):
            patch.setattr(module, "is_pinned", simulated_device.is_pinned)
        patch.setattr(device_topology, "pinned", simulated_device.pin)
        yield


@pytest.mark.parametrize("check", device_steps.STEPS)
def test_a_step_on_a_device_is_that_of_one_process(stores, check) -> None:
    check(SIMULATED, stores)


def all_tensors_are_found(step: Step, strategy: str) -> None:
    """Tensors of a batch, as it is sampled and as it is loaded, are those that are listed."""
    loaded: list[MiniBatch] = []
    with pytest.MonkeyPatch.context() as patch:
        load = Engine.load
        patch.setattr(Engine, "load", lambda self, batch: loaded.append(load(self, batch)) or loaded[-1])
        found = run_there(SIMULATED, step, strategy, 3, rows_in="pinned")
    assert len(loaded) == 3
    for batch in [*found.batches, *loaded]:
        listed = {id(tensor) for tensor in device_tensors(batch)}
        assert listed == {id(tensor) for tensor in found_anywhere(batch) if isinstance(tensor, DeviceTensor)}
        assert len(listed) > 8


@pytest.mark.parametrize(
    ("kind", "strategy", "cached"),
    [("sage", "gdp", False), ("gat", "gdp", True), ("sage", "nfp", True), ("gat", "snp", False),
     ("sage", "dnp", True), ("gat", "gsplit", True)],
)  # fmt: skip
def test_all_tensors_of_a_batch_are_found(stores, kind, strategy, cached) -> None:
    cache = CacheSettings(1500, layout="partitioned") if cached else CacheSettings()
    step = Step(stores.plain, kind, parts=PARTS, seeds=SEEDS, cache=cache, input_dropout=0.2)
    all_tensors_are_found(step, strategy)


def test_all_tensors_of_a_typed_batch_are_found(stores) -> None:
    all_tensors_are_found(typed_step(stores, "rgcn", cache=CacheSettings(600), input_dropout=0.2), "gsplit")
