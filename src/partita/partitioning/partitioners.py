"""Partitioners by name; the only place that knows their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from partita.core.errors import ConfigError
from partita.core.partitioning import EdgeStream, Partitioner, PartitionTask, Requires, checked_parts
from partita.core.registry import Registry
from partita.partitioning.loads import Unbounded

PARTITIONERS: Registry[Any] = Registry(
    "partitioner",
    {
        "spring": "partita.partitioning.spring:Spring",
        "spring+": "partita.partitioning.spring_plus:SpringPlus",
        "hdrf": "partita.partitioning.hdrf:Hdrf",
        "dbh": "partita.partitioning.dbh:Dbh",
        "greedy": "partita.partitioning.greedy:Greedy",
        "two_phase": "partita.partitioning.two_phase:TwoPhase",
        "metis": "partita.partitioning.metis:Metis",
        "random": "partita.partitioning.random:Random",
    },
    setting="algorithm",
)
"""By name."""

_ASSIGNMENTS = (".npy", ".csv", ".txt", ".tsv", ".parquet")
"""How files end that say which part each node is in."""


def register_partitioner(name: str, partitioner: Any) -> None:
    """Make a partitioner of one's own known by a name in this process.

    Args:
        name: by which ``algorithm`` finds it.
        partitioner: a :class:`~partita.core.partitioning.Partitioner`, a class of such without arguments, or a
            function ``(stream, num_parts) -> parts`` (N integers in [0, num_parts)).

    Raises:
        ConfigError: there is another partitioner of this name.
    """
    PARTITIONERS.register(name, partitioner)


def find_partitioner(algorithm: Any) -> Partitioner:
    """A partitioner by name, by ``"package.module:Name"``, by path of an assignment file, or what is one already.

    Raises:
        ConfigError: there is no such partitioner, or what was found is none.
    """
    found, name = algorithm, repr(algorithm)
    if isinstance(algorithm, str):
        path, name = Path(algorithm), algorithm
        if algorithm not in PARTITIONERS and (path.suffix in _ASSIGNMENTS or path.exists()):
            from partita.partitioning.assignment import AssignmentFile

            return AssignmentFile(path)
        found = PARTITIONERS.find(algorithm)
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


class FunctionPartitioner(Unbounded):
    """A user's function as a partitioner.

    Args:
        function: ``(stream, num_parts) -> parts``; ``stream`` is an :class:`~partita.core.partitioning.EdgeStream`.
    """

    requires = Requires(passes=1, survey=False)
    order_independent = False

    def __init__(self, function: Callable[[EdgeStream, int], Any]) -> None:
        self._function = function

    def partition(self, task: PartitionTask) -> Int32[np.ndarray, "N"]:
        """Call the function and check what it returns.

        Raises:
            InputError: it returned something else than N parts in [0, P).
        """
        return checked_parts(self._function(task.stream, task.num_parts), task.num_nodes, task.num_parts, "algorithm")
