"""Starts a run on several workers of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.comm.local import Entry, run_local
from partita.core.errors import ConfigError, ResourceError
from partita.core.memory import available_bytes

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
) -> Any:
    """Run ``entry(context, **arguments)`` on several workers of this machine, until all have returned.

    Every worker is a process of its own with its share of the threads. All sockets listen on the loopback interface.
    Ctrl-C and SIGTERM are passed on once, so the workers may save and return; a second one ends them. When one
    worker fails, all end within seconds, and its error is raised here.

    Args:
        entry: ``"module:name"`` or a function at the top level of a module.
        workers: number of workers.
        arguments: JSON values or paths, by name.
        hosts: as how many hosts this machine counts; more than one for trying out.
        threads: CPU threads of each worker; 0: those of this process, divided.
        device: what to compute on: ``"cpu"`` or ``"cuda"``.
        purposes: what groups are needed for, each of a thread of its own.

    Returns:
        What the entry returned on rank 0, as JSON gives it back.

    Raises:
        ConfigError, ResourceError: so many workers cannot be started here.
        PartitaError: what a worker raised; :class:`partita.comm.errors.WorkerLost` where one was killed.
        WorkerError: a worker failed with a bug; with its traceback as a note.
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
        entry, workers, keywords=arguments, hosts=hosts, threads=threads, device=device, purposes=purposes
    )[0]
