"""Partitioners by name; the only place that knows their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from partita.core.errors import ConfigError, nearest
from partita.core.imports import imported
from partita.core.partitioning import EdgeStream, Partitioner, PartitionTask, Requires, checked_parts

PARTITIONERS: dict[str, str] = {
    "spring": "partita.partitioning.spring:Spring",
    "spring+": "partita.partitioning.spring_plus:SpringPlus",
    "hdrf": "partita.partitioning.hdrf:Hdrf",
    "dbh": "partita.partitioning.dbh:Dbh",
    "greedy": "partita.partitioning.greedy:Greedy",
    "two_phase": "partita.partitioning.two_phase:TwoPhase",
    "metis": "partita.partitioning.metis:Metis",
    "random": "partita.partitioning.random:Random",
}
"""Name -> module and class."""

_registered: dict[str, Any] = {}


def register_partitioner(name: str, partitioner: Any) -> None:
    """Make a partitioner of one's own known by a name in this process.

    Args:
        name: by which ``algorithm`` finds it.
        partitioner: a :class:`~partita.core.partitioning.Partitioner`, a class of such without arguments, or a
            function ``(stream, num_parts) -> parts`` (N integers in [0, num_parts)).

    Raises:
        ConfigError: the name belongs to Partita's own partitioners.
    """
    if name in PARTITIONERS:
        raise ConfigError(f"'{name}' is a partitioner of Partita", where="register_partitioner", fix="Choose another")
    _registered[name] = partitioner


def find_partitioner(algorithm: Any) -> Partitioner:
    """A partitioner by name, by ``"package.module:Name"``, by path of an assignment file, or what is one already.

    Raises:
        ConfigError: there is no such partitioner, or what was found is none.
    """
    if not isinstance(algorithm, str):
        return _as_partitioner(algorithm, repr(algorithm))
    if algorithm in _registered:
        return _as_partitioner(_registered[algorithm], algorithm)
    if algorithm in PARTITIONERS:
        module, name = PARTITIONERS[algorithm].split(":")
        return _as_partitioner(getattr(import_module(module), name), algorithm)
    if Path(algorithm).suffix in (".npy", ".csv", ".txt", ".tsv", ".parquet") or Path(algorithm).exists():
        from partita.partitioning.assignment import AssignmentFile

        return AssignmentFile(Path(algorithm))
    if ":" in algorithm:
        return _as_partitioner(imported(algorithm, "algorithm"), algorithm)
    known = [*PARTITIONERS, *_registered]
    raise ConfigError(f"there is no partitioner '{algorithm}'", where="algorithm", fix=nearest(algorithm, known))


def _as_partitioner(found: Any, name: str) -> Partitioner:
    if inspect.isclass(found):
        found = found()
    if isinstance(found, Partitioner):
        return found
    if callable(found):
        return FunctionPartitioner(found)
    raise ConfigError(
        f"'{name}' is neither a partitioner nor a function",
        where="algorithm",
        fix="Give a class with requires, order_independent, bound and partition, or a function (stream, num_parts)",
    )


class FunctionPartitioner:
    """A user's function as a partitioner.

    Args:
        function: ``(stream, num_parts) -> parts``; ``stream`` is an :class:`~partita.core.partitioning.EdgeStream`.
    """

    requires = Requires(passes=1, survey=False)
    order_independent = False

    def __init__(self, function: Callable[[EdgeStream, int], Any]) -> None:
        self._function = function

    def bound(self, task: PartitionTask) -> float | None:
        """No bound is known."""
        return None

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """Call the function and check what it returns.

        Raises:
            InputError: it returned something else than N parts in [0, P).
        """
        return checked_parts(self._function(task.stream, task.num_parts), task.num_nodes, task.num_parts, "algorithm")
