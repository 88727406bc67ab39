"""Inference that reads its tables in order: the rows of the other way, each source read once, and when it is chosen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from typed_graphs import typed_store

from partita.comm.context import Context
from partita.config import Config
from partita.features.rows import FeatureColumn
from partita.graph.store import GraphStore
from partita.infer import memory_need
from partita.infer.evaluate import evaluate_split
from partita.infer.in_order import LayerInOrder, OrderedTable
from partita.infer.layerwise import LayerwiseInference
from partita.infer.memory_need import inference_parts
from partita.infer.run import inference_of
from partita.nn.layers import LAYERS
from partita.nn.model import Model, build_model
from partita.sample.topology import LocalTopology, as_tensor
from partita.setup.model import named_model
from partita.tasks.nodes import Classes
from partita.testing.graphs import small_random_store

N = 200
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("in_order") / "g", N, 1500, num_features=30)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return typed_store(tmp_path_factory.mktemp("typed") / "g")


def model_of(name: str, store: GraphStore, layers: int = 3) -> Model:
    return build_model(
        name, in_width=store.num_features, hidden=24, out_width=store.num_classes, layers=layers, dropout=0.5
    ).double()


def inference_on(store: GraphStore, model: Model, **options) -> LayerwiseInference:
    column = FeatureColumn(as_tensor(store.x), dtype=torch.float64)
    return LayerwiseInference(model, LocalTopology(store), column, **options)


def outputs(inference: LayerwiseInference, ids: Tensor | None = None) -> Tensor:
    return torch.cat([rows.output for rows in inference.run(ids)])


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_every_layer_gives_the_same_rows(store, tmp_path, name) -> None:
    model = model_of(name, store, layers=2)
    expected = outputs(inference_on(store, model, in_order=False))
    found = outputs(inference_on(store, model, in_order=True, memory_limit=60_000, scratch=tmp_path))
    torch.testing.assert_close(found, expected, **CLOSE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rgcn", "hetero-sage", "rgat", "hgt"])
@pytest.mark.parametrize("limit", [4000, 2**20])
def test_typed_graphs_give_the_same_rows(typed, name, limit) -> None:
    config = Config.make({"model": name, "layers": 2, "hidden": 6, "precision": "float64"})
    model = named_model(config, typed, 2).double()
    inference = inference_of(model, typed, config, Context.alone())
    expected = outputs(inference)
    inference.in_order, inference.memory_limit = True, limit
    torch.testing.assert_close(outputs(inference), expected, **CLOSE)


class Reads:
    """What is read of the tables in files, and in how many blocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids = list[list[int]]()
        self.blocks = 0
        read, block = OrderedTable.read, LayerInOrder._block

        def noting(table: OrderedTable, ids: Tensor) -> Tensor:
            self.ids.append(ids.tolist())
            return read(table, ids)

        def counting(layer: LayerInOrder, ids: Tensor):
            self.blocks += 1
            return block(layer, ids)

        monkeypatch.setattr(OrderedTable, "read", noting)
        monkeypatch.setattr(LayerInOrder, "_block", counting)

    @property
    def flat(self) -> list[int]:
        """All ids, one read behind the other."""
        return [each for ids in self.ids for each in ids]


@pytest.mark.parametrize(("limit", "blocks"), [(None, 1), (100_000, 1), (30_000, 2)])
def test_sources_are_read_once_by_every_block_in_ascending_order(store, monkeypatch, limit, blocks) -> None:
    model = build_model("sage", in_width=30, hidden=24, out_width=20, layers=1).double()
    reads = Reads(monkeypatch)
    outputs(inference_on(store, model, in_order=True, memory_limit=limit))
    assert reads.blocks == blocks
    sources = sorted({int(u) for v in range(N) for u in store.neighbors(v)})
    if blocks == 1:
        assert reads.flat == sources + list(range(N))  # then the rows of the destinations
        assert len(reads.ids) > 10 or limit is None
    else:
        falls = sum(1 for a, b in zip(reads.flat, reads.flat[1:]) if b <= a)
        assert falls == 2 * blocks - 1
        assert len(reads.flat) <= blocks * len(sources) + N


def test_messages_are_made_of_rows_in_order(store, monkeypatch) -> None:
    reads = Reads(monkeypatch)
    model = model_of("gat", store, layers=1)
    outputs(inference_on(store, model, in_order=True, memory_limit=100_000))
    assert reads.flat[:N] == list(range(N))


def test_tables_are_read_in_order_where_they_exceed_the_memory_for_files(store, monkeypatch) -> None:
    reads = Reads(monkeypatch)
    model = model_of("sage", store)
    limit, size = 40_000, store.x.nbytes
    expected = outputs(inference_on(store, model, memory_limit=limit))
    assert reads.blocks == 0
    # Two hidden layers of 24 columns, spilled, are larger than the input rows.
    assert size < N * 24 * 8
    monkeypatch.setattr(memory_need, "bytes_for_files", lambda: limit + size)
    outputs(inference_on(store, model, memory_limit=limit))
    assert reads.blocks >= 2
    monkeypatch.setattr(memory_need, "bytes_for_files", lambda: limit + size - 1)
    before, reads.blocks = reads.blocks, 0
    torch.testing.assert_close(outputs(inference_on(store, model, memory_limit=limit)), expected, **CLOSE)
    assert reads.blocks > before
    reads.blocks = 0
    in_memory = FeatureColumn(torch.from_numpy(store.x.copy()), dtype=torch.float64)
    outputs(LayerwiseInference(model, LocalTopology(store), in_memory, memory_limit=10**8))
    assert reads.blocks == 0


def test_layers_that_cannot_be_split_are_computed_as_ever(store, monkeypatch) -> None:
    reads = Reads(monkeypatch)
    outputs(inference_on(store, model_of("mlp", store), in_order=True))
    assert reads.ids == []


def test_metrics_are_the_same(store, monkeypatch) -> None:
    model, task = model_of("gcn", store), Classes(store)
    expected = evaluate_split(inference_on(store, model), task, "test").metrics
    monkeypatch.setattr(memory_need, "bytes_for_files", lambda: 0)
    reads = Reads(monkeypatch)
    found = evaluate_split(inference_on(store, model, memory_limit=50_000), task, "test").metrics
    assert reads.blocks > 3
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["sage", "gat", "gin"])
def test_the_estimate_of_memory_knows_this_way(store, name, monkeypatch) -> None:
    model, limit = model_of(name, store), 2**28
    sizes = {"nodes": 10**7, "edges": 10**8, "item": 4, "limit": limit}
    monkeypatch.setattr(memory_need, "bytes_for_files", lambda: 2**60)
    fits = inference_parts(model, **sizes)
    monkeypatch.setattr(memory_need, "bytes_for_files", lambda: 0)
    exceeds = inference_parts(model, **sizes)
    assert exceeds["nodes"] == fits["nodes"]
    assert fits["inference"] <= limit // 4
    assert 3 * limit // 4 <= exceeds["inference"] <= limit


def test_a_small_graph_needs_no_more_than_its_states(store, monkeypatch) -> None:
    monkeypatch.setattr(memory_need, "bytes_for_files", lambda: 0)
    found = inference_parts(model_of("sage", store), 1000, 5000, item=4, limit=2**28)
    assert found["inference"] < 2**26
