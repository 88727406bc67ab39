"""Pairs of a node with itself as negatives: which count, and where their scores are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from typed_graphs import typed_store

import partita
from partita.config import Config
from partita.core.keys import StepKey
from partita.tasks.links.loops import LoopNegatives
from partita.tasks.task import adjusted_task
from partita.testing.graphs import formula_store


@pytest.fixture(scope="module")
def looped(tmp_path_factory) -> partita.Store:
    """Nodes 0 to 4 in a ring; node 2 has an edge with itself."""
    folder = tmp_path_factory.mktemp("loops")
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [2, 2]])
    np.savetxt(folder / "edges.csv", edges, fmt="%d", delimiter=",", header="source,target", comments="")
    partita.ingest(folder / "edges.csv", folder / "g")
    return partita.open(folder / "g")


def test_loops_of_the_graph_are_no_negatives(looped) -> None:
    ids = {int(original): row for row, original in enumerate(looped.to_original(np.arange(5)))}
    edges = torch.tensor([[ids[a], ids[b]] for a, b in ((0, 1), (1, 2), (2, 3), (2, 2), (3, 4))])
    loops = LoopNegatives(looped)
    assert loops.count(edges, "tail").tolist() == [True, True, False, False, True]
    assert loops.count(edges, "head").tolist() == [True, False, True, False, True]


def test_only_relations_within_a_type_have_them(tmp_path) -> None:
    store = typed_store(tmp_path / "g")
    within = [source == target for source, target in store.schema.ends.tolist()]
    assert any(within)
    assert not all(within)
    edges = torch.tensor([[0, 1, number] for number in range(len(within))])
    for side in ("tail", "head"):
        assert LoopNegatives(store).count(edges, side).tolist() == within


@pytest.mark.parametrize(("decoder", "sampler"), list(product(("dot", "distmult", "mlp"), ("joint", "uniform"))))
def test_their_scores_are_behind_those_of_each_side(tmp_path, decoder, sampler) -> None:
    store, outputs = formula_store(tmp_path / "g", num_nodes=30), []
    for loops in (False, True):
        config = {"task": "links", "decoder": decoder, "negative_sampler": sampler, "negatives": 4, "corrupt": "both"}
        task, _ = adjusted_task(Config.make({**config, "hidden": 8, "loop_negatives": loops}), store)
        seeds = task.examples(task.seeds("train")[:7], StepKey(0, 0, 0))
        draw = torch.Generator().manual_seed(2)
        rows = torch.randn(store.num_nodes, 8, generator=draw)[task.requests(seeds)]
        outputs.append(task.outputs(rows, seeds))
    every = torch.randn(store.num_nodes, 8, generator=torch.Generator().manual_seed(2))
    heads, tails = every[seeds[:, 0]], every[seeds[:, 1]]
    kinds, same = torch.zeros(7, dtype=torch.int64), seeds[:, 0] == seeds[:, 1]
    without, found = outputs
    torch.testing.assert_close(found[:, [0, 1, 2, 3, 4, 6, 7, 8, 9]], without)
    known = torch.zeros(store.num_nodes) if store.self_loops is None else torch.from_numpy(store.self_loops.copy())
    for column, (given, ends) in ((5, (heads, seeds[:, 0])), (10, (tails, seeds[:, 1]))):
        left_out = same | (known[ends] > 0)
        torch.testing.assert_close(
            found[:, column], task.decoder(given, given, kinds).masked_fill(left_out, -torch.inf)
        )


def test_they_are_on_for_products_of_learnt_rows_alone(tmp_path) -> None:
    store = formula_store(tmp_path / "g", num_nodes=30)
    for model, decoder, wanted in (("none", "complex", True), ("none", "dot", False), ("sage", "distmult", False)):
        _, settled = adjusted_task(Config.make({"task": "links", "model": model, "decoder": decoder}), store)
        assert settled.loop_negatives is wanted
