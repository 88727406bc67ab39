"""Starts a run on several workers of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.comm.local import Entry, run_local
from partita.core.errors import ConfigError, ResourceError
from partita.core.memory import available_bytes
from partita.core.options import HEARTBEAT_SECONDS

WORKER_BYTES = 192 * 2**20
"""Private memory of a worker before it does anything: Python, torch, and compiled kernels (170 MiB measured)."""


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
    need, have = workers * WORKER_BYTES, available_bytes()
    if need > have:
        raise ResourceError(
            f"{workers} workers need {need / 2**30:.1f} GiB of memory before they hold anything, "
            f"{have / 2**30:.1f} GiB are available",
            fix=f"Use at most {max(1, have // WORKER_BYTES)} workers",
        )
    return run_local(
        entry, workers, keywords=arguments, hosts=hosts, threads=threads, device=device, purposes=purposes,
        heartbeat=heartbeat,
    )[0]  # fmt: skip
