"""The device that a worker computes on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from partita.core.errors import ConfigError


def choose(device: torch.device | str) -> torch.device:
    """What is meant by the name of a device: ``"auto"`` is ``cuda`` where that can be used, else ``cpu``.

    Raises:
        ConfigError: it cannot be used here.
    """
    if device == "auto":
        device = "cpu" if _missing() else "cuda"
    device = torch.device(device)
    if device.type == "cuda" and (missing := _missing()):
        what, fix = missing
        raise ConfigError(what, where="device", fix=fix)
    return device


def take(device: torch.device | str, worker: int) -> torch.device:
    """The device of the worker at position ``worker`` of its host; it becomes PyTorch's current one.

    Every worker takes one of its own. Where there are more workers than devices, they share them in turn.

    Raises:
        ConfigError: it cannot be used here.
    """
    device = choose(device)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if device.index is None:
            device = torch.device("cuda", worker % count)
        elif device.index >= count:
            raise ConfigError(f"there is no device {device}, only {count}", where="device", fix="Count from 0")
        torch.cuda.set_device(device)
    return device


def sharers(device: torch.device, workers: int) -> int:
    """How many of a host's workers take the same device, at most."""
    return 1 if device.type != "cuda" else -(-workers // torch.cuda.device_count())


def free_bytes(device: torch.device) -> int:
    """Memory of a device that nobody has taken."""
    return torch.cuda.mem_get_info(device)[0]


def current(device: torch.device) -> AbstractContextManager[object]:
    """A block in which a device is PyTorch's current one on this thread: each thread begins with the first.

    What pins memory would else open that one too, and take some of its memory.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def to_host(number: Tensor) -> Callable[[], float]:
    """Have a number of a device copied to the host; the call waits for what the device had to do until now, no more."""
    if number.device.type != "cuda":
        return lambda: float(number)
    copy = torch.empty_like(number, device="cpu", pin_memory=True)
    copy.copy_(number, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def wait() -> float:
        copied.synchronize()
        return float(copy)

    return wait


def _missing() -> tuple[str, str] | None:
    """What a CUDA device needs and is not there, and what to do about it."""
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        hint = "Use device cpu" if built else "Use device cpu, or install a PyTorch that is built with CUDA"
        return "there is no CUDA device", hint
    if importlib.util.find_spec("triton") is None:
        return "a CUDA device needs triton, which is not installed", "pip install triton, or use device cpu"
    return None
