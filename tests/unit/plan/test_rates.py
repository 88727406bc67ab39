"""Rates fitted to what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.plan.rates import PerBlock, PerRow, Rates


@given(st.lists(st.floats(0, 1e-5), min_size=4, max_size=4).filter(lambda rates: max(rates[1:]) > 1e-8))
def test_rates_are_found_again(rates):
    random = np.random.default_rng(0)
    blocks = random.integers(1000, 100_000, (12, 3)).astype(float)
    seconds = rates[0] + blocks @ np.array(rates[1:])
    found = PerBlock.fitted(blocks, seconds)
    assert [found.of(block) for block in blocks] == pytest.approx(seconds.tolist(), rel=1e-6)


def test_no_rate_is_negative():
    blocks = np.array([[100.0, 200.0, 300.0], [200.0, 390.0, 610.0], [100.0, 205.0, 150.0]])
    found = PerBlock.fitted(blocks, np.array([1.0, 1.9, 1.1]))
    assert min(found.fixed, found.destination, found.source, found.edge) >= 0
    assert found.of(blocks[0]) == pytest.approx(1.0, rel=0.2)


def test_rates_in_a_file_and_their_mean():
    inputs, stages = (PerRow(2.0), PerRow(3.0, 4.0, 5.0)), (PerBlock(1.0, 2.0, 3.0, 4.0),)
    one = Rates(1.0, inputs, 0.5, 0.25, stages, (PerBlock(0.0, 4.0, 5.0, 6.0),), 1.5, 3.0, 64.0)
    one = replace(one, ways={"states": (1.5,), "rows": (1.0,)}, tiered=(one.stages[0],) * 2)
    three = replace(
        one, sampled_edge=3.0, stages=(PerBlock(3.0, 2.0, 3.0, 4.0),), ways={"states": (2.5,), "rows": (1.0,)}
    )
    assert Rates.from_json(one.to_json()) == one
    stages, ways = (PerBlock(2.0, 2.0, 3.0, 4.0),), {"states": (2.0,), "rows": (1.0,)}
    assert Rates.of_workers([one, three]) == replace(one, sampled_edge=2.0, stages=stages, ways=ways)
    assert [one.way(name, 0) for name in ("states", "rows", "whole")] == [1.5, 1.0, 1.0]


def test_a_worker_that_was_disturbed_does_not_decide_what_is_a_part_of_something():
    ways = {"states": (1.5, 1.4)}
    fine = Rates(1.0, (PerRow(2.0),), 0.5, 0.25, (PerBlock(1.0, 2.0, 3.0, 4.0),), (), 1.2, 3.0, 64.0, ways=ways)
    disturbed = replace(fine, together=6.0, ways={"states": (9.0, 1.4)}, sampled_edge=5.0)
    assert Rates.of_workers([fine, fine, disturbed, fine]) == replace(fine, sampled_edge=2.0)
