"""Assignment files, written and read by the user's ids."""

from __future__ import annotations

import numpy as np
import pytest
from array_stream import ArrayStream

from partita.core.errors import ConfigError, InputError
from partita.core.partitioning import PartitionTask
from partita.partitioning.assignment import AssignmentFile, read_assignment, write_assignment
from partita.testing.graphs import formula_store


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
@pytest.mark.parametrize("names", [None, "numbers", "strings"])
@pytest.mark.parametrize("shuffle", [None, 3])
def test_what_is_written_is_read_for_the_same_nodes(tmp_path, suffix, names, shuffle):
    store = formula_store(tmp_path / "store", num_nodes=30, names=names, shuffle_seed=shuffle)
    parts = (store.to_original(np.arange(30)) % 4).astype(np.int32)
    path = tmp_path / f"parts{suffix}"
    write_assignment(path, parts, store)
    assert read_assignment(path, store, 4).tolist() == parts.tolist()
    other = formula_store(tmp_path / "other", num_nodes=30, names=names, shuffle_seed=9)  # the same nodes, re-ordered
    by_original = (other.to_original(np.arange(30)) % 4).tolist()
    assert read_assignment(path, other, 4).tolist() == by_original
    assert {entry.name for entry in tmp_path.iterdir()} == {"store", "other", path.name}


def test_columns_are_found_by_name_or_by_position(tmp_path):
    store = formula_store(tmp_path / "store", num_nodes=6)
    (tmp_path / "named.csv").write_text("part,weight,node\n" + "".join(f"{v % 2},9,{v}\n" for v in range(6)))
    (tmp_path / "bare.txt").write_text("".join(f"{v} {v % 2}\n" for v in reversed(range(6))))
    for name in ("named.csv", "bare.txt"):
        assert read_assignment(tmp_path / name, store, 2).tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node,part\n0,0\n1,0\n2,1\n9,1\n", "line 5, column node: there is no node 9"),
        ("node,part\n0,0\n1,2\n2,1\n3,1\n", r"line 3, column part: part 2 is outside \[0, 2\)"),
        ("node,part\n0,0\n1,-1\n2,1\n3,1\n", r"line 3, column part: part -1 is outside \[0, 2\)"),
        ("node,part\n0,0\n1,0\n2,1\n1,1\n", "line 5, column node: node 1 comes twice"),
        ("node,part\n0,0\n1,0\n", "says nothing about 2 of 4 nodes, the first is 2"),
        ("node,part\n0,x\n", "line 2"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, text, message):
    store = formula_store(tmp_path / "store", num_nodes=4)
    (tmp_path / "parts.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_assignment(tmp_path / "parts.csv", store, 2)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5, dtype=np.int64), "does not fit 4 nodes"),
        (np.zeros(4), "does not fit 4 nodes"),
        (np.array([0, 1, 2, 0]), r"node 2 has part 2, outside \[0, 2\)"),
        (np.array([0, -1, 0, 0]), "node 1 has part -1"),
        (np.array([0, 2**40, 0, 0]), "node 1 has part 1099511627776"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(tmp_path, array, message):
    store = formula_store(tmp_path / "store", num_nodes=4)
    np.save(tmp_path / "parts.npy", array)
    with pytest.raises(InputError, match=message):
        read_assignment(tmp_path / "parts.npy", store, 2)


def test_pickles_and_damaged_files_are_refused(tmp_path):
    store = formula_store(tmp_path / "store", num_nodes=4)
    np.save(tmp_path / "objects.npy", np.array([0, "a", None, 1], dtype=object), allow_pickle=True)
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY\x01")
    for name in ("objects.npy", "damaged.npy", "missing.npy"):
        with pytest.raises(InputError, match=name):
            read_assignment(tmp_path / name, store, 2)


def test_only_stores_have_assignment_files(tmp_path):
    stream = ArrayStream(np.array([0]), np.array([1]))
    with pytest.raises(ConfigError, match="belongs to a graph store"):
        AssignmentFile(tmp_path / "x.npy").partition(PartitionTask(stream, 2))


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write '.json' files"):
        write_assignment(tmp_path / "parts.json", np.zeros(2, dtype=np.int32))
    with pytest.raises(ConfigError, match="no such directory"):
        write_assignment(tmp_path / "nowhere" / "parts.npy", np.zeros(2, dtype=np.int32))
