"""Stores in partition order: the same graph by original index, whatever the parts, the buffers, or the interruption."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
import reordering
from hypothesis import given, settings
from hypothesis import strategies as st
from reordering import reorder

from partita.core import progress
from partita.core.errors import ConfigError, InputError, ResourceError, StoreError
from partita.graph import journal
from partita.graph import writer as writer_module
from partita.graph.columns import PlacedColumn
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.partitioning import _scatter
from partita.partitioning.job import partition
from partita.partitioning.reorder import reorder as reorder_into
from partita.testing.graphs import formula_features, formula_store, small_random_store


@pytest.fixture
def tiny_buffers(monkeypatch):
    """Pieces of a few rows, so that every boundary is crossed."""
    monkeypatch.setattr(_scatter, "LEAST_BYTES", 160)


def extend(store, path, columns=(), without=(), task=None, num_classes=None, **notes):
    """A copy of a store with other columns."""
    meta = store.metadata
    with StoreWriter(path, overwrite=True) as made:
        for name in meta.columns:
            if name not in without:
                made.write(name, store.column(name))
        for name, column in dict(columns).items():
            made.write(name, column)
        made.finish(
            num_nodes=meta.num_nodes, num_edges=meta.num_edges, task=task or meta.task,
            num_classes=num_classes or meta.num_classes, class_names=meta.class_names, source=meta.source,
            split_rule=meta.split_rule, **{**meta.notes, **notes},
        )  # fmt: skip
    return GraphStore.open(path)


def by_original_index(store):
    """All that a store says, addressed by original indices: plain lists and dictionaries."""
    n, nodes, edges = store.num_nodes, {}, {}
    original = store.to_original(np.arange(n))
    place = np.argsort(original)
    names = store.names()
    offsets = store.indptr
    for name in store.metadata.columns:
        column = store.column(name)
        if name in ("x", "y", "self_loops") or name.startswith(("presample_node", "of_node")):
            nodes[name] = column[place].tolist()
        elif name.startswith(("edge_", "presample_edge")):
            edges[name] = [column[offsets[v] : offsets[v + 1]].tolist() for v in place]
    return {
        "columns": sorted(set(store.metadata.columns) - {"original_index"}),
        "neighbors": [original[store.neighbors(v)].tolist() for v in place],
        "names": [names[v] for v in place],
        "splits": {name: original[ids].tolist() for name, ids in store.splits.items()},
        "nodes": nodes,
        "edges": edges,
        "task": (store.task, store.num_classes, store.class_names),
        "text": (store.metadata.source, store.metadata.split_rule),
    }


def check_order(old, new, parts, num_parts):
    order = np.argsort(parts, kind="stable")
    assert new.to_original(np.arange(new.num_nodes)).tolist() == old.to_original(order).tolist()
    assert np.diff(new.part_offsets).tolist() == np.bincount(parts, minlength=num_parts).tolist()
    assert new.num_parts == num_parts


@st.composite
def cases(draw):
    num_nodes = draw(st.integers(1, 40))
    num_parts = draw(st.integers(1, 6))
    assignment = st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes)
    kind = draw(st.sampled_from(["formula", "random"]))
    weighted, dtype = draw(st.booleans()), draw(st.sampled_from([np.float32, np.float16]))
    features = draw(st.sampled_from([0, 1, 5]))
    options = {"weighted": weighted, "dtype": dtype, "num_features": features}
    if kind == "formula":
        options |= {
            "names": draw(st.sampled_from([None, "numbers", "strings"])),
            "num_parts": draw(st.integers(1, 3)),
            "shuffle_seed": draw(st.sampled_from([None, 3])),
        }
    else:
        options |= {"num_edges": draw(st.integers(0, 120)), "seed": draw(st.integers(0, 99))}
    return kind, num_nodes, options, num_parts, draw(assignment), draw(assignment)


@settings(max_examples=60)
@given(cases(), st.sampled_from([1, 500, 1 << 20]), st.booleans())
def test_the_same_graph_by_original_index(case, buffer_bytes, plain):
    kind, num_nodes, options, num_parts, first, second = case
    first, second = (np.array(parts, dtype=np.int32) for parts in (first, second))
    make = formula_store if kind == "formula" else small_random_store
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scatter, "LEAST_BYTES", buffer_bytes)
        if plain:  # as without numba
            patch.setattr(_scatter, "group_items", _scatter.group_items.py_func)
        for module in (journal, writer_module):  # the disk's own speed is not what is tested
            patch.setattr(module, "fsync_path", lambda path: None)
        old = make(Path(folder, "old"), num_nodes=num_nodes, **options)
        one = reorder(old, first, Path(folder, "one"), num_parts=num_parts, memory_limit=1)
        check_order(old, one, first, num_parts)
        verify(one.path)
        assert by_original_index(one) == by_original_index(old)
        two = reorder(one, second, Path(folder, "two"), num_parts=num_parts, memory_limit=1)
        check_order(one, two, second, num_parts)
        verify(two.path)
        assert by_original_index(two) == by_original_index(old)
        assert sorted(os.listdir(folder)) == ["old", "one", "two"]


def full_store(path, num_nodes=61):
    """A store with every kind of column, some of which this version knows nothing about."""
    base = formula_store(path / "base", num_nodes=num_nodes, weighted=True, names="strings", shuffle_seed=4)
    rng = np.random.default_rng(0)
    columns = {
        "presample_node": np.arange(num_nodes, dtype=np.int64) + 2,
        "presample_edge": rng.integers(0, 99, base.num_edges).astype(np.uint32),
        "edge_kind": rng.integers(0, 99, base.num_edges).astype(np.uint8),
        "edge_age": rng.random(base.num_edges),
        "of_node_place": rng.random((num_nodes, 2, 3)),
    }
    return extend(base, path / "full", columns, undirected=True, levels=[5])


def test_every_kind_of_column_moves(tmp_path, tiny_buffers):
    old = full_store(tmp_path)
    parts = (np.arange(61) * 7 % 5).astype(np.int32)
    new = reorder(old, parts, tmp_path / "new", num_parts=6, levels=(3, 2), memory_limit=1, notes={"algorithm": "mine"})
    check_order(old, new, parts, 6)
    verify(new.path)
    assert set(new.metadata.columns) == set(old.metadata.columns)
    assert by_original_index(new) == by_original_index(old)
    assert {name: r.dtype for name, r in new.metadata.columns.items()} == {
        name: r.dtype for name, r in old.metadata.columns.items()
    }
    assert new.metadata.notes == {"undirected": True, "algorithm": "mine", "levels": [3, 2]}
    again = reorder(new, parts, tmp_path / "again", num_parts=6)
    assert again.metadata.notes == {"undirected": True, "algorithm": "mine"}  # levels are those of this partition


def test_undoing_an_order_gives_the_first_store_back(tmp_path, tiny_buffers):
    old = formula_store(tmp_path / "old", weighted=True, names="strings")
    one = reorder(old, (np.arange(60) % 3).astype(np.int32), tmp_path / "one", num_parts=3, memory_limit=1)
    assert one.original_index is not None
    # 60 parts of one node each, in original order
    back = reorder(one, one.original_index.astype(np.int32), tmp_path / "back", num_parts=60, memory_limit=1)
    assert back.original_index is None
    same = set(old.metadata.columns) - {"part_offsets"}
    assert all(back.metadata.columns[name] == old.metadata.columns[name] for name in same)
    assert set(back.metadata.columns) == set(old.metadata.columns)


def test_one_part_is_the_same_store(tmp_path):
    old = formula_store(tmp_path / "old", shuffle_seed=2, names="numbers")
    new = reorder(old, np.zeros(60, dtype=np.int64), tmp_path / "new", num_parts=1)
    assert new.metadata == old.metadata
    for file in old.path.iterdir():
        assert (new.path / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(("task", "y"), [("multilabel", np.eye(3, dtype=np.uint8)), ("regression", None)])
def test_other_labels(tmp_path, tiny_buffers, task, y):
    base = formula_store(tmp_path / "base", num_nodes=30)
    y = np.tile(y, (10, 1)) if y is not None else np.arange(30, dtype=np.float32)
    classes = 3 if task == "multilabel" else 1
    old = extend(base, tmp_path / "old", {"y": y}, without=("y",), task=task, num_classes=classes)
    parts = (np.arange(30) % 4).astype(np.int32)
    new = reorder(old, parts, tmp_path / "new", num_parts=4, memory_limit=1)
    assert by_original_index(new) == by_original_index(old)


def test_empty_graphs(tmp_path):
    with StoreWriter(tmp_path / "old") as made:
        made.write("indptr", np.zeros(1, dtype=np.int64))
        made.write("indices", np.zeros(0, dtype=np.int32))
        made.finish(num_nodes=0, num_edges=0)
    old = GraphStore.open(tmp_path / "old")
    new = reorder(old, np.zeros(0, dtype=np.int32), tmp_path / "new", num_parts=3)
    assert new.part_offsets.tolist() == [0, 0, 0, 0]
    verify(new.path)


def test_many_parts(tmp_path):
    old = small_random_store(tmp_path / "old", 500, 3000)
    parts = np.random.default_rng(0).integers(0, 70_000, 500).astype(np.int32)
    new = reorder(old, parts, tmp_path / "new", num_parts=70_000)
    check_order(old, new, parts, 70_000)
    assert by_original_index(new) == by_original_index(old)


def test_progress_of_every_column(tmp_path, tiny_buffers):
    class Display:
        def __init__(self):
            self.said = {}

        def start(self, description, total, unit):
            self.said[description] = [0, total, unit]
            self.now = self.said[description]
            return self

        def advance(self, amount=1):
            self.now[0] += amount

        def stop(self, task):
            pass

    display, old = Display(), full_store(tmp_path)
    with progress.shown_by(display):
        new = reorder(old, np.zeros(61, dtype=np.int32), tmp_path / "new", num_parts=1, memory_limit=1)
    for name in set(new.metadata.columns) - {"indptr", "name_offsets", "part_offsets"}:
        done, total, unit = display.said[f"write {name}"]
        assert done == total == len(new.column(name)), name
        assert unit


# Features of another dtype


def test_features_change_their_dtype(tmp_path, tiny_buffers):
    old = formula_store(tmp_path / "old")
    parts = (np.arange(60) % 3).astype(np.int32)
    half = reorder(old, parts, tmp_path / "half", num_parts=3, feature_dtype="float16", memory_limit=1)
    assert half.x.dtype == np.float16
    assert (half.x == formula_features(half.original_index, 4)).all()
    full = reorder(half, parts, tmp_path / "full", num_parts=3, feature_dtype="float32", memory_limit=1)
    assert full.x.dtype == np.float32
    assert by_original_index(full) == by_original_index(old)
    assert reorder(old, parts, tmp_path / "same", num_parts=3, feature_dtype="float32").x.dtype == np.float32


@pytest.mark.parametrize("value", [65520.0, -1e30])
def test_a_feature_that_does_not_fit_is_named(tmp_path, tiny_buffers, value):
    base = formula_store(tmp_path / "base", names="strings")
    x = base.x.copy()
    x[41, 2] = value
    x[3, 1] = 65519.0  # rounds to the largest float16
    old = extend(base, tmp_path / "old", {"x": x}, without=("x",))
    parts = np.zeros(60, dtype=np.int32)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"column 'x': feature 2 of node node-41 is .* not fit float16"):
        reorder(old, parts, tmp_path / "new", num_parts=1, feature_dtype="float16", memory_limit=1)
    with pytest.raises(InputError, match="node-41"):
        reorder(old, parts, tmp_path / "base", num_parts=1, feature_dtype="float16", overwrite=True)
    assert sorted(tmp_path.iterdir()) == before
    assert GraphStore.open(tmp_path / "base").fingerprint == base.fingerprint


def test_numbers_that_were_not_finite_stay_so(tmp_path):
    base = formula_store(tmp_path / "base")
    x = base.x.copy()
    x[5] = [np.nan, np.inf, -np.inf, 1]
    old = extend(base, tmp_path / "old", {"x": x}, without=("x",), allow_nan=True)
    new = reorder(old, np.zeros(60, dtype=np.int32), tmp_path / "new", num_parts=1, feature_dtype="float16")
    assert np.array_equal(new.x, x.astype(np.float16), equal_nan=True)


# What is refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_parts": 0}, ConfigError, "num_parts: invalid number of parts: 0"),
        ({"levels": (2, 2)}, ConfigError, "levels: 2 x 2 are not 3 parts"),
        ({"levels": (-3, -1)}, ConfigError, "levels"),
        ({"feature_dtype": "int8"}, ConfigError, "invalid feature dtype: 'int8'"),
        ({"parts": np.zeros(59, dtype=np.int32)}, InputError, "does not fit 60 nodes"),
        ({"parts": np.full(60, 3)}, InputError, r"node 0 has part 3, outside \[0, 3\)"),
        ({"parts": -np.ones(60, dtype=np.int64)}, InputError, "part -1"),
    ],
)
def test_impossible_requests(tmp_path, options, error, message):
    store = formula_store(tmp_path / "store")
    arguments = {"parts": np.zeros(60, dtype=np.int32), "num_parts": 3, **options}
    with pytest.raises(error, match=message):
        reorder(store, out=tmp_path / "out", **arguments)
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]


def test_no_features_to_convert(tmp_path):
    store = formula_store(tmp_path / "store", num_features=0)
    with pytest.raises(ConfigError, match="no features"):
        reorder(store, np.zeros(60, dtype=np.int32), tmp_path / "out", num_parts=1, feature_dtype="float16")


@pytest.mark.parametrize("shape", [(3,), (60,), (0, 60)])
def test_columns_of_unknown_alignment_are_refused(tmp_path, shape):
    if shape == (60,):  # as many edges as nodes
        base = ring(tmp_path / "base", 60, 1)
    else:
        base = formula_store(tmp_path / "base")
    old = extend(base, tmp_path / "old", {"riddle": np.zeros(shape)})
    with pytest.raises(StoreError, match="whether column 'riddle'"):
        reorder(old, np.zeros(60, dtype=np.int32), tmp_path / "out", num_parts=1)


def test_a_store_that_is_there(tmp_path):
    store = formula_store(tmp_path / "store")
    other = formula_store(tmp_path / "other", num_nodes=10)
    parts = (np.arange(60) % 2).astype(np.int32)
    for out in ("store", "other"):
        with pytest.raises(StoreError, match="already exists"):
            reorder(store, parts, tmp_path / out, num_parts=2)
    assert GraphStore.open(tmp_path / "other").fingerprint == other.fingerprint
    assert reorder(store, parts, tmp_path / "other", num_parts=2, overwrite=True).num_nodes == 60
    assert sorted(os.listdir(tmp_path)) == ["other", "store"]


def test_a_store_may_be_replaced_by_itself_in_another_order(tmp_path, tiny_buffers):
    old = formula_store(tmp_path / "store", weighted=True, names="strings")
    before = by_original_index(old)
    parts = (np.arange(60) % 2).astype(np.int32)
    new = reorder(old, parts, old.path, num_parts=2, overwrite=True, memory_limit=1)
    assert by_original_index(new) == before
    assert new.num_parts == 2
    assert by_original_index(old) == before  # its files are gone, its maps are not
    verify(tmp_path / "store")
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize(("column", "value", "message"), [("indices", 60, "entry 70 is 60"), ("indptr", 999, "fall")])
def test_damage_is_noticed(tmp_path, tiny_buffers, column, value, message):
    store = formula_store(tmp_path / "store")
    damaged = np.load(store.path / f"{column}.npy", mmap_mode="r+")
    damaged[70 if column == "indices" else 30] = value
    damaged.flush()
    with pytest.raises(StoreError, match=message):
        reorder(store, np.zeros(60, dtype=np.int32), tmp_path / "out", num_parts=1, memory_limit=1)
    assert os.listdir(tmp_path) == ["store"]


# Disk and memory


def test_too_little_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    store = formula_store(tmp_path / "store")
    need = sum(r.bytes for r in store.metadata.columns.values()) + 128 + 60 * 8 + 8  # original_index, one more part
    used = shutil.disk_usage(tmp_path)
    parts = (np.arange(60) % 2).astype(np.int32)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: used._replace(free=need - 1))
    monkeypatch.setattr(PlacedColumn, "put", None)
    with pytest.raises(ResourceError, match=f"needs {need:,} bytes, {need - 1:,} bytes are free"):
        reorder(store, parts, tmp_path / "out", num_parts=2)
    assert os.listdir(tmp_path) == ["store"]
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: used._replace(free=need))
    reorder(store, parts, tmp_path / "out", num_parts=2)


WITH_SUPPORT = {**os.environ, "PYTHONPATH": str(Path(reordering.__file__).parent)}

LIMITED = """
import resource, sys
import numpy as np
from partita.graph.store import GraphStore
from partita.testing.graphs import formula_store
from reordering import reorder

def private(field):
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines[field].split()[0]) * 1024

folder = sys.argv[1]
store = GraphStore.open(folder + "/old")
parts = (np.arange(store.num_nodes) % 7).astype(np.int32)
warm = formula_store(folder + "/warm", num_nodes=50, weighted=True)  # load the kernels
reorder(warm, parts[:50], folder + "/warm", num_parts=7, overwrite=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_disk_that_fills_up_leaves_the_store_that_was_there(tmp_path):
    old = small_random_store(tmp_path / "old", 5000, 20_000)
    kept = formula_store(tmp_path / "out")
    script = LIMITED + textwrap.dedent("""
    resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, -1))
    try:
        reorder(store, parts, folder + "/out", num_parts=7, overwrite=True)
    except Exception as error:
        print(type(error).__name__, error)
    """)
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=WITH_SUPPORT)
    assert done.stdout.startswith("ResourceError"), done.stdout + done.stderr
    assert "'x' needs 160,128 bytes" in done.stdout
    assert GraphStore.open(tmp_path / "out").fingerprint == kept.fingerprint
    assert sorted(os.listdir(tmp_path)) == ["old", "out", "warm"]
    assert old.num_nodes == 5000


def ring(path, num_nodes, degree):
    """A big store quickly: node v's neighbors are v + 1, v + 2, ..."""
    with StoreWriter(path) as made:
        made.write("indptr", np.arange(num_nodes + 1) * degree)
        indices, weights = made.append("indices", np.int32), made.append("edge_weight", np.float32)
        for first in range(0, num_nodes, 1 << 12):
            v = np.arange(first, min(first + (1 << 12), num_nodes))
            src = (v[:, None] + 1 + np.arange(degree)) % num_nodes
            indices.append(src.reshape(-1).astype(np.int32))
            weights.append((src % 5).reshape(-1).astype(np.float32))
        x = made.append("x", np.float32, (2 * degree,))
        for first in range(0, num_nodes, 1 << 12):
            v = np.arange(first, min(first + (1 << 12), num_nodes), dtype=np.float32)
            x.append(np.repeat(v[:, None], 2 * degree, axis=1))
        made.finish(num_nodes=num_nodes, num_edges=num_nodes * degree)
    return GraphStore.open(path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA")
@pytest.mark.parametrize("degree", [8, 80])
def test_memory_depends_on_nodes_alone(tmp_path, degree):
    """Rank, a mask of the checks, buffers and a little: enforced by the kernel. 80 edges a node take 42 MB twice."""
    nodes, limit = 1 << 17, 8 << 20
    ring(tmp_path / "old", nodes, degree)
    script = LIMITED + textwrap.dedent("""
    nodes, limit = store.num_nodes, int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (private("VmData") + 8 * nodes + limit + (2 << 20), -1))
    reorder(store, parts, folder + "/new", num_parts=7, memory_limit=limit)
    try:
        np.ones(nodes * 40, dtype=np.int32)
    except MemoryError:
        print("the limit binds")
    """)
    command = [sys.executable, "-c", script, str(tmp_path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=WITH_SUPPORT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the limit binds\n"
    new = GraphStore.open(tmp_path / "new")
    picked = np.arange(0, nodes, 997)
    original = new.to_original(picked)
    assert (new.x[picked] == original[:, None]).all()
    for v, u in zip(picked, original):
        assert new.to_original(new.neighbors(v)).tolist() == [(u + 1 + j) % nodes for j in range(degree)]


# Killed, interrupted, continued

KILLED = """
import os, signal, sys
import numpy as np
from partita.graph.columns import PlacedColumn
from partita.graph.store import GraphStore
from partita.partitioning import _scatter
from reordering import reorder

_scatter.LEAST_BYTES = 160
column, count, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
put = PlacedColumn.put

def put_or_die(self, first_row, rows):
    global count
    if self._path.stem == column:
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    put(self, first_row, rows)

PlacedColumn.put = put_or_die
store = GraphStore.open(folder + "/old")
reorder(store, (np.arange(61) * 7 % 5).astype(np.int32), folder + "/new", resume_key="key", num_parts=5, memory_limit=1)
"""


@pytest.mark.skipif(writer_module.fcntl is None, reason="needs file locks")
@pytest.mark.parametrize(("column", "count"), [("x", 2), ("indices", 5), ("name_bytes", 3), ("part_offsets", 0)])
def test_killed_in_the_middle_of_a_column(tmp_path, tiny_buffers, monkeypatch, column, count):
    old = full_store(tmp_path)
    shutil.rmtree(tmp_path / "base")
    old.path.rename(tmp_path / "old")
    old = GraphStore.open(tmp_path / "old")
    parts = (np.arange(61) * 7 % 5).astype(np.int32)
    command = [sys.executable, "-c", KILLED, column, str(count), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=WITH_SUPPORT)
    assert done.returncode == -9, done.stderr
    (left,) = tmp_path.glob(".new.partial-resume-*")
    finished = {path.name: path.stat() for path in left.glob("*.npy") if path.stem != column}
    assert len(finished) == {"x": 0, "part_offsets": len(old.metadata.columns) - 1}.get(column, len(finished))
    assert (column == "x") == (not finished)
    expected = reorder(old, parts, tmp_path / "expected", num_parts=5, memory_limit=1)

    written, put = set(), PlacedColumn.put
    monkeypatch.setattr(PlacedColumn, "put", lambda self, *rows: written.add(self._path.name) or put(self, *rows))
    new = reorder(old, parts, tmp_path / "new", resume_key="key", num_parts=5, memory_limit=1)
    assert written == {f"{name}.npy" for name in new.metadata.columns} - finished.keys()
    for name, stat in finished.items():
        after = (new.path / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    assert {file.name for file in new.path.iterdir()} == {file.name for file in expected.path.iterdir()}
    for file in expected.path.iterdir():
        assert (new.path / file.name).read_bytes() == file.read_bytes()
    verify(new.path)
    assert sorted(os.listdir(tmp_path)) == ["expected", "new", "old"]


@pytest.mark.skipif(writer_module.fcntl is None, reason="needs file locks")
def test_ctrl_c_keeps_and_other_work_does_not_mix(tmp_path, monkeypatch):
    old = formula_store(tmp_path / "old")
    put = PlacedColumn.put

    def stopping(self, first_row, rows):
        if self._path.stem == "indptr":
            raise KeyboardInterrupt
        put(self, first_row, rows)

    def stop(store, seed, **options):
        monkeypatch.setattr(PlacedColumn, "put", stopping)
        with pytest.raises(KeyboardInterrupt):
            partition(store, tmp_path / "new", parts=2, algorithm="random", seed=seed, **options)
        monkeypatch.setattr(PlacedColumn, "put", put)
        return [path.name for path in tmp_path.glob(".new.partial-*")]

    (first,) = stop(old, 0)
    assert stop(old, 0) == [first]
    (second,) = stop(old, 1)
    (third,) = stop(old, 1, feature_dtype="float16")
    counted = extend(old, tmp_path / "counted", {"presample_node": np.arange(60) + 1})
    assert counted.fingerprint == old.fingerprint
    (fourth,) = stop(counted, 1, feature_dtype="float16")
    assert len({first, second, third, fourth}) == 4
    partition(old, tmp_path / "new", parts=2, algorithm="random")
    new = GraphStore.open(tmp_path / "new")
    verify(new.path)
    assert by_original_index(new) == by_original_index(old)
    assert not list(tmp_path.glob(".*"))


def test_any_other_error_removes(tmp_path, monkeypatch):
    old = formula_store(tmp_path / "old")

    def failing(self, first_row, rows):
        raise RuntimeError("mine")

    monkeypatch.setattr(PlacedColumn, "put", failing)
    with pytest.raises(RuntimeError, match="mine"):
        reorder(old, np.zeros(60, dtype=np.int32), tmp_path / "new", num_parts=1)
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize("key", [None, "mine"])
def test_a_writer_of_the_caller(tmp_path, key):
    old = formula_store(tmp_path / "old", weighted=True)
    parts = (np.arange(60) % 2).astype(np.int32)
    with StoreWriter(tmp_path / "new", resume_key=key) as made:
        made.keep("parts", parts)
        new = reorder_into(old, made.kept("parts") if key else parts, made, num_parts=2)
    assert by_original_index(new) == by_original_index(old)
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]
