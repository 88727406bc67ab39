"""Who a worker is and whom it talks to."""

from __future__ import annotations

import atexit
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from partita.comm.collective_order import CollectiveOrder, MessageChannel
from partita.comm.device import choose, take
from partita.comm.errors import PeerLost, pack_error, peer_errors, unpack_error
from partita.comm.group import CPU, Communicator, Group
from partita.comm.heartbeat import Heartbeat
from partita.comm.meter import Meter
from partita.comm.proof import arrive, connecting, prove, secret_of_environment
from partita.comm.pulse import Pulse
from partita.comm.rendezvous import another, join, meet, number_of, workers_per_host
from partita.core.errors import ConfigError
from partita.core.mesh import AXES, Mesh
from partita.core.options import HEARTBEAT_SECONDS

TIMEOUT = timedelta(minutes=30)
"""How long a worker waits for another one in an exchange. Generous: the end of a worker is noticed by its launcher."""

Value = TypeVar("Value")


class Context:
    """A process as one worker of a run. Close it, or use it in a ``with`` block.

    Make one with :meth:`alone`, :meth:`from_environment` or :meth:`join`.

    Attributes:
        mesh: who this worker is.
        meter: bytes that this worker has sent, through any group.
        pulse: what shows that this worker is alive.
        device: the device that this worker computes on.
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        device: torch.device | None = None,
        purposes: Sequence[str] = ("train",),
        timeout: timedelta = TIMEOUT,
        checked: bool = False,
        ordered: bool | None = None,
        owner: bool = False,
        pulse: Pulse | None = None,
        secret: bytes = b"",
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.mesh = mesh
        self.meter = Meter()
        self.pulse = pulse or Pulse()
        self.device = device or CPU
        self._owner = owner
        self._secret = secret
        self._heartbeat = heartbeat
        self._made: list[dist.ProcessGroup] = []
        if owner:
            # Gloo's threads must be gone before the interpreter is, or the process aborts instead of saying its error.
            atexit.register(self.close)
        self._groups: dict[tuple[str, str], Group] = {}
        nccl = self.device.type == "cuda" and torch.cuda.device_count() >= mesh.workers
        # JSON values travel between processors, also where rows travel between devices.
        self._control = self._make_group("all", "gloo", CPU, timeout, checked, [nullcontext])
        self._communicators = Counter(purposes)
        names = {purpose: [f"{purpose}/{n}" for n in range(count)] for purpose, count in self._communicators.items()}
        self._collective_order = None
        if mesh.size > 1 and len(purposes) > 1 and (nccl if ordered is None else ordered):
            self._collective_order = CollectiveOrder(
                mesh.rank == 0, self._make_channel(), tuple(chain.from_iterable(names.values()))
            )
        for purpose, named in names.items():
            order = self._collective_order
            turns = [nullcontext if order is None else partial(order.turn, name) for name in named]
            wire = self.device if nccl else CPU
            made: dict[tuple[int, ...], Group] = {}
            for axis in AXES:
                own = self.mesh.own_members(axis)
                if own not in made:  # on one host "workers" are "all"
                    made[own] = self._make_group(axis, "nccl" if nccl else "gloo", wire, timeout, checked, turns)
                self._groups[axis, purpose] = made[own]

    @classmethod
    def alone(cls, device: torch.device | str = "cpu", *, purposes: Sequence[str] = ("train",)) -> Context:
        """A run of one worker: nothing of ``torch.distributed`` is used."""
        return cls(Mesh.of(0, 1, 1), device=take(device, 0), purposes=purposes)

    @classmethod
    def from_environment(
        cls,
        device: torch.device | str = "cpu",
        *,
        purposes: Sequence[str] = ("train",),
        timeout: timedelta = TIMEOUT,
        checked: bool = False,
        ordered: bool | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> Context | None:
        """Join the run that a launcher such as torchrun has started this process for.

        An existing default process group is used as it is. Otherwise ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
        ``MASTER_PORT`` are taken as they are, and workers talk over the interface that leads to ``MASTER_ADDR``;
        ``GLOO_SOCKET_IFNAME`` names another one, and is set to the one in use. ``LOCAL_WORLD_SIZE`` says how many
        workers a host has; without it (PyTorchJob, plain srun) workers that report the same host name share a host.

        Args:
            device: what to compute on; ``"cuda"`` takes the device of the worker's position on its host, ``"auto"`` is
                that where there is one, else the CPU.
            purposes: what groups are needed for, each of a thread of its own. What is named several times gets so many
                communicators, each for a thread; see :func:`partita.comm.group.communicator`.
            timeout: how long to wait for a peer.
            checked: compare shapes and counts before every exchange.
            ordered: all workers start their exchanges in one order, whichever threads they are of; ``None``: where the
                backend needs it (NCCL).
            heartbeat: seconds without a sign of life after which a worker counts as lost, and all end; 0: it never
                does. Only where this process joins the process group here.

        Returns:
            The context, or ``None`` where this process was not started by a launcher.

        Raises:
            ConfigError: variables are missing or contradict each other, or hosts have different numbers of workers.
        """
        owner, beating, pulse, secret = False, None, Pulse(), b""
        if dist.is_available() and dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
        elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            rank, size = number_of("RANK"), number_of("WORLD_SIZE")
            if not 0 <= rank < size:
                raise ConfigError(f"RANK={rank} with WORLD_SIZE={size}", where="environment", fix="Count from 0")
            owner = size > 1
        else:
            return None
        try:
            if size > 1:
                secret = secret_of_environment()
            if owner:
                store = meet(rank, size, timeout)
                beating = Heartbeat(another(store, "partita/heartbeat"), rank, size, pulse)
                beating.beat(heartbeat)
                join(store, rank, size, timeout, secret, pulse)
            workers = workers_per_host(rank, size) if size > 1 else 1
            mesh = Mesh.of(rank, size, workers)
            place = take(device, mesh.worker)
            context = cls(
                mesh, device=place, purposes=purposes, timeout=timeout, checked=checked, ordered=ordered, owner=owner,
                pulse=pulse, secret=secret, heartbeat=beating,
            )  # fmt: skip
        except BaseException:
            if beating is not None:
                beating.beat(0)
            if owner and dist.is_initialized():
                dist.destroy_process_group()
            raise
        return context

    @classmethod
    def join(
        cls,
        rendezvous: Path,
        rank: int,
        size: int,
        *,
        hosts: int = 1,
        device: torch.device | str = "cpu",
        purposes: Sequence[str] = ("train",),
        timeout: timedelta = TIMEOUT,
        checked: bool = False,
        ordered: bool | None = None,
        pulse: Pulse | None = None,
        secret: bytes = b"",
    ) -> Context:
        """Join a run on this machine, whose workers find each other through a file.

        Args:
            rendezvous: path of a file in a private directory, the same for all workers; made by the first one.
            rank: own position.
            size: number of workers.
            hosts: as how many hosts the machine counts; more than one for trying out.
            device, purposes, timeout, checked, ordered: see :meth:`from_environment`.
            pulse: what shows that this worker is alive.
            secret: what the workers of this run know and nobody else.
        """
        mesh = Mesh.of(rank, size, size // hosts)
        place = take(device, rank)
        if size > 1:
            pulse = pulse or Pulse()
            with peer_errors():
                store = dist.FileStore(str(rendezvous), size)
            arrive(store, rank, size, timeout)
            join(store, rank, size, timeout, secret, pulse)
        return cls(
            mesh, device=place, purposes=purposes, timeout=timeout, checked=checked, ordered=ordered, owner=size > 1,
            pulse=pulse, secret=secret,
        )  # fmt: skip

    def group(self, axis: str = "all", purpose: str = "train") -> Group:
        """The group of this worker along an axis, always the same object.

        Args:
            axis: ``"all"``, ``"workers"`` (of this host), ``"hosts"`` (the same position on every host).
            purpose: one of those asked for at the start.
        """
        try:
            return self._groups[axis, purpose]
        except KeyError:
            known = ", ".join(f"{a}/{p}" for a, p in self._groups)
            raise ValueError(f"no group {axis}/{purpose} was created at the start: {known}") from None

    def communicators(self, purpose: str) -> int:
        """How many threads may exchange at once for a purpose: each by a :func:`~partita.comm.group.communicator`."""
        return self._communicators[purpose]

    def on(self, device: torch.device | str, *, purposes: Sequence[str] = ("train",)) -> Context:
        """A context of the same workers on another device. All workers call this, and close this one later.

        Args:
            device, purposes: see :meth:`from_environment`.
        """
        if choose(device).type == self.device.type:
            return self
        return type(self)(
            self.mesh, device=take(device, self.mesh.worker), purposes=purposes, pulse=self.pulse, secret=self._secret
        )

    def beat(self, seconds: float) -> None:
        """Count a worker as lost that has given no sign of life for so many seconds; 0: never. All workers call this.

        Only where this context has joined the process group itself; what :func:`partita.comm.local.run_local` starts
        is watched by the process that has started it.
        """
        if self._heartbeat is not None:
            self._heartbeat.beat(seconds)

    def fail(self, failure: BaseException) -> None:
        """Let no thread of this worker wait for its turn: another one has failed."""
        if self._collective_order is not None:
            self._collective_order.abort(failure)

    def close(self) -> None:
        """Leave the run; may be called again."""
        atexit.unregister(self.close)
        self.beat(0)
        self._heartbeat = None
        if self._collective_order is not None:
            self._collective_order.close()
        made, self._made = self._made, []
        if self._owner and dist.is_initialized():
            dist.destroy_process_group()
        elif dist.is_available() and dist.is_initialized():
            for process_group in made:
                dist.destroy_process_group(process_group)
        self._owner = False

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """Do something that can fail on any worker: what one raises, all raise, at the end of the block.

        The error of the lowest rank is raised, with its type, and with a note that names the worker. The block must
        not exchange anything with other workers: one that fails would leave the others waiting.

        Args:
            doing: what is done, for instance ``"open the store"``; named in a note.
        """
        failure: Exception | None = None
        try:
            yield
        except PeerLost:
            raise
        except Exception as error:
            failure = error
            failure.add_note(f"While trying to {doing}")
        records = self._control.gather(None if failure is None else pack_error(failure, self.mesh.rank))
        first = next((record for record in records if record is not None), None)
        if first is None:
            return
        if failure is not None and first["rank"] == self.mesh.rank:
            raise failure
        raise unpack_error(first) from None

    def gather(self, value: Any) -> list[Any]:
        """A JSON value of every worker, by rank, outside the order of exchanges: threads that have begun an exchange
        may wait until this is done. All workers call this from the same thread as the other methods of this class.
        """
        return self._control.gather(value)

    def agree(self, make: Callable[[], Value], source: int = 0) -> Value:
        """Let one worker do something, and give its result, or its error, to all.

        Args:
            make: called on the source only; returns a JSON value.
            source: rank of the worker that does it.

        Returns:
            The value, as JSON gives it back.
        """
        failure: Exception | None = None
        answer: dict[str, Any] = {}
        if self.mesh.rank == source:
            try:
                answer = {"value": make()}
            except PeerLost:
                raise
            except Exception as error:
                failure = error
                answer = {"error": pack_error(error, source)}
        answer = self._control.broadcast(answer, source)
        if failure is not None:
            raise failure
        if "error" in answer:
            raise unpack_error(answer["error"]) from None
        return answer["value"]

    def check_same(self, what: str, values: Mapping[str, Any]) -> None:
        """See that all workers hold the same values.

        Args:
            what: what they are, for instance ``"configuration"``.
            values: JSON values by name, for instance settings or digests.

        Raises:
            ConfigError: on all workers; names the first key that differs, its values, and which workers hold them.
        """
        held = self._control.gather(dict(values))
        for key in sorted({key for each in held for key in each}):
            ranks: dict[str, list[str]] = {}
            for rank, each in enumerate(held):
                ranks.setdefault(repr(each[key]) if key in each else "missing", []).append(str(rank))
            if len(ranks) > 1:
                said = "; ".join(
                    f"{value} on worker{'s' * (len(at) > 1)} {', '.join(at)}" for value, at in ranks.items()
                )
                raise ConfigError(
                    f"the {what} differs between workers: {key} is {said}", fix="Start all workers with the same"
                )

    def _make_channel(self) -> MessageChannel:
        # A thread waits there through every pause between exchanges, so its time is never up.
        process_group = self._connect(range(self.mesh.size), timedelta(days=365))
        self._made.append(process_group)
        return MessageChannel(process_group, self.mesh.rank, self.mesh.size)

    def _connect(self, members: Sequence[int], timeout: timedelta) -> dist.ProcessGroup:
        """Make a process group of gloo whose members prove themselves; all workers call this."""
        with connecting(self.pulse):
            process_group = dist.new_group(list(members), backend="gloo", timeout=timeout)
            if self.mesh.rank in members:
                prove(process_group, members, self.mesh.rank, self._secret)
        return process_group

    def _make_group(
        self,
        axis: str,
        backend: str,
        wire: torch.device,
        timeout: timedelta,
        checked: bool,
        turns: Sequence[Callable[[], AbstractContextManager[None]]],
    ) -> Group:
        """Make all groups along an axis, as ``torch.distributed`` demands of every worker; return the own one."""
        own = self.mesh.own_members(axis)
        communicators = []
        for turn in turns:
            mine = None
            for members in self.mesh.members(axis):
                if len(members) > 1:
                    if backend == "gloo":
                        process_group = self._connect(members, timeout)
                    else:
                        with peer_errors():
                            process_group = dist.new_group(list(members), backend=backend, timeout=timeout)
                    if members == own:
                        mine = process_group
                        self._made.append(process_group)
            communicators.append(Communicator(mine, turn))
        return Group(self.mesh, axis, self.meter, communicators, wire=wire, checked=checked, pulse=self.pulse)
