"""Starts a run on several workers of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.comm.local import Entry, run_local
from partita.core.errors import ConfigError, ResourceError
from partita.core.machine import open_files
from partita.core.memory import available_memory
from partita.core.options import HEARTBEAT_SECONDS, format_bytes

WORKER_BYTES = 192 * 2**20
"""Private memory of a worker before it does anything: Python, torch, and compiled kernels (170 MiB measured)."""

FILES, FILES_PER_PEER = 48, 8
"""Files that a worker of several opens at most: its own, and connections to each other worker (36 and 6 measured)."""


def launch(
    entry: Entry,
    workers: int,
    *,
    arguments: Mapping[str, Any] | None = None,
    hosts: int = 1,
    threads: int = 0,
    device: str = "cpu",
    purposes: Sequence[str] = ("train",),
    heartbeat: float = HEARTBEAT_SECONDS,
) -> Any:
    """Run ``entry(context, **arguments)`` on several workers of this machine, where there is memory for so many.

    Args:
        entry: see :func:`~partita.comm.local.run_local`.
        workers: number of workers.
        arguments: JSON values or paths, by name.
        hosts, threads, device, purposes, heartbeat: see :func:`~partita.comm.local.run_local`.

    Returns:
        What the entry returned on rank 0, as JSON gives it back.

    Raises:
        ConfigError, ResourceError: so many workers cannot be started here.
        PartitaError, WorkerError: as :func:`~partita.comm.local.run_local` raises them.
    """
    if workers < 1:
        raise ConfigError(f"{workers} workers", fix="Use at least one")
    have, limit = available_memory(workers, fresh=True)
    if have < WORKER_BYTES:
        raise ResourceError(
            f"{workers} workers need {format_bytes(WORKER_BYTES)} of memory each before they hold anything, "
            f"{format_bytes(have)} are available ({limit})",
            fix=f"Use at most {max(1, workers * have // WORKER_BYTES)} workers, or raise the limit",
        )
    _require_files(workers)
    return run_local(
        entry, workers, keywords=arguments, hosts=hosts, threads=threads, device=device, purposes=purposes,
        heartbeat=heartbeat,
    )[0]  # fmt: skip


def _require_files(workers: int) -> None:
    """See that each of so many workers may open the files and connections that it needs.

    Raises:
        ResourceError: the limit of open files (``RLIMIT_NOFILE``) is too low.
    """
    need, have = FILES + FILES_PER_PEER * workers, open_files()
    if workers > 1 and need > have:
        raise ResourceError(
            f"each of {workers} workers may open {need} files and connections, {have} are allowed",
            fix=f"Raise the limit with: ulimit -n {max(1024, need)}",
        )
