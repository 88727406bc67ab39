"""The machine that this process runs on: what it may use of it, what is installed, and the time."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from partita.core.errors import ResourceError


def cores() -> int:
    """Processor cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_limits() -> tuple[Any, ...]:
    """What this process hands down to those that it starts: processors, resource limits, mask of new files."""
    limits: list[Any] = [sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None]
    with suppress(ImportError):
        import resource

        names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
        limits += [(name, resource.getrlimit(getattr(resource, name))) for name in names]
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        limits += [line for line in status.splitlines() if line.startswith("Umask:")]
    return tuple(limits)


_LIBRARY_BYTES, _LIBRARY_THREAD_BYTES = 368 * 2**20, 80 * 2**20
"""What PyTorch, numba and the kernels take as ``RLIMIT_DATA`` counts it while they are loaded, on one core and on each
further one (measured: 267 MiB and 80 MiB when they are loaded; two copies of OpenBLAS keep 32 MiB and a stack for each
thread, and ask for it without end where they cannot have it)."""


def library_bytes() -> int:
    """What the libraries take before any work, with the threads that they start here."""
    said = (os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
    threads = next((int(each) for each in said if each.isdecimal() and int(each) > 0), cores())
    return _LIBRARY_BYTES + _LIBRARY_THREAD_BYTES * (min(threads, cores()) - 1)


def require_room_for_libraries() -> None:
    """See that PyTorch can be imported. Under a limit that is too low its libraries hang or abort the process.

    Raises:
        ResourceError: the limit is too low.
    """
    with suppress(ImportError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if limit != resource.RLIM_INFINITY and limit < library_bytes():
            raise ResourceError(
                f"the libraries alone need {library_bytes():,} bytes, {limit:,} are allowed (RLIMIT_DATA)",
                where="memory",
                fix="Raise the limit: ulimit -d",
            )


def open_files() -> float:
    """How many files this process, or one that it starts, may have open (``RLIMIT_NOFILE``); infinite without limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return float("inf")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def interface_of(address: str) -> str | None:
    """Name of the network interface that has an address; the loopback one is lo on Linux, lo0 on macOS."""
    for name, held in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in held):
            return name
    return None


def machine() -> dict[str, Any]:
    """The machine and the versions a run was made with."""
    versions = {"python": platform.python_version()}
    for package in ("partita", "torch", "numpy", "numba", "pyarrow"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "versions": versions,
        "command": sys.argv,
    }


def now() -> str:
    """The time in ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
