"""How the steps of a run compute: on how many threads, and how exactly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from partita import kernels
from partita.config import Config


def precision(config: Config, device: torch.device) -> AbstractContextManager[object]:
    """A block in which the arithmetic of the model is done as the settings say."""
    return torch.autocast(device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """A block in which so many CPU threads compute (0: as many as before); afterwards it is as it was."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    kernels.set_threads(torch.get_num_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)
        kernels.set_threads(None)
