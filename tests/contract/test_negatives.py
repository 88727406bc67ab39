"""What must be true of negatives of every kind."""

from __future__ import annotations

import pytest
import torch
from link_stores import COLUMN, KEY, drawn, edges_of, in_store, typed_stores, untyped_stores

from partita.core.keys import StepKey
from partita.graph.store import GraphStore
from partita.tasks.links.negatives import NEGATIVES

every_kind = pytest.mark.parametrize("name", list(NEGATIVES))
every_side = pytest.mark.parametrize("side", list(COLUMN))
ONE_SIZE = {"all"}
"""Kinds that take links of one type of ends."""
NOT_DRAWN = {"in_batch", "all"}


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> list[GraphStore]:
    return typed_stores(tmp_path_factory.mktemp("typed"))


@pytest.fixture(scope="module")
def untyped(tmp_path_factory) -> list[GraphStore]:
    return untyped_stores(tmp_path_factory.mktemp("untyped"))


@every_kind
@every_side
def test_no_partition_changes_them(untyped, typed, name, side) -> None:
    """Nor who works on a link: they are the same for the rows of a batch that comes before others."""
    for stores in (untyped, typed):
        batch = edges_of(stores[0])[torch.randperm(stores[0].num_edges)[:40]]
        of = {"relations": [0]} if name in ONE_SIZE and stores is typed else {}
        batch = batch[batch[:, 2] == 0] if of else batch
        first, *others = (drawn(store, name, batch, side, **of) for store in stores)
        assert all(torch.equal(first, other) for other in others)
        assert first.shape == (len(batch), NEGATIVES.find(name).of(stores[1], 6, **of).width(len(batch)))
        if name not in NOT_DRAWN:
            assert not torch.equal(first, drawn(stores[0], name, batch, side, key=StepKey(3, 1, 5)))
            assert torch.equal(first[:, :3], drawn(stores[0], name, batch, side, count=3))
            assert torch.equal(first[:11], drawn(stores[0], name, batch[:11], side))


@every_kind
@every_side
def test_types_are_those_of_the_ends(typed, name, side) -> None:
    """And links whose ends have one type share them, where the kind says so."""
    store = typed[1]
    of = {"relations": [0]} if name in ONE_SIZE else {}
    batch = edges_of(store)
    batch = batch[batch[:, 2] == 0] if of else batch
    kind = NEGATIVES.find(name).of(store, 9, **of)
    found = kind.candidates(in_store(store, batch), KEY, side)
    wanted = torch.from_numpy(store.schema.ends[batch[:, 2].numpy(), COLUMN[side]])
    types = torch.from_numpy(store.types(found.numpy().reshape(-1))).view(found.shape)
    assert torch.equal(types, wanted.unsqueeze(1).expand_as(types))
    for number in wanted.unique():
        assert (len(found[wanted == number].unique(dim=0)) == 1) == kind.shared


@every_kind
@every_side
def test_shared_ones_are_a_view(untyped, name, side) -> None:
    batch = edges_of(untyped[0])[:20]
    kind = NEGATIVES.find(name).of(untyped[0], 5)
    found = kind.candidates(batch, KEY, side)
    assert kind.shared == (found.stride(0) == 0)
    assert found.dtype == torch.int64
    assert kind.candidates(batch[:0], KEY, side).shape[0] == 0


@every_kind
@pytest.mark.parametrize("sides", [("tail",), ("head",), ("tail", "head")])
@pytest.mark.parametrize("step", range(4))  # of keys with and without their highest bit
def test_rows_carry_their_candidates(untyped, typed, name, sides, step) -> None:
    """Whoever gets which of them: in groups of what they share."""
    key = StepKey(3, 0, step)
    for store in (untyped[1], typed[1]):
        batch = in_store(store, edges_of(store))[::5]
        of = {"relations": [0]} if name in ONE_SIZE and store is typed[1] else {}
        batch = batch[batch[:, 2] == 0] if of else batch
        kind = NEGATIVES.find(name).of(store, 4, **of)
        drawn = kind.drawn(batch, key, sides)
        for rows in (torch.arange(len(batch)), torch.tensor([2, 7]), torch.arange(0)):
            assert kind.width_of(drawn[rows], sides) == kind.width(len(batch))
            for side, groups in zip(sides, kind.groups(batch[rows], drawn[rows], sides), strict=True):
                wanted = kind.candidates(batch, key, side)[rows]
                found = torch.full_like(wanted, -1)
                for places, nodes in groups:
                    found[slice(None) if places is None else places] = nodes
                assert torch.equal(found, wanted)
                assert len(groups) <= (len(typed[1].schema.node_types) if kind.shared else 1)


@every_side
def test_what_is_not_drawn_is_known(untyped, side) -> None:
    batch = edges_of(untyped[0])[:20]
    assert torch.equal(drawn(untyped[1], "all", batch, side), torch.arange(60).expand(20, -1))
    assert torch.equal(drawn(untyped[1], "in_batch", batch, side), batch[:, COLUMN[side]].expand(20, -1))
