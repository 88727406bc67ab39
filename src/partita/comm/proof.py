"""Workers prove to each other that they belong to one run, over the very connections that will carry its data.

Gloo believes whoever connects first. On a machine with other users, or a network with other hosts, that may be a
stranger, whose numbers would go into gradients. So after a process group has been made, every two members challenge
each other: each sends 32 random bytes, and gets back their HMAC-SHA256 under the run's secret (RFC 2104), bound to who
answers whom. Whoever does not know the secret cannot answer. Nor can he let a worker answer for him, unless he can give
workers addresses of his own: those of a local run find each other in a directory that only its owner can enter, those
of several hosts through a store that anybody on the network can write to.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from jaxtyping import UInt8
from torch import Tensor

from partita.comm.errors import PeerLost, PeerUnproven, first_line, peer_errors
from partita.comm.pulse import Pulse
from partita.core.errors import ConfigError, PartitaError

ANSWER = timedelta(seconds=60)
"""How long workers that are connected may take to answer each other."""
CHALLENGE_BYTES = 32
SECRET, SECRET_FILE = "PARTITA_SECRET", "PARTITA_SECRET_FILE"


class Uninvited(PartitaError):
    """A process that does not know the run's secret has connected as one of its workers."""


def secret_of_environment() -> bytes:
    """The secret that a user gives to all workers; empty where there is none.

    Raises:
        ConfigError: the file cannot be read, is empty, or can be read by other users.
    """
    file = os.environ.get(SECRET_FILE)
    if file is None:
        return os.environ.get(SECRET, "").encode()
    try:
        readable = Path(file).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        found = Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=f"{SECRET_FILE}={file}") from None
    if readable:
        raise ConfigError("other users can read the secret", where=file, fix=f"Use: chmod 600 {file}")
    if not found:
        raise ConfigError("there is no secret in it", where=file, fix=f"Use: openssl rand -hex 32 > {file}")
    return found


@contextmanager
def connecting(pulse: Pulse | None = None) -> Iterator[None]:
    """Around what connects workers: what the backend raises there means that one did not come, or a stranger did.

    Args:
        pulse: of this worker, which others notice if it waits there.
    """
    try:
        with pulse.connecting() if pulse is not None else nullcontext():
            yield
    except PeerLost:
        raise
    except RuntimeError as error:
        raise PeerUnproven(first_line(error)) from error


def arrive(store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
    """Wait until all workers have begun, which may take much longer than to connect them then.

    Raises:
        PeerLost: one has not come in time.
    """
    store.set(f"partita/here/{rank}", "yes")
    with peer_errors():
        store.wait([f"partita/here/{each}" for each in range(size)], timeout)


def prove(process_group: dist.ProcessGroup | None, members: Sequence[int], rank: int, secret: bytes) -> None:
    """Challenge all other members, and answer them. All members call this, before anything else is exchanged.

    Args:
        process_group: of gloo; ``None``: the default one.
        members: ranks of all members.
        rank: own one, among them.
        secret: the same on all workers of the run; empty: what this finds is connections that are no worker's.

    Raises:
        Uninvited: somebody answered wrongly.
        PeerUnproven: somebody did not answer.
    """
    others = [member for member in members if member != rank]
    mine = secrets.token_bytes(CHALLENGE_BYTES)
    theirs = _swap(process_group, dict.fromkeys(others, mine))
    answers = {other: _answer(secret, rank, other, theirs[other], mine) for other in others}
    for other, answer in _swap(process_group, answers).items():
        if not hmac.compare_digest(answer, _answer(secret, other, rank, mine, theirs[other])):
            raise Uninvited(
                f"who connected as worker {other} does not know the secret of this run",
                fix=f"Give all workers the same {SECRET}; if they have it, another process got in: start again",
            )


def _answer(secret: bytes, sender: int, receiver: int, challenge: bytes, own: bytes) -> bytes:
    said = b"partita %d %d " % (sender, receiver) + challenge + own
    return hmac.new(secret, said, hashlib.sha256).digest()


def _swap(process_group: dist.ProcessGroup | None, messages: dict[int, bytes]) -> dict[int, bytes]:
    """Send every other member a message, and receive one of the same length."""
    sent = {other: torch.frombuffer(bytearray(message), dtype=torch.uint8) for other, message in messages.items()}
    received: dict[int, UInt8[Tensor, "n"]] = {other: torch.empty_like(message) for other, message in sent.items()}
    with connecting():
        pending = [dist.irecv(tensor, src=other, group=process_group) for other, tensor in received.items()]
        pending += [dist.isend(tensor, dst=other, group=process_group) for other, tensor in sent.items()]
        for work in pending:
            work.wait(ANSWER)  # type: ignore[union-attr]
    return {other: bytes(tensor.numpy()) for other, tensor in received.items()}
