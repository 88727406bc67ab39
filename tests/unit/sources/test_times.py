"""Times of edges, nodes and seeds, from files and objects to the store, through whatever moves its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import partita
from partita.core.errors import ConfigError, InputError, StoreError
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter

ALWAYS = np.iinfo(np.int64).min
NODES, EDGES = 30, 200


def arrays(*, seed: int = 1, typed: bool = False, own: bool = True, of_nodes: bool = True) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    found: dict[str, Any] = {
        "edge_index": generator.integers(0, NODES, (2, EDGES)),
        "edge_weight": np.arange(1, EDGES + 1, dtype=np.float32),
        "edge_attr": np.arange(2 * EDGES, dtype=np.float32).reshape(EDGES, 2),
        "x": generator.normal(size=(NODES, 3)).astype(np.float32),
        "y": np.arange(NODES) % 2,
    }
    if own:
        found["edge_time"] = generator.integers(0, 40, EDGES)
        found["edge_time"][::9] = ALWAYS
    if of_nodes:
        found["node_time"] = generator.integers(0, 40, NODES)
        found["node_time"][::4] = ALWAYS
    if typed:
        found["node_type"] = (np.arange(NODES) >= NODES // 2).astype(int)
        kinds = found["node_type"][found["edge_index"]]
        found["edge_type"] = 2 * kinds[0] + kinds[1]
        x = found.pop("x")
        found |= {"x_0": x[: NODES // 2], "x_1": x[NODES // 2 :]}
        found["y"] = np.where(found["node_type"] == 0, found["y"], -1)
    return found


def edges_of(store: GraphStore) -> set[tuple[int, ...]]:
    """Ends by what they are to the user, weight, second feature and time of every edge."""
    names = store.to_original(np.arange(store.num_nodes))
    rows = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    assert store.edge_weight is not None
    assert store.edge_attr is not None
    assert store.edge_time is not None
    columns = names[store.indices], names[rows], store.edge_weight, store.edge_attr[:, 1], store.edge_time
    return {tuple(map(int, edge)) for edge in zip(*columns, strict=True)}


def wanted(given: dict[str, Any]) -> set[tuple[int, ...]]:
    src, dst = given["edge_index"]
    time = given.get("edge_time", np.full(EDGES, ALWAYS))
    if "node_time" in given:
        time = np.maximum(time, given["node_time"][src])
    columns = src, dst, given["edge_weight"], given["edge_attr"][:, 1], time
    return {tuple(map(int, edge)) for edge in zip(*columns, strict=True)}


def in_order(store: GraphStore) -> None:
    """Of time within each relation of a row; and of equal times in the order of the source, by the weights here."""
    rows = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    kinds = np.zeros(store.num_edges) if store.edge_type is None else store.edge_type
    order = np.lexsort((store.edge_weight, store.edge_time, kinds, rows))
    assert np.array_equal(order, np.arange(store.num_edges))
    assert any(line.startswith("edge_time") for line in verify(store.path))


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(("own", "of_nodes"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("memory_limit", ["1GiB", "4KiB"])
def test_rows_are_in_order_of_time(tmp_path: Path, typed, own, of_nodes, memory_limit) -> None:
    given = arrays(typed=typed, own=own, of_nodes=of_nodes)
    np.savez(tmp_path / "g.npz", **given)
    partita.ingest(tmp_path / "g.npz", tmp_path / "g", memory_limit=memory_limit)
    store = GraphStore.open(tmp_path / "g")
    assert edges_of(store) == wanted(given)
    in_order(store)
    assert store.summary()["times"]
    partita.partition(tmp_path / "g", tmp_path / "parts", parts=3, algorithm="random")
    moved = GraphStore.open(tmp_path / "parts")
    assert edges_of(moved) == wanted(given)
    in_order(moved)
    if of_nodes:
        assert store.seed_time is not None
        assert moved.seed_time is not None
        by_name = {int(name): int(time) for name, time in zip(moved.to_original(np.arange(NODES)), moved.seed_time)}
        assert [by_name[node] for node in range(NODES)] == given["node_time"].tolist()
    partita.export(moved, tmp_path / "again.npz")
    partita.ingest(tmp_path / "again.npz", tmp_path / "again")
    assert edges_of(GraphStore.open(tmp_path / "again")) == wanted(given)


def test_seeds_may_be_asked_about_at_other_times(tmp_path: Path) -> None:
    given = arrays() | {"seed_time": np.arange(NODES)}
    np.savez(tmp_path / "g.npz", **given)
    partita.ingest(tmp_path / "g.npz", tmp_path / "g")
    store = GraphStore.open(tmp_path / "g")
    assert edges_of(store) == wanted(given)
    assert store.seed_time is not None
    assert store.seed_time.tolist() == list(range(NODES))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99))
def test_of_repeated_edges_the_earliest_stays(tmp_path_factory: pytest.TempPathFactory, seed) -> None:
    folder = tmp_path_factory.mktemp("times")
    generator = np.random.default_rng(seed)
    edges, times = generator.integers(0, 4, (2, 60)), generator.integers(0, 50, 60)
    np.savez(folder / "g.npz", edge_index=edges, edge_time=times, num_nodes=4)
    partita.ingest(folder / "g.npz", folder / "g", deduplicate=True)
    store = GraphStore.open(folder / "g")
    rows = np.repeat(np.arange(4), np.diff(store.indptr))
    found = dict(zip(zip(store.indices.tolist(), rows.tolist()), store.edge_time.tolist(), strict=True))
    first = dict[tuple[int, int], int]()
    for source, target, time in zip(*edges.tolist(), times.tolist(), strict=True):
        first[source, target] = min(time, first.get((source, target), time))
    assert found == first


def test_both_directions_and_loops(tmp_path: Path) -> None:
    """An edge is there in both directions from the same time on; loops that are added, from that of their node on."""
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1], [1, 2]], edge_time=[5, 3], node_time=[1, 4, ALWAYS], num_nodes=3)
    partita.ingest(tmp_path / "g.npz", tmp_path / "g", undirected=True, self_loops="add")
    store = GraphStore.open(tmp_path / "g")
    rows = np.repeat(np.arange(3), np.diff(store.indptr))
    assert set(zip(store.indices.tolist(), rows.tolist(), store.edge_time.tolist(), strict=True)) == {
        (0, 1, 5), (1, 0, 5), (1, 2, 4), (2, 1, 3), (0, 0, 1), (1, 1, 4), (2, 2, ALWAYS)
    }  # fmt: skip


def test_a_row_out_of_order_is_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **arrays())
    partita.ingest(tmp_path / "g.npz", tmp_path / "g")
    store = GraphStore.open(tmp_path / "g")
    with StoreWriter(tmp_path / "wrong") as writer:
        for name in store.columns:
            column = store.column(name)
            writer.write(name, column[::-1].copy() if name == "edge_time" else column)
        writer.finish_like(store.metadata, {})
    with pytest.raises(StoreError, match=r"edge_time.*not in order of time"):
        verify(tmp_path / "wrong")


@pytest.mark.parametrize(
    ("name", "times", "message"),
    [
        ("edge_time", np.arange(7), "has 7 times for 200 edges"),
        ("edge_time", np.zeros(EDGES), "holds float64"),
        ("node_time", np.arange(7), "says that there are 7 nodes|says 7|but 'node_time'|node_time"),
        ("seed_time", np.zeros((NODES, 2), int), "holds int64 of shape"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, name, times, message) -> None:
    np.savez(tmp_path / "g.npz", **(arrays() | {name: times}))
    with pytest.raises(InputError, match=message):
        partita.ingest(tmp_path / "g.npz", tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_objects_of_pyg(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    import torch

    plain = data.Data(
        x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]]), time=torch.tensor([5, 6, 7])
    )
    partita.ingest(plain, tmp_path / "nodes")
    assert GraphStore.open(tmp_path / "nodes").seed_time.tolist() == [5, 6, 7]
    plain.time = torch.tensor([4, 3, 2, 1])
    partita.ingest(plain, tmp_path / "edges")
    assert sorted(GraphStore.open(tmp_path / "edges").edge_time.tolist()) == [1, 2, 3, 4]
    typed = data.HeteroData()
    typed["user"].x, typed["item"].x = torch.zeros(2, 2), torch.zeros(3, 2)
    typed["user"].seed_time = torch.tensor([8, 9])
    typed["item"].time = torch.tensor([1, 2, 3])
    typed["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [0, 2]])
    typed["user", "buys", "item"].time = torch.tensor([5, 6])
    typed["item", "of", "item"].edge_index = torch.tensor([[0], [1]])
    partita.ingest(typed, tmp_path / "typed")
    store = GraphStore.open(tmp_path / "typed")
    assert sorted(store.edge_time.tolist()) == [1, 5, 6]
    assert sorted(store.seed_time.tolist()) == [ALWAYS, ALWAYS, ALWAYS, 8, 9]
    typed["item"].time = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="node_time of item"):
        partita.ingest(typed, tmp_path / "wrong")


DAY = 24 * 3600 * 10**6
EDGES_TABLE = "buyer,item,hours,when\nann,pen,1,{}\nbob,pen,2,{}\nann,cup,3,{}\nbob,cup,4,\n"
NODES_TABLE = "id,age,node_time,seed_time,label\nann,3,,{},0\nbob,4,,{},1\npen,1,{},,\ncup,2,,,\n"


def by_names(store: GraphStore) -> set[tuple[str, str, int]]:
    names = store.names(np.arange(store.num_nodes))
    rows = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    return {
        (str(names[a]), str(names[b]), int(t)) for a, b, t in zip(store.indices, rows, store.edge_time, strict=True)
    }


@pytest.mark.parametrize("memory_limit", ["1GiB", "4KiB"])
def test_columns_of_tables(tmp_path: Path, memory_limit) -> None:
    (tmp_path / "edges.csv").write_text(EDGES_TABLE.format(5, 9, 7))
    (tmp_path / "nodes.csv").write_text(NODES_TABLE.format(6, 8, 6))
    partita.ingest(
        tmp_path / "edges.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv", time_column="when",
        weight_column="hours", undirected=True, memory_limit=memory_limit,
    )  # fmt: skip
    store = GraphStore.open(tmp_path / "g")
    assert by_names(store) == {
        ("ann", "pen", 5), ("pen", "ann", 6), ("bob", "pen", 9), ("pen", "bob", 9), ("ann", "cup", 7),
        ("cup", "ann", 7), ("bob", "cup", ALWAYS), ("cup", "bob", ALWAYS),
    }  # fmt: skip
    asked = dict(zip(store.names(np.arange(4)), store.seed_time.tolist(), strict=True))
    assert asked == {"ann": 6, "bob": 8, "pen": ALWAYS, "cup": ALWAYS}
    assert store.num_features == 1
    in_order(store)


@pytest.mark.parametrize(
    ("written", "unit"),
    [
        (("2026-01-03", "2026-01-05", "2026-01-04"), "dates"),
        (("2026-01-03 12:00", "2026-01-05 00:00:01", "2026-01-04T00:00:00.5"), "dates"),
        (("2026-01-03T12:00:00Z", "2026-01-05T00:00:01Z", "2026-01-04T00:00:00Z"), "dates"),
        (("3", "+5", "-4"), "numbers"),
        (("1772323200000000000", "1772323200000000001", "-9223372036854775807"), "numbers"),
    ],
)
def test_dates_and_numbers(tmp_path: Path, written, unit) -> None:
    (tmp_path / "edges.csv").write_text(EDGES_TABLE.format(*written))
    summary = partita.ingest(tmp_path / "edges.csv", tmp_path / "g", time_column="when")
    assert any("microseconds" in note for note in summary.notes) == (unit == "dates")
    wanted = [int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64)) for text in written if unit == "dates"]
    wanted = wanted or [int(text) for text in written]
    found = GraphStore.open(tmp_path / "g").edge_time
    assert sorted(found.tolist()) == sorted([*wanted, ALWAYS])


def test_dates_in_parquet_and_in_frames(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    days = np.array(["2026-01-03", "2026-01-05", "NaT"], dtype="datetime64[ns]")
    table = pa.table({"a": [0, 1, 2], "b": [1, 2, 0], "t": pa.array(days)})
    pq.write_table(table, tmp_path / "edges.parquet")
    for number, source in enumerate((tmp_path / "edges.parquet", table)):
        partita.ingest(source, tmp_path / str(number), time_column="t")
        found = sorted(GraphStore.open(tmp_path / str(number)).edge_time.tolist())
        first = int(np.datetime64("2026-01-03", "us").astype(np.int64))
        assert found == [ALWAYS, first, first + 2 * DAY]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64", "datetime64[D]", "datetime64[ns]"])
def test_arrays_of_other_kinds(tmp_path: Path, dtype) -> None:
    times = np.array([3, 1, 2, 2], dtype="uint8").astype(dtype)
    ends = np.array([[0, 1, 2, 0], [1, 2, 0, 2]])
    if dtype.startswith("datetime"):
        times[3] = "NaT"
    np.savez(tmp_path / "g.npz", edge_index=ends, edge_time=times)
    partita.ingest(tmp_path / "g.npz", tmp_path / "file")
    partita.ingest({"edge_index": ends, "edge_time": times}, tmp_path / "memory")
    wanted = [1, 2, 2, 3]
    if dtype.startswith("datetime"):
        wanted = sorted(times.astype("datetime64[us]").astype(np.int64).tolist())
        assert wanted[0] == ALWAYS
    for name in ("file", "memory"):
        assert sorted(GraphStore.open(tmp_path / name).edge_time.tolist()) == wanted
    if dtype == "uint64":
        np.savez(tmp_path / "h.npz", edge_index=ends, edge_time=times + np.uint64(2**63))
        with pytest.raises(InputError, match="no signed 64-bit integer"):
            partita.ingest(tmp_path / "h.npz", tmp_path / "large")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (("2026-01-03", "soon", "2026-01-04"), r"line 3, column when: 'soon' is no time"),
        (("", "soon", "2026-01-04"), r"line 3, column when: 'soon' is no time"),
        (("9223372036854775808", "2", "3"), r"line 2, column when: '9223372036854775808' is no time"),
        (("1.5", "2", "3"), r"line 2, column when: '1.5' is no time"),
        (("3", "2026-01-03", "4"), r"column when: '3' is no time"),
        (("2026-01-03T12:00:00Z", "2026-01-05", "2026-01-04"), r"column when: some dates have a time zone"),
    ],
)
def test_cells_that_are_no_times(tmp_path: Path, written, message) -> None:
    (tmp_path / "edges.csv").write_text(EDGES_TABLE.format(*written))
    with pytest.raises(InputError, match=message):
        partita.ingest(tmp_path / "edges.csv", tmp_path / "g", time_column="when")
    assert not (tmp_path / "g").exists()


def test_columns_with_two_roles_and_times_of_two_kinds(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text(EDGES_TABLE.format(5, 9, 7))
    with pytest.raises(InputError, match="column hours has the times, and is"):
        partita.ingest(tmp_path / "edges.csv", tmp_path / "g", weight_column="hours", time_column="hours")
    (tmp_path / "nodes.csv").write_text(NODES_TABLE.format("2026-01-03", "2026-01-03", ""))
    with pytest.raises(InputError, match="dates in some cells, and numbers in others"):
        partita.ingest(tmp_path / "edges.csv", tmp_path / "g", nodes=tmp_path / "nodes.csv", time_column="when")


def test_typed_graphs_in_tables(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("id,seed_time,label\nu1,2026-02-01,0\nu2,2026-03-01,1\n")
    (tmp_path / "items.csv").write_text("id,price,added\n7,1.5,2026-01-10\n8,2.5,\n")
    (tmp_path / "bought.csv").write_text("user,item,day\nu1,7,2026-01-05\nu1,8,2026-01-20\nu2,7,\n")
    (tmp_path / "like.csv").write_text("item,other\n7,8\n")
    (tmp_path / "graph.yaml").write_text(
        "nodes:\n"
        "  user: {file: users.csv, label: label, seed_time: seed_time, features: []}\n"
        "  item: {file: items.csv, time: added, features: [price]}\n"
        "edges:\n"
        "  - {source: user, name: bought, target: item, file: bought.csv, time_column: day, reverse: true}\n"
        "  - {source: item, name: like, target: item, file: like.csv}\n"
    )
    partita.ingest(tmp_path / "graph.yaml", tmp_path / "g", split=None)
    store = GraphStore.open(tmp_path / "g")

    def day(text: str) -> int:
        return int(np.datetime64(text, "us").astype(np.int64))

    assert by_names(store) == {
        ("u1", "7", day("2026-01-05")), ("u1", "8", day("2026-01-20")), ("u2", "7", ALWAYS),
        ("7", "u1", day("2026-01-10")), ("8", "u1", day("2026-01-20")), ("7", "u2", day("2026-01-10")),
        ("7", "8", day("2026-01-10")),
    }  # fmt: skip
    asked = dict(zip(map(str, store.names(np.arange(4))), store.seed_time.tolist(), strict=True))
    assert asked == {"u1": day("2026-02-01"), "u2": day("2026-03-01"), "7": ALWAYS, "8": ALWAYS}
    assert any(line.startswith("edge_time") for line in verify(store.path))


def split_of(store: GraphStore) -> dict[str, set[str]]:
    return {name: {str(each) for each in store.names(ids)} for name, ids in store.splits.items()}


@pytest.mark.parametrize(("unit", "bounds"), [("numbers", ("20", "30")), ("dates", ("2026-01-20", "2026-01-30"))])
def test_splits_by_time(tmp_path: Path, unit, bounds) -> None:
    """Of tables and of arrays; seeds without a time or a label are in no split."""

    def day(number: int) -> str:
        return str(number) if unit == "numbers" else f"2026-01-{number:02}"

    asked = {"a": 3, "b": 19, "c": 20, "d": 29, "e": 30, "f": 31, "g": None, "h": 4}
    rows = [f"{name},{'' if time is None else day(time)},{'' if name == 'h' else 0}" for name, time in asked.items()]
    (tmp_path / "nodes.csv").write_text("id,seed_time,label\n" + "\n".join(rows) + "\n")
    (tmp_path / "edges.csv").write_text("a,b,t\n" + "".join(f"a,{name},{day(1)}\n" for name in "bcdefgh"))
    given = {"nodes": tmp_path / "nodes.csv", "time_column": "t", "feature_columns": []}
    summary = partita.ingest(tmp_path / "edges.csv", tmp_path / "table", **given, split_times=bounds)
    wanted = {"train": {"a", "b"}, "val": {"c", "d"}, "test": {"e", "f"}}
    assert split_of(GraphStore.open(tmp_path / "table")) == wanted
    assert summary.split_rule == f"by time: validation from {bounds[0]}, tests from {bounds[1]}"
    times = np.array([ALWAYS if time is None else time for time in asked.values()])
    if unit == "dates":
        times = np.array([np.datetime64("NaT") if time is None else day(time) for time in asked.values()], "M8[D]")
    labels = np.array([-1 if name == "h" else 0 for name in asked])
    arrays = {"edge_index": np.array([[0] * 7, [*range(1, 8)]]), "edge_time": times[:1].repeat(7), "seed_time": times}
    partita.ingest({**arrays, "y": labels, "name": np.array(list(asked))}, tmp_path / "arrays", split_times=bounds)
    assert split_of(GraphStore.open(tmp_path / "arrays")) == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split_times": ("30", "20")}, "20 is before 30"),
        ({"split_times": ("30",)}, "1 times, not 2"),
        ({"split_times": ("2026-01-01", "2026-02-01")}, "dates in some cells, and numbers in others"),
        ({"split_times": ("soon", "later")}, "'soon' is no time"),
        ({"split_times": ("1", "2"), "train_mask": np.ones(NODES, bool)}, "the source has a split"),
        ({"split_times": ("1", "2"), "node_time": None}, "no times at which they are asked about"),
        (
            {"split_times": ("1", "2"), "y": None, "edge_time": None, "node_time": None},
            "neither labels nor times of edges",
        ),
    ],
)
def test_splits_by_time_that_cannot_be(tmp_path: Path, changes, message) -> None:
    given = {name: value for name, value in {**arrays(), **changes}.items() if value is not None}
    bounds = given.pop("split_times")
    with pytest.raises((InputError, ConfigError), match=message):
        partita.ingest(given, tmp_path / "g", split_times=bounds)
    assert not (tmp_path / "g").exists()


def test_numbers_and_dates_in_arrays(tmp_path: Path) -> None:
    given = arrays() | {"node_time": np.arange(NODES).astype("datetime64[D]")}
    with pytest.raises(InputError, match="holds dates, and other times are numbers"):
        partita.ingest(given, tmp_path / "g")
