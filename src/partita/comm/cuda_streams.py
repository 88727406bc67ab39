"""Streams of a device: what threads queue there beside each other, and how one waits for what another has made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partita.comm.device import current
from partita.core.records import TargetEdges

# What target edges hold is made and read on the sampler's stream alone.
_PLAIN = (
    type(None), bool, int, float, str, bytes, range, slice, torch.dtype, torch.device, np.generic, np.ndarray,
    TargetEdges,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Handed:
    """Something for another thread, which the device may still be at work on.

    Attributes:
        item: what was made.
        made: the event after which it is there; ``None`` where there is nothing to wait for.
    """

    item: Any
    made: Any = None


class Streams:
    """Streams of a device, by name. On the CPU, which has none, nothing is done.

    They are made once, so keep this object for a run: PyTorch's allocator keeps the free memory of each stream apart.

    Args:
        device: of the worker.

    Attributes:
        device: as given.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._made: dict[str, torch.cuda.Stream] = {}

    @property
    def _queues(self) -> bool:
        return self.device.type == "cuda"

    @contextmanager
    def on(self, name: str | None) -> Iterator[None]:
        """A block in which this thread queues what it does on one of the streams.

        At the end it waits until the device has done it: what was read on the stream may be let go then.

        Args:
            name: of the stream, taken by one thread at a time; ``None`` for the default stream of the device, which
                is not waited for.
        """
        if not self._queues:
            yield
            return
        with current(self.device):  # first: to leave a stream of another device than the current one opens that too
            if name is None:
                yield
                return
            if name not in self._made:
                self._made[name] = torch.cuda.Stream(self.device)
            stream = self._made[name]
            with torch.cuda.stream(stream):
                try:
                    yield
                finally:
                    stream.synchronize()

    def hand_over(self, item: Any) -> Handed:
        """What this thread has made on its stream, for :meth:`take_over` of another."""
        if not self._queues:
            return Handed(item)
        return Handed(item, torch.cuda.current_stream(self.device).record_event())

    def take_over(self, handed: Handed) -> Any:
        """The item; what this thread's stream does from now on begins after it was made.

        The tensors are memory of the stream that they were made on. Once nobody refers to them that stream may write
        there again, so it is told to wait for this one.

        Raises:
            TypeError: the item holds something of which it is not known what tensors it has.
        """
        if handed.made is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(handed.made)
            for tensor in device_tensors(handed.item):
                tensor.record_stream(stream)
        return handed.item


def device_tensors(item: Any) -> Iterator[Tensor]:
    """The tensors of a device in an item: in its dataclasses, sequences and mappings, at any depth.

    Raises:
        TypeError: it holds something else than those, tensors, and plain values.
    """
    parts: Any
    if isinstance(item, Tensor):
        if item.is_cuda:
            yield item
        return
    if is_dataclass(item) and not isinstance(item, type):
        parts = [getattr(item, field.name) for field in fields(item)]
    elif isinstance(item, Mapping):
        parts = item.values()
    elif isinstance(item, list | tuple):
        parts = item
    elif isinstance(item, _PLAIN):
        return
    else:
        raise TypeError(f"{type(item).__name__}: what passes between streams must be a dataclass, to find its tensors")
    for part in parts:
        yield from device_tensors(part)
