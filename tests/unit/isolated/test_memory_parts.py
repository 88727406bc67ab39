"""As many parts as make each fit a worker's memory: found, written only when they fit, and given up with reasons."""

from __future__ import annotations

import json
import math

import pytest
from typed_graphs import TYPES, typed_store

import partita
from partita.core.errors import ConfigError, InputError, ResourceError, StoreError
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.isolated import memory_parts
from partita.isolated.memory_parts import ROUNDS, partition_for_memory, plan_for_memory
from partita.isolated.views import HALOS, WEIGHTS, PartView
from partita.testing.graphs import formula_store, small_random_store


@pytest.fixture(scope="module")
def communities(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "sbm"
    partita.generate_sbm(path, num_nodes=1500, average_degree=8, homophily=0.95, num_features=32)
    return GraphStore.open(path)


@pytest.fixture(scope="module")
def random_graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "random"
    return small_random_store(path, 300, 1500, undirected=True, num_features=6, weighted=True)


def budget(store, times, **more):
    """Memory that is so many times what the graph takes, half of it for parts."""
    size = plan_for_memory(store, "out", memory_per_worker="1GiB").graph_bytes
    return {"memory_per_worker": int(2 * times * size), "compute_share": 0.5, "seed": 1, **more}


def largest_view(path, halo):
    store = GraphStore.open(path)
    # A worker holds one of the two columns of weights.
    return max(PartView.load(store, [part], halo, without=[WEIGHTS]).size.bytes for part in range(store.num_parts))


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("halo", HALOS)
def test_the_first_number_of_parts_fits(communities, tmp_path, halo) -> None:
    said: list[str] = []
    made = partition_for_memory(
        communities, tmp_path / "out", **budget(communities, 0.6, halo=halo, workers=2, algorithm="spring+"),
        say=said.append,
    )  # fmt: skip
    plan, store = made.plan, GraphStore.open(tmp_path / "out")
    assert plan.parts == store.num_parts == made.partition.num_parts == (2 if halo == "none" else 4)
    assert made.rounds == (plan,)
    assert plan.fits
    assert plan.measured_part == largest_view(tmp_path / "out", halo) <= plan.room
    assert plan.replication == (1 if halo == "none" else made.partition.quality.replication_factor)
    assert made.partition.path == str(tmp_path / "out")
    assert names(tmp_path) == ["out"]
    partita.verify(store.path)
    assert len(said) == 1
    assert f"{plan.parts} parts for 2 workers: a part takes about" in said[0]
    assert ("up to 2 parts in turn" in plan.explain()) == (halo != "none")
    values = json.loads(json.dumps(made.to_json()))
    assert values["plan"] == values["rounds"][0]
    assert values["num_parts"] == values["plan"]["parts"]


def test_more_parts_where_replication_is_above_the_estimate(random_graph, tmp_path) -> None:
    said: list[str] = []
    settings = budget(random_graph, 0.5, algorithm="random")
    made = partita.partition_for_memory(random_graph, tmp_path / "out", **settings, say=said.append)
    first, *_, last = made.rounds
    assert first.parts == math.ceil(2 * first.graph_bytes / first.room)
    assert first.replication > 2
    assert not first.fits
    assert first.parts < last.parts
    assert last.measured_part == largest_view(tmp_path / "out", "one-hop") <= last.room
    assert GraphStore.open(tmp_path / "out").num_parts == last.parts
    assert "is too little" in said[1]
    assert said[2] == f"Partition 2 of at most {ROUNDS}: {made.rounds[1].parts} parts"
    assert names(tmp_path) == ["out"]
    fixed = partita.partition(random_graph, tmp_path / "fixed", parts=last.parts, algorithm="random", seed=1)
    assert fixed.quality == made.partition.quality
    assert GraphStore.open(tmp_path / "out").fingerprint == GraphStore.open(tmp_path / "fixed").fingerprint


def test_features_of_another_dtype_are_counted_as_they_will_be(communities, tmp_path) -> None:
    whole, half = (
        plan_for_memory(communities, "out", memory_per_worker="1GiB", feature_dtype=dtype)
        for dtype in (None, "float16")
    )
    assert whole.graph_bytes - half.graph_bytes == 2 * communities.x.size
    made = partition_for_memory(
        communities, tmp_path / "out", **budget(communities, 0.6, algorithm="random", feature_dtype="float16")
    )
    assert GraphStore.open(tmp_path / "out").x.dtype == "float16"
    assert made.plan.measured_part == largest_view(tmp_path / "out", "one-hop")


@pytest.mark.parametrize("halo", HALOS)
def test_rows_of_every_type_are_counted(tmp_path, halo) -> None:
    """Features of 5, 3 and no columns; edges with relations, weights and features."""
    store = typed_store(tmp_path / "typed", 240, parts=2)
    whole = plan_for_memory(store, "out", memory_per_worker="1GiB").graph_bytes
    half = plan_for_memory(store, "out", memory_per_worker="1GiB", feature_dtype="float16").graph_bytes
    assert whole - half == 2 * sum(store.x_of(name).size for name in TYPES[:2])
    assert whole == PartView.measure(store, [0, 1], "none", without=[WEIGHTS]).bytes
    made = partition_for_memory(store, tmp_path / "out", **budget(store, 0.4, halo=halo, algorithm="random"))
    assert made.plan.measured_part == largest_view(tmp_path / "out", halo) <= made.plan.room


def test_a_graph_without_nodes(tmp_path) -> None:
    store = small_random_store(tmp_path / "store", 0, 0, num_features=0, num_classes=0)
    assert partition_for_memory(store, tmp_path / "out", memory_per_worker=10_000).plan.parts == 1


def test_giving_up_leaves_what_was_there(random_graph, tmp_path) -> None:
    partita.partition(random_graph, tmp_path / "out", parts=2, algorithm="random")
    before = GraphStore.open(tmp_path / "out").fingerprint
    one_part = {"algorithm": lambda stream, parts: [0] * stream.num_nodes, "overwrite": True}
    with pytest.raises(ResourceError) as raised:
        partition_for_memory(random_graph, tmp_path / "out", **budget(random_graph, 0.9, **one_part))
    message = str(raised.value)
    need, room = largest_view(random_graph.path, "one-hop"), budget(random_graph, 0.9)["memory_per_worker"] // 2
    assert f"the largest part needs {need:,} bytes, and a worker has {room:,} of" in message
    assert "parts tried: 3, 4, 5, 6, 8; replication 1)" in message
    assert "--memory-per-worker" in message
    assert GraphStore.open(tmp_path / "out").fingerprint == before
    assert names(tmp_path) == ["out"]


def test_no_more_parts_than_nodes(random_graph, tmp_path) -> None:
    with pytest.raises(ResourceError, match=r"parts are more than the 300 nodes\. Give workers more memory"):
        partition_for_memory(random_graph, tmp_path / "out", **budget(random_graph, 0.005))
    with pytest.raises(ResourceError, match=r"400 parts are more than the 300 nodes\. Name fewer workers"):
        partition_for_memory(random_graph, tmp_path / "out", memory_per_worker="1GiB", workers=400)
    with pytest.raises(ResourceError, match=r"parts tried: .*parts are more than the 300 nodes\)"):
        partition_for_memory(random_graph, tmp_path / "out", **budget(random_graph, 0.04, algorithm="random"))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"memory_per_worker": "much"}, ConfigError, "memory_per_worker: 'much' is not a size"),
        ({"memory_per_worker": 1}, ConfigError, "memory_per_worker: .*leaves no memory for a part"),
        ({"compute_share": 1.0}, ConfigError, "compute_share: .*less than 1"),
        ({"workers": 0}, ConfigError, "workers: 0 is not between 1 and"),
        ({"halo": "two-hop"}, ConfigError, "halo: 'two-hop' is not a halo"),
        ({"algorithm": "metsi"}, ConfigError, "Did you mean 'metis'"),
        ({"undirected": True}, ConfigError, "a store holds its own edges"),
        ({"feature_dtype": "int8"}, ConfigError, "invalid feature dtype"),
        ({"feature_dtype": "half a float"}, ConfigError, "invalid feature dtype"),
    ],
)
def test_bad_arguments_get_one_clear_message(random_graph, tmp_path, arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        partition_for_memory(random_graph, tmp_path / "out", **{"memory_per_worker": "1MiB", **arguments})
    assert names(tmp_path) == []


def test_only_stores_and_only_into_stores(random_graph, tmp_path) -> None:
    with pytest.raises(ConfigError, match="OUT is an assignment file"):
        partition_for_memory(random_graph, tmp_path / "parts.npy", memory_per_worker="1MiB")
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n")
    with pytest.raises(ConfigError, match="the source is a list of edges"):
        partition_for_memory(tmp_path / "edges.csv", tmp_path / "out", memory_per_worker="1MiB")
    with pytest.raises(StoreError):
        partition_for_memory(tmp_path / "nothing", tmp_path / "out", memory_per_worker="1MiB")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(StoreError, match="already exists"):
        partition_for_memory(random_graph, tmp_path / "out", memory_per_worker="1MiB")
    with pytest.raises(StoreError, match="not a graph store, so it is not replaced"):
        partition_for_memory(random_graph, tmp_path / "out", memory_per_worker="1MiB", overwrite=True)
    assert names(tmp_path) == ["edges.csv", "out"]


def test_a_store_may_be_replaced_by_its_parts(tmp_path) -> None:
    store = formula_store(tmp_path / "graph", num_parts=2)
    made = partition_for_memory(
        store.path, store.path, **budget(store, 0.9, halo="none", algorithm="random"), overwrite=True
    )
    assert GraphStore.open(store.path).num_parts == made.plan.parts
    assert names(tmp_path) == ["graph"]


def test_errors_name_the_store_that_was_asked_for(random_graph, tmp_path) -> None:
    def wrong(stream, parts):
        return [9] * stream.num_nodes

    with pytest.raises(InputError, match="node 0 has part 9") as raised:
        partition_for_memory(random_graph, tmp_path / "out", memory_per_worker="1GiB", algorithm=wrong)
    assert "partial" not in str(raised.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("where", ["while writing", "while measuring"])
def test_ctrl_c_leaves_what_can_be_continued_and_nothing_else(random_graph, tmp_path, monkeypatch, where) -> None:
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    owner, name = (StoreWriter, "finish") if where == "while writing" else (memory_parts, "_largest")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            partition_for_memory(random_graph, tmp_path / "out", memory_per_worker="1MiB", algorithm="spring")
    assert not (tmp_path / "out").exists()
    if where == "while measuring":
        assert names(tmp_path) == []
        return
    assert "continues there" in "".join(raised.value.__notes__)
    assert names(tmp_path) == [".out.partial-auto"]
    made = partition_for_memory(random_graph, tmp_path / "out", memory_per_worker="1MiB", algorithm="spring")
    assert any("continued what was begun before" in note for note in made.partition.notes)
    assert names(tmp_path) == ["out"]


def test_what_a_killed_process_left_is_removed(random_graph, tmp_path) -> None:
    left = tmp_path / ".out.partial-auto"
    partita.partition(random_graph, left / "1", parts=1, algorithm="random")
    partition_for_memory(random_graph, tmp_path / "out", memory_per_worker="1MiB", algorithm="random")
    assert names(tmp_path) == ["out"]
    (left / "1").mkdir(parents=True)
    (left / ".lock").touch()
    partita.partition(random_graph, tmp_path / "out", parts=2, algorithm="random", overwrite=True)
    assert names(tmp_path) == ["out"]
