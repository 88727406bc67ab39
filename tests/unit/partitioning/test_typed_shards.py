"""Shards of typed graphs: of each type the rows of the host's own nodes, and of their edges all columns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from typed_graphs import TYPES, WIDTHS, typed_store

import partita
from partita.core.errors import ConfigError, StoreError
from partita.graph.column_specs import known
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.isolated.views import PartView
from partita.partitioning.shards import shard


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Four parts; the first two, those of host 0 of two, have all authors."""
    folder = tmp_path_factory.mktemp("typed")
    typed_store(folder / "g")
    whole = GraphStore.open(folder / "g.whole")
    parts = np.arange(whole.num_nodes) % 4
    parts[whole.types(np.arange(whole.num_nodes)) == 1] %= 2
    np.save(folder / "parts.npy", parts)
    partita.partition(whole, folder / "four", parts=4, algorithm=str(folder / "parts.npy"))
    return GraphStore.open(folder / "four")


def made(store, out, **options):
    found = GraphStore.open(shard(store, out, **options).path)
    verify(found.path)
    return found


@pytest.mark.parametrize("topology", ["partitioned", "replicated"])
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_a_shard_has_its_rows_of_every_column(tmp_path, store, hosts, topology):
    for host in range(hosts):
        part = made(store, tmp_path / str(host), host=host, hosts=hosts, topology=topology)
        assert part.schema == store.schema
        assert part.fingerprint == store.fingerprint
        assert part.type_widths == store.type_widths == WIDTHS
        low, high = part.shard.ends
        edges = slice(store.indptr[low], store.indptr[high])
        assert set(part.columns) == set(store.columns)
        for name, spec in known(store.columns).items():
            held, first = part.held(name)
            whole = store.column(name)
            if spec.of == "type":
                nodes = store.nodes_of(TYPES[int(name.removeprefix("x_"))])
                mine = np.flatnonzero((nodes >= low) & (nodes < high))
                assert first == np.searchsorted(nodes, low)
                assert np.array_equal(held, whole[mine]), name
                with pytest.raises(StoreError, match=f"column '{name}' is needed whole"):
                    part.x_of(TYPES[int(name.removeprefix("x_"))])
            elif spec.of == "edges" and topology == "partitioned":
                assert np.array_equal(held, whole[edges]), name
                assert first == edges.start
            else:
                assert (part.path / f"{name}.npy").read_bytes() == (store.path / f"{name}.npy").read_bytes()
        assert {name: part.shard.cut[name] for name in ("x_0", "x_1")} == {"x_0": "type", "x_1": "type"}
        cut = {"edge_type", "edge_weight", "edge_attr", "edge_weight_quantised", "indices"}
        assert set(part.shard.cut) == {"x_0", "x_1"} | (cut if topology == "partitioned" else set())
        assert part.summary()["type_features"] == store.summary()["type_features"]


def test_hot_rows_of_all_types_share_the_room(tmp_path, store):
    """A row of a paper and its id take 28 bytes, one of an author 20; places have none."""
    ranked = sorted(range(store.num_nodes), key=lambda v: (-int(store.in_degree()[v]), v))
    for host, room in ((0, 28), (0, 99), (1, 19), (1, 240), (1, 1 << 30)):
        part = made(store, tmp_path / f"{host}-{room}", host=host, hosts=2, hot_bytes=room)
        wanted, left = {0: [], 1: []}, room
        for node in (v for v in ranked if v not in part.shard.nodes):
            kind = int(store.types(np.array([node]))[0])
            if kind < 2:
                left -= 4 * WIDTHS[kind] + 8
                if left < 0:
                    break
                wanted[kind].append(node)
        for kind, ids in wanted.items():
            hot = part.hot_of(f"x_{kind}")
            assert ([] if hot is None else hot[0].tolist()) == sorted(ids)
            if hot is not None:
                assert np.array_equal(hot[1], store.x_of(TYPES[kind])[store.type_rows(hot[0])])
        assert part.summary()["shard"]["hot"] == sum(map(len, wanted.values()))
        assert ("hot" in part.metadata.notes) == any(wanted.values())
        assert part.hot is None


def test_other_rankings(tmp_path, store):
    given = np.array([store.nodes_of("place")[0], store.nodes_of("paper")[-1], store.nodes_of("author")[0]])
    part = made(store, tmp_path / "given", host=1, hosts=2, hot_bytes=47, hot=given)
    assert part.hot_of("x_1")[0].tolist() == [given[2]]
    with pytest.raises(ConfigError, match="not presampled"):
        shard(store, tmp_path / "out", host=1, hosts=2, hot_bytes=47, hot="presample")


def test_a_host_that_has_no_nodes_of_a_type(tmp_path, store):
    part = made(store, tmp_path / "1", host=1, hosts=2)
    assert part.held("x_1")[0].shape == (0, 3)
    assert made(store, tmp_path / "0", host=0, hosts=2).held("x_1")[0].shape == store.x_of("author").shape


def rewritten(part, path, columns=None, **changes):
    """The shard with other columns or another ``shard`` record, and checksums that fit."""
    columns = columns or {}
    with StoreWriter(path) as writer:
        for name in {**dict.fromkeys(part.columns), **columns}:
            writer.write(name, columns.get(name, part._columns.get(name)))
        return writer.finish_like(part.metadata, {}, dataclasses.replace(part.shard, **changes))


@pytest.mark.parametrize(
    ("columns", "changes", "message"),
    [
        ({"x_0": np.zeros((3, 5), np.float32)}, {}, "'x_0' is damaged: .* are not the 13 rows of the shard"),
        ({}, {"cut": {"x_7": "type"}}, "'x_7' is damaged: it is of a node type that there is not"),
        ({"hot_index_0": np.array([3])}, {}, "'hot_x_0' is damaged: hot_index_0 and hot_x_0 must come together"),
        ({"hot_index_2": np.array([3]), "hot_x_2": np.zeros((1, 1))}, {}, "'hot_x_2' is damaged"),
    ],
)
def test_a_record_that_does_not_fit_does_not_open(tmp_path, store, columns, changes, message):
    part = made(store, tmp_path / "1", host=1, hosts=2)
    with pytest.raises(StoreError, match=message):
        rewritten(part, tmp_path / "out", columns, **changes)


def test_wrong_content_is_found(tmp_path, store):
    part = made(store, tmp_path / "1", host=1, hosts=2, hot_bytes=1 << 20)
    authors = part.hot_of("x_1")[0]
    kinds, nan = part.held("edge_type")[0].copy(), part.held("x_0")[0].copy()
    kinds[0] = 9
    nan[2] = np.nan
    node = store.node_types.ids(0, np.array([part.held("x_0")[1] + 2]))[0]
    for column, wrong, message in (
        ("hot_index_1", np.append(store.nodes_of("place")[:1], authors[1:]), "is of another type"),
        ("hot_index_1", authors[::-1], "not ascending ids"),
        ("hot_x_1", np.full((len(authors), 3), np.inf, np.float32), "not finite"),
        ("edge_type", kinds, "is of relation 9, of 5"),
        ("x_0", nan, f"the row of node {node} holds a number that is not finite"),
    ):
        with pytest.raises(StoreError, match=message):
            verify(rewritten(part, tmp_path / "out" / f"{column}-{message[:5]}", {column: wrong}))


def test_a_graph_without_features_has_nothing_hot(tmp_path):
    arrays = {
        "node_type": np.array([0, 0, 1, 1]), "node_type_names": np.array(["a", "b"]),
        "edge_index": np.array([[0, 1], [2, 3]]), "edge_type": np.array([0, 0]), "edge_type_names": np.array(["to"]),
    }  # fmt: skip
    np.savez(tmp_path / "g.npz", **arrays)
    partita.ingest(tmp_path / "g.npz", tmp_path / "g")
    partita.partition(tmp_path / "g", tmp_path / "two", parts=2, algorithm="random")
    with pytest.raises(ConfigError, match="no features that could be hot"):
        shard(tmp_path / "two", tmp_path / "out", host=0, hosts=2, hot_bytes=99)
    made(GraphStore.open(tmp_path / "two"), tmp_path / "out", host=0, hosts=2)


@pytest.mark.parametrize("topology", ["partitioned", "replicated"])
def test_views_take_the_rows_that_a_shard_has(tmp_path, store, topology):
    """Of own parts those of every type; of other hosts' nodes the hot ones, and others are refused."""
    part = made(store, tmp_path / "1", host=1, hosts=2, topology=topology)
    alone, wanted = (PartView.load(each, [2, 3], "none") for each in (part, store))
    for name in ("x_0", "edge_type", "edge_attr"):
        assert np.array_equal(alone.columns[name].numpy(), wanted.columns[name].numpy()), name
    if topology == "replicated":
        with pytest.raises(StoreError, match=r"needs the rows of 'x_0' of .* nodes that the shard of host 1 of 2"):
            PartView.load(part, [2], "one-hop")
        hot = made(store, tmp_path / "hot", host=1, hosts=2, topology=topology, hot_bytes=1 << 20)
        halo, wanted = (PartView.load(each, [2], "one-hop") for each in (hot, store))
        for name in ("x_0", "x_1"):
            assert np.array_equal(halo.columns[name].numpy(), wanted.columns[name].numpy()), name
