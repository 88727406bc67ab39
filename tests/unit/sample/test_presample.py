"""Presampled counts against a naive count over the blocks of training."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from typed_graphs import typed_store

import partita
from partita.core import progress
from partita.core.errors import ConfigError, StoreError
from partita.core.keys import StepKey
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.kernels import Relabeller
from partita.sample.blocks import sample_block
from partita.sample.presample import presample
from partita.sample.repair import repair
from partita.sample.samplers import NodeWise
from partita.sample.seeds import SeedOrder
from partita.sample.topology import LocalTopology
from partita.testing.graphs import formula_store, small_random_store
from partita.train.trainer import Trainer


def naive(store, fanout, batch_size, epochs, seed, split="train", **options):
    """Node weights, draws by (source, destination), and totals, from blocks."""
    topology = LocalTopology(store, types=True, **options)
    order = SeedOrder(torch.from_numpy(np.array(store.split(split))), seed, batch_size)
    node, edge, sampler = np.ones(store.num_nodes, np.int64), Counter(), NodeWise(fanout[::-1])
    drawn, destinations, inputs = [0] * len(fanout), [0] * len(fanout), 0
    for epoch in range(epochs):
        for step in range(order.num_steps):
            requests = order.batch(epoch, step)
            for hop in range(len(fanout)):
                layer = len(fanout) - hop
                key = StepKey(seed, epoch, step)
                block = sample_block(topology, requests, key, layer, sampler, relabel=Relabeller(store.num_nodes))
                for v in block.dst.tolist():
                    node[v] += 1
                src, dst = block.edge_index()
                edge.update(zip(block.src[src].tolist(), block.dst[dst].tolist()))
                drawn[layer - 1] += block.num_edges
                destinations[layer - 1] += block.num_dst
                requests = block.src
            inputs += block.num_src
    return node, edge, drawn, destinations, inputs


def draws(store):
    """Draws by (source, destination) as the store has them."""
    found = Counter()
    for v in range(store.num_nodes):
        for e in range(store.indptr[v], store.indptr[v + 1]):
            if store.presample_edge[e]:
                found[int(store.indices[e]), v] += int(store.presample_edge[e])
    return found


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"weighted": True}, {"weighted": True, "replace": True}])
@pytest.mark.parametrize(
    ("fanout", "batch_size", "epochs", "seed"), [([2], 7, 2, 0), ([3, 2, 1], 10, 3, 5), ([-1, 2], 64, 1, 1)]
)
def test_counts_are_those_of_the_blocks_of_training(tmp_path, options, fanout, batch_size, epochs, seed):
    store = formula_store(tmp_path / "store", weighted=True, shuffle_seed=4)
    summary = presample(store, fanout=fanout, batch_size=batch_size, epochs=epochs, seed=seed, **options)
    node, edge, drawn, destinations, inputs = naive(store, fanout, batch_size, epochs, seed, **options)
    found = GraphStore.open(store.path)
    assert found.presample_node.tolist() == node.tolist()
    assert draws(found) == edge
    assert summary.sampled_edges == tuple(drawn)
    assert summary.destinations == tuple(destinations)
    assert summary.input_rows == inputs
    assert summary.steps == epochs * -(-summary.num_seeds // batch_size)
    verify(store.path)


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"weighted": True}])
@pytest.mark.parametrize(
    ("fanout", "of_relations"),
    [
        ([2, 3], [(2,) * 5, (3,) * 5]),
        ({"cites": [3, 2], "*": 1}, [(3, 1, 1, 1, 1), (2, 1, 1, 1, 1)]),
        ("wrote=-1,2 paper:at:place=3,0 likes=2", [(0, -1, 0, 3, 2), (0, 2, 0, 0, 2)]),
        ({"cites": [0, 4, 0], "*": [2, 0, -1]}, [(0, 2, 2, 2, 2), (4, 0, 0, 0, 0), (0, -1, -1, -1, -1)]),
    ],
)
def test_counts_of_typed_graphs_are_those_of_the_blocks_of_training(tmp_path, options, fanout, of_relations):
    store = typed_store(tmp_path / "g")
    summary = presample(store, fanout=fanout, batch_size=9, epochs=2, seed=5, **options)
    node, edge, drawn, destinations, inputs = naive(store, of_relations, 9, 2, 5, **options)
    found = GraphStore.open(store.path)
    assert found.presample_node.tolist() == node.tolist()
    assert draws(found) == edge
    assert summary.sampled_edges == tuple(drawn)
    assert summary.destinations == tuple(destinations)
    assert summary.input_rows == inputs
    verify(store.path)
    used = np.unique(found.edge_type[found.presample_edge > 0])
    assert set(used) <= {at for at in range(5) if any(numbers[at] for numbers in of_relations)}


def test_of_typed_graphs_they_are_the_counts_of_a_run_and_weigh_in_a_partition(tmp_path):
    store = typed_store(tmp_path / "g", 240)
    settings = {"fanout": "cites=4,3 *=2,1", "batch_size": 32, "epochs": 2, "seed": 9}
    run = Trainer(store, out=tmp_path / "run", layers=2, hidden=4, eval_every=0, model="rgcn", **settings).fit()
    counts, summary = run.record["counts"], presample(store, **settings)
    assert sum(summary.sampled_edges) == counts["sampled_edges"]
    assert list(summary.destinations) == counts["computed_destinations"]
    assert summary.input_rows == counts["input_rows_read"]
    found = GraphStore.open(store.path)
    assert int(found.presample_edge.sum()) == sum(summary.sampled_edges)
    assert found.metadata.notes["presample"]["fanout"] == {"cites": [4, 3], "*": [2, 1]}
    for weights in ("presample", "edges", "node"):
        out = tmp_path / weights
        partita.partition(found, out, parts=2, algorithm="spring", weights=weights, balance="type")
        moved = GraphStore.open(out)
        places = np.argsort(moved.to_original(np.arange(240)))[found.to_original(np.arange(240))]
        assert moved.presample_node[places].tolist() == found.presample_node.tolist()
        part = partita.shard(moved, tmp_path / f"shard-{weights}", host=0, hosts=2, hot_bytes=200, hot="presample")
        hot = GraphStore.open(part.path)
        best = max(int(moved.presample_node[hot.hot_of(name)[0]].max()) for name in ("x_0", "x_1") if hot.hot_of(name))
        assert best == max(
            moved.presample_node[v]
            for v in range(240)
            if v not in hot.shard.nodes and moved.types(np.array([v]))[0] < 2
        )


def test_a_typed_presampling_is_repaired(tmp_path):
    store = typed_store(tmp_path / "g")
    presample(store, fanout={"cites": [3, 2], "*": 1}, batch_size=9, epochs=1)
    before = GraphStore.open(store.path).metadata
    file = store.path / "presample_edge.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-4] + bytes([content[-4] ^ 8]) + content[-3:])
    assert any("the same counts" in line for line in repair(store.path))
    assert GraphStore.open(store.path).metadata.columns == before.columns


@pytest.mark.parametrize(
    ("fanout", "message"),
    [
        ({}, "fanout is empty"),
        ({"cites": 0}, "fanout is empty"),
        ({"sites": [2]}, "no relation 'sites'.*'cites'"),
        ({"cites": [2, 1], "*": [1, 1, 1]}, "numbers for 2 and 3 layers"),
        ({"cites": [2, -3]}, "fanout of cites is 2,-3"),
        ("cites=2 cites=3", "once"),
    ],
)
def test_fanouts_of_relations_that_cannot_be(tmp_path, fanout, message):
    store = typed_store(tmp_path / "g")
    with pytest.raises(ConfigError, match=message):
        presample(store, fanout=fanout)
    assert not GraphStore.open(store.path).has("presample_node")


def test_they_are_the_counts_of_a_run_with_the_same_seed(tmp_path):
    store = small_random_store(tmp_path / "store", 300, 3000)
    settings = {"fanout": (4, 3), "batch_size": 32, "epochs": 2, "seed": 9}
    run = Trainer(store, out=tmp_path / "run", layers=2, hidden=4, eval_every=0, **settings).fit()
    summary = presample(store, **settings)
    counts = run.record["counts"]
    assert sum(summary.sampled_edges) == counts["sampled_edges"]
    assert list(summary.destinations) == counts["computed_destinations"]
    assert summary.input_rows == counts["input_rows_read"]
    found = GraphStore.open(store.path)
    assert int((found.presample_node - 1).sum()) == sum(summary.destinations)
    assert int(found.presample_edge.sum()) == sum(summary.sampled_edges)


def test_a_reordered_store_has_the_same_counts(tmp_path):
    plain = formula_store(tmp_path / "plain")
    moved = formula_store(tmp_path / "moved", shuffle_seed=8, num_parts=3)
    summaries = [presample(store.path, fanout=[2, 2], batch_size=8, epochs=2) for store in (plain, moved)]
    assert summaries[0].to_json() == summaries[1].to_json()
    plain, moved = GraphStore.open(plain.path), GraphStore.open(moved.path)
    order = moved.original_index
    assert moved.presample_node.tolist() == plain.presample_node[order].tolist()
    for v in range(moved.num_nodes):
        row, original = (slice(s.indptr[i], s.indptr[i + 1]) for s, i in ((moved, v), (plain, order[v])))
        assert moved.presample_edge[row].tolist() == plain.presample_edge[original].tolist()


def test_the_same_bytes_every_time(tmp_path):
    store = formula_store(tmp_path / "store")
    shutil.copytree(store.path, tmp_path / "copy")
    for path in (store.path, tmp_path / "copy"):
        presample(path, fanout=[3, 2], epochs=1, batch_size=9)
    presample(store, fanout=[5], epochs=2, seed=3)
    changed = GraphStore.open(store.path)
    assert changed.metadata != GraphStore.open(tmp_path / "copy").metadata
    presample(store, fanout=[3, 2], epochs=1, batch_size=9)
    found = GraphStore.open(store.path)
    assert found.metadata == GraphStore.open(tmp_path / "copy").metadata
    assert found.fingerprint == store.fingerprint
    note = found.metadata.notes["presample"]
    assert note["fanout"] == [3, 2]
    assert note["epochs"] == 1
    assert note["split"] == "train"
    assert "path" not in note


@pytest.mark.parametrize("fanout", [[-1, -1], [40, 40]])
def test_little_memory_gives_the_same(tmp_path, fanout):
    store = small_random_store(tmp_path / "store", 500, 40000)
    found = []
    for limit in (1, 1 << 30):
        summary = presample(store, fanout=fanout, batch_size=250, epochs=1, memory_limit=limit)
        opened = GraphStore.open(store.path)
        found.append((summary, opened.presample_node.tolist(), opened.presample_edge.tolist()))
    assert found[0] == found[1]
    assert found[0][0].sampled_edges[0] > 2 * 4096  # so that a layer really came in pieces


def test_other_splits_and_progress(tmp_path):
    store = formula_store(tmp_path / "store")

    class Shown:
        totals, done = {}, {}

        def start(self, description, total, unit):
            self.totals[description, unit] = total
            self.now = (description, unit)
            return self

        def advance(self, amount=1):
            self.done[self.now] = self.done.get(self.now, 0) + amount

        def stop(self, task):
            pass

    with progress.shown_by(Shown()):
        summary = presample(store, fanout=[2], batch_size=5, epochs=2, split="test")
    assert summary.num_seeds == 12
    assert Shown.totals["presample", "mini-batches"] == Shown.done["presample", "mini-batches"] == 6 == summary.steps
    assert GraphStore.open(store.path).presample_node[store.split("test")].min() == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fanout": []}, "fanout is empty"),
        ({"fanout": [3, 0]}, "fanout is 3,0"),
        ({"fanout": [-2]}, "for instance 15,10,5"),
        ({"batch_size": 0}, "batch_size: 0 is not between 1 and"),
        ({"epochs": 0}, "epochs: 0 is not between 1 and"),
        ({"seed": -1}, "seed: -1 is not between 0 and"),
        ({"weighted": True}, "edge weights"),
        ({"fanout": {"cites": [3]}}, "for relations, and the graph has none"),
        ({"fanout": "3,b"}, "'3,b' is not a list of whole numbers"),
        ({"epochs": 1 << 31, "batch_size": 12}, "counts go up to 4,294,967,295"),
        ({"epochs": 1 << 30, "fanout": [5], "replace": True}, "5,368,709,120 times"),
    ],
)
def test_settings_that_cannot_be(tmp_path, settings, message):
    store = formula_store(tmp_path / "store")
    before = sorted(file.name for file in store.path.iterdir())
    with pytest.raises(ConfigError, match=message):
        presample(store, **({"fanout": [2]} | settings))
    assert sorted(file.name for file in store.path.iterdir()) == before


def test_splits_that_cannot_be(tmp_path):
    with pytest.raises(StoreError, match="no split 'train'"):
        presample(formula_store(tmp_path / "none", num_classes=0), fanout=[2])
    with pytest.raises(ConfigError, match="'val' is empty"):
        presample(small_random_store(tmp_path / "empty", 1, 0), fanout=[2], split="val")
