"""What every sampler keeps: any number of workers, over any topology, draw what one worker draws."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replaced
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from edge_files import in_files
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Int
from meters import bytes_sent
from torch import Tensor

from partita.comm.axis import Axis, owners_of_parts
from partita.comm.group import Group
from partita.comm.threads import ThreadContext, ThreadGroups
from partita.config import Config
from partita.core.node_types import NodeTypes
from partita.core.protocols import Sampler, Topology
from partita.core.records import RemoteDraws, TargetEdges
from partita.graph.schema import Relation, Schema
from partita.sample.collective import CollectiveTopology
from partita.sample.samplers import SAMPLERS
from partita.sample.topology import ArrayTopology
from partita.setup.sampler import make_sampler

LAYERS = 2
# Small and large for the graphs below; layer 1 (input side) is last.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "node": [{"fanout": "2,3"}, {"fanout": -1}],
    "labor": [{"fanout": "2,3"}, {"fanout": "-1,1", "layer_dependency": True, "batch_dependency": 4}],
    "layer": [{"layer_budget": "9,1"}, {"layer_budget": "40,500"}],
    "walk": [{"fanout": "2,3", "walks": 4, "walk_length": 2}, {"fanout": 50, "walks": 2, "walk_restart": 0.0}],
}
# The same on typed graphs, of the samplers that draw by relation; r0, r1 and so on are the relations.
TYPED: dict[str, list[dict[str, Any]]] = {
    "node": [{"fanout": "r0=2,3 *=1,-1"}, {"fanout": "2,3"}],
    "labor": [{"fanout": "r0=2,3 *=1,-1"}, {"fanout": "2,3"}],
    "layer": [{"layer_budget": "r0=9,1 *=4,0"}, {"layer_budget": "20,500"}],
    "walk": [
        {"fanout": "2,3", "walks": 4, "walk_length": 2, "metapath": "r0 r0"},
        {"fanout": 50, "walks": 2, "walk_restart": 0.0, "metapath": "node:r0:node"},
    ],
}
# Those that something else has added, of which nothing but the fanout is known.
SETTINGS |= {name: [{"fanout": "2,3"}, {"fanout": -1}] for name in SAMPLERS if name not in SETTINGS}
ONCE = ("labor", "walk")
"""Samplers that have no replacement."""
TOPOLOGIES = ("replicated", "partitioned", "cut", "files", "cut files")
MEMORY = (0, 300, 900, 2**20)
"""Bytes of edges that are kept of those in files."""


@dataclass(frozen=True)
class Graph:
    """A graph in memory, parts, and what every worker asks for."""

    indptr: Int[Tensor, "N_1"]
    indices: Int[Tensor, "M"]
    weights: Tensor
    original: Tensor
    offsets: tuple[int, ...]
    asked: tuple[Tensor, ...]
    edge_type: Tensor | None = None
    num_relations: int = 1

    @property
    def num_nodes(self) -> int:
        return self.indptr.shape[0] - 1

    def topology(self, part: int | None = None, **options: Any) -> ArrayTopology:
        """All edges, or those of one part."""
        first, last = (0, self.num_nodes) if part is None else self.offsets[part : part + 2]
        edges = slice(int(self.indptr[first]), int(self.indptr[last]))
        if self.edge_type is not None:
            options |= {
                "edge_type": self.edge_type[edges], "num_relations": self.num_relations,
                "node_types": NodeTypes(np.array([0, self.num_nodes])),
            }  # fmt: skip
        return ArrayTopology(
            self.indptr,
            self.indices[edges],
            original=self.original,
            weights=self.weights[edges],
            nodes=range(first, last),
            first_edge=edges.start,
            **options,
        )

    def between(self, targets: TargetEdges) -> Tensor:
        """Which edges are those that are meant, bool."""
        row = torch.repeat_interleave(torch.arange(self.num_nodes), self.indptr.diff())
        kinds = torch.zeros_like(row) if self.edge_type is None else self.edge_type.long()
        edges = torch.stack([row, self.indices.long(), kinds], dim=1)
        pairs = torch.stack([targets.dst, targets.src], dim=1)
        if targets.edge_type is None or self.edge_type is None:
            edges = edges[:, :2]
        else:
            pairs = torch.cat([pairs, targets.edge_type[:, None]], dim=1)
        return (edges[:, None] == pairs[None]).all(2).any(1)

    def without(self, targets: TargetEdges) -> Graph:
        """The graph that lacks some edges."""
        left = ~self.between(targets)
        row = torch.repeat_interleave(torch.arange(self.num_nodes), self.indptr.diff())[left]
        return replaced(
            self,
            indptr=torch.cat([torch.zeros(1, dtype=torch.int64), row.bincount(minlength=self.num_nodes).cumsum(0)]),
            indices=self.indices[left],
            weights=torch.from_numpy(self.weights.numpy()[left.numpy()]),  # PyTorch 2.6 cannot index uint32
            edge_type=None if self.edge_type is None else self.edge_type[left],
        )

    @property
    def schema(self) -> Schema | None:
        """Of a single node type; ``None`` where edges have no types."""
        if self.edge_type is None:
            return None
        sizes = torch.bincount(self.edge_type.int(), minlength=self.num_relations).tolist()
        names = tuple(Relation("node", f"r{number}", "node") for number in range(self.num_relations))
        return Schema(("node",), (self.num_nodes,), names, tuple(sizes))


@st.composite
def graphs(draw, workers: int, parts: int, relations: int = 0) -> Graph:
    """Repeated edges, self loops, weights of 0, empty parts, workers that want nothing, nodes that several want.

    Edges have types where ``relations`` are asked for.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes = draw(st.integers(1, 40))
    edges = random.integers(0, nodes, (draw(st.integers(0, 300)), 2))
    edges[:, 1] = (edges[:, 1] ** 2) // nodes  # skewed; some nodes have none
    kinds = random.integers(0, max(1, relations), len(edges)) * (random.random(len(edges)) < 0.7)
    order = np.lexsort((kinds, edges[:, 1]))
    edges, kinds = edges[order], kinds[order]
    inner = sorted(draw(st.lists(st.integers(0, nodes), min_size=parts - 1, max_size=parts - 1)))
    return Graph(
        indptr=torch.from_numpy(np.concatenate([[0], np.cumsum(np.bincount(edges[:, 1], minlength=nodes))])),
        indices=torch.from_numpy(edges[:, 0].astype(np.int32)),
        weights=torch.from_numpy(random.integers(0, 5, len(edges)).astype(np.uint32)),
        original=torch.from_numpy(random.permutation(nodes)),
        offsets=(0, *inner, nodes),
        asked=tuple(
            torch.from_numpy(random.permutation(nodes)[: draw(st.sampled_from([0, 1, nodes // 2, nodes]))])
            for _ in range(workers)
        ),
        edge_type=torch.from_numpy(kinds.astype(np.uint8)) if relations else None,
        num_relations=max(1, relations),
    )


@st.composite
def targets_of(draw, graph: Graph) -> TargetEdges:
    """Edges of the graph, some of them twice or the other way round, and pairs without an edge; perhaps none."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.indptr.diff())
    some = torch.from_numpy(random.permutation(len(row))[: draw(st.sampled_from([0, 1, 7, 200]))])
    dst, src = row[some], graph.indices.long()[some]
    kinds = None if graph.edge_type is None else graph.edge_type.long()[some]
    dst, src, kinds = torch.cat([dst, src]), torch.cat([src, dst]), None if kinds is None else kinds.repeat(2)
    return TargetEdges(dst, src, None if kinds is None or draw(st.booleans()) else kinds)


def sampler_of(
    name: str, number: int, group: Group, weighted: bool, replace: bool, schema: Schema | None = None
) -> Sampler:
    settings = (SETTINGS if schema is None else TYPED)[name][number]
    return make_sampler(
        Config.make({"sampler": name, "layers": LAYERS, "weighted": weighted, "replace": replace, **settings}),
        group,
        schema,
    )


def topology_of(graph: Graph, kind: str, context: ThreadContext, axis: str, **options: Any) -> Topology:
    room = MEMORY[graph.num_nodes % len(MEMORY)]
    if kind in ("replicated", "files"):
        local = graph.topology(**options)
        return local if kind == "replicated" else in_files(local, room)
    mesh = context.mesh
    owners = owners_of_parts(len(graph.offsets) - 1, axis, mesh.hosts, mesh.workers)
    groups = [context.group(axis, purpose) for purpose in ("sample", "train", "load")]
    found = Axis(*groups, torch.tensor(graph.offsets), owners)
    held = graph.topology(None if kind == "partitioned" else found.rank, **options)
    return CollectiveTopology(in_files(held, room) if kind == "cut files" else held, found)


def rows_of(sampled: Any, dst: Tensor) -> dict[int, tuple[list[Any] | None, ...]]:
    """What each destination drew: store ids, what they count, and the relations of a typed graph."""
    weights = sampled.importance if sampled.visit_weight is None else sampled.visit_weight
    edges = [slice(*pair) for pair in pairwise(sampled.indptr.tolist())]
    columns = (sampled.indices, weights, sampled.edge_type)
    return {
        node: tuple(None if column is None else column[own].tolist() for column in columns)
        for node, own in zip(dst.tolist(), edges)
    }


def check(
    graph: Graph, name: str, number: int, kind: str, key: int, weighted: bool, replace: bool,
    hosts: int = 1, axis: str = "all", targets: TargetEdges | None = None, known: bool = False,
) -> None:  # fmt: skip
    workers, options = len(graph.asked), {"weighted": weighted, "replace": replace}
    union = torch.cat(graph.asked).unique()
    alone = sampler_of(name, number, Group.alone(), weighted, replace, graph.schema)
    assert isinstance(alone, Sampler)
    assert not alone.collective
    assert graph.schema is None or alone.draws_relations
    whole = (graph if targets is None else graph.without(targets)).topology(**options)
    wanted = {layer: rows_of(alone.draw(whole, union, key ^ layer, layer), union) for layer in (1, 2)}
    groups = ThreadGroups(workers, hosts)

    def work(context: ThreadContext) -> Any:
        dst = graph.asked[context.mesh.rank]
        sampler = sampler_of(name, number, context.group("all", "sample"), weighted, replace, graph.schema)
        topology = topology_of(graph, kind, context, axis, **options)
        if targets is not None:  # every worker has them in another order
            order = torch.randperm(len(targets.dst))
            kinds = None if targets.edge_type is None else targets.edge_type[order]
            at = graph.between(targets).nonzero().flatten() if known else None
            own = TargetEdges(targets.dst[order], targets.src[order], kinds)
            topology = topology.without(own if at is None else TargetEdges.at(at, own.pairs))
        found = []
        for layer in (2, 1):
            found.append((layer, sampler.draw(topology, dst, key ^ layer, layer)))
        return sampler, topology, found

    results = groups.run(work)
    sent = 0
    for dst, (sampler, topology, found) in zip(graph.asked, results):
        assert isinstance(topology, Topology)
        for layer, sampled in found:
            assert rows_of(sampled, dst) == {node: wanted[layer][node] for node in dst.tolist()}
            assert (sampled.importance is not None or sampled.visit_weight is not None) == sampler.has_importance
            assert sampled.positions is None
            assert sampled.weights is None
            for _, _, kinds in rows_of(sampled, dst).values():
                assert (kinds is None) == (graph.schema is None)
                assert kinds is None or kinds == sorted(kinds)
            sent += topology.traffic(sampled.remote).ids + sampler.traffic(layer, sampled.remote).ids
    assert sent == bytes_sent(groups)["ids"]
    assert sum(size for kind, size in bytes_sent(groups).items() if kind not in ("ids", "metadata")) == 0
    if not any(sampler.collective or topology.collective for sampler, topology, _ in results):
        assert sum(bytes_sent(groups).values()) == 0


def test_every_sampler_is_here() -> None:
    assert set(SETTINGS) == set(SAMPLERS)
    assert {name for name in SETTINGS if SAMPLERS.find(name).draws_relations} == set(TYPED)


@pytest.mark.parametrize("kind", TOPOLOGIES)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    workers=st.integers(1, 4),
    key=st.integers(0, 2**64 - 1),
    weighted=st.booleans(),
    replace=st.booleans(),
)
def test_workers_draw_together_what_one_draws(name, number, kind, data, workers, key, weighted, replace):
    graph = data.draw(graphs(workers, workers))
    check(graph, name, number, kind, key, weighted, replace and name not in ONCE)


@pytest.mark.parametrize("kind", TOPOLOGIES)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", TYPED)
@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    workers=st.integers(1, 3),
    relations=st.integers(1, 4),
    key=st.integers(0, 2**64 - 1),
    weighted=st.booleans(),
    replace=st.booleans(),
)
def test_workers_draw_together_by_relation(name, number, kind, data, workers, relations, key, weighted, replace):
    graph = data.draw(graphs(workers, workers, relations))
    check(graph, name, number, kind, key, weighted, replace and name not in ONCE)


@pytest.mark.parametrize("kind", TOPOLOGIES)
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    workers=st.integers(1, 3),
    number=st.integers(0, 1),
    key=st.integers(0, 2**64 - 1),
    weighted=st.booleans(),
    replace=st.booleans(),
    known=st.booleans(),
)
def test_without_some_edges_they_draw_from_the_graph_that_lacks_them(
    name, typed, kind, data, workers, number, key, weighted, replace, known
):
    """Whether it is known where these are, or they are looked for."""
    if typed and name not in TYPED:
        pytest.skip("draws from graphs without types only")
    graph = data.draw(graphs(workers, workers, 3 if typed else 0))
    targets = data.draw(targets_of(graph))
    check(graph, name, number, kind, key, weighted, replace and name not in ONCE, targets=targets, known=known)


@pytest.mark.parametrize("kind", TOPOLOGIES)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), workers=st.integers(1, 3), known=st.booleans())
def test_degrees_are_those_of_the_graph_that_lacks_them(kind, data, workers, known):
    graph = data.draw(graphs(workers, workers, data.draw(st.sampled_from([0, 3]))))
    targets, ids = data.draw(targets_of(graph)), torch.arange(graph.num_nodes)
    lost, row = graph.between(targets), torch.repeat_interleave(ids, graph.indptr.diff())
    loops = (lost & (graph.indices == row)).long()

    def work(context: ThreadContext) -> Any:
        at = lost.nonzero().flatten() if known else None
        own = TargetEdges(targets.dst, targets.src, targets.edge_type)
        own = own if at is None else TargetEdges.at(at, own.pairs)
        whole = topology_of(graph, kind, context, "all")
        topology = whole.without(own)
        assert whole.removed() is None
        assert topology.without(own) is not topology
        assert whole.without(own) is topology
        return whole.degrees(ids), topology.degrees(ids), topology.removed()

    wanted = graph.without(targets).indptr.diff()
    for before, after, removed in ThreadGroups(workers).run(work):
        assert torch.equal(before, graph.indptr.diff())
        assert torch.equal(after, wanted)
        assert torch.equal(removed.of(ids, "edges")[0], before - after)
        assert torch.equal(removed.of(ids, "loops")[0], torch.zeros_like(ids).index_add_(0, row, loops))


@pytest.mark.parametrize("name", TYPED)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), key=st.integers(0, 2**64 - 1), weighted=st.booleans())
def test_a_graph_of_one_relation_is_drawn_like_one_without_types(name, data, key, weighted):
    typed = data.draw(graphs(1, 1, 1))
    for number in range(len(SETTINGS[name])):
        sampler, dst = sampler_of(name, number, Group.alone(), weighted, False), typed.asked[0]
        found = sampler.draw(typed.topology(weighted=weighted), dst, key, 1)
        plain = sampler.draw(replaced(typed, edge_type=None).topology(weighted=weighted), dst, key, 1)
        assert torch.equal(found.edge_type, torch.zeros(len(found.indices), dtype=torch.int32))
        assert rows_of(plain, dst) == rows_of(replaced(found, edge_type=None), dst)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), key=st.integers(0, 2**64 - 1), weighted=st.booleans())
def test_without_a_metapath_walks_go_along_the_only_relation(data, key, weighted):
    """Step by step along it, or whole walks in a graph without types: the same ones."""
    typed = data.draw(graphs(1, 1, 1))
    given, dst = Config.make({"sampler": "walk", "layers": 1, "fanout": 4, "weighted": weighted}), typed.asked[0]
    found = make_sampler(given, Group.alone(), typed.schema).draw(typed.topology(weighted=weighted), dst, key, 1)
    untyped = replaced(typed, edge_type=None).topology(weighted=weighted)
    plain = make_sampler(given, Group.alone()).draw(untyped, dst, key, 1)
    assert rows_of(plain, dst) == rows_of(replaced(found, edge_type=None), dst)


@pytest.mark.parametrize("axis", ["workers", "hosts"])
@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=6, deadline=None)
@given(data=st.data(), key=st.integers(0, 2**64 - 1), weighted=st.booleans())
def test_on_two_hosts_whose_edges_are_split_along_one_axis(name, axis, data, key, weighted):
    graph = data.draw(graphs(4, 2))
    check(graph, name, 0, "cut", key, weighted, False, hosts=2, axis=axis)


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_are_a_function_of_the_key(name) -> None:
    random = np.random.default_rng(0)
    indptr = torch.arange(0, 41 * 20, 20)
    indices = torch.from_numpy(random.integers(0, 40, 800).astype(np.int32))
    topology, dst = ArrayTopology(indptr, indices), torch.arange(40)
    sampler = sampler_of(name, 0, Group.alone(), False, False)
    found = [rows_of(sampler.draw(topology, dst, key, 2), dst) for key in range(20)]
    assert found == [rows_of(sampler.draw(topology, dst, key, 2), dst) for key in range(20)]
    assert len({str(each) for each in found}) == 20


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_travels_without_rows(name) -> None:
    sampler = sampler_of(name, 0, Group.alone(), False, False)
    assert sampler.traffic(1, RemoteDraws()).total == 0
