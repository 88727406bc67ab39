"""Opening and writing stores: what is promised is checked, and nothing is ever half there."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from partita.core.errors import ResourceError, StoreError
from partita.graph import metadata, writer
from partita.graph.columns import HEADER_BYTES, file_checksum, header
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.testing.graphs import (
    formula_features,
    formula_neighbors,
    formula_store,
    formula_weight,
    small_random_store,
)


@pytest.mark.parametrize("shuffle_seed", [None, 5])
@pytest.mark.parametrize("names", [None, "numbers", "strings"])
def test_round_trip_of_every_column(tmp_path, shuffle_seed, names):
    formula_store(
        tmp_path / "store", num_nodes=61, num_features=5, weighted=True, dtype=np.float16, names=names,
        num_parts=3, shuffle_seed=shuffle_seed,
    )  # fmt: skip
    store = GraphStore.open(str(tmp_path / "store"))
    ids = np.arange(61)
    original = store.to_original(ids)
    assert (shuffle_seed is None) == (store.original_index is None) == (original == ids).all()
    for v in ids:
        expected = formula_neighbors(int(original[v]), 61)
        assert original[store.neighbors(v)].tolist() == expected
        assert (store.self_loops[v], store.in_degree()[v]) == (expected.count(original[v]), len(expected))
        weights = store.edge_weight[store.indptr[v] : store.indptr[v + 1]]
        assert weights.tolist() == formula_weight(np.array(expected, dtype=int), original[v]).tolist()
    assert store.in_degree(np.array([3, 5])).tolist() == store.in_degree()[[3, 5]].tolist()
    assert store.x.dtype == np.float16
    assert (store.x == formula_features(original, 5)).all()
    assert (store.x[:, 0] * 1000 + store.x[:, 1] == original).all()
    assert (store.y == original % 3).all()
    expected_names = {None: original, "numbers": 10 * original + 7, "strings": [f"node-{v}" for v in original]}[names]
    assert store.names().tolist() == list(expected_names)
    assert store.names(np.array([9, 2])).tolist() == [expected_names[9], expected_names[2]]
    assert list(store.splits) == ["train", "val", "test"]
    assert store.to_original(store.split("val")).tolist() == list(range(3, 61, 5))
    assert store.part_offsets.tolist() == [0, 20, 40, 61]
    assert (store.num_parts, store.num_features, store.num_classes, store.task) == (3, 5, 3, "classes")
    assert store.indices.dtype == np.int32


def test_arrays_are_read_only_maps(tmp_path):
    store = formula_store(tmp_path / "store")
    for name in store.metadata.columns:
        assert not store.column(name).flags.writeable
        assert isinstance(store.column(name).base, np.memmap)


def test_opening_takes_milliseconds(tmp_path):
    with StoreWriter(tmp_path / "store") as made:
        made.write("indptr", np.zeros(1_000_001, dtype=np.int64))
        made.write("indices", np.zeros(0, dtype=np.int32))
        made.allocate("x", (1_000_000, 64), np.float32)
        made.finish(num_nodes=1_000_000, num_edges=0)
    times = []
    for _ in range(10):
        began = time.perf_counter()
        GraphStore.open(tmp_path / "store")
        times.append(time.perf_counter() - began)
    assert min(times) < 0.02


def test_summary_is_json(tmp_path):
    store = formula_store(tmp_path / "store", num_nodes=60)
    summary = json.loads(json.dumps(store.summary()))
    assert summary["nodes"] == 60
    assert summary["isolated"] == 10
    assert summary["splits"] == {"train": 36, "val": 12, "test": 12}
    assert summary["bytes"]["indptr"] == HEADER_BYTES + 61 * 8
    assert "60 nodes" in repr(store)


def test_fingerprint_tells_data_apart(tmp_path):
    one = small_random_store(tmp_path / "a", 50, 200, 1)
    assert small_random_store(tmp_path / "b", 50, 200, 1).fingerprint == one.fingerprint
    assert small_random_store(tmp_path / "c", 50, 200, 2).fingerprint != one.fingerprint
    assert len(one.fingerprint) == 16


def test_class_names_and_notes_are_kept(tmp_path):
    with StoreWriter(tmp_path / "store") as made:
        made.write("indptr", np.zeros(3, dtype=np.int64))
        made.write("indices", np.zeros(0, dtype=np.int32))
        made.write("y", np.array([[0, 1, 1], [0, 0, 0]], dtype=np.uint8))
        made.finish(
            num_nodes=2, num_edges=0, task="multilabel", num_classes=3, class_names=["ä", "b", "c"], source="here",
            split_rule="none", undirected=True,
        )  # fmt: skip
    store = GraphStore.open(tmp_path / "store")
    assert store.class_names == ["ä", "b", "c"]
    assert store.metadata.notes == {"undirected": True}
    assert (store.metadata.source, store.metadata.split_rule) == ("here", "none")
    assert store.x is None
    assert store.splits == {}
    with pytest.raises(StoreError, match=r"no split 'train' \(it has: none\)"):
        store.split("train")


def test_absent_split_and_column_name_the_known_ones(tmp_path):
    store = formula_store(tmp_path / "store")
    with pytest.raises(StoreError, match="'train', 'val', 'test'"):
        store.split("valid")
    with pytest.raises(StoreError, match="Did you mean 'indptr'"):
        store.column("indptrs")


# Damage


def test_no_store_says_how_to_make_one(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(StoreError, match="partita ingest SOURCE STORE"):
            GraphStore.open(path)


def test_every_truncated_or_missing_column_is_found_by_open(tmp_path):
    store = formula_store(tmp_path / "store", weighted=True, names="strings", shuffle_seed=1)
    for name in store.metadata.columns:
        path = store.path / f"{name}.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(StoreError, match=f"column '{name}' is damaged.*bytes instead of"):
            GraphStore.open(store.path)
        path.unlink()
        with pytest.raises(StoreError, match=f"column '{name}' cannot be read"):
            GraphStore.open(store.path)
        path.write_bytes(b"\0" * len(content))
        with pytest.raises(StoreError, match=f"column '{name}' is damaged"):
            GraphStore.open(store.path)
        path.write_bytes(content)
    GraphStore.open(store.path)


def rewrite_column(store, name, array):
    path = store.path / f"{name}.npy"
    size = path.stat().st_size
    content = header(array.dtype, array.shape) + array.tobytes()
    path.write_bytes(content.ljust(size, b"\0")[:size])


def test_a_column_of_another_type_or_shape_is_found_by_open(tmp_path):
    store = formula_store(tmp_path / "store")
    rewrite_column(store, "y", np.zeros(60, dtype=np.uint64))
    with pytest.raises(StoreError, match=r"column 'y' is damaged: y\.npy holds <u8"):
        GraphStore.open(store.path)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("indptr", np.array([1, 1, 1, 2])),
        ("indptr", np.array([0, 1, 1, 1])),
        ("indptr", np.array([0, 1, 2])),
        ("indices", np.array([0, 1], dtype=np.int64)),
        ("indices", np.array([0], dtype=np.int32)),
        ("edge_weight", np.ones(2)),
        ("x", np.ones((3, 2))),
        ("x", np.ones((2, 2), dtype=np.float32)),
        ("y", np.zeros(2, dtype=np.int64)),
        ("y", np.zeros(3, dtype=np.int32)),
        ("original_index", np.arange(2)),
        ("part_offsets", np.array([0, 2])),
        ("part_offsets", np.array([], dtype=np.int64)),
        ("split_train", np.array([0.5])),
        ("split_train", np.arange(4)),
        ("name_offsets", np.array([0, 1, 2, 3])),
        ("self_loops", np.zeros(3, dtype=np.int64)),
    ],
)
def test_columns_that_do_not_fit_are_refused_when_written(tmp_path, name, array):
    columns = {"indptr": np.array([0, 1, 1, 2]), "indices": np.array([0, 1], dtype=np.int32)}
    columns |= {"y": np.zeros(3, dtype=np.int64), name: array}

    def make():
        with StoreWriter(tmp_path / "store") as made:
            for column, values in columns.items():
                made.write(column, values)
            made.finish(num_nodes=3, num_edges=2, task="classes", num_classes=2)

    with pytest.raises(StoreError, match="column '(name_bytes|" + name + ")' is damaged"):
        make()
    assert list(tmp_path.iterdir()) == []


def test_a_newer_version_says_to_upgrade(tmp_path):
    with StoreWriter(tmp_path / "store") as made:
        made.write("indptr", np.zeros(1, dtype=np.int64))
        made.write("indices", np.zeros(0, dtype=np.int32))
        made.finish(num_nodes=0, num_edges=0)
    path = tmp_path / "store" / "metadata.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 3'))
    with pytest.raises(StoreError, match=r"format version 3, this Partita reads up to version 2.*[Uu]pgrade"):
        GraphStore.open(tmp_path / "store")


def test_every_flipped_bit_of_the_metadata_is_refused(tmp_path):
    store = formula_store(tmp_path / "store")
    path = store.path / "metadata.json"
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 7)
        path.write_bytes(changed)
        try:  # white space between the values may change; nothing else
            opened = GraphStore.open(store.path)
        except StoreError:
            continue
        assert opened.metadata == store.metadata
    for broken in (b"", b"{}", b"[1]", b"\xff\xfe", content[: len(content) // 2]):
        path.write_bytes(broken)
        with pytest.raises(StoreError):
            GraphStore.open(store.path)


def test_edited_metadata_is_refused(tmp_path):
    store = formula_store(tmp_path / "store")
    path = store.path / "metadata.json"
    path.write_text(path.read_text().replace('"num_classes": 3', '"num_classes": 4'))
    with pytest.raises(StoreError, match=r"metadata.json: the content does not match its own checksum"):
        GraphStore.open(store.path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"notes": "none"}, "notes: Input should be a valid"),
        ({"num_nodes": "4"}, "num_nodes: Input should be a valid integer"),
        ({"task": 3}, "task"),
        ({"columns": []}, "items"),
        ({"color": "red"}, "'color' is unknown"),
        ({"schema": {"node_types": ["a"]}}, "'num_nodes' is missing"),
    ],
)
def test_metadata_of_other_types_are_refused(tmp_path, changes, message):
    path = formula_store(tmp_path / "store").path / "metadata.json"
    content = {**json.loads(path.read_text()), **changes}
    del content["checksum"]
    path.write_text(json.dumps({**content, "checksum": metadata._checksum(content)}))
    with pytest.raises(StoreError, match=rf"metadata.json: what it says does not fit together .*{message}"):
        GraphStore.open(path.parent)


# Writing


def fail_with(path, error, **options):
    with StoreWriter(path, **options) as made:
        made.write("indptr", np.zeros(5, dtype=np.int64))
        made.append("indices", np.int32).append(np.zeros(3, dtype=np.int32))
        made.allocate("x", (4, 4), np.float32)[:] = 1
        (made.scratch / "spill").write_text("x")
        raise error


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(1)])
def test_a_failure_leaves_the_old_store_and_nothing_else(tmp_path, error):
    old = formula_store(tmp_path / "store")
    with pytest.raises(type(error)):
        fail_with(tmp_path / "store", error, overwrite=True)
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]
    assert GraphStore.open(tmp_path / "store").fingerprint == old.fingerprint
    with pytest.raises(type(error)):
        fail_with(tmp_path / "new", error)
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_a_resource_error(tmp_path, number):
    with pytest.raises(ResourceError, match=r"disk is full.*bytes of the store were written.*bytes are free"):
        fail_with(tmp_path / "store", OSError(number, "no space"))
    with pytest.raises(PermissionError):
        fail_with(tmp_path / "store", PermissionError(errno.EACCES, "no"))
    assert list(tmp_path.iterdir()) == []


def test_allocating_more_than_the_disk_has_is_said_at_once(tmp_path):
    def make():
        with StoreWriter(tmp_path / "store") as made:
            made.allocate("x", (1 << 42, 1), np.float32)

    with pytest.raises(ResourceError, match=r"'x' needs 17,592,186,044,544 bytes, [\d,]+ bytes are free"):
        make()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_target_is_refused_or_replaced_last(tmp_path):
    store = formula_store(tmp_path / "store")
    with pytest.raises(StoreError, match="already"):
        formula_store(tmp_path / "store")
    with StoreWriter(tmp_path / "store", overwrite=True) as made:
        made.write("indptr", np.zeros(1, dtype=np.int64))
        made.write("indices", np.zeros(0, dtype=np.int32))
        assert GraphStore.open(tmp_path / "store").fingerprint == store.fingerprint
        made.finish(num_nodes=0, num_edges=0)
    assert GraphStore.open(tmp_path / "store").num_nodes == 0
    assert store.neighbors(7).tolist() == formula_neighbors(7, 60)  # who has the old one open keeps it
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]


def test_only_stores_are_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("thesis", "file"):
        with pytest.raises(StoreError, match="not a graph store"), StoreWriter(tmp_path / name, overwrite=True):
            pass
    (tmp_path / "empty").mkdir()
    formula_store(tmp_path / "empty")
    formula_store(tmp_path / "deep" / "er" / "store")


def test_a_store_that_appears_meanwhile_is_not_replaced(tmp_path):
    def make():
        with StoreWriter(tmp_path / "store") as made:
            made.write("indptr", np.zeros(1, dtype=np.int64))
            made.write("indices", np.zeros(0, dtype=np.int32))
            formula_store(tmp_path / "store")
            made.finish(num_nodes=0, num_edges=0)

    with pytest.raises(StoreError, match="already"):
        make()
    assert GraphStore.open(tmp_path / "store").num_nodes == 60
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]


def test_forgetting_to_finish_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="finish"), StoreWriter(tmp_path / "store"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(writer.fcntl is None, reason="needs file locks")
def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    script = (
        "import os, signal, sys; from partita.graph.writer import StoreWriter\n"
        "with StoreWriter(sys.argv[1]) as w: (w.scratch / 'big').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "store")], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".store.partial-")
    with StoreWriter(tmp_path / "store"[:3]) as other:  # another path, whose leftovers these are not
        assert left.exists()
        other.write("indptr", np.zeros(1, dtype=np.int64))
        other.write("indices", np.zeros(0, dtype=np.int32))
        other.finish(num_nodes=0, num_edges=0)
    formula_store(tmp_path / "store")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sto", "store"]


@pytest.mark.skipif(writer.fcntl is None, reason="needs file locks")
def test_a_writer_at_work_is_left_alone(tmp_path):
    with StoreWriter(tmp_path / "store") as first:
        first.write("indptr", np.zeros(1, dtype=np.int64))
        first.write("indices", np.zeros(0, dtype=np.int32))
        with pytest.raises(RuntimeError), StoreWriter(tmp_path / "store"):
            pass
        first.finish(num_nodes=0, num_edges=0)
    GraphStore.open(tmp_path / "store")


def test_files_are_plain_npy_of_the_promised_size_and_checksum(tmp_path):
    store = formula_store(tmp_path / "store")
    names = {path.stem for path in store.path.glob("*.npy")}
    assert names == set(store.metadata.columns)
    assert {path.name for path in store.path.iterdir()} == {"metadata.json", *(f"{name}.npy" for name in names)}
    for name, record in store.metadata.columns.items():
        path = store.path / f"{name}.npy"
        assert (np.load(path, allow_pickle=False) == store.column(name)).all()
        assert path.stat().st_size == record.bytes == HEADER_BYTES + store.column(name).nbytes
        assert file_checksum(path) == record.checksum
        assert os.access(path, os.R_OK)


def test_rows_that_do_not_fit_a_stream(tmp_path):
    with pytest.raises(ValueError, match="do not fit"), StoreWriter(tmp_path / "store") as made:
        made.append("x", np.float32, (3,)).append(np.zeros((2, 4), dtype=np.float32))


def test_opening_needs_no_torch_and_no_numba():
    script = (
        "import sys, partita.graph.store, partita.graph.writer; print('torch' in sys.modules, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
