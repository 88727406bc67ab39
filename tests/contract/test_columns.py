"""What becomes of the columns of a store, by their table. A new one in it is covered without a new test.

Two columns are added from outside, by nothing but an entry: a type of every edge, and a year of every node.
"""

from __future__ import annotations

import numpy as np
import pytest

import partita
from partita.core.errors import ConfigError, StoreError
from partita.graph.column_specs import COLUMNS, ColumnSpec, known, spec_of
from partita.graph.export import export
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.isolated.subgraph import HALOS
from partita.isolated.views import PartView
from partita.partitioning.shards import shard
from partita.testing.graphs import formula_store

ADDED = {
    "edge_kind": ColumnSpec("edges", "|u1", view="all", export="edge_kind"),
    "node_year": ColumnSpec("nodes", "<i8", view="all", export="year"),
    "node_place": ColumnSpec("nodes", lambda of: (("<f8",), (2,)), finite=True, shard="own", view="owned"),
}
TYPED = {"edge_type"}
"""Columns of typed graphs only, see test_typed_arrays.py."""
ROWS = [
    name for name, spec in known(COLUMNS).items()
    if spec.of in ("nodes", "edges") and not name.endswith("*") and name not in TYPED
]  # fmt: skip


@pytest.fixture(autouse=True)
def added():
    for name, spec in ADDED.items():
        partita.register("column", name, spec)
    yield
    for name in ADDED:
        COLUMNS.remove(name)


def copied(store, path, columns):
    """A store with other columns besides or instead."""
    with StoreWriter(path) as writer:
        for name in {*store.columns, *columns}:
            writer.write(name, columns[name] if name in columns else store.column(name))
        writer.finish_like(store.metadata, {})
    return GraphStore.open(path)


@pytest.fixture
def store(tmp_path):
    """A store in two parts, out of order, with every column of nodes or edges in the table."""
    path = tmp_path / "base"
    base = formula_store(
        path, num_nodes=53, weighted=True, edge_features=3, names="numbers", num_parts=2, shuffle_seed=4
    )
    missing = {}
    for name, spec in known(COLUMNS).items():
        form = spec.expected(base.metadata, name)
        if form is not None and name not in TYPED and not base.has(name):
            numbers = 2 + np.arange(np.prod(form[1])) % 97
            if name == "edge_time":  # in order within each row
                numbers.sort()
            missing[name] = numbers.reshape(form[1]).astype(form[0][0])
    store = copied(base, tmp_path / "store", missing)
    assert set(ROWS) | set(ADDED) <= set(store.columns)
    return store


def by_original(store, name):
    """The rows of a column of nodes, or those of the edges into every node, in the order of ingest."""
    column = store.column(name)
    if spec_of(name).reorder == "map":
        column = store.to_original(column)
    places = np.argsort(store.to_original(np.arange(store.num_nodes)))
    if spec_of(name).of == "edges":
        return [column[store.indptr[v] : store.indptr[v + 1]].tolist() for v in places]
    return column[places].tolist()


@pytest.mark.parametrize("name", [*ROWS, *ADDED])
def test_a_wrong_form_is_found_when_a_store_is_opened(store, tmp_path, name):
    column = store.column(name)
    for wrong in (column[:-1], column.astype(np.complex64)):
        with pytest.raises(StoreError, match=f"column '{name}' is damaged"):
            copied(store, tmp_path / "wrong", {name: wrong})


@pytest.mark.parametrize("name", [name for name in [*ROWS, *ADDED] if {**ADDED, **known(ROWS)}[name].finite])
def test_verify_finds_numbers_that_are_not_finite(store, tmp_path, name):
    assert any(line.startswith(f"{name}: ") for line in verify(store.path))
    column = store.column(name).copy()
    column[7] = np.nan
    wrong = copied(store, tmp_path / "wrong", {name: column})
    message = f"column '{name}': the row of (node|edge) 7 holds a number that is not finite"
    with pytest.raises(StoreError, match=message):
        verify(wrong.path)


def test_partitioning_moves_rows(store, tmp_path):
    partita.partition(store, tmp_path / "parts", parts=3, algorithm="random")
    moved = GraphStore.open(tmp_path / "parts")
    verify(moved.path)
    assert set(moved.columns) == set(store.columns)
    for name in [*ROWS, *ADDED]:
        assert moved.column(name).dtype == store.column(name).dtype
        assert by_original(moved, name) == by_original(store, name), name


@pytest.mark.parametrize("topology", ["partitioned", "replicated"])
def test_shards_hold_the_rows_of_their_host(store, tmp_path, topology):
    for host in range(2):
        shard(store, tmp_path / f"{host}", host=host, hosts=2, topology=topology)
        part = GraphStore.open(tmp_path / f"{host}")
        verify(part.path)
        low, high = store.part_offsets[host], store.part_offsets[host + 1]
        rows = {"nodes": slice(low, high), "edges": slice(store.indptr[low], store.indptr[high])}
        for name in [*ROWS, *ADDED]:
            spec = spec_of(name)
            cut = spec.is_cut(edges=topology == "partitioned")
            wanted = store.column(name)[rows[spec.of]] if cut else store.column(name)
            held, first = part.held(name)
            assert np.array_equal(held, wanted)
            assert first == (rows[spec.of].start if cut else 0)
            assert (name in part.shard.cut) == cut
    assert {"edge_kind": topology == "partitioned", "node_year": False, "node_place": True}.items() <= {
        name: name in part.shard.cut for name in store.columns
    }.items()


@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("cut", [False, True])
def test_parts_in_memory_take_rows(store, tmp_path, halo, cut):
    source = store
    if cut:
        everything = store.x.nbytes + 8 * store.num_nodes
        shard(store, tmp_path / "0", host=0, hosts=2, topology="replicated", hot_bytes=everything)
        source = GraphStore.open(tmp_path / "0")
    view = PartView.load(source, [0], halo)
    assert view.size == PartView.measure(source, [0], halo)
    assert view.size.bytes <= PartView.bound(source, [0], halo).bytes
    assert set(view.columns) == {name for name, spec in known(store.columns).items() if spec.view}
    nodes = view.store_ids.numpy()
    assert (len(nodes) > view.num_owned) == (halo != "none")
    sources = nodes[view.indices.numpy()]
    for name, rows in view.columns.items():
        column, spec = store.column(name), spec_of(name)
        if spec.of == "nodes":
            wanted = column[nodes if spec.view == "all" else nodes[: view.num_owned]]
            assert np.array_equal(rows.numpy(), wanted)
            continue
        at = 0
        for row, (node, count) in enumerate(zip(nodes, view.indptr.diff().tolist())):
            edges = np.arange(store.indptr[node], store.indptr[node + 1])
            if halo == "none" or row >= view.num_owned:
                edges = edges[np.isin(store.indices[edges], nodes[: view.num_owned])]
            if halo == "one-hop" and row >= view.num_owned:
                edges = edges[:0]
            assert store.indices[edges].tolist() == sources[at : at + count].tolist()
            assert column[edges].tolist() == rows[at : at + count].tolist()
            at += count
    bare = PartView.load(source, [0], halo, without=list(view.columns))
    assert dict(bare.columns) == {}
    assert bare.size == PartView.measure(source, [0], halo, without=list(view.columns))


def test_rows_of_another_host_are_refused_by_name(store, tmp_path):
    shard(store, tmp_path / "0", host=0, hosts=2, topology="replicated")
    with pytest.raises(StoreError, match="needs the rows of 'node_place' of "):
        PartView.load(GraphStore.open(tmp_path / "0"), [1], without=["x"])


def test_export_writes_what_has_a_name(store, tmp_path):
    with np.load(export(store, tmp_path / "graph.npz")) as file:
        arrays = dict(file)
    names = {spec.export for spec in known(store.columns).values() if spec.export}
    assert set(arrays) == names | {"edge_index", "num_nodes", "name"}
    assert {"edge_kind", "year"} <= names
    for name, spec in known(store.columns).items():
        if spec.export and spec.of != "list":
            rows = by_original(store, name)
            wanted = [edge for row in rows for edge in row] if spec.of == "edges" else rows
            assert arrays[spec.export].tolist() == wanted
            assert arrays[spec.export].dtype == store.column(name).dtype


def test_what_is_not_in_the_table_is_kept_as_it_is(store, tmp_path):
    for name in ADDED:
        COLUMNS.remove(name)
    partita.partition(store, tmp_path / "parts", parts=2, algorithm="random")
    moved = GraphStore.open(tmp_path / "parts")
    shard(moved, tmp_path / "0", host=0, hosts=2)
    part = GraphStore.open(tmp_path / "0")
    view = PartView.load(moved, [0])
    for name, spec in ADDED.items():
        COLUMNS.register(name, spec)
        assert by_original(moved, name) == by_original(store, name)
        assert np.array_equal(part.column(name), moved.column(name))
        assert name not in view.columns


def test_entries_that_cannot_be():
    with pytest.raises(ValueError, match="as it takes the edges"):
        ColumnSpec("edges", "|u1", view="all", shard="whole")
    with pytest.raises(ValueError, match="of all of its nodes, or none"):
        ColumnSpec("type", view="owned")
    with pytest.raises(ConfigError, match="there is a column 'node_year' already"):
        COLUMNS.register("node_year", ColumnSpec("nodes", "<f4"))
