"""How often negatives are drawn, which are links themselves, and where there are none."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from link_stores import COLUMN, KEY, drawn, edges_of, in_store, typed_stores, untyped_stores
from scipy import stats

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.graph.store import GraphStore
from partita.tasks.links.alias import alias_table
from partita.tasks.links.negatives import NEGATIVES, Joint, Negatives
from partita.tasks.links.true_edges import require_negatives, true_edges
from partita.tasks.task import adjusted_task

every_side = pytest.mark.parametrize("side", list(COLUMN))


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> list[GraphStore]:
    return typed_stores(tmp_path_factory.mktemp("typed"))


@pytest.fixture(scope="module")
def untyped(tmp_path_factory) -> list[GraphStore]:
    return untyped_stores(tmp_path_factory.mktemp("untyped"))


@every_side
def test_how_often_nodes_are_drawn(typed, untyped, side) -> None:
    """By chi-square, of all draws of a type; sides, steps and rows have draws of their own."""
    for store in (untyped[1], typed[1]):
        every = edges_of(store)
        of = torch.zeros(len(every), dtype=torch.int64) if store.schema is None else every[:, 2]
        for name in ("uniform", "degree", "joint"):
            batch = every[of == 0]
            counts = np.zeros(store.num_nodes)
            for step in range(40 if name == "joint" else 1):
                found = drawn(store, name, batch, side, count=300, key=StepKey(0, 0, step))
                counts += np.bincount((found[:1] if name == "joint" else found).reshape(-1), minlength=len(counts))
            ends = every[:, COLUMN[side]].numpy()
            number = None if store.schema is None else int(store.schema.ends[0, COLUMN[side]])
            types = np.zeros(len(counts)) if number is None else store.types(store.ingest_order())
            weight = np.bincount(ends, minlength=len(counts)) ** 0.75 if name == "degree" else np.ones(len(counts))
            weight = weight * (types == (number or 0))
            assert not counts[weight == 0].any()
            expected = counts.sum() * weight / weight.sum()
            assert stats.chisquare(counts[weight > 0], expected[weight > 0]).pvalue > 0.01


def test_both_sides_have_draws_of_their_own(untyped) -> None:
    batch = edges_of(untyped[0])[:20]
    assert not torch.equal(*(drawn(untyped[0], "uniform", batch, side) for side in COLUMN))


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), min_size=1, max_size=4))
def test_alias_tables_are_exact(ranges) -> None:
    """The shares of all cells add up to the weights; what has none is never drawn."""
    ranges = [weights if any(weights) else [*weights, 1] for weights in ranges]
    weights = np.concatenate([np.array(each, np.float64) for each in ranges])
    sizes = np.array([len(each) for each in ranges])
    first = np.cumsum(sizes) - sizes
    thresholds, others = alias_table(weights, first, sizes)
    kept = thresholds.astype(np.float64) / 2**64
    found = kept.copy()
    np.add.at(found, others, 1 - kept)
    for begin, size in zip(first, sizes, strict=True):
        mine = slice(begin, begin + size)
        np.testing.assert_allclose(found[mine] / size, weights[mine] / weights[mine].sum(), atol=1e-12)
        assert ((others[mine] >= begin) & (others[mine] < begin + size)).all()
    assert not thresholds[weights == 0].any()
    assert (weights[others[weights == 0]] > 0).all()


@every_side
def test_true_edges_by_brute_force(untyped, typed, side) -> None:
    for store in (untyped[1], typed[0], typed[1]):
        batch = in_store(store, edges_of(store))[::3]
        known = {tuple(row) for row in in_store(store, edges_of(store)).tolist()}
        for name in ("uniform", "joint"):
            candidates = NEGATIVES.find(name).of(store, 15).candidates(batch, KEY, side)
            found = true_edges(store, batch, candidates, side)
            changed = batch.unsqueeze(1).repeat(1, 15, 1)
            changed[:, :, COLUMN[side]] = candidates
            wanted = [[tuple(row) in known for row in rows] for rows in changed.tolist()]
            assert found.tolist() == wanted
            assert 0 < sum(map(sum, wanted)) < found.numel()


def store_of(path: Path, edges: list[tuple[int, int]], kinds: tuple[int, int] = (0, 0)) -> GraphStore:
    """People 0 to 2 and things 3 to 4, with the relation made, of people to things."""
    np.savez(
        path.with_suffix(".npz"),
        edge_index=np.array(edges).T,
        edge_type=np.zeros(len(edges), np.uint8),
        node_type=np.array([0, 0, 0, 1, 1][: 4 if kinds[1] else 5], np.uint8),
        node_type_names=np.array(["person", "thing"]),
        edge_type_names=np.array(["made"]),
    )
    partita.ingest(path.with_suffix(".npz"), path)
    return GraphStore.open(path)


def test_links_without_negatives_are_refused(tmp_path) -> None:
    complete = [(person, thing) for person in range(3) for thing in (3, 4)]
    store = store_of(tmp_path / "complete", [*complete, complete[0]])
    with pytest.raises(ConfigError, match=r"every source of relation 'person:made:thing' is linked"):
        require_negatives(store)
    require_negatives(store_of(tmp_path / "one less", [*complete[1:], complete[1], complete[2]]))
    lonely = store_of(tmp_path / "lonely", [(0, 3), (1, 3)], kinds=(0, 1))
    batch = torch.tensor([[0, 3, 0]])
    for name in set(NEGATIVES) - {"all"}:
        with pytest.raises(ConfigError, match=r"type 'thing' has 1 node\(s\), so there is no other tail"):
            NEGATIVES.find(name).of(lonely, 2).candidates(batch, KEY, "tail")
        NEGATIVES.find(name).of(lonely, 2).candidates(batch, KEY, "head")
    with pytest.raises(ConfigError, match=r"3 of type 'person', 2 of type 'thing'"):
        NEGATIVES.find("all").of(store, 2).candidates(batch, KEY, "head")
    reverse = NEGATIVES.find("degree").of(store, 2)
    reverse._ends = reverse._ends[:, ::-1].copy()  # as of a relation that has no edges
    with pytest.raises(ConfigError, match="no node of type 'person' has a weight as a tail"):
        reverse.candidates(batch, KEY, "tail")
    with pytest.raises(ConfigError, match="no node of type 'thing' has a weight as a head"):
        reverse.candidates(batch, KEY, "head")
    with pytest.raises(ConfigError, match="0 negatives"):
        NEGATIVES.find("uniform").of(store, 0)
    with pytest.raises(ConfigError, match="gives no negatives"):
        NEGATIVES.find("torch:ones")


def test_a_complete_graph_has_no_negatives(tmp_path) -> None:
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    for name, edges, refused in (("all", pairs, True), ("less", [*pairs[1:], (0, 0), pairs[2]], False)):
        np.savez(tmp_path / f"{name}.npz", edge_index=np.array(edges).T, num_nodes=4)
        partita.ingest(tmp_path / f"{name}.npz", tmp_path / name)
        store = GraphStore.open(tmp_path / name)
        if refused:
            with pytest.raises(ConfigError, match="every source is linked with every destination"):
                require_negatives(store)
        else:
            require_negatives(store)


class Next(Negatives):
    """A user's own: the nodes after the true one."""

    def pick(self, batch, types, key, side):
        return (batch[:, COLUMN[side], None] + torch.arange(1, 1 + self.count)) % self.store.num_nodes


def test_negatives_of_ones_own(untyped) -> None:
    partita.register("negatives", "next", Next)
    try:
        found = NEGATIVES.find("next").of(untyped[0], 2).candidates(torch.tensor([[0, 59]]), KEY, "tail")
        assert found.tolist() == [[0, 1]]
    finally:
        NEGATIVES.remove("next")


class Picked(Joint):
    """Shared by a batch, and no function of a key."""

    def pick(self, batch, types, key, side):
        return batch[:1, COLUMN[side], None].expand(len(batch), self.count)


def test_a_pick_of_what_follows_from_a_key_is_refused(untyped) -> None:
    with pytest.raises(ConfigError, match="Picked picks candidates itself"):
        Picked.of(untyped[0], 2)


@pytest.mark.parametrize("name", list(NEGATIVES))
def test_nothing_of_a_step_is_kept_longer_than_its_edges(untyped, name) -> None:
    """What is looked up by a tensor must not hold it, or every step of a run is kept."""
    task, _ = adjusted_task(Config.make({"task": "links", "model": "none", "negative_sampler": name}), untyped[0])
    for step in range(3):
        seeds = task.examples(task.seeds("train")[:20], StepKey(0, 0, step))
        rows = torch.zeros(len(task.requests(seeds)), task.width)
        output = task.outputs(rows, seeds)
        assert len(task._kept) == 1
        of_seeds = weakref.ref(seeds)
        del seeds, output
        gc.collect()
        assert of_seeds() is None
        assert not len(task._kept)
