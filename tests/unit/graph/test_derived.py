"""Columns that are added to a store which is there already."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from derived_columns import add_columns

from partita.core.errors import ResourceError, StoreError
from partita.core.memory import private_bytes
from partita.graph import derived
from partita.graph.derived import DerivedColumns
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.testing.graphs import formula_store, small_random_store


def counts(store, value=1):
    return {
        "presample_node": np.full(store.num_nodes, 1 + value, np.int64),
        "presample_edge": np.full(store.num_edges, value, np.uint32),
    }


def files(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_columns_are_added_and_replaced(tmp_path):
    store = formula_store(tmp_path / "store")
    assert store.presample_node is None
    assert store.presample_edge is None
    before = files(store.path)
    metadata = add_columns(store.path, counts(store, 1), presample={"seed": 1})
    first = GraphStore.open(store.path)
    assert first.metadata == metadata
    assert (first.presample_node == 2).all()
    assert (first.presample_edge == 1).all()
    assert first.metadata.notes["presample"] == {"seed": 1}
    assert len(verify(store.path)) == len(store.metadata.columns) + 2
    after = files(store.path)
    assert after.keys() - before.keys() == {"presample_node.npy", "presample_edge.npy"}
    assert all(after[name] == before[name] for name in before if name != "metadata.json")

    add_columns(store.path, counts(store, 7), presample={"seed": 2})
    second = GraphStore.open(store.path)
    assert (second.presample_edge == 7).all()
    assert second.metadata.notes["presample"] == {"seed": 2}
    assert (first.presample_edge == 1).all()  # whoever has the store open keeps what was mapped
    verify(store.path)


def test_they_are_no_part_of_the_identity(tmp_path):
    store = formula_store(tmp_path / "store")
    add_columns(store.path, counts(store))
    assert GraphStore.open(store.path).fingerprint == store.fingerprint


def test_a_store_without_edges(tmp_path):
    store = small_random_store(tmp_path / "store", 3, 0)
    add_columns(store.path, counts(store))
    assert GraphStore.open(store.path).presample_edge.shape == (0,)
    verify(store.path)


def test_the_files_follow_the_format(tmp_path):
    store = formula_store(tmp_path / "store")
    add_columns(store.path, counts(store))
    for name in ("presample_node", "presample_edge"):
        record = GraphStore.open(store.path).metadata.columns[name]
        itemsize = np.dtype(record.dtype).itemsize
        assert record.bytes == (store.path / f"{name}.npy").stat().st_size == 128 + itemsize * record.shape[0]


def interrupted(path):
    with DerivedColumns(path) as adding:
        adding.allocate("presample_node")[:] = 9
        raise KeyboardInterrupt


def test_nothing_changes_if_it_fails(tmp_path, monkeypatch):
    store = formula_store(tmp_path / "store")
    add_columns(store.path, counts(store))
    before = files(store.path)
    with pytest.raises(KeyboardInterrupt):
        interrupted(store.path)
    with pytest.raises(RuntimeError, match=r"finish\(\) was not called"), DerivedColumns(store.path) as adding:
        adding.allocate("presample_node")
    with pytest.raises(ValueError, match="presample_node: int32"):
        add_columns(store.path, {"presample_node": np.zeros(store.num_nodes, np.int32)})
    with pytest.raises(ValueError, match="presample_edge: uint32"):
        add_columns(store.path, {"presample_edge": np.zeros(3, np.uint32)})
    with pytest.raises(ValueError, match="Did you mean 'presample_edge'"):
        add_columns(store.path, {"presample_edges": np.zeros(3, np.uint32)})

    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(derived, "record_of", full)
    with pytest.raises(ResourceError, match="bytes are free"):
        add_columns(store.path, counts(store, 5))
    assert files(store.path) == before


def test_no_store_and_no_room_to_write(tmp_path):
    with pytest.raises(StoreError, match="no such directory"):
        add_columns(tmp_path / "none", {})
    store = formula_store(tmp_path / "store")
    (store.path / ".columns.partial").write_text("in the way")
    with pytest.raises(StoreError, match="Make the directory writable"):
        add_columns(store.path, counts(store))


def test_two_at_once_are_told_apart(tmp_path):
    store = formula_store(tmp_path / "store")
    with DerivedColumns(store.path) as adding:
        adding.allocate("presample_node")[:] = 4
        with pytest.raises(StoreError, match="another process is adding columns"):
            add_columns(store.path, counts(store))
        adding.finish()
    assert (GraphStore.open(store.path).presample_node == 4).all()
    add_columns(store.path, counts(store))


def add_while_replaced(path, other):
    with DerivedColumns(path) as adding:
        adding.allocate("presample_node")
        scratch = path / ".columns.partial"
        scratch.rename(path.parent / "kept")
        shutil.rmtree(path)
        shutil.copytree(other, path)
        (path.parent / "kept").rename(scratch)
        adding.finish()


def test_a_store_that_was_replaced_meanwhile_gets_nothing(tmp_path):
    store = formula_store(tmp_path / "store")
    other = formula_store(tmp_path / "other", num_nodes=61)
    with pytest.raises(StoreError, match="replaced while columns were being added"):
        add_while_replaced(store.path, other.path)
    assert files(store.path) == files(other.path)


KILLED = """
    import os, signal, sys
    import numpy as np
    from partita.graph.derived import DerivedColumns
    from partita.graph.store import GraphStore
    path, renames = sys.argv[1], int(sys.argv[2])
    done, replace = 0, os.replace
    def until(*names):
        global done
        if done == renames:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*names)
        done += 1
    os.replace = until
    store = GraphStore.open(path)
    columns = {"presample_node": np.full(store.num_nodes, 8), "presample_edge": np.full(store.num_edges, 7, np.uint32)}
    with DerivedColumns(path) as adding:
        for name, column in columns.items():
            adding.allocate(name)[:] = column
        adding.finish(presample={"seed": 2})
    sys.exit(5)
"""


@pytest.mark.parametrize("renames", range(5))
def test_a_kill_at_any_point_leaves_a_store_that_opens(tmp_path, renames):
    store = formula_store(tmp_path / "store")
    add_columns(store.path, counts(store), presample={"seed": 1})
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(store.path), str(renames)]
    assert subprocess.run(command, check=False).returncode == (-9 if renames < 4 else 5)
    verify(store.path)
    found = GraphStore.open(store.path)
    values = {0: 1, 4: 7}.get(renames)
    assert (found.presample_node is None) == (found.presample_edge is None) == (values is None)
    assert found.metadata.notes.get("presample") == {0: {"seed": 1}, 4: {"seed": 2}}.get(renames)
    if values:
        assert (found.presample_edge == values).all()
    assert found.fingerprint == store.fingerprint

    add_columns(store.path, counts(store, 3))
    assert (GraphStore.open(store.path).presample_edge == 3).all()
    assert not (store.path / ".columns.partial").exists()


def test_filling_a_column_takes_no_private_memory(tmp_path):
    num_edges = 12_000_000
    with StoreWriter(tmp_path / "store") as writer:
        writer.write("indptr", np.array([0, num_edges]))
        writer.allocate("indices", (num_edges,), np.int32)
        writer.finish(num_nodes=1, num_edges=num_edges)
    with DerivedColumns(tmp_path / "store") as adding:
        before = private_bytes()
        adding.allocate("presample_edge")[:] = 1
        assert private_bytes() - before < 8 << 20
        adding.finish()
    assert GraphStore.open(tmp_path / "store").presample_edge.nbytes == 4 * num_edges


def test_verify_finds_damage_and_broken_rules(tmp_path):
    store = formula_store(tmp_path / "store")
    add_columns(store.path, counts(store))
    file = store.path / "presample_edge.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-4] + b"\7\0\0\0")
    with pytest.raises(StoreError, match="column 'presample_edge': the content does not match its checksum"):
        verify(store.path)
    file.write_bytes(content[:-4])
    with pytest.raises(StoreError, match="'presample_edge' is damaged"):
        GraphStore.open(store.path)
    file.write_bytes(content)

    node = counts(store)["presample_node"]
    node[7] = 0
    add_columns(store.path, {"presample_node": node})
    with pytest.raises(StoreError, match="column 'presample_node': node 7 weighs less than 1"):
        verify(store.path)
    node[7] = 1
    add_columns(store.path, {"presample_node": node})
    with pytest.raises(StoreError, match="'presample_node': node 7 was never a destination, but has sampled edges"):
        verify(store.path)

    alone = formula_store(tmp_path / "alone")
    add_columns(alone.path, {"presample_edge": counts(alone)["presample_edge"]})
    with pytest.raises(StoreError, match="column 'presample_edge': edges were counted but no nodes"):
        verify(alone.path)


def write_counts_of_wrong_dtype(path, store):
    with StoreWriter(path) as writer:
        writer.write("indptr", store.indptr)
        writer.write("indices", store.indices)
        writer.write("presample_edge", np.zeros(store.num_edges, np.int32))
        writer.finish(num_nodes=store.num_nodes, num_edges=store.num_edges)


def test_a_column_of_the_wrong_dtype_does_not_open(tmp_path):
    store = formula_store(tmp_path / "store")
    with pytest.raises(StoreError, match="column 'presample_edge' is damaged: int32"):
        write_counts_of_wrong_dtype(tmp_path / "bad", store)
