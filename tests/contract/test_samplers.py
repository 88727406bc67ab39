"""What every sampler keeps: any number of workers, over any topology, draw what one worker draws."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Int
from meters import bytes_sent
from torch import Tensor

from partita.comm.axis import Axis, owners_of_parts
from partita.comm.group import Group
from partita.comm.threads import ThreadContext, ThreadGroups
from partita.config import Config
from partita.core.protocols import Sampler, Topology
from partita.core.records import RemoteDraws
from partita.sample.collective import CollectiveTopology
from partita.sample.samplers import SAMPLERS
from partita.sample.topology import ArrayTopology
from partita.setup.sampler import make_sampler

LAYERS = 2
# Small and large for the graphs below; layer 1 (input side) is last.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "node": [{"fanout": "2,3"}, {"fanout": -1}],
    "layer": [{"layer_budget": "9,1"}, {"layer_budget": "40,500"}],
    "walk": [{"fanout": "2,3", "walks": 4, "walk_length": 2}, {"fanout": 50, "walks": 2, "walk_restart": 0.0}],
}
# Those that something else has added, of which nothing but the fanout is known.
SETTINGS |= {name: [{"fanout": "2,3"}, {"fanout": -1}] for name in SAMPLERS if name not in SETTINGS}
TOPOLOGIES = ("replicated", "partitioned", "cut")


@dataclass(frozen=True)
class Graph:
    """A graph in memory, parts, and what every worker asks for."""

    indptr: Int[Tensor, "N_1"]
    indices: Int[Tensor, "M"]
    weights: Tensor
    original: Tensor
    offsets: tuple[int, ...]
    asked: tuple[Tensor, ...]

    @property
    def num_nodes(self) -> int:
        return self.indptr.shape[0] - 1

    def topology(self, part: int | None = None, **options: Any) -> ArrayTopology:
        """All edges, or those of one part."""
        first, last = (0, self.num_nodes) if part is None else self.offsets[part : part + 2]
        edges = slice(int(self.indptr[first]), int(self.indptr[last]))
        return ArrayTopology(
            self.indptr,
            self.indices[edges],
            original=self.original,
            weights=self.weights[edges],
            nodes=range(first, last),
            first_edge=edges.start,
            **options,
        )


@st.composite
def graphs(draw, workers: int, parts: int) -> Graph:
    """Repeated edges, self loops, weights of 0, empty parts, workers that want nothing, nodes that several want."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes = draw(st.integers(1, 40))
    edges = random.integers(0, nodes, (draw(st.integers(0, 300)), 2))
    edges[:, 1] = (edges[:, 1] ** 2) // nodes  # skewed; some nodes have none
    edges = edges[np.argsort(edges[:, 1], kind="stable")]
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
    )


def sampler_of(name: str, number: int, group: Group, weighted: bool, replace: bool) -> Sampler:
    return make_sampler(
        Config.make(
            {"sampler": name, "layers": LAYERS, "weighted": weighted, "replace": replace, **SETTINGS[name][number]}
        ),
        group,
    )


def topology_of(graph: Graph, kind: str, context: ThreadContext, axis: str, **options: Any) -> Topology:
    if kind == "replicated":
        return graph.topology(**options)
    mesh = context.mesh
    owners = owners_of_parts(len(graph.offsets) - 1, axis, mesh.hosts, mesh.workers)
    groups = [context.group(axis, purpose) for purpose in ("sample", "train", "load")]
    found = Axis(*groups, torch.tensor(graph.offsets), owners)
    held = graph.topology(found.rank if kind == "cut" else None, **options)
    return CollectiveTopology(held, found)


def rows_of(sampled: Any, dst: Tensor) -> dict[int, tuple[list[int], list[float] | None]]:
    """What each destination drew: store ids, and what they count."""
    weights = sampled.importance if sampled.visit_weight is None else sampled.visit_weight
    edges = [slice(*pair) for pair in pairwise(sampled.indptr.tolist())]
    return {
        node: (sampled.indices[own].tolist(), None if weights is None else weights[own].tolist())
        for node, own in zip(dst.tolist(), edges)
    }


def check(
    graph: Graph, name: str, number: int, kind: str, key: int, weighted: bool, replace: bool,
    hosts: int = 1, axis: str = "all",
) -> None:  # fmt: skip
    workers, options = len(graph.asked), {"weighted": weighted, "replace": replace}
    union = torch.cat(graph.asked).unique()
    alone = sampler_of(name, number, Group.alone(), weighted, replace)
    assert isinstance(alone, Sampler)
    assert not alone.collective
    whole = graph.topology(**options)
    wanted = {layer: rows_of(alone.draw(whole, union, key ^ layer, layer), union) for layer in (1, 2)}
    groups = ThreadGroups(workers, hosts)

    def work(context: ThreadContext) -> Any:
        dst = graph.asked[context.mesh.rank]
        sampler = sampler_of(name, number, context.group("all", "sample"), weighted, replace)
        topology = topology_of(graph, kind, context, axis, **options)
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
            sent += topology.traffic(sampled.remote).ids + sampler.traffic(layer, sampled.remote).ids
    assert sent == bytes_sent(groups)["ids"]
    assert sum(size for kind, size in bytes_sent(groups).items() if kind not in ("ids", "metadata")) == 0
    if not any(sampler.collective or topology.collective for sampler, topology, _ in results):
        assert sum(bytes_sent(groups).values()) == 0


def test_every_sampler_is_here() -> None:
    assert set(SETTINGS) == set(SAMPLERS)


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
    check(graph, name, number, kind, key, weighted, replace and name != "walk")


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
