"""What workers exchange: rows, sums, and JSON values; with exact byte counts."""

from __future__ import annotations

import json
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64, Shaped, UInt8
from torch import Tensor
from torch.autograd.function import once_differentiable

from partita.comm.errors import peer_errors
from partita.comm.meter import Meter
from partita.comm.pulse import Pulse
from partita.core.mesh import Mesh

CPU = torch.device("cpu")

BUCKET_BYTES = 25 * 2**20
"""Tensors are summed in buckets of about so many bytes."""


def sum_bytes(num_bytes: int, size: int) -> int:
    """Bytes that each of ``size`` workers sends to sum ``num_bytes`` bytes over all: ``ceil(2 (W - 1) / W x bytes)``.

    It is what the ring algorithm sends (a reduce-scatter and an all-gather, each of (W - 1) / W of the payload).
    """
    return -(-2 * (size - 1) * num_bytes // size)


@dataclass(frozen=True, slots=True)
class Communicator:
    """A way for the exchanges of one thread at a time.

    Attributes:
        process_group: of ``torch.distributed``; ``None`` for a worker alone.
        turn: the backend is called in such a block; see :class:`partita.comm.collective_order.CollectiveOrder`.
    """

    process_group: dist.ProcessGroup | None
    turn: Callable[[], AbstractContextManager[None]] = nullcontext


_taken = threading.local()


@contextmanager
def communicator(number: int) -> Iterator[None]:
    """Within the block this thread exchanges by another communicator of its groups; without, by the first one.

    Args:
        number: of the communicator, modulo those that a group has. All workers do the same exchanges, in the same
            order, by each communicator.
    """
    before = getattr(_taken, "number", 0)
    _taken.number = number
    try:
        yield
    finally:
        _taken.number = before


class Group:
    """Some workers in a fixed order.

    All methods are collective: every worker of the group calls them in the same order, also with empty tensors.
    Several threads of a process need a group each, or a :func:`communicator` each. A group of one worker sends
    nothing and returns its inputs.

    Args:
        mesh: who this worker is.
        axis: along which this is its group.
        meter: where sent bytes are counted.
        communicators: ways to exchange; at least one.
        wire: device that the backend sends from; other tensors are copied to it and back.
        checked: compare shapes and counts with the peers before every exchange (costs one more message each, which
            is not counted); a mismatch is an error instead of garbage or a hang.
        pulse: where exchanges show that this worker is alive.

    Attributes:
        workers: ranks of all members among all workers, in group order.
        rank: own position in the group.
        size: number of members.
    """

    def __init__(
        self,
        mesh: Mesh,
        axis: str,
        meter: Meter,
        communicators: Sequence[Communicator] = (Communicator(None),),
        *,
        wire: torch.device = CPU,
        checked: bool = False,
        pulse: Pulse | None = None,
    ) -> None:
        self.workers = mesh.own_members(axis)
        self.rank, self.size = self.workers.index(mesh.rank), len(self.workers)
        self.meter = meter
        self._links = mesh.links(self.workers)
        self._communicators = communicators
        self._wire = wire
        self._checked = checked
        self._pulse = pulse or Pulse()

    @classmethod
    def alone(cls) -> Group:
        """A group of one worker, which needs no ``torch.distributed``."""
        return Group(Mesh.of(0, 1, 1), "all", Meter())

    @property
    def occupies(self) -> bool:
        """Whether an exchange occupies the device until all workers have come to it (NCCL)."""
        return self.size > 1 and self._wire.type != "cpu"

    @property
    def _communicator(self) -> Communicator:
        return self._communicators[getattr(_taken, "number", 0) % len(self._communicators)]

    def exchange_counts(self, counts: Int64[Tensor, "W"]) -> Int64[Tensor, "W"]:
        """Tell every worker how many rows it will get.

        Args:
            counts: ``counts[w]`` rows will go to worker w.

        Returns:
            How many rows come from each worker. Counted as 8 bytes of metadata per other worker.
        """
        if self.size == 1:
            return counts
        ones = [1] * self.size
        self._count("metadata", ones, counts.element_size())
        return self._swap(counts, ones, ones)

    def exchange(
        self, rows: Shaped[Tensor, "n *shape"], send: Sequence[int], receive: Sequence[int], kind: str
    ) -> Shaped[Tensor, "m *shape"]:
        """Send rows of any type, without a gradient.

        Args:
            rows: sorted by receiver. The shape of a row and the type must be the same on all workers.
            send: number of rows for each worker, in group order; their sum is n.
            receive: number of rows from each worker; their sum is m.
            kind: what the rows are, one of :data:`partita.comm.meter.KINDS`.

        Returns:
            The received rows, sorted by sender.

        Raises:
            ValueError: the counts do not fit the rows, or (when checked) those of a peer.
            PeerLost: the exchange failed.
        """
        self._check_counts(rows, send, receive)
        rows = rows.detach()
        if self.size == 1:
            return rows
        if self._checked:
            self._check_peers(f"{kind}: rows of {rows.dtype} {tuple(rows.shape[1:])}", send, receive)
        self._count(kind, send, math.prod(rows.shape[1:]) * rows.element_size())
        begun = time.perf_counter()
        received = self._swap(rows, send, receive)
        self.meter.add_seconds(kind, time.perf_counter() - begun)
        return received

    def exchange_rows(
        self, rows: Float[Tensor, "n F"], send: Sequence[int], receive: Sequence[int], kind: str = "forward"
    ) -> Float[Tensor, "m F"]:
        """:meth:`exchange` with a gradient: backward sends the gradients of the rows to where the rows came from.

        Every worker takes part in backward, whether or not its own rows need a gradient, as long as gradients are
        enabled and what it received is connected to its loss. Backward is counted as kind ``backward``.
        """
        if not torch.is_grad_enabled():
            return self.exchange(rows, send, receive, kind)
        if self.size == 1:
            self._check_counts(rows, send, receive)
            return rows
        if not rows.requires_grad:
            rows = rows.detach().requires_grad_()  # else a worker without weights above would stay away from backward
        return _ExchangeRows.apply(rows, self, tuple(send), tuple(receive), kind)

    def sum_(self, tensors: Sequence[Tensor], kind: str = "gradients") -> None:
        """Sum tensors over all workers, in place: :meth:`begin_sum`, and wait for it."""
        self.begin_sum(tensors, kind)()

    def begin_sum(self, tensors: Sequence[Tensor], kind: str = "gradients") -> Callable[[], None]:
        """Begin to sum tensors over all workers.

        The result is the same to the bit on all workers, and in every repetition with this number of workers.
        Tensors of one type are joined into buckets of :data:`BUCKET_BYTES`. Counted as :func:`sum_bytes` of all
        tensors together, sent to the next worker in group order.

        Args:
            tensors: the same shapes and types on all workers; floating point, int32 or int64.
            kind: what they are, one of :data:`partita.comm.meter.KINDS`.

        Returns:
            Waits for the sums, and puts them in place of what was summed; must be called. Until then the tensors stay
            as they are, and the group may exchange other things.
        """
        if self.size == 1:
            return lambda: None
        if self._checked:
            shapes = "; ".join(f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors)
            self._check_peers(f"{kind}: sum of {shapes}", [0] * self.size, [0] * self.size)
        total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.meter.add(kind, self._links[(self.rank + 1) % self.size], sum_bytes(total, self.size))
        begun = []
        for bucket in _buckets(tensors):
            flat = self._to_wire(torch.cat([tensor.detach().reshape(-1) for tensor in bucket]))
            begun.append((bucket, flat, self._all_reduce(flat)))

        @torch.no_grad()
        def finish() -> None:
            waiting = time.perf_counter()
            for bucket, flat, work in begun:
                if work is not None:
                    with peer_errors(), self._pulse.exchanging():
                        work.wait()
                for tensor, summed in zip(bucket, flat.split([tensor.numel() for tensor in bucket])):
                    tensor.copy_(summed.view(tensor.shape))
            self.meter.add_seconds(kind, time.perf_counter() - waiting)

        return finish

    def gather(self, value: Any) -> list[Any]:
        """Collect one JSON value of each worker on all workers; counted as metadata.

        Returns:
            The values in group order, as JSON gives them back (tuples become lists, keys strings).
        """
        if self.size == 1:
            return [json.loads(json.dumps(value))]
        return [_from_bytes(part) for part in self._bytes_of_all(_to_bytes(value))]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Send a JSON value from one worker to all; counted as metadata.

        Args:
            value: what the source sends; ignored on the other workers.
            source: position of the sender in the group.

        Returns:
            The value, as JSON gives it back.
        """
        if self.size == 1:
            return json.loads(json.dumps(value))
        payload = _to_bytes(value) if self.rank == source else torch.empty(0, dtype=torch.uint8)
        return _from_bytes(self._bytes_of_all(payload)[source])

    def _all_reduce(self, flat: Tensor) -> dist.Work | None:
        """Begin to sum a tensor in place; where it goes on, what to wait for."""
        communicator = self._communicator
        with peer_errors(), self._pulse.exchanging(), communicator.turn():
            # What occupies the device must not run beside other exchanges in an order that nobody has set.
            return dist.all_reduce(flat, group=communicator.process_group, async_op=not self.occupies)

    def _bytes_of_all(self, payload: UInt8[Tensor, "n"]) -> Sequence[UInt8[Tensor, "_"]]:
        """Send the same to every worker; returns what each has sent."""
        send = [len(payload)] * self.size
        receive = self.exchange_counts(torch.tensor(send)).tolist()
        return self.exchange(payload.repeat(self.size), send, receive, "metadata").split(receive)

    def _swap(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """The one exchange. Rows travel as bytes, because no backend sends every type."""
        shape = (sum(receive), *rows.shape[1:])
        if math.prod(rows.shape[1:]) == 0:
            return rows.new_empty(shape)
        # The pages of pinned memory are kept by PyTorch, so staging allocates nothing after the first steps.
        staged = self._wire.type == "cpu" and rows.is_cuda
        incoming = torch.empty(shape, dtype=rows.dtype, device=self._wire, pin_memory=staged)
        target, source = _as_bytes(incoming), _as_bytes(self._to_wire(rows.contiguous()))
        communicator = self._communicator
        with peer_errors(), self._pulse.exchanging(), communicator.turn():
            if self._wire.type == "cpu":
                self._pass(target, source, send, receive)
            else:
                dist.all_to_all_single(target, source, list(receive), list(send), group=communicator.process_group)
        return incoming.to(rows.device)

    def _pass(self, target: Tensor, source: Tensor, send: Sequence[int], receive: Sequence[int]) -> None:
        """All-to-all of single messages, all on their way at once.

        Gloo's own all-to-all sends and receives by turns: between two hosts it takes twice the time of the link.
        """
        arriving, leaving = target.split(list(receive)), source.split(list(send))
        process_group = self._communicator.process_group
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        pending = [
            dist.irecv(arriving[peer], src=self.workers[peer], group=process_group)
            for peer in reversed(others)
            if receive[peer]
        ]
        pending += [
            dist.isend(leaving[peer], dst=self.workers[peer], group=process_group) for peer in others if send[peer]
        ]
        arriving[self.rank].copy_(leaving[self.rank])
        for work in pending:
            work.wait()  # type: ignore[union-attr]

    def _to_wire(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == self._wire.type:
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._wire, pin_memory=tensor.is_cuda)
        return copy.copy_(tensor)

    def _check_counts(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> None:
        fit = len(send) == len(receive) == self.size and sum(send) == rows.shape[0]
        if not fit or (self.size == 1 and sum(receive) != sum(send)):
            raise ValueError(
                f"{rows.shape[0]} rows, send {list(send)}, receive {list(receive)} in a group of {self.size}: "
                "one count per worker is needed, and those in 'send' must add up to the rows"
            )

    def _count(self, kind: str, send: Sequence[int], row_bytes: int) -> None:
        for worker, (link, rows) in enumerate(zip(self._links, send)):
            if worker != self.rank:
                self.meter.add(kind, link, rows * row_bytes)

    def _check_peers(self, what: str, send: Sequence[int], receive: Sequence[int]) -> None:
        ones = [1] * self.size
        code = zlib.crc32(what.encode())
        theirs = self._swap(torch.tensor([[count, code] for count in send]), ones, ones).tolist()
        for worker, expected, (count, their_code) in zip(self.workers, receive, theirs):
            me = self.workers[self.rank]
            if their_code != code:
                raise ValueError(f"worker {worker} brings other types, shapes or calls than worker {me}: {what}")
            if count != expected:
                raise ValueError(f"worker {worker} sends {count} rows, but worker {me} expects {expected}")


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, group: Group, send: tuple[int, ...], receive: tuple[int, ...], kind: str
    ) -> Tensor:
        ctx.group, ctx.send, ctx.receive = group, send, receive
        return group.exchange(rows, send, receive, kind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        return ctx.group.exchange(gradient, ctx.receive, ctx.send, "backward"), None, None, None, None


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type and device together, in their order, about :data:`BUCKET_BYTES` each; none that is empty."""
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], int]] = {}
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        key = tensor.dtype, tensor.device
        bucket, filled = open_buckets.pop(key, ([], 0))
        bucket.append(tensor)
        filled += tensor.numel() * tensor.element_size()
        if filled >= BUCKET_BYTES:
            yield bucket
        else:
            open_buckets[key] = bucket, filled
    for bucket, _ in open_buckets.values():
        yield bucket


def _as_bytes(rows: Tensor) -> UInt8[Tensor, "n row_bytes"]:
    """The same memory, of contiguous rows, as bytes."""
    row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
    # Strides of dimensions of length 1 may be anything in a contiguous tensor, which view(dtype) does not take.
    return rows.as_strided((rows.numel(),), (1,)).view(torch.uint8).view(rows.shape[0], row_bytes)


def _to_bytes(value: Any) -> UInt8[Tensor, "n"]:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(payload: UInt8[Tensor, "n"]) -> Any:
    return json.loads(payload.numpy().tobytes())
