"""A shard holds the slices that it promises, and says what it is wherever it is met."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from derived_columns import add_columns

import partita
from partita.core.errors import ConfigError, InputError, StoreError
from partita.graph import columns as columns_module
from partita.graph import metadata as metadata_module
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.partitioning import shards as shards_module
from partita.partitioning.quality import store_quality
from partita.partitioning.shards import shard
from partita.testing.graphs import formula_store, small_random_store

EDGE_COLUMNS = ("indices", "edge_weight", "edge_weight_quantised", "presample_edge")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Four parts, one of them large, and every kind of column."""
    folder = tmp_path_factory.mktemp("whole")
    base = formula_store(folder / "base", weighted=True, names="strings", shuffle_seed=4, num_parts=4, dtype=np.float16)
    add_columns(
        base.path,
        {
            "presample_node": np.arange(60, dtype=np.int64)[::-1] + 2,
            "presample_edge": np.arange(base.num_edges, dtype=np.uint32),
        },
    )
    return GraphStore.open(base.path)


@pytest.fixture(scope="module")
def shards(store):
    return [
        GraphStore.open(shard(store, store.path.parent / f"shard{host}", host=host, hosts=2, hot_bytes=50).path)
        for host in range(2)
    ]


@pytest.mark.parametrize("topology", ["partitioned", "replicated"])
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_a_shard_is_made_of_slices(tmp_path, store, hosts, topology):
    parts = store.num_parts // hosts
    for host in range(hosts):
        first, last = (int(store.part_offsets[h * parts]) for h in (host, host + 1))
        begin, end = int(store.indptr[first]), int(store.indptr[last])
        summary = shard(store.path, tmp_path / str(host), host=host, hosts=hosts, topology=topology)
        made = GraphStore.open(tmp_path / str(host))
        assert made.shard is not None
        assert (made.shard.host, made.shard.hosts, made.shard.nodes) == (host, hosts, range(first, last))
        assert made.shard.topology == topology
        assert made.fingerprint == store.fingerprint
        assert set(made.metadata.columns) == set(store.metadata.columns)
        for name in store.metadata.columns:
            held, start = made.held(name)
            wanted, where = store.column(name), 0
            if name == "x":
                wanted, where = wanted[first:last], first
            elif name in EDGE_COLUMNS and topology == "partitioned":
                wanted, where = wanted[begin:end], begin
            assert held.dtype == wanted.dtype
            assert held.tobytes() == wanted.tobytes(), name
            assert start == where, name
            if name != "x" and (topology == "replicated" or name not in EDGE_COLUMNS):
                assert (made.path / f"{name}.npy").read_bytes() == (store.path / f"{name}.npy").read_bytes()
        assert summary.nodes == last - first
        assert summary.edges == (end - begin if topology == "partitioned" else store.num_edges)
        assert summary.bytes == sum(record.bytes for record in made.metadata.columns.values())
        assert (made.num_nodes, made.num_edges, made.num_features) == (60, store.num_edges, 4)
        assert made.neighbors(last - 1).tolist() == store.neighbors(last - 1).tolist()
        verify(made.path)


def test_a_host_may_have_no_nodes(tmp_path):
    whole = small_random_store(tmp_path / "whole", 30, 200)
    with StoreWriter(tmp_path / "parts") as writer:
        for name in whole.metadata.columns:
            if name != "part_offsets":
                writer.write(name, whole.column(name))
        writer.write("part_offsets", np.array([0, 0, 30], dtype=np.int64))
        writer.finish(num_nodes=30, num_edges=200, task="classes", num_classes=4)
    for host, nodes in enumerate((0, 30)):
        made = GraphStore.open(shard(tmp_path / "parts", tmp_path / str(host), host=host, hosts=2).path)
        verify(made.path)
        assert len(made.held("x")[0]) == nodes
        assert len(made.held("indices")[0]) == (200 if nodes else 0)


def test_what_is_cut_is_never_handed_out_as_whole(shards, store):
    made = shards[1]
    for read in (
        lambda: made.x,
        lambda: made.indices,
        lambda: made.edge_weight,
        lambda: made.edge_weight_quantised,
        lambda: made.presample_edge,
        lambda: made.column("x"),
        lambda: made.column("indices"),
    ):
        with pytest.raises(StoreError, match=r"shard of host 1 of 2, with the rows of the nodes 30:60 of 60 only"):
            read()
    with pytest.raises(IndexError, match="node 3 are not in the shard of host 1 of 2"):
        made.neighbors(3)
    with pytest.raises(StoreError, match="no column 'nothing'"):
        made.held("nothing")
    assert made.has("x")
    assert made.names().tolist() == store.names().tolist()
    assert made.split("train").tolist() == store.split("train").tolist()


def test_a_whole_store_holds_everything(store):
    assert store.shard is None
    assert store.hot is None
    for name in store.metadata.columns:
        held, first = store.held(name)
        assert held is store.column(name)
        assert first == 0
    store.require_whole("this")
    store.require_host(3, 4)


def test_hot_rows_by_in_degree(store, shards):
    row_bytes = 4 * 2 + 8
    for host, made in enumerate(shards):
        ids, rows = made.hot
        others = np.array([v for v in range(60) if v not in made.shard.nodes])
        best = sorted(others, key=lambda v: (-int(store.in_degree()[v]), v))[: 50 // row_bytes]
        assert ids.tolist() == sorted(best)
        assert rows.tolist() == store.x[ids].tolist()
        assert made.metadata.notes["hot"] == {"ranking": "in-degree", "bytes": 50}
        assert made.summary()["shard"]["hot"] == 3, host


@pytest.mark.parametrize(
    ("hot", "ids"),
    [("presample", [0, 1, 2]), (np.array([59, 40, 7, 3, 30, 9, 1], dtype=np.int32), [3, 7, 9]), (np.array([45]), None)],
)
def test_hot_rows_by_other_rankings(tmp_path, store, hot, ids):
    made = GraphStore.open(shard(store, tmp_path / "out", host=1, hosts=2, hot_bytes=63, hot=hot).path)
    assert (None if made.hot is None else made.hot[0].tolist()) == ids
    verify(made.path)


def test_there_is_no_more_than_all_others(tmp_path, store):
    made = GraphStore.open(shard(store, tmp_path / "out", host=0, hosts=2, hot_bytes=1 << 40).path)
    assert made.hot[0].tolist() == list(range(30, 60))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": 2}, r"no host 2 of 2.*from 0 to 1"),
        ({"host": -1}, r"host: -1 is not between 0"),
        ({"host": 0, "hosts": 0}, r"hosts: 0 is not between 1"),
        ({"hosts": 3}, r"4 parts cannot be divided among 3 hosts evenly.*--parts 3xWORKERS"),
        ({"topology": "replicate"}, r"invalid topology.*replicated"),
        ({"hot_bytes": -1}, r"hot_bytes: -1 is not between 0"),
        ({"hot_bytes": 9, "hot": "in_degree"}, r"invalid ranking.*in-degree"),
        ({"hot_bytes": 9, "hot": np.array([60])}, r"not all are ids of 60 nodes"),
        ({"hot_bytes": 9, "hot": np.array([3, 3])}, r"ranked twice"),
    ],
)
def test_impossible_wishes(tmp_path, store, options, message):
    with pytest.raises(ConfigError, match=message):
        shard(store, tmp_path / "out", **{"host": 0, "hosts": 2, **options})
    assert list(tmp_path.iterdir()) == []


def test_stores_without_features_or_presampling(tmp_path):
    plain = formula_store(tmp_path / "plain", num_features=0, num_parts=2)
    with pytest.raises(ConfigError, match="no features that could be hot"):
        shard(plain, tmp_path / "out", host=0, hosts=2, hot_bytes=99)
    made = GraphStore.open(shard(plain, tmp_path / "out", host=0, hosts=2).path)
    assert made.x is None
    verify(made.path)
    with_x = formula_store(tmp_path / "x", num_parts=2)
    with pytest.raises(ConfigError, match=r"not presampled.*partita presample"):
        shard(with_x, tmp_path / "out2", host=0, hosts=2, hot_bytes=99, hot="presample")


def test_the_target_is_protected(tmp_path, store):
    with pytest.raises(ConfigError, match="only whole store"):
        shard(store, store.path, host=0, hosts=2, overwrite=True)
    out = tmp_path / "out"
    shard(store, out, host=0, hosts=2)
    with pytest.raises(StoreError, match="already exists"):
        shard(store, out, host=1, hosts=2)
    shard(store, out, host=1, hosts=2, overwrite=True)
    assert GraphStore.open(out).shard.host == 1


def test_what_needs_the_whole_graph_refuses_a_shard(tmp_path, shards):
    path = shards[0].path
    refusals = {
        "shard": lambda: shard(path, tmp_path / "a", host=0, hosts=2),
        "partition": lambda: partita.partition(path, tmp_path / "b", parts=2, algorithm="random"),
        "quality": lambda: store_quality(GraphStore.open(path)),
        "presample": lambda: partita.presample(path, fanout=[2], epochs=1),
        "columns": lambda: add_columns(path, {"presample_node": np.ones(60, dtype=np.int64)}),
    }
    for name, refused in refusals.items():
        with pytest.raises((StoreError, InputError), match=r"the shard of host 0 of 2.*torchrun --nnodes 2") as error:
            refused()
        assert str(path) in str(error.value), name
    assert list(tmp_path.iterdir()) == []


def test_hosts_are_told_apart(shards):
    shards[0].require_host(0, 2)
    for host, hosts in ((1, 2), (0, 4), (0, 1)):
        with pytest.raises(StoreError, match=rf"host 0 of 2, .* opened by host {host} of {hosts}"):
            shards[0].require_host(host, hosts)


def test_it_says_what_it_is(shards):
    assert "the shard of host 1 of 2" in repr(shards[1])
    assert verify(shards[1].path)[0].startswith("the shard of host 1 of 2: nodes 30:60 of 60")
    summary = json.loads(json.dumps(shards[1].summary()))
    assert summary["shard"] == {
        "host": 1, "hosts": 2, "topology": "partitioned", "nodes": 30,
        "edges": len(shards[1].held("indices")[0]), "hot": 3,
    }  # fmt: skip
    assert summary["feature_dtype"] == "float16"


def test_the_metadata_of_whole_stores_know_nothing_of_shards(store, shards):
    whole = json.loads((store.path / "metadata.json").read_text())
    assert "shard" not in whole
    share = json.loads((shards[0].path / "metadata.json").read_text())
    assert share.keys() - whole.keys() == {"shard"}
    assert "shard" not in store.summary()


# Damage


def test_a_flipped_bit_anywhere_is_found_by_name(tmp_path, store):
    made = GraphStore.open(shard(store, tmp_path / "out", host=1, hosts=2, hot_bytes=50).path)
    for name in made.metadata.columns:
        path = made.path / f"{name}.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 4]))
        with pytest.raises(StoreError, match=rf"column '{name}'.*partita shard STORE OUT --host 1 --hosts 2"):
            verify(made.path)
        path.write_bytes(content)
    verify(made.path)


def rewritten(made, path, columns=None, **changes):
    """The shard with other columns or another ``shard`` record, and checksums that fit."""
    columns = columns or {}
    with StoreWriter(path) as writer:
        for name in made.metadata.columns:
            writer.write(name, columns.get(name, made._columns[name]))
        writer.finish(
            num_nodes=60, num_edges=made.num_edges, task="classes", num_classes=3,
            shard=dataclasses.replace(made.shard, **changes),
        )  # fmt: skip
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_node": 29}, "the parts are not those of the shard"),
        ({"host": 0}, "the parts are not those of the shard"),
        ({"hosts": 3}, "the parts are not those of the shard"),
        ({"cut": {"x": "nodes"}}, "does not fit"),
        ({"cut": {"x": "edges", **dict.fromkeys(EDGE_COLUMNS, "edges")}}, "are not the .* rows of the shard"),
        ({"columns": {"hot_x": np.zeros((2, 4), dtype=np.float16)}}, "hot_x.*does not fit 3 rows"),
        ({"columns": {"hot_index": np.zeros((3, 1), dtype=np.int64)}}, "hot_index.*not a list of node ids"),
        ({"columns": {"x": np.zeros((29, 4), dtype=np.float16)}}, "are not the 30 rows of the shard"),
    ],
)
def test_a_record_that_does_not_fit_does_not_open(tmp_path, shards, changes, message):
    with pytest.raises(StoreError, match=message):
        rewritten(shards[1], tmp_path / "out", **changes)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"hot_index": np.array([3, 3, 5])}, "'hot_index': not ascending"),
        ({"hot_index": np.array([3, 5, 31])}, "of other hosts' nodes"),
        ({"hot_x": np.full((3, 4), np.nan, dtype=np.float16)}, "the row of node .* not finite"),
        ({"x": np.full((30, 4), np.inf, dtype=np.float16)}, "the row of node 30 holds a number that is not finite"),
        ({"self_loops": np.ones(60, dtype=np.int32)}, "another number of self loops"),
    ],
)
def test_wrong_content_is_found(tmp_path, shards, columns, message):
    with pytest.raises(StoreError, match=message):
        verify(rewritten(shards[1], tmp_path / "out", columns))


def test_sources_of_a_shard_are_checked(tmp_path, shards):
    indices = shards[1].held("indices")[0].copy()
    indices[5] = 60
    with pytest.raises(StoreError, match="entry 5 is 60, not the id of one of 60 nodes"):
        verify(rewritten(shards[1], tmp_path / "out", {"indices": indices}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": 0}, "no host 0 of 0"),
        ({"first_node": "0"}, "first_node: Input should be a valid integer"),
        ({"cut": {"x": "rows"}}, "cut in an unknown way"),
        ({"color": "red"}, "color"),
    ],
)
def test_an_unreadable_record_is_named(tmp_path, shards, changes, message):
    content = json.loads((shards[0].path / "metadata.json").read_text())
    del content["checksum"]
    content["shard"].update(changes)
    (tmp_path / "out").mkdir()
    text = json.dumps({**content, "checksum": metadata_module._checksum(content)})
    (tmp_path / "out" / "metadata.json").write_text(text)
    with pytest.raises(StoreError, match=rf"does not fit together.*{message}"):
        GraphStore.open(tmp_path / "out")


# Writing


def test_nothing_is_left_by_an_error_or_a_kill(tmp_path, store, monkeypatch):
    code = f"""
import os, signal
from partita.graph.columns import PlacedColumn
from partita.partitioning.quality import store_quality
from partita.partitioning.shards import shard
put, puts = PlacedColumn.put, []
def killed(self, *arguments):
    puts.append(1)
    if len(puts) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, *arguments)
PlacedColumn.put = killed
shard({str(store.path)!r}, {str(tmp_path / "out")!r}, host=0, hosts=2)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=100)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1  # hidden, and no store

    def full(*arguments):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(columns_module.PlacedColumn, "put", full)
        with pytest.raises(partita.PartitaError, match="disk is full"):
            shard(store, tmp_path / "out", host=0, hosts=2)
    assert list(tmp_path.iterdir()) == []
    shard(store, tmp_path / "out", host=0, hosts=2)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("degree", [2, 60])
def test_memory_depends_on_nodes_alone(tmp_path, monkeypatch, degree):
    nodes = 10_000
    whole = small_random_store(tmp_path / "whole", nodes, nodes * degree, num_features=64)
    part = dataclasses.replace(whole.metadata)  # the graph in two parts
    with StoreWriter(tmp_path / "parts") as writer:
        for name in part.columns:
            if name != "part_offsets":
                writer.write(name, whole.column(name))
        writer.write("part_offsets", np.array([0, nodes // 2, nodes], dtype=np.int64))
        writer.finish(num_nodes=nodes, num_edges=nodes * degree, task="classes", num_classes=4)
    for module in (shards_module, columns_module):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1 << 16)
    tracemalloc.start()
    try:
        shard(tmp_path / "parts", tmp_path / "out", host=0, hosts=2, hot_bytes=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * nodes + (1 << 18)
