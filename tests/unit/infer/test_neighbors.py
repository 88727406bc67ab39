"""Inference on the nodes that walks visit: a node has one neighborhood, whoever computes it and in whatever block."""

from __future__ import annotations

import pytest
import torch

from partita.comm.threads import ThreadGroups
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.features.rows import FeatureColumn
from partita.graph.store import GraphStore
from partita.infer.layerwise import LayerwiseInference
from partita.infer.neighbors import Neighbors, VisitedNeighbors, neighbors_of
from partita.infer.ranges import Ranges
from partita.infer.row_table import RowTable
from partita.infer.run import open_inference
from partita.nn.model import build_model
from partita.partitioning.shards import shard
from partita.sample.topology import LocalTopology
from partita.setup.sampler import evaluation_sampler
from partita.setup.topology import mapped_topology
from partita.testing.graphs import formula_store, small_random_store

CONFIG = Config.make({"sampler": "walk", "fanout": "4,6", "layers": 2, "walks": 5, "walk_length": 3, "seed": 2})


def model_of(name: str, aggregator: str = "mean"):
    model = build_model(
        name, in_width=8, hidden=8, out_width=3, layers=2, aggregator=aggregator, dropout=0.5
    )  # fmt: skip
    return model.double().eval()


def column_of(num_nodes: int) -> FeatureColumn:
    x = torch.randn(num_nodes, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return FeatureColumn(x, dtype=torch.float64)


@pytest.fixture
def store(tmp_path) -> GraphStore:
    return small_random_store(tmp_path / "g", 200, 1500)


def infer(store, model, ids=None, **options):
    sampler = evaluation_sampler(CONFIG)
    column = options.pop("inputs", None) or column_of(store.num_nodes)
    inference = LayerwiseInference(model, LocalTopology(store), column, sampler=sampler, **options)
    return torch.cat([rows.output for rows in inference.collect(ids)] or [torch.empty(0, 3, dtype=torch.float64)])


def adjacency(store, layer: int) -> torch.Tensor:
    """Shares of the visited nodes, by brute force, dense."""
    sampler = evaluation_sampler(CONFIG)
    found = sampler.draw(LocalTopology(store), torch.arange(store.num_nodes), 0, layer)
    matrix = torch.zeros(store.num_nodes, store.num_nodes, dtype=torch.float64)
    matrix[torch.repeat_interleave(found.indptr.diff()), found.indices.long()] = found.visit_weight
    return matrix


@pytest.mark.parametrize("aggregator", ["mean", "sum"])
def test_sage_equals_dense_matrices(store, aggregator) -> None:
    model, h = model_of("sage", aggregator), column_of(200).x
    for number, stage in enumerate(model.stages, start=1):
        h = stage.layer.lin_l(adjacency(store, number) @ h) + stage.layer.lin_r(h)
        if number == 1:
            h = torch.relu(stage.norm(h))
    torch.testing.assert_close(infer(store, model), h.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "aggregator"), [("sage", "mean"), ("sage", "max"), ("gat", "mean"), ("gin", "mean")])
def test_neither_blocks_nor_workers_nor_hosts_matter(store, name, aggregator) -> None:
    model = model_of(name, aggregator)
    everything = infer(store, model)
    torch.testing.assert_close(infer(store, model, memory_limit=20_000), everything, rtol=1e-12, atol=1e-12)
    wanted = torch.tensor([150, 3, 77])
    torch.testing.assert_close(infer(store, model, wanted), everything[wanted], rtol=1e-12, atol=1e-12)
    for workers, hosts in ((3, 1), (2, 2)):
        groups = ThreadGroups(workers, hosts)
        bounds = {3: (0, 60, 60, 200), 2: (0, 90, 200)}[workers]

        def work(context, hosts=hosts, bounds=bounds):
            ranges = Ranges(context.mesh, bounds)
            inputs = None
            if hosts > 1:  # each has the rows of its own nodes, and fetches what its walks reach
                (first, last), column = ranges.host, column_of(200)
                inputs = RowTable(FeatureColumn(column.x[first:last], dtype=torch.float64), 200, first)
            return infer(store, model, context=context, ranges=ranges, inputs=inputs)

        torch.testing.assert_close(groups.run(work)[0], everything, rtol=1e-12, atol=1e-12)


def test_bounds_and_what_the_settings_say(store) -> None:
    topology, ids = mapped_topology(store, CONFIG), torch.arange(200)
    assert type(neighbors_of(topology, evaluation_sampler(Config()))) is Neighbors
    found = neighbors_of(topology, evaluation_sampler(CONFIG))
    assert isinstance(found, VisitedNeighbors)
    assert found.most(ids).tolist() == [6] * 200
    for number in (1, 2):
        block = found.block(ids, model_of("sage").layers[0], number, None, torch.float64)
        assert int(block.indptr.diff().max()) <= 6
        assert set(block.indices.tolist()) <= set(found.ids(ids).tolist())


def test_a_host_with_its_own_edges_only_cannot_walk(tmp_path) -> None:
    store = formula_store(tmp_path / "g", num_nodes=40, num_parts=2)
    for topology in ("partitioned", "replicated"):
        shard(store, tmp_path / topology, host=0, hosts=2, topology=topology)
    with pytest.raises(ConfigError, match=r"evaluated on walks.*--topology replicated"):
        open_inference(GraphStore.open(tmp_path / "partitioned"), CONFIG, Mesh.of(0, 2, 1))
    open_inference(GraphStore.open(tmp_path / "partitioned"), Config(layers=2), Mesh.of(0, 2, 1))
    open_inference(GraphStore.open(tmp_path / "replicated"), CONFIG, Mesh.of(0, 2, 1))
