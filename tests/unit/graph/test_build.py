"""The out-of-core builder gives what a few lines of plain Python give, whatever the memory limit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.core import progress
from partita.core.errors import ConfigError, InputError, ResourceError
from partita.graph import build, metadata, writer
from partita.graph import build_loops as kernels
from partita.graph.build import TopologyBuilder
from partita.graph.schema import Relation, Schema
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter

KERNELS = ("map_edges", "count_rows", "partition_edges", "place_edges", "finish_rows", "quantize")
QUANTISED_ONE = 2**32 - 1


def reference(src, dst, weight, num_nodes, rank, undirected, deduplicate, self_loops):
    """Rows of (source, weight) in plain Python."""
    rows = [[] for _ in range(num_nodes)]

    def emit(u, v, w):
        if deduplicate and any(u == other for other, _ in rows[v]):
            return
        rows[v].append((u, w))

    for u, v, w in zip(src, dst, weight):
        if u == v and self_loops != "keep":
            continue
        u, v = rank[u], rank[v]
        emit(u, v, w)
        if undirected and u != v:
            emit(v, u, w)
    if self_loops == "add":
        for v in range(num_nodes):
            rows[v].append((v, 1.0))
    return rows


@st.composite
def cases(draw):
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    if draw(st.booleans()):  # skewed: one node takes most edges
        node = st.one_of(st.just(num_nodes - 1), node)
    weights = st.sampled_from([0.0, 1e-30, 0.25, 0.5, 1.0, 3.0, 1e30])
    edges = draw(st.lists(st.tuples(node, node, weights), max_size=60))
    return SimpleNamespace(
        num_nodes=num_nodes,
        src=[e[0] for e in edges],
        dst=[e[1] for e in edges],
        weight=[float(np.float32(e[2])) for e in edges],
        rank=draw(st.permutations(range(num_nodes))) if draw(st.booleans()) else None,
        memory_limit=draw(st.sampled_from([1, 1, 100, 200, 400, 1000, 100_000])),
        batch=draw(st.integers(1, 30)),
        weighted=draw(st.booleans()),
        numbered=draw(st.booleans()),
        options={
            "undirected": draw(st.booleans()),
            "deduplicate": draw(st.booleans()),
            "self_loops": draw(st.sampled_from(["keep", "drop", "add"])),
        },
    )


def edge_features(count):
    """Rows that name their edge; never 0, which self loops have that are added."""
    return np.stack([np.arange(count) + 1.0, -np.arange(count) - 0.5], axis=1).astype(np.float32)


def build_store(path, case):
    with StoreWriter(path, overwrite=True) as writer:
        builder = TopologyBuilder(
            writer, memory_limit=case.memory_limit, weighted=case.weighted, numbered=case.numbered, **case.options
        )
        for start in range(0, len(case.src), case.batch):
            part = slice(start, start + case.batch)
            arrays = [np.array(case.src[part]), np.array(case.dst[part])]
            number = np.arange(start, start + len(arrays[0])) if case.numbered else None
            builder.add(*arrays, np.array(case.weight[part]) if case.weighted else None, number=number)
        rank = None if case.rank is None else np.array(case.rank)
        features = edge_features(len(case.src)) if case.numbered else None
        summary = builder.finish(case.num_nodes, rank, features)
        writer.finish(num_nodes=case.num_nodes, num_edges=summary.num_edges)
    return GraphStore.open(path), summary


@pytest.fixture(params=["compiled", "numpy"])
def either_kernels(request, monkeypatch):
    monkeypatch.setattr(writer, "fsync_path", lambda path: None)  # durability is not what is tested here
    monkeypatch.setattr(build, "_FEWEST_EDGES_AT_ONCE", 3)  # several chunks even for a handful of edges
    if request.param == "numpy":
        for name in KERNELS:
            monkeypatch.setattr(kernels, name, getattr(kernels, f"{name}_numpy"))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_equals_reference(either_kernels, tmp_path, case):
    store, summary = build_store(tmp_path / "store", case)
    rank = list(range(case.num_nodes)) if case.rank is None else case.rank
    rows = reference(case.src, case.dst, case.weight, case.num_nodes, rank, **case.options)
    assert [[int(u) for u in store.neighbors(v)] for v in range(case.num_nodes)] == [
        [u for u, _ in row] for row in rows
    ]
    loops = [sum(u == v for u, _ in row) for v, row in enumerate(rows)]
    assert (store.self_loops is None) == (sum(loops) == 0)
    if store.self_loops is not None:
        assert store.self_loops.tolist() == loops
    if case.weighted:
        assert store.edge_weight.tolist() == [w for row in rows for _, w in row]
        assert store.edge_weight_quantised.tolist() == [q for row in rows for q in quantized([w for _, w in row])]
        outside = [[w for u, w in row if u != v] for v, row in enumerate(rows)]
        assert store.column("weight_sum").tolist() == [float(np.cumsum([0.0, *of])[-1]) for of in outside]
        own = [[w for u, w in row if u == v] for v, row in enumerate(rows)]
        assert store.column("loop_weight").tolist() == [(of or [1.0])[-1] for of in own]
    else:
        assert store.edge_weight is None
        assert store.edge_weight_quantised is None
        assert not store.has("weight_sum")
    if case.numbered:
        plain = (*map(list, (case.src, case.dst)), range(len(case.src)))
        numbers = reference(*plain, case.num_nodes, rank, **case.options)
        wanted = edge_features(len(case.src))
        if case.options["self_loops"] == "add":  # the last of each row
            numbers = [[*row[:-1], (row[-1][0], None)] for row in numbers]
        expected = [[0.0, 0.0] if at is None else wanted[at].tolist() for row in numbers for _, at in row]
        assert store.edge_attr.tolist() == expected
    else:
        assert store.edge_attr is None
    ways = 2 if case.options["undirected"] else 1
    input_loops = sum(u == v for u, v in zip(case.src, case.dst))
    assert summary.num_edges == sum(map(len, rows)) == store.num_edges
    assert summary.self_loops == sum(loops)
    assert summary.loops_dropped == (0 if case.options["self_loops"] == "keep" else input_loops)
    assert summary.loops_added == (case.num_nodes if case.options["self_loops"] == "add" else 0)
    before = ways * len(case.src) - input_loops * (ways if case.options["self_loops"] != "keep" else ways - 1)
    assert summary.duplicates_dropped == before + summary.loops_added - summary.num_edges
    verify(store.path)


def quantized(row):
    top = max(row, default=0.0)
    return [0 if w == 0 else max(1, int(np.rint(w * (QUANTISED_ONE / top)))) for w in row]


@st.composite
def typed_cases(draw):
    case = draw(cases())
    case.options |= {"undirected": False, "self_loops": draw(st.sampled_from(["keep", "drop"]))}
    case.kinds = draw(st.lists(st.integers(0, 2), min_size=len(case.src), max_size=len(case.src)))
    case.dtype = np.dtype(draw(st.sampled_from([np.uint8, np.uint16])))
    return case


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=typed_cases())
def test_rows_are_sorted_by_type(either_kernels, tmp_path, case):
    """Stably: edges of one type are in the order of the input, as in a graph of these edges only."""
    rank = list(range(case.num_nodes)) if case.rank is None else case.rank
    rows = [[] for _ in range(case.num_nodes)]
    edges = list(zip(case.src, case.dst, case.weight, case.kinds))
    for kind in range(3):
        mine = [(u, v, w) for u, v, w, its in edges if its == kind]
        found = reference(*(zip(*mine) if mine else ((), (), ())), case.num_nodes, rank, **case.options)
        for row, more in zip(rows, found):
            row += [(u, w, kind) for u, w in more]
    relations = tuple(Relation("node", f"r{kind}", "node") for kind in range(3 if case.dtype == np.uint8 else 300))
    with StoreWriter(tmp_path / "store", overwrite=True) as made:
        builder = TopologyBuilder(
            made, memory_limit=case.memory_limit, weighted=case.weighted, edge_dtype=case.dtype, **case.options
        )
        for start in range(0, len(case.src), case.batch):
            src, dst, weight, kind = (
                np.array(each[start : start + case.batch]) for each in (case.src, case.dst, case.weight, case.kinds)
            )
            builder.add(src, dst, weight if case.weighted else None, kind)
        summary = builder.finish(case.num_nodes, None if case.rank is None else np.array(case.rank))
        sizes = [sum(kind == each for row in rows for *_, kind in row) for each in range(len(relations))]
        schema = Schema(("node",), (case.num_nodes,), relations, tuple(sizes))
        made.finish(num_nodes=case.num_nodes, num_edges=summary.num_edges, schema=schema)
    store = GraphStore.open(tmp_path / "store")
    assert [row.tolist() for row in np.split(store.indices, store.indptr[1:-1])] == [
        [u for u, *_ in row] for row in rows
    ]
    assert store.edge_type.tolist() == [kind for row in rows for *_, kind in row]
    if case.weighted:
        assert store.edge_weight.tolist() == [w for row in rows for _, w, _ in row]
    assert store.schema == schema
    verify(store.path)


def test_edges_that_are_added_would_have_no_type(tmp_path):
    for options in ({"undirected": True}, {"self_loops": "add"}):
        with pytest.raises(ValueError, match="which type"), StoreWriter(tmp_path / "a") as made:
            TopologyBuilder(made, memory_limit=1, edge_dtype=np.dtype(np.uint8), **options)


def test_many_ranges_are_used(tmp_path, monkeypatch):
    """The property above is about something only if small limits really lead to many ranges and to spilling."""
    counted = []
    choose = TopologyBuilder._choose_ranges
    monkeypatch.setattr(
        TopologyBuilder, "_choose_ranges", lambda self, p: counted.append(choose(self, p)) or counted[-1]
    )
    case = SimpleNamespace(
        num_nodes=50, src=list(range(50)) * 4, dst=[7] * 100 + list(range(50)) * 2, weight=[1.0] * 200, rank=None,
        batch=13, weighted=False, numbered=True, options={},
    )  # fmt: skip
    stores = []
    for limit in (1, 300, 3000, 1 << 20):
        case.memory_limit = limit
        stores.append(build_store(tmp_path / str(limit), case)[0])
    assert [len(ranges) - 1 for ranges in counted] == [50, 9, 3, 1] or len(counted[0]) > len(counted[1]) > 2
    assert len(counted[-1]) == 2
    assert len({store.fingerprint for store in stores}) == 1


def test_large_ids_are_kept_as_int64(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "LARGEST_INT32_GRAPH", 10)
    monkeypatch.setattr(build, "_LARGEST_INT32", 9)
    with StoreWriter(tmp_path / "store") as writer:
        builder = TopologyBuilder(writer, memory_limit=1, deduplicate=True)
        builder.add(np.array([1, 2], dtype=np.uint8), np.array([0, 0], dtype=np.int32))
        builder.add(np.array([15, 3, 15]), np.array([0, 15, 0]))
        assert len(builder._spills) == 2
        summary = builder.finish(16)
        writer.finish(num_nodes=16, num_edges=summary.num_edges)
    store = GraphStore.open(tmp_path / "store")
    assert store.indices.dtype == np.int64
    assert store.neighbors(0).tolist() == [1, 2, 15]
    assert store.neighbors(15).tolist() == [3]


def test_no_edges_and_no_nodes(tmp_path):
    for num_nodes in (0, 3):
        with StoreWriter(tmp_path / str(num_nodes)) as writer:
            summary = TopologyBuilder(writer, memory_limit=100, weighted=True).finish(num_nodes)
            writer.finish(num_nodes=num_nodes, num_edges=summary.num_edges)
        store = GraphStore.open(tmp_path / str(num_nodes))
        assert (store.num_nodes, store.num_edges) == (num_nodes, 0)
        verify(store.path)


@pytest.mark.parametrize("bad", [-1, 5, 2**40, -(2**40)])
@pytest.mark.parametrize("limit", [1, 10_000])
def test_ids_outside_are_refused(tmp_path, bad, limit, either_kernels):
    def build_it():
        with StoreWriter(tmp_path / "store") as writer:
            builder = TopologyBuilder(writer, memory_limit=limit)
            builder.add(np.arange(5), np.arange(5))
            builder.add(np.arange(5), np.arange(5))
            builder.add(np.array([2]), np.array([bad]))
            builder.finish(5)

    with pytest.raises(InputError, match=rf"edge 10, counted from 0: the edge 2 -> {bad} names.*5 nodes"):
        build_it()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, 1e300])
def test_weights_must_be_usable(tmp_path, bad):
    def build_it():
        with StoreWriter(tmp_path / "store") as writer:
            builder = TopologyBuilder(writer, memory_limit=100, weighted=True)
            builder.add(np.arange(3), np.arange(3), np.ones(3))
            builder.add(np.arange(3), np.arange(3), np.array([1.0, bad, 1.0]))

    with pytest.raises(InputError, match="edge 4, counted from 0: the weight"):
        build_it()


def test_wrong_use(tmp_path):
    with pytest.raises(ConfigError, match="keep, drop or add"), StoreWriter(tmp_path / "a") as writer:
        TopologyBuilder(writer, memory_limit=1, self_loops="merge")
    with pytest.raises((ValueError, TypeError)), StoreWriter(tmp_path / "a") as writer:
        TopologyBuilder(writer, memory_limit=1).add(np.arange(3), np.arange(2))
    with pytest.raises(ValueError, match="weight"), StoreWriter(tmp_path / "a") as writer:
        TopologyBuilder(writer, memory_limit=1, weighted=True).add(np.arange(3), np.arange(3))


def test_progress_is_shown(tmp_path):
    shown = {}

    class Display:
        def start(self, description, total, unit):
            shown[description] = [total, unit, 0]
            return SimpleNamespace(advance=lambda k=1: shown[description].__setitem__(2, shown[description][2] + k))

        def stop(self, task):
            pass

    with progress.shown_by(Display()), StoreWriter(tmp_path / "store") as writer:
        builder = TopologyBuilder(writer, memory_limit=100)
        builder.add(np.arange(20), np.arange(20))
        builder.finish(20)
        writer.finish(num_nodes=20, num_edges=20)
    for name in ("count edges", "distribute edges", "sort edges"):
        assert shown[name] == [20, "edges", 20]
    assert shown["checksums"][0] == shown["checksums"][2]


LIMITED = """
    import resource, sys
    import numpy as np
    from partita.graph.build import TopologyBuilder
    from partita.graph.writer import StoreWriter

    def make(path, num_edges, num_nodes, limit):
        with StoreWriter(path, overwrite=True) as writer:
            builder = TopologyBuilder(writer, memory_limit=limit, deduplicate=True)
            for start in range(0, num_edges, 1 << 18):
                rng = np.random.default_rng(start)
                builder.add(*rng.integers(0, num_nodes, size=(2, min(1 << 18, num_edges - start))))
            summary = builder.finish(num_nodes)
            writer.finish(num_nodes=num_nodes, num_edges=summary.num_edges)

    def private(field):
        lines = dict(line.split(":") for line in open("/proc/self/status"))
        return int(lines[field].split()[0]) * 1024

    make(sys.argv[1], 1000, 100, 1000)  # load the kernels
    """


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA")
def test_stays_below_the_memory_limit(tmp_path):
    """20 million edges (160 MB raw) within 64 MiB, the columns of O(nodes) and a little: enforced by the kernel."""
    script = (
        LIMITED
        + """
    nodes, limit = 1 << 17, 64 << 20
    room = limit + 40 * nodes + (24 << 20)  # batches of the caller included
    resource.setrlimit(resource.RLIMIT_DATA, (private("VmData") + room, -1))
    make(sys.argv[1], int(sys.argv[2]), nodes, int(sys.argv[3]))
    """
    )

    def run(edges, limit):
        command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "store"), str(edges), str(limit)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run(20_000_000, 64 << 20)
    assert done.returncode == 0, done.stderr
    assert GraphStore.open(tmp_path / "store").num_edges > 19_900_000
    refused = run(20_000_000, 1 << 30)  # the limit of the process does bind
    assert refused.returncode != 0
    assert "MemoryError" in refused.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    script = (
        LIMITED
        + """
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
    try:
        make(sys.argv[2], 299_000, 1000, 100_000)
    except Exception as error:
        print(type(error).__name__, error)
    """
    )
    (tmp_path / "full").mkdir()
    said = {}
    for size in (10_000, 2_380_000):  # too little for the raw edges; too little for what is made of them
        path = tmp_path / "full" / "store"
        command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "warm"), str(path), str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said[size] = done.stdout
        assert done.stdout.startswith(ResourceError.__name__), done.stdout + done.stderr
        assert "bytes are free" in done.stdout
        assert list((tmp_path / "full").iterdir()) == []
    assert "disk is full" in said[10_000]
    assert "'ranges' needs 2,392,000 bytes" in said[2_380_000]
