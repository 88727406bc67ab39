"""Which strategies are tried."""

from __future__ import annotations

import pytest

from partita.core.mesh import Mesh
from partita.parallel.strategies import STRATEGIES, parse_strategy
from partita.plan.candidates import candidates


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("hosts", [1, 2])
def test_each_once_and_each_can_be_written_down(layers, hosts):
    found = candidates(layers, Mesh.of(0, 4, 4 // hosts))
    assert len(found) == len(set(found))
    for strategy in found:
        assert parse_strategy(str(strategy), layers) == strategy
        assert parse_strategy(strategy.name, layers) == strategy


def test_names_come_first():
    assert [each.name for each in candidates(3, Mesh.of(0, 2, 2))[:5]] == list(STRATEGIES)


def test_all_lists_of_a_model_that_is_not_deep():
    data, destination, source = 3 * [3**2]  # of layer 1, with direct rows
    assert len(candidates(3, Mesh.of(0, 2, 2))) == 2 * (data + destination + source) + 3**2
    assert len(candidates(6, Mesh.of(0, 2, 2))) < 120


def test_hosts_are_axes_of_their_own():
    axes = {strategy.axis for strategy in candidates(2, Mesh.of(0, 4, 2))}
    assert axes == {"all", "workers", "hosts"}
    assert {strategy.axis for strategy in candidates(2, Mesh.of(0, 2, 1))} == {"all"}


def test_one_worker_has_no_choice():
    assert [each.name for each in candidates(3, Mesh.of(0, 1, 1))] == ["gdp"]
