"""Views of parts against sets, and against the whole graph."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isolated import degrees_of_pairs, engine_without, filtered
from typed_graphs import typed_store

import partita
from partita.comm.context import Context
from partita.comm.group import Group
from partita.config import Config
from partita.core.errors import ConfigError, StoreError
from partita.core.keys import Purpose, StepKey
from partita.core.protocols import Topology
from partita.core.records import Block, TargetEdges
from partita.features.rows import FeatureColumn
from partita.graph.column_specs import known, type_of_column
from partita.graph.metadata import StoreMetadata
from partita.graph.store import GraphStore
from partita.isolated import subgraph
from partita.isolated.neighborhoods import Neighborhoods
from partita.isolated.subgraph import HALOS
from partita.isolated.views import WEIGHTS, PartView
from partita.kernels import Relabeller
from partita.nn.layers import GCN
from partita.nn.model import build_model
from partita.parallel.block_worker import BlockWorker
from partita.parallel.engine import Engine
from partita.parallel.placements.data import Data
from partita.parallel.strategies import PLAIN, build_engine, parse_strategy
from partita.sample.blocks import sample_block
from partita.sample.samplers import NodeWise
from partita.sample.topology import LocalTopology, as_tensor
from partita.setup.model import named_model
from partita.setup.sampler import make_sampler
from partita.testing.graphs import formula_neighbors, formula_store, small_random_store


class Held(GraphStore):
    """A store in memory, with read-only columns as those on disk are."""

    metadata = StoreMetadata(0, 0)  # of an untyped graph

    def __init__(self, offsets, edges, original, train, weighted, features=3):
        count, edges = offsets[-1], np.array(edges, np.int64).reshape(-1, 2)
        order = np.argsort(edges[:, 1], kind="stable")
        loops = np.bincount(edges[edges[:, 0] == edges[:, 1], 0], minlength=count).astype(np.int32)
        original = np.arange(count) if original is None else np.array(original, np.int64)
        columns = {
            "part_offsets": np.array(offsets, np.int64),
            "indptr": np.concatenate([[0], np.cumsum(np.bincount(edges[:, 1], minlength=count))]),
            "indices": edges[order, 0].astype(np.int32),
            "original_index": original,
            "split_train": np.array(sorted(train, key=lambda v: original[v]), np.int64),
        }
        if loops.any():
            columns["self_loops"] = loops
        if weighted:
            columns["edge_weight_quantised"] = (np.arange(len(edges)) * 7919 % 5).astype(np.uint32)
        if features:
            columns["x"] = (original[:, None] * 10.0 + np.arange(features)).astype(np.float32)
        for column in columns.values():
            column.flags.writeable = False
        self._columns, self.path = columns, "held"

    num_nodes = property(lambda self: len(self.indptr) - 1)
    num_edges = property(lambda self: len(self.indices))


@st.composite
def graphs(draw):
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    if sum(sizes) == 0:
        sizes.append(1)
    offsets = [sum(sizes[:p]) for p in range(len(sizes) + 1)]
    count = offsets[-1]
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = draw(st.lists(ends, max_size=60))
    edges += draw(st.lists(st.sampled_from(edges), max_size=6)) if edges else []
    original = draw(st.permutations(range(count)))
    train = draw(st.sets(st.integers(0, count - 1)))
    parts = draw(st.lists(st.integers(0, len(sizes) - 1), unique=True))
    return Held(offsets, edges, original, train, draw(st.booleans())), parts


def expected(store, parts, halo):
    """What the view must hold, by its definition: rows of (store id, place in the store) of every node, in order."""
    offsets, places = store.part_offsets, np.arange(store.num_edges)
    own = {v for p in parts for v in range(offsets[p], offsets[p + 1])}
    rows = {
        v: [(int(store.indices[e]), int(e)) for e in places[store.indptr[v] : store.indptr[v + 1]]]
        for v in range(store.num_nodes)
    }
    around = set() if halo == "none" else {u for v in own for u, _ in rows[v]} - own
    nodes = sorted(own) + sorted(around)
    kept = {v: [(u, e) for u, e in rows[v] if halo != "none" or u in own] for v in own}
    for v in around:
        kept[v] = [(u, e) for u, e in rows[v] if u in own] if halo == "one-hop+edges" else []
    d_local = [sum(u in own for u, _ in rows[v]) for v in sorted(own)]
    return nodes, len(own), [kept[v] for v in nodes], d_local


@settings(max_examples=150)
@given(graphs(), st.sampled_from(HALOS), st.sampled_from([1, 3, 1 << 18]))
def test_a_view_is_what_its_definition_says(graph, halo, at_once) -> None:
    check(*graph, halo, at_once)


def check(store, parts, halo, at_once) -> None:
    """Compare every array of a view with the definition."""
    with mock.patch.object(subgraph, "EDGES_AT_ONCE", at_once):
        view, size = PartView.load(store, parts, halo), PartView.measure(store, parts, halo)
    nodes, owned, rows, d_local = expected(store, parts, halo)
    assert (view.parts, view.halo, view.num_owned, view.num_nodes) == (tuple(sorted(parts)), halo, owned, len(nodes))
    assert view.store_ids.tolist() == nodes
    assert view.original_index.tolist() == store.to_original(np.array(nodes, np.int64)).tolist()
    assert view.indptr.tolist() == np.cumsum([0, *map(len, rows)]).tolist()
    assert [nodes[u] for u in view.indices.tolist()] == [u for row in rows for u, _ in row]
    check_columns(store, view, np.array(nodes, np.int64), np.array([e for row in rows for _, e in row], np.int64))
    assert view.d_local().tolist() == d_local
    assert view.d_global().tolist() == store.in_degree(np.array(nodes[:owned], np.int64)).tolist()
    assert view.d_global(torch.arange(len(nodes))).tolist() == store.in_degree(np.array(nodes, np.int64)).tolist()
    own = set(nodes[:owned])
    assert [nodes[seed] for seed in view.seeds.tolist()] == [v for v in store.split("train").tolist() if v in own]
    # Sizes are known beforehand.
    assert size == view.size
    bound = PartView.bound(store, parts, halo)
    assert bound.nodes == size.nodes
    assert bound.halo >= size.halo
    assert bound.edges >= size.edges
    assert bound.bytes >= size.bytes


def check_columns(store, view, nodes, places) -> None:
    """Rows of the nodes and edges of a view, of every column; and which type each node has."""
    wanted = {name: spec for name, spec in known(store.columns).items() if spec.view}
    assert set(view.columns) == set(wanted)
    kinds = store.types(nodes)
    assert view.node_types.of(np.arange(len(nodes))).tolist() == kinds.tolist()
    for name, spec in wanted.items():
        rows = nodes
        if spec.of == "edges":
            rows = places
        elif spec.of == "type":
            rows = store.type_rows(nodes[kinds == type_of_column(name)])
        assert torch.equal(view.columns[name], torch.from_numpy(store.column(name)[rows])), name
    if store.schema is None:
        assert view.unseen is None
        return
    own = set(nodes[: view.num_owned].tolist())
    count = len(store.schema.relations)
    edges = [np.arange(store.indptr[v], store.indptr[v + 1]) for v in nodes[: view.num_owned]]
    inside = [at[np.isin(store.indices[at], list(own))] for at in edges]
    ids = torch.arange(view.num_owned).flip(0)
    for found, rows in zip(view.degrees_by_relation(ids), (inside, edges), strict=True):
        assert found.tolist() == [np.bincount(store.edge_type[at], minlength=count).tolist() for at in rows[::-1]]


@settings(max_examples=60)
@given(graphs(), st.sampled_from(HALOS), st.sampled_from([-1, 1, 2, 5]), st.booleans())
def test_draws_are_of_the_view_and_by_the_original_index(graph, halo, fanout, replace) -> None:
    """The same draws as from a store that holds the view and nothing else."""
    store, parts = graph
    view = PartView.load(store, parts, halo)
    n = view.num_nodes
    edges = [(u, v) for v in range(n) for u in view.indices[view.indptr[v] : view.indptr[v + 1]].tolist()]
    alone = Held([0, n], edges, view.original_index.tolist(), (), False)
    dst = torch.arange(n).flip(0)
    topology = view.topology(replace=replace)
    assert isinstance(topology, Topology)
    assert topology.num_nodes == n
    a = topology.sample(dst, 5, fanout, positions=True)
    b = LocalTopology(alone, replace=replace).sample(dst, 5, fanout, positions=True)
    for name in ("indptr", "indices", "positions"):
        assert torch.equal(getattr(a, name), getattr(b, name))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores in seven parts, one of them empty."""
    folder = tmp_path_factory.mktemp("views")
    small_random_store(folder / "source", 300, 2400, num_features=5, weighted=True)
    assignment = np.random.default_rng(3).integers(0, 6, 300) * 7 // 6
    np.save(folder / "parts.npy", assignment)
    partita.partition(folder / "source", folder / "moved", parts=7, algorithm=str(folder / "parts.npy"))
    formula_store(folder / "formula", num_parts=7, weighted=True, edge_features=3, dtype=np.float16)
    typed_store(folder / "typed", 120, parts=7)
    partita.generate_typed(folder / "halves.whole", scale=0.001, seed=1, num_features=3)
    partita.partition(folder / "halves.whole", folder / "halves", parts=7, algorithm="random", feature_dtype="float16")
    return {name: GraphStore.open(folder / name) for name in ("moved", "formula", "typed", "halves")}


@pytest.mark.parametrize("name", ["moved", "formula", "typed", "halves"])
@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("parts", [[0], [6, 2], [1, 2, 5], [*range(7)]], ids=str)
def test_views_of_stores_on_disk(stores, name, halo, parts) -> None:
    """Long rows and many pieces, and columns as a store has them."""
    check(stores[name], parts, halo, at_once=7)


@pytest.mark.parametrize("name", ["moved", "formula"])
@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_view_of_all_parts_is_the_whole_graph(stores, name, halo, weighted) -> None:
    store = stores[name]
    view = PartView.load(store, range(7), halo)
    here, there = view.topology(weighted=weighted), LocalTopology(store, weighted=weighted)
    assert (here.id_dtype, view.num_edges) == (there.id_dtype, store.num_edges)
    dst = torch.randperm(store.num_nodes)
    for fanout in (-1, 3):
        a, b = (t.sample(dst, 11, fanout, positions=True) for t in (here, there))
        for field in ("indptr", "indices", "positions"):
            assert torch.equal(getattr(a, field), getattr(b, field))
        for relabel in (None, Relabeller(store.num_nodes)):
            a, b = (
                sample_block(
                    t, dst, StepKey(0, 0, 0), 1, fanout, coefficients=GCN.coefficients, relabel=relabel,
                    dtype=torch.float64,
                )
                for t in (here, there)
            )  # fmt: skip
            for field in ("indptr", "indices", "weight", "self_weight"):
                assert torch.equal(getattr(a, field), getattr(b, field))
    assert torch.equal(here.degrees(dst), there.degrees(dst))
    assert torch.equal(here.original(dst), there.original(dst))
    assert torch.equal(view.x, as_tensor(store.x))
    assert torch.equal(view.seeds, as_tensor(store.split("train")))
    assert torch.equal(view.d_local(view.seeds), view.d_global(view.seeds))


def test_edges_cannot_be_left_out_of_a_part(stores) -> None:
    topology = PartView.load(stores["formula"], [2, 5], "one-hop").topology()
    with pytest.raises(ConfigError, match="cannot be left out of a view of some parts"):
        topology.without(TargetEdges(torch.tensor([0]), torch.tensor([1])))


def test_rows_and_coefficients_of_a_part(stores) -> None:
    store = stores["formula"]
    view = PartView.load(store, [2, 5], "one-hop")
    column = view.column(torch.float64, normalize=True, dropout=0.25)
    ids = torch.tensor([0, view.num_nodes - 1])
    rows = torch.from_numpy(store.x[view.store_ids[ids]].astype(np.float64))
    torch.testing.assert_close(column.read(ids), rows / rows.abs().sum(1, keepdim=True))
    assert (column.dropout, column.dtype, view.x.dtype) == (0.25, torch.float64, torch.float16)
    # Coefficients go by degrees in the whole graph, also of halo nodes, which have no rows here.
    dst = torch.arange(view.num_nodes, dtype=torch.int32)
    sampled = view.topology().sample(dst, 1, -1)
    block = Block(dst, None, sampled.indptr, sampled.indices, view.topology().original(dst))
    weight, own = GCN.coefficients(view.topology(), block, torch.float64)
    norm = [1 + sum(u != v for u in formula_neighbors(v, store.num_nodes)) for v in view.original_index.tolist()]
    torch.testing.assert_close(own, 1 / torch.tensor(norm, dtype=torch.float64))
    assert view.num_nodes > view.num_owned
    place = 0
    for v in range(view.num_owned):
        for u in sampled.indices[sampled.indptr[v] : sampled.indptr[v + 1]].tolist():
            assert weight[place].item() == pytest.approx(0 if u == v else (norm[u] * norm[v]) ** -0.5)
            place += 1


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_the_engine_runs_on_a_view(stores, kind) -> None:
    """On all parts with the same bits as on the store; on some, on what they have."""
    store, fanouts, key = stores["moved"], (4, 3), StepKey(1, 2, 3)
    model = build_model(kind, in_width=5, hidden=6, out_width=4, layers=2, seed=0).double()

    def engine(topology, column):
        worker = BlockWorker(model, topology, column, fanouts, torch.float64)
        return Engine([Data(worker)] * 2, worker)

    whole = engine(LocalTopology(store), FeatureColumn(as_tensor(store.x), torch.float64))
    seeds = as_tensor(store.split("train"))
    wanted = whole.forward(whole.sample(seeds, key))
    view = PartView.load(store, range(7))
    on_all = engine(view.topology(), view.column(torch.float64))
    assert torch.equal(on_all.forward(on_all.sample(view.seeds, key)), wanted)
    view = PartView.load(store, [1, 4], "one-hop")
    part = engine(view.topology(), view.column(torch.float64))
    batch = part.sample(view.seeds, key)
    assert part.forward(batch).shape == (len(view.seeds), 4)
    # With a halo the seeds have all their neighbors, and draw the same ones as from the store.
    there = LocalTopology(store).sample(view.store_ids[view.seeds], key.at(Purpose.SAMPLE, 2), 3)
    block = batch.works[1].block
    assert torch.equal(block.indptr, there.indptr)
    assert torch.equal(view.store_ids[block.src[block.indices.long()].long()], there.indices.long())


FANOUTS = [-1, 2, (1, 0, 2, -1, 3)]


@pytest.mark.parametrize("name", ["formula", "typed"])
@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("parts", [(0,), (1, 2, 5), tuple(range(7))], ids=str)
@pytest.mark.parametrize("drawn", [{}, {"replace": True}, {"weighted": True}], ids=str)
def test_draws_are_those_of_the_store_without_the_edges_that_leave(stores, name, halo, parts, drawn) -> None:
    """Of every relation, with the weights and features of the edges."""
    store = stores[name]
    view, columns = PartView.load(store, parts, halo), ("edge_weight", "edge_attr")
    here, there = view.topology(**drawn).drawing(columns), filtered(store, parts, halo, **drawn).drawing(columns)
    dst = torch.randperm(view.num_nodes)
    for fanout in FANOUTS if store.schema is not None else FANOUTS[:2]:
        a, b = here.sample(dst, 11, fanout), there.sample(view.store_ids[dst], 11, fanout)
        assert a.indptr[-1] > 0
        assert torch.equal(view.store_ids[a.indices.long()], b.indices.long())
        for field in ("indptr", "edge_weight", "edge_attr", "edge_type"):
            mine, theirs = getattr(a, field), getattr(b, field)
            assert mine is theirs is None or torch.equal(mine, theirs), field
    assert torch.equal(here.degrees(dst), there.degrees(view.store_ids[dst]))
    assert a.edge_type is None or a.edge_type.unique().tolist() != [0]


OF_TYPES = ["rgcn", "hetero-sage", "rgat", "hgt", "sage", "gatv2", "gine"]
OF_EDGES = ["gcn", "sage", "gatv2", "transformer", "gine"]


@pytest.mark.parametrize(
    ("name", "kind"), [("typed", kind) for kind in OF_TYPES] + [("formula", kind) for kind in OF_EDGES]
)
@pytest.mark.parametrize(("parts", "halo"), [(tuple(range(7)), "none"), ((1, 4), "none"), ((1, 4), "one-hop")])
def test_a_step_is_that_of_the_store_without_the_edges_that_leave(stores, name, kind, parts, halo) -> None:
    """Outputs and all gradients, with dropout of input rows and layers; of all parts those of the store itself."""
    store = stores[name]
    config = Config.make(
        {"model": kind, "layers": 2, "hidden": 8, "fanout": (3, 2), "precision": "float64", "dropout": 0.3,
         "input_dropout": 0.2, "edge_weights": kind in ("gcn", "sage")}
    )  # fmt: skip
    model = named_model(config, store, 3).double().train()
    view, key = PartView.load(store, parts, halo), StepKey(1, 2, 3)
    here = build_engine(
        parse_strategy(PLAIN, 2), model, view.topology(), view.inputs(torch.float64, dropout=0.2),
        make_sampler(config, Group.alone(), store.schema), torch.float64, Context.alone(),
        torch.tensor([0, view.num_nodes]),
    )  # fmt: skip
    found = []
    for engine, seeds in (
        (here, view.seeds),
        (engine_without(store, model, config, parts, halo), view.store_ids[view.seeds]),
    ):
        model.zero_grad()
        out = engine.forward(engine.sample(seeds, key))
        (out.sin() * torch.arange(1, 4)).sum().backward()
        found.append([out, *(each.grad for each in model.parameters())])
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)
    assert len(view.seeds) > 0


@pytest.mark.parametrize("kind", ["rgcn", "sage"])
@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("fanout", [-1, 2, (1, 0, 2, -1, 3)])
def test_neighborhoods_are_counted_by_mean(stores, kind, halo, fanout) -> None:
    """Of every relation where the layer takes one mean of each; of those that are sampled."""
    store, parts = stores["typed"], (0, 3)
    view = PartView.load(store, parts, halo)
    fanouts = (fanout,) * 5 if isinstance(fanout, int) else fanout
    block = sample_block(view.topology(), view.seeds, StepKey(0, 0, 0), 1, NodeWise([fanouts]))
    if kind == "sage":
        block = block.with_(edge_type=None)
    found = Neighborhoods.of(view, block, fanouts)
    seeds = view.store_ids[view.seeds].numpy()
    relations = [at for at, (_, target) in enumerate(store.schema.ends.tolist()) if target == 0]
    _, local, degree = (
        each.reshape(len(seeds), len(relations)) for each in degrees_of_pairs(store, parts, halo, seeds, True)
    )
    shown = degrees_of_pairs(store, parts, halo, seeds, True)[0].reshape(local.shape)
    most = np.array([fanouts[at] for at in relations])
    drawn = np.where(most < 0, shown, np.minimum(shown, most))
    wanted = [each[:, most != 0] for each in (drawn, local, degree)]
    assert wanted[0].shape[1] == (3 if isinstance(fanout, int) else 2)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.tolist() == (theirs.sum(1) if kind == "sage" else theirs.reshape(-1)).tolist()
    assert (halo == "none") or found.sampled.sum() > 0


def test_nothing_and_what_is_left_out(stores) -> None:
    store = stores["moved"]
    empty = next(part for part in range(7) if store.part_offsets[part] == store.part_offsets[part + 1])
    for parts in ([], [empty]):
        for halo in HALOS:
            view = PartView.load(store, parts, halo)
            assert (view.num_nodes, view.num_edges, view.x.shape, len(view.seeds)) == (0, 0, (0, 5), 0)
            drawn = view.topology().sample(torch.empty(0, dtype=torch.int32), 1, 3)
            assert drawn.indptr.tolist() == [0]
            assert view.size == PartView.measure(store, parts, halo)
    bare = PartView.load(store, [0], without=["x", WEIGHTS])
    assert bare.size == PartView.measure(store, [0], without=["x", WEIGHTS])
    with pytest.raises(ConfigError, match="no features"):
        bare.column()
    with pytest.raises(ConfigError, match="needs edge weights"):
        bare.topology(weighted=True)


def test_refusals(stores) -> None:
    for make in (PartView.load, PartView.measure, PartView.bound):
        with pytest.raises(ConfigError, match="there is no part 7, the store has 7"):
            make(stores["moved"], [0, 7])
        with pytest.raises(ConfigError, match="there is no part -1"):
            make(stores["moved"], [-1])
        with pytest.raises(ConfigError, match="given twice: 1, 1"):
            make(stores["moved"], [1, 1])
        with pytest.raises(ConfigError, match="Did you mean 'one-hop'"):
            make(stores["moved"], [1], "onehop")


@pytest.mark.parametrize("topology", ["partitioned", "replicated"])
def test_shards_give_the_views_of_their_host(tmp_path, topology) -> None:
    small_random_store(tmp_path / "source", 120, 500, num_features=4, weighted=True)
    partita.partition(tmp_path / "source", tmp_path / "whole", parts="2x2", algorithm="spring")
    whole = GraphStore.open(tmp_path / "whole")
    for host in (0, 1):
        for hot in (0, 1 << 20):
            out = tmp_path / f"{host}-{hot}"
            partita.shard(tmp_path / "whole", out, host=host, hosts=2, hot_bytes=hot, topology=topology)
            shard = GraphStore.open(out)
            mine, others = [2 * host, 2 * host + 1], [2 - 2 * host]
            for parts in ([mine[0]], [mine[1]], mine):
                for halo in ("none", "one-hop") if hot else ("none",):
                    same(PartView.load(shard, parts, halo), PartView.load(whole, parts, halo))
                    assert PartView.measure(shard, parts, halo) == PartView.measure(whole, parts, halo)
            if topology == "partitioned":
                for parts, halo in ((others, "none"), (mine, "one-hop+edges")):
                    with pytest.raises(StoreError, match=r"needs the edges of nodes .* of host"):
                        PartView.load(shard, parts, halo)
            elif hot:
                same(PartView.load(shard, mine, "one-hop+edges"), PartView.load(whole, mine, "one-hop+edges"))
                with pytest.raises(StoreError, match=r"needs the rows of 'x' of .* nodes that the shard of host"):
                    PartView.load(shard, others)
            if not hot:
                with pytest.raises(StoreError, match=r"needs the rows of 'x' of .* nodes that the shard of host"):
                    PartView.load(shard, mine, "one-hop")


def same(a: PartView, b: PartView) -> None:
    for name in ("store_ids", "original_index", "indptr", "indices", "inside", "whole", "seeds"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert set(a.columns) == set(b.columns) >= {WEIGHTS, "self_loops", "x"}
    for name, column in a.columns.items():
        assert torch.equal(column, b.columns[name]), name


MEMORY = """
import resource, sys
import partita
from partita.core.memory import private_bytes
from partita.features.rows import FeatureColumn
from partita.graph.store import GraphStore
from partita.isolated.views import HALOS, PartView

def data_bytes():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))

store = GraphStore.open(sys.argv[1])
for halo in HALOS:
    PartView.load(store, [0], halo)  # compiled
for halo in HALOS:
    size = PartView.measure(store, [1, 2], halo)
    before = private_bytes()
    most = int(1.1 * size.bytes) + (12 << 20) + 24 * size.halo
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + most, -1))
    view = PartView.load(store, [1, 2], halo)
    resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
    assert view.size == size
    print(halo, size.bytes, private_bytes() - before)
    del view
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA")
def test_private_memory_is_what_was_measured(tmp_path) -> None:
    """Within a tenth, with some megabytes of buffers on the way; enforced by the kernel."""
    small_random_store(tmp_path / "store", 40_000, 1_600_000, num_features=192)
    partita.partition(tmp_path / "store", tmp_path / "parts", parts=8, algorithm="random")
    # Freed buffers go back to the system at once, so that what is counted is what is held.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "parts")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [halo for halo, *_ in lines] == list(HALOS)
    for halo, measured, taken in lines:
        assert abs(int(taken) - int(measured)) < int(measured) / 10 + (1 << 20), (halo, measured, taken)
