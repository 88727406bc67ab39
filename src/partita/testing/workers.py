"""Runs a function in several workers, for tests of code that communicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita.comm.local import run_local


def run_workers(
    function: Callable[..., Any], size: int, *arguments: Any, timeout: float = 60, hosts: int = 1, **options: Any
) -> list[Any]:
    """Call ``function(context, *arguments)`` in ``size`` processes of this machine.

    Put many checks into one call: a worker takes about two seconds to start. Exchanges are checked for shapes and
    counts that do not fit, and all workers start them in one order.

    Args:
        function: at the top level of a module.
        size: number of workers.
        arguments: JSON values or paths.
        timeout: seconds after which all are ended.
        hosts: as how many hosts the machine counts.
        options: more of :func:`partita.comm.local.run_local`, for instance ``purposes=("train", "sample")``.

    Returns:
        What the function returned, by rank; JSON values.

    Raises:
        PartitaError, WorkerError: the first error of any worker, with its traceback as a note. The others are ended.
        TimeoutError: the time was up; notes say where each worker was.
    """
    options.setdefault("checked", True)
    options.setdefault("ordered", True)
    return run_local(function, size, arguments, hosts=hosts, timeout=timeout, **options)
