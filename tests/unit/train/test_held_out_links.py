"""The store that links are held out in by themselves."""

from __future__ import annotations

import pytest

import partita
from partita.config import Config
from partita.core.errors import ConfigError, StoreError
from partita.graph.store import GraphStore
from partita.train.links import with_held_out


@pytest.fixture
def store(tmp_path) -> GraphStore:
    return GraphStore.open(partita.generate_rmat(tmp_path / "graph", scale=8, edge_factor=4))


def settings(held_out: str) -> Config:
    return Config.make({"task": "links", "held_out": held_out})


@pytest.mark.parametrize("shares", ["0.05,0.1", "0,0.1", "0.1,0"])
def test_later_runs_find_it(store, shares) -> None:
    made = with_held_out(store, settings(shares))
    assert list(made.held_out) == [name for name, share in zip(("val", "test"), shares.split(",")) if float(share)]
    again = with_held_out(store, settings(shares))
    assert (again.path, again.fingerprint) == (made.path, made.fingerprint)


def test_other_shares_than_those_beside_are_refused(store) -> None:
    with_held_out(store, settings("0,0.1"))
    for other in ("0.05,0.1", "0,0.2", "0.1,0"):
        with pytest.raises(StoreError, match="other links than this run"):
            with_held_out(store, settings(other))


def test_shares_are_two_numbers(store) -> None:
    for wrong in ("0.1", "a,b", "0.1,0.1,0.1"):
        with pytest.raises(ConfigError, match="two shares"):
            with_held_out(store, settings(wrong))
    assert not store.path.with_name("graph.links").exists()
