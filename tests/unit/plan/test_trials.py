"""What trials say of strategies that were not tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.plan import Seconds
from partita.plan.cost import Waiting
from partita.plan.trials import Correction, Trial, divided

FACTOR = st.floats(0.5, 3.0)
PLAIN, SENDS, WIDE = Waiting(1.2), Waiting(0.8, 0.1, 0.7), Waiting(0.7, 3.2, 0.8)


@given(FACTOR, FACTOR)
def test_factors_are_found_again(local, latency):
    truth = Correction(local, 1.0, latency)
    found = Correction.fitted([(each, truth.of(each)) for each in (PLAIN, SENDS, WIDE)])
    for estimated in (PLAIN, SENDS, WIDE):
        assert found.of(estimated) == pytest.approx(truth.of(estimated), rel=0.1)


def test_without_trials_estimates_stay():
    found = Correction.fitted([])
    assert (found.local, found.transfer, found.latency) == pytest.approx((1.0, 1.0, 1.0))
    assert Correction().of(SENDS) == pytest.approx(SENDS.total)
    stages = Seconds(sample=0.1, exchange=0.8, compute=0.7)
    assert Correction().of_stages(stages, 0.7).values() == pytest.approx(stages.values())


def test_of_sending_nothing_is_said_by_what_sends_nothing():
    found = Correction.fitted([(PLAIN, 2 * PLAIN.total)])
    assert found.local == pytest.approx(2.0, rel=0.1)
    assert (found.transfer, found.latency) == pytest.approx((1.0, 1.0))


def test_small_messages_say_little_of_large_ones():
    """Where messages take three times as long as was thought, what sends many bytes is not three times as slow."""
    slow = Correction(latency=3.0).of(SENDS)
    found = Correction.fitted([(PLAIN, PLAIN.total), (SENDS, slow)])
    assert found.latency > 2.5
    assert found.transfer < 1.5


@given(st.lists(st.floats(0.01, 10), min_size=5, max_size=5), st.floats(0.01, 100))
def test_parts_add_up_to_what_was_measured(parts, took):
    assert divided(Seconds(*parts), took).total == pytest.approx(took)


def test_an_epoch_is_its_begin_and_its_steps():
    assert Trial(4, 10, 0.5, 0.25).epoch == 3.0


def test_trials_join():
    both = Trial(4, 10, 0.2, 1.0, 100).joined(Trial(12, 10, 0.6, 2.0, 80))
    assert both == Trial(16, 10, pytest.approx(0.5), pytest.approx(1.75), 100, 2)


def test_a_corrected_time_is_never_negative() -> None:
    """A fitted line may say that messages alone take longer than the whole exchange."""
    corrected = Correction(transfer=3.0, latency=0.5).of_stages(Seconds(compute=1.0, exchange=0.01), latency=0.04)
    assert corrected.exchange == 0.02
    assert Correction().of_stages(Seconds(exchange=0.01), latency=-0.01).exchange >= 0
