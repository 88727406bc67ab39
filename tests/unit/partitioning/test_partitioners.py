"""Finding partitioners."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from array_stream import ArrayStream

from partita.core.errors import ConfigError, InputError
from partita.core.partitioning import PartitionTask, Requires
from partita.partitioning import partitioners
from partita.partitioning.assignment import AssignmentFile
from partita.partitioning.partitioners import find_partitioner, register_partitioner

TASK = PartitionTask(ArrayStream(np.array([0, 1, 2]), np.array([1, 2, 3]), 4), 2)


def alternate(stream, num_parts):
    return np.arange(stream.num_nodes) % num_parts


class Mine:
    requires = Requires(passes=0, survey=False)
    order_independent = True

    def bound(self, task):
        return None

    def partition(self, task):
        return np.zeros(task.num_nodes, dtype=np.int32)


@pytest.fixture
def _clean(monkeypatch):
    monkeypatch.setattr(partitioners.PARTITIONERS, "_entries", {**partitioners.PARTITIONERS._entries})


@pytest.mark.usefixtures("_clean")
def test_ones_own_is_found_in_every_form(monkeypatch, tmp_path):
    (tmp_path / "my_partitioners.py").write_text(Path(__file__).read_text())
    monkeypatch.syspath_prepend(tmp_path)
    register_partitioner("alternate", alternate)
    register_partitioner("mine", Mine)
    for given in (alternate, "alternate", "my_partitioners:alternate"):
        assert find_partitioner(given).partition(TASK).tolist() == [0, 1, 0, 1]
    for given in (Mine, Mine(), "mine", "my_partitioners:Mine"):
        assert find_partitioner(given).partition(TASK).tolist() == [0, 0, 0, 0]
    sys.modules.pop("my_partitioners")


def test_a_file_is_an_assignment(tmp_path):
    assert isinstance(find_partitioner(str(tmp_path / "parts.npy")), AssignmentFile)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("sprin", "there is no partitioner 'sprin'.*Did you mean 'spring'"),
        ("no_such_package:Name", "cannot be imported"),
        ("partita.partitioning.partitioners:Nothing", "cannot be imported"),
        ("partita.partitioning.partitioners:PARTITIONERS", "neither a partitioner nor a function"),
        (7, "neither a partitioner nor a function"),
    ],
)
def test_what_is_none_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        find_partitioner(given)


def test_names_of_partita_are_taken():
    with pytest.raises(ConfigError, match="there is a partitioner 'spring' already"):
        register_partitioner("spring", alternate)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([0, 1, 0], "does not fit 4 nodes"),
        ([0.0, 1.0, 0.0, 1.0], "does not fit 4 nodes"),
        ([0, 1, 2, 0], "node 2 has part 2"),
        (None, "does not fit 4 nodes"),
    ],
)
def test_what_a_function_returns_is_checked(result, message):
    with pytest.raises(InputError, match=message):
        find_partitioner(lambda stream, num_parts: result).partition(TASK)
