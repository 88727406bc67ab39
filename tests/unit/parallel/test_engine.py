"""The engine with ``Data`` at every layer: what it computes, and that nothing but the key decides the batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch

from partita.core.keys import StepKey
from partita.features.rows import FeatureColumn
from partita.infer.layerwise import LayerwiseInference
from partita.nn.layers import LAYERS
from partita.nn.model import build_model
from partita.parallel.block_worker import BlockWorker
from partita.parallel.engine import Engine, MiniBatch
from partita.parallel.placements.data import Data
from partita.sample.samplers import NodeWise
from partita.sample.topology import LocalTopology, as_tensor
from partita.testing.graphs import formula_store, small_random_store

KEY = StepKey(seed=3, epoch=1, step=2)


def make(store, name="sage", *, fanout=(3, 2), dropout=0.0, input_dropout=0.0, dtype=torch.float64, **options):
    """Engine, model, topology and feature column over a store."""
    topology = LocalTopology(store)
    column = FeatureColumn(as_tensor(store.x), dtype=dtype, dropout=input_dropout)
    model = build_model(
        name, in_width=store.num_features, hidden=8, out_width=store.num_classes, layers=len(fanout),
        dropout=dropout, **options,
    ).to(dtype)  # fmt: skip
    worker = BlockWorker(model, topology, column, fanout, dtype)
    return Engine([Data(worker)] * len(fanout), worker), model, topology, column


def gradients(engine: Engine, model: torch.nn.Module, batch: MiniBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.train()
    model.zero_grad()
    output = engine.forward(batch)
    (output * torch.arange(1, output.numel() + 1).reshape(output.shape)).sum().backward()
    return output.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_all_neighbors_equal_full_graph_inference(tmp_path, name, residual) -> None:
    store = formula_store(tmp_path / "g", num_nodes=40)
    engine, model, topology, column = make(store, name, fanout=(-1, -1), residual=residual)
    seeds = torch.tensor([7, 0, 31, 18, 12], dtype=topology.id_dtype)
    model.eval()
    sampled = engine.forward(engine.sample(seeds, KEY))
    exact = torch.cat([rows.output for rows in LayerwiseInference(model, topology, column).run(seeds)])
    torch.testing.assert_close(sampled, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_summing_by_id_equals_gathering_first(tmp_path, name, monkeypatch) -> None:
    store = formula_store(tmp_path / "g", num_nodes=40)
    engine, model, topology, _ = make(store, name)
    seeds = torch.arange(12, dtype=topology.id_dtype)
    fused = gradients(engine, model, engine.sample(seeds, KEY))
    monkeypatch.setattr(FeatureColumn, "sums_by_id", lambda self, training: False)
    batch = engine.sample(seeds, KEY)
    assert batch.works[0].block.src is not None  # type: ignore[attr-defined]
    gathered = gradients(engine, model, batch)
    torch.testing.assert_close(fused, gathered, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(LAYERS))
@pytest.mark.parametrize("input_dropout", [0.0, 0.4])
def test_a_reordered_store_gives_the_same_bits(tmp_path, name, input_dropout) -> None:
    plain = formula_store(tmp_path / "plain", num_nodes=50)
    shuffled = formula_store(tmp_path / "shuffled", num_nodes=50, shuffle_seed=4)
    results = []
    for store in (plain, shuffled):
        engine, model, topology, _ = make(
            store, name, dropout=0.5, input_dropout=input_dropout, dtype=torch.float32
        )  # fmt: skip
        seeds = as_tensor(store.split("train"))[:20].to(topology.id_dtype)
        results.append(gradients(engine, model, engine.sample(seeds, KEY)))
    (output, grads), (other_output, other_grads) = results
    assert torch.equal(output, other_output)
    for parameter, grad in grads.items():
        assert torch.equal(grad, other_grads[parameter]), parameter


def test_a_batch_is_a_function_of_seeds_and_key(tmp_path) -> None:
    store = small_random_store(tmp_path / "g", 300, 3000)
    engine, _, topology, _ = make(store, fanout=(4, 3, 2))
    seeds = torch.arange(0, 300, 5, dtype=topology.id_dtype)
    alone = [engine.sample(seeds, StepKey(0, 0, step)) for step in range(12)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda step: engine.sample(seeds, StepKey(0, 0, step)), range(12)))
    for one, other in zip(alone, together):
        for work, other_work in zip(one.works, other.works):
            assert torch.equal(work.block.indptr, other_work.block.indptr)  # type: ignore[attr-defined]
            assert torch.equal(work.block.indices, other_work.block.indices)  # type: ignore[attr-defined]
    different = [tuple(batch.works[1].block.indices.tolist()) for batch in alone]  # type: ignore[attr-defined]
    assert len(set(different)) == len(different)


def test_counts_are_what_was_done(tmp_path) -> None:
    store = formula_store(tmp_path / "g", num_nodes=40)
    engine, _, topology, _ = make(store, fanout=(-1, -1))
    seeds = torch.tensor([4, 9], dtype=topology.id_dtype)
    rows = {int(v): store.neighbors(int(v)).tolist() for v in range(40)}
    first = [u for v in (4, 9) for u in rows[v]]
    wanted = sorted({4, 9, *first})
    second = [u for v in wanted for u in rows[v]]
    counts = engine.sample(seeds, KEY).counts
    assert counts.sampled_edges == len(first) + len(second)
    assert counts.computed_destinations == (len(wanted), 2)
    assert counts.input_rows_read == len({*wanted, *second})
    assert counts.row_reads == len(wanted) + len(second)


def test_no_seeds_and_seeds_without_neighbors(tmp_path) -> None:
    store = formula_store(tmp_path / "g", num_nodes=40)
    for name in sorted(LAYERS):
        engine, model, topology, _ = make(store, name)
        empty, _ = gradients(engine, model, engine.sample(torch.empty(0, dtype=topology.id_dtype), KEY))
        assert empty.shape == (0, store.num_classes)
        alone, grads = gradients(engine, model, engine.sample(torch.tensor([0, 6], dtype=topology.id_dtype), KEY))
        assert alone.isfinite().all()
        assert all(grad.isfinite().all() for grad in grads.values())


@pytest.mark.parametrize(("name", "classes"), [("sage", 2), ("gcn", 2), ("graphconv", 2)])
def test_wide_sources_are_projected_where_many_edges_share_each(tmp_path, name, classes, monkeypatch) -> None:
    store = small_random_store(tmp_path / "g", 30, 600, num_features=50, num_classes=classes)
    results = []
    for edges in (0, 10**9):
        monkeypatch.setattr("partita.nn.layers.base.SHARED_FROM", edges)
        engine, model, topology, _ = make(store, name, fanout=(-1,))
        layer = model.layers[0]
        message = Mock(wraps=layer.message)
        monkeypatch.setattr(layer, "message", message)
        batch = engine.sample(torch.arange(20, dtype=topology.id_dtype), KEY)
        assert batch.works[0].block.src is not None, "sources are there to be projected"
        results.append(gradients(engine, model, batch))
        assert message.called == (edges == 0)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["sage", "gcn", "gin"])
def test_wide_rows_are_summed_by_id_unless_all_neighbors_are_taken(tmp_path, name) -> None:
    store = small_random_store(tmp_path / "g", 100, 700, num_features=50)
    (drawn, _, _, _), (all_of_them, _, _, _) = (make(store, name, fanout=(fanout,)) for fanout in (5, -1))
    assert drawn.worker.by_id(1)
    assert all_of_them.worker.by_id(1) == (name == "gin"), "whose sources are no products"
    assert drawn.worker.parts_by_id(1) == (name == "gin"), "parts get messages"


def test_fanouts_of_relations_take_all_neighbors_where_each_of_them_does() -> None:
    fanouts = NodeWise([(-1, -1), (-1, 5), -1, 5])
    assert [fanouts.takes_all(layer) for layer in (1, 2, 3, 4)] == [True, False, True, False]
