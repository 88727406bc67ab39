"""Links: every list of placements, decoder, kind of negatives and number of workers against one process."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from link_steps import LearntLinkStep, LinkStep, TypedLinkStep
from steps import difference, distributed, reference
from typed_graphs import typed_store

from partita.core.keys import StepKey
from partita.core.records import TargetEdges
from partita.graph.store import GraphStore
from partita.nn.decoders import DECODERS
from partita.parallel.placements.kinds import PLACEMENTS
from partita.sample.blocks import sample_block
from partita.tasks.links.losses import LINK_LOSSES
from partita.tasks.links.negatives import NEGATIVES
from partita.tasks.task import key_of
from partita.testing.graphs import formula_store

ABLE = [name for name in PLACEMENTS if not PLACEMENTS.find(name).first_layer_only]
PAIRS = [",".join(pair) for pair in product(ABLE, repeat=2)]
PARTS = {1: (0, 60), 2: (0, 25, 60), 3: (0, 20, 20, 60)}
LOSSES = list(LINK_LOSSES)
ROUNDING = 1e-4
"""A shift of all scores, such as the last bias of decoder mlp, is nothing to losses that compare them."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return formula_store(tmp_path_factory.mktemp("links") / "g", num_nodes=60, num_features=7, shuffle_seed=3)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, GraphStore]:
    folder = tmp_path_factory.mktemp("links")
    return {parts: typed_store(folder / f"t{parts}", parts=parts) for parts in (1, 2, 3)}


def combinations(strategy: str) -> list[tuple[str, str]]:
    """Some decoders and negatives in all ways; and with the simplest strategy, every decoder, and all negatives."""
    kinds = list(NEGATIVES)
    every = [(decoder, kinds[number % len(kinds)]) for number, decoder in enumerate(DECODERS)]
    return [*product(("dot", "distmult", "mlp"), ("uniform", "joint")), *(every if strategy == PAIRS[0] else ())]


def settings_of(number: int, decoder: str, negative_sampler: str) -> tuple[tuple[str, object], ...]:
    """A loss and a side besides, in turn, and in every other one loops among the negatives and reciprocal relations."""
    sides = ("both", "tail", "head")
    chosen = {"decoder": decoder, "negative_sampler": negative_sampler, "loss": LOSSES[number % len(LOSSES)]}
    chosen |= {"corrupt": sides[number % 3], "loop_negatives": number % 2 == 1}
    able = chosen["corrupt"] == "both" and DECODERS.find(decoder).reads_relations
    return tuple({**chosen, "reciprocal": able and chosen["loop_negatives"]}.items())


@pytest.mark.parametrize("is_typed", [False, True])
def test_a_step_knows_where_the_edges_are_that_it_leaves_out(store, typed, is_typed) -> None:
    """In every step of an epoch: those that a search finds, so that all blocks are those after a search."""
    step = TypedLinkStep(typed[1], "rgcn", fanouts=(3, 2)) if is_typed else LinkStep(store, fanouts=(3, 2))
    task, order = step._order()
    topology, arrays = step.topology(), step.topology().arrays()
    row = torch.repeat_interleave(torch.arange(topology.num_nodes), arrays["indptr"].diff()).tolist()
    kinds = arrays["edge_type"].tolist() if is_typed else [0] * len(row)
    edges = list(zip(row, arrays["indices"].tolist(), kinds))
    for number in range(order.num_steps):
        key = key_of(task, order, StepKey(0, 1, number))
        targets = key.excluded
        of_pair = targets.edge_type.tolist() if is_typed else [0] * len(targets.dst)
        meant = set(zip(targets.dst.tolist(), targets.src.tolist(), of_pair))
        assert targets.positions.tolist() == [at for at, edge in enumerate(edges) if edge in meant]
        searched = replace(key, excluded=TargetEdges(*targets.pairs()))
        dst = torch.arange(topology.num_nodes)
        for layer in (1, 2):
            one, other = (sample_block(topology, dst, each, layer, 3) for each in (key, searched))
            assert torch.equal(one.indptr, other.indptr)
            assert torch.equal(one.indices, other.indices)


@pytest.mark.parametrize("workers", PARTS)
@pytest.mark.parametrize("strategy", PAIRS)
def test_gradients_are_those_of_one_process(store, strategy, workers) -> None:
    for number, (decoder, negatives) in enumerate(combinations(strategy)):
        step = LinkStep(store, fanouts=(3, 2), parts=PARTS[workers], settings=settings_of(number, decoder, negatives))
        found = distributed(step, strategy, workers, seed_split="even" if number % 2 else "owner")
        assert difference(found, reference(step), least=ROUNDING) < 1e-9, (decoder, negatives)


@pytest.mark.parametrize("workers", PARTS)
@pytest.mark.parametrize("strategy", PAIRS)
def test_gradients_in_typed_graphs_are_those_of_one_process(typed, strategy, workers) -> None:
    for number, (decoder, negatives) in enumerate(combinations(strategy)):
        if negatives == "all":  # needs as many nodes of all types
            continue
        step = TypedLinkStep(typed[workers], "rgcn", fanouts=(3, 2), settings=settings_of(number, decoder, negatives))
        found = distributed(step, strategy, workers, seed_split="even" if number % 2 else "owner")
        assert difference(found, reference(step), least=ROUNDING) < 1e-9, (decoder, negatives)


@pytest.mark.parametrize("workers", PARTS)
@pytest.mark.parametrize("strategy", PAIRS)
@pytest.mark.parametrize("featured", [True, False])
def test_gradients_of_learnt_rows_are_those_of_one_process(store, strategy, workers, featured) -> None:
    """Beside features, or in their place: of every row, and of all parameters."""
    for number, (decoder, negatives) in enumerate(combinations(strategy)):
        step = LearntLinkStep(
            store, fanouts=(3, 2), parts=PARTS[workers], settings=settings_of(number, decoder, negatives),
            featured=featured, learnt=4 if number % 2 else 9,
        )  # fmt: skip
        found = distributed(step, strategy, workers, seed_split="even" if number % 2 else "owner")
        assert difference(found, reference(step), least=ROUNDING) < 1e-9, (decoder, negatives)


@pytest.mark.parametrize("workers", PARTS)
@pytest.mark.parametrize("strategy", PAIRS)
def test_gradients_without_messages_of_what_is_predicted_are_those_of_one_process(
    store, typed, strategy, workers
) -> None:
    """With ``message_share``; coefficients of gcn are those of the graph that carries messages."""
    settings = (("message_share", 0.7), ("negative_sampler", "joint"))
    for split_topology in (False, True):
        plain = LinkStep(
            store, "gcn", fanouts=(3, 2), parts=PARTS[workers], settings=settings, split_topology=split_topology
        )
        relational = TypedLinkStep(
            typed[workers], "rgcn", fanouts=(3, 2), settings=settings, split_topology=split_topology
        )
        for step in (plain, relational):
            found = distributed(step, strategy, workers, seed_split="even" if split_topology else "owner")
            assert difference(found, reference(step), least=ROUNDING) < 1e-9
