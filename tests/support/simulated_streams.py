"""Streams of the simulated device, which runs everything at once but notes what a real one might do too early.

Every operation is noted with the stream that its thread queued it on. What is a mistake on a real device is kept in
``problems``:

- a tensor is used on a stream that neither made it, nor waits for the stream that did, nor was told by the host that
  it is there;
- memory is given back while another stream than the one that it belongs to may still use it, and the allocator was not
  told (``record_stream``).

What the host reads (``tolist()``, a copy to the CPU) it waits for, and so for all that its stream has done before. A
copy from the host to the device is waited for as well; kernels whose results vary in size are not taken to be.
"""

from __future__ import annotations

import gc
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import simulated_device
import torch
from simulated_device import DeviceTensor
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from partita.comm.cuda_streams import Streams

Clock = dict["SimulatedStream", int]


@dataclass
class _Memory:
    """What is known of the memory of some tensors.

    Attributes:
        there: as long as it is in use.
        home: the stream that it was allocated on.
        written: when it was written last, on which stream; ``None``: it is there.
        used: when it was used last on each stream.
        told: streams that the allocator knows of.
    """

    there: StorageWeakRef
    home: SimulatedStream
    written: tuple[SimulatedStream, int] | None
    used: Clock = field(default_factory=dict)
    told: set[SimulatedStream] = field(default_factory=set)


class SimulatedStream:
    """A stream: counts what is queued, and knows how far every other one is when its next operation begins."""

    def __init__(self, checker: Checker, name: str) -> None:
        self.checker, self.name = checker, name
        self.time = 0
        self.after: Clock = {}

    def record_event(self) -> Clock:
        with self.checker.acting():
            return {**self.after, self: self.time}

    def wait_event(self, event: Clock) -> None:
        with self.checker.acting():
            self.checker.calls.append(f"{self.name} waits")
            for stream, time in event.items():
                self.after[stream] = max(time, self.after.get(stream, 0))

    def synchronize(self) -> None:
        with self.checker.acting():
            self.checker.calls.append(f"{self.name} is done")
            self.checker.host_waits_for(self)

    def told_of(self, tensor: Tensor) -> None:
        with self.checker.acting():
            self.checker.calls.append(f"{self.name} uses {tuple(tensor.shape)}")
            memory = self.checker.memory_of(tensor)
            if memory is not None:
                memory.told.add(self)


class Checker:
    """Notes what happens on the streams.

    Attributes:
        default: the stream of threads that took none.
        calls: what was done with streams, in words.
        problems: see the module.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._memory: dict[int, _Memory] = {}
        self._done: Clock = {}
        self._taken = threading.local()
        self.calls: list[str] = []
        self.problems: list[str] = []
        self._count = 0
        self.default = SimulatedStream(self, "default")

    @property
    def current(self) -> SimulatedStream:
        return getattr(self._taken, "stream", self.default)

    def make(self, device: object) -> SimulatedStream:
        with self._lock:
            self._count += 1
            self.calls.append(f"stream {self._count}")
            return SimulatedStream(self, str(self._count))

    @contextmanager
    def take(self, stream: SimulatedStream) -> Iterator[None]:
        before = self.current
        self._taken.stream = stream
        try:
            yield
        finally:
            self._taken.stream = before

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Something is about to happen: first see what memory was given back before."""
        with self._lock:
            for key in [key for key, memory in self._memory.items() if memory.there.expired()]:
                self._freed(self._memory.pop(key))
            yield

    def memory_of(self, tensor: Tensor) -> _Memory | None:
        assert isinstance(tensor, DeviceTensor)
        return self._memory.get(tensor.held.untyped_storage()._cdata)

    def host_waits_for(self, stream: SimulatedStream) -> None:
        for other, time in {**stream.after, stream: stream.time}.items():
            self._done[other] = max(time, self._done.get(other, 0))

    def ran(self, name: str, used: list[Tensor], written: list[Tensor], made: list[Tensor], *, there: bool) -> None:
        """An operation was queued.

        Args:
            name: of the operation.
            used: all tensors of the device that it takes.
            written: those of them that it changes.
            made: what it gives; the memory may be that of what it takes.
            there: what it makes is a copy from the host.
        """
        with self.acting():
            stream = self.current
            stream.time += 1
            for tensor in used:
                if (memory := self.memory_of(tensor)) is not None:
                    if memory.written is not None and not self._passed(*memory.written, stream):
                        maker = memory.written[0].name
                        self.problems.append(f"{name} on {stream.name} does not wait for what {maker} makes")
                    memory.used[stream] = stream.time
            for tensor in written:
                if (memory := self.memory_of(tensor)) is not None:
                    memory.written = (stream, stream.time)
            for tensor in made:
                if self.memory_of(tensor) is None and isinstance(tensor, DeviceTensor):
                    storage = tensor.held.untyped_storage()
                    at = None if there else (stream, stream.time)
                    self._memory[storage._cdata] = _Memory(StorageWeakRef(storage), stream, at)

    def launched(self, name: str, arguments: list[Tensor]) -> None:
        """A kernel was queued. What it writes is taken to be what was allocated on its stream."""
        with self._lock:
            mine = [a for a in arguments if (m := self.memory_of(a)) is not None and m.home is self.current]
            self.ran(name, arguments, mine, [], there=False)

    def read(self, name: str, tensor: Tensor) -> None:
        """The host reads a tensor."""
        with self._lock:
            self.ran(name, [tensor], [], [], there=False)
            self.host_waits_for(self.current)

    def _passed(self, maker: SimulatedStream, time: int, on: SimulatedStream) -> bool:
        return maker is on or max(on.after.get(maker, 0), self._done.get(maker, 0)) >= time

    def _freed(self, memory: _Memory) -> None:
        for stream, time in memory.used.items():
            if stream not in memory.told and not self._passed(stream, time, memory.home):
                self.problems.append(f"memory of {memory.home.name} is given back while {stream.name} uses it")


@contextmanager
def checked_streams() -> Iterator[Checker]:
    """:class:`Streams` of the simulated device queue there; what goes wrong is in the checker's ``problems``."""
    checker = Checker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated_device, "watcher", checker)
        patch.setattr(Streams, "_queues", property(lambda self: self.device == simulated_device.DEVICE))
        patch.setattr(torch.cuda, "Stream", checker.make)
        patch.setattr(torch.cuda, "stream", checker.take)
        patch.setattr(torch.cuda, "current_stream", lambda device: checker.current)
        yield checker


def found_anywhere(item: Any) -> list[Tensor]:
    """All tensors that an object leads to, found as Python's garbage collector does, whatever holds them."""

    seen: dict[int, Any] = {}
    left = [item]
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor):
            continue
        left += (value.__closure__ or ()) if isinstance(value, types.FunctionType) else gc.get_referents(value)
    return [value for value in seen.values() if isinstance(value, Tensor)]
