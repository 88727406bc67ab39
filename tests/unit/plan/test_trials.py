"""What trials say of strategies that were not tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.plan import Seconds
from partita.plan.trials import Correction, Trial, divided

FACTOR = st.floats(0.5, 3.0)
PLAIN, SENDS = Seconds(sample=0.2, compute=1.0), Seconds(sample=0.1, exchange=0.8, compute=0.7)


@given(FACTOR, FACTOR)
def test_factors_are_found_again(local, exchange):
    truth = Correction(local, exchange)
    found = Correction.fitted({each: (each, truth.of(each).total) for each in (PLAIN, SENDS)})
    for estimated in (PLAIN, SENDS):
        wanted = truth.of(estimated).total
        assert found.of(estimated).total == pytest.approx(wanted, rel=0.1)


def test_without_trials_estimates_stay():
    assert Correction.fitted({}) == Correction()
    assert Correction().of(SENDS) == SENDS


def test_of_sending_nothing_is_said_by_what_sends_nothing():
    found = Correction.fitted({"gdp": (PLAIN, 2 * PLAIN.total)})
    assert found.local == pytest.approx(2.0, rel=0.1)
    assert found.exchange == pytest.approx(1.0)


@given(st.lists(st.floats(0.01, 10), min_size=5, max_size=5), st.floats(0.01, 100))
def test_parts_add_up_to_what_was_measured(parts, took):
    assert divided(Seconds(*parts), took).total == pytest.approx(took)


def test_an_epoch_is_its_begin_and_its_steps():
    assert Trial(4, 10, 0.5, 0.25).epoch == 3.0
