"""What trials say of strategies that were not tried."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.plan import Seconds
from partita.plan.trials import Correction, Trial, divided

FACTOR = st.floats(0.8, 1.3)
PLAIN, SENDS = Seconds(sample=0.2, compute=1.0), Seconds(sample=0.1, exchange=0.8, compute=0.7)
WIDE = Seconds(sample=0.1, exchange=4.0, compute=0.6)
MANY, DEEP = Seconds(exchange=3.0, compute=0.5), Seconds(sample=1.0, compute=4.0, gradients=0.5)
LATENCY = {PLAIN: 0.0, SENDS: 0.7, WIDE: 0.3, MANY: 2.7, DEEP: 0.0}


def taken(truth: Correction, of: Iterable[Seconds]) -> list[tuple[Seconds, float, float]]:
    """What trials take in truth."""
    return [(each, LATENCY[each], truth.of(each, LATENCY[each]).total) for each in of]


@given(FACTOR, FACTOR, st.floats(0.0, 2.0))
def test_what_trials_show_of_some_holds_for_others(local, latency, besides):
    """After ten trials of four strategies, a fifth is estimated to a quarter, or better than before."""
    truth = Correction(local, 1.0, latency, besides)
    for left in LATENCY:
        found = Correction.fitted(10 * taken(truth, LATENCY.keys() - {left}), PLAIN.total)
        ((_, _, took),) = taken(truth, [left])
        before, after = (abs(each.of(left, LATENCY[left]).total / took - 1) for each in (Correction(), found))
        assert after <= max(0.25, before)


def test_without_trials_estimates_stay():
    found = Correction.fitted([])
    assert (found.local, found.transfer, found.latency, found.besides) == pytest.approx((1.0, 1.0, 1.0, 0.0))
    assert Correction().of(SENDS, 0.7).values() == pytest.approx(SENDS.values())


def test_one_trial_is_taken_for_what_every_step_takes_besides():
    """More than for factors of what was measured: a second trial that sends takes as much more, not as many times."""
    found = Correction.fitted([(PLAIN, 0.0, 2 * PLAIN.total)], PLAIN.total)
    assert found.of(PLAIN, 0.0).total == pytest.approx(2 * PLAIN.total, rel=0.1)
    assert found.of(WIDE, 0.3).total == pytest.approx(WIDE.total + PLAIN.total, rel=0.1)
    assert 1.0 <= found.local < 1.1
    assert (found.transfer, found.latency) == pytest.approx((1.0, 1.0))


def test_small_messages_say_little_of_large_ones():
    """Where messages take three times as long as was thought, what sends many bytes is not three times as slow."""
    found = Correction.fitted(5 * taken(Correction(latency=3.0), [PLAIN, SENDS, MANY]), PLAIN.total)
    assert found.latency > 1.5
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
    corrected = Correction(transfer=3.0, latency=0.5).of(Seconds(compute=1.0, exchange=0.01), latency=0.04)
    assert corrected.exchange == 0.005
    assert Correction().of(Seconds(exchange=0.01), latency=-0.01).exchange >= 0


def test_what_a_slow_link_takes_longer_is_not_added_to_what_does_not_use_it():
    """A strategy that sends all the time took a fifth longer than was thought; the fastest one sends nothing."""
    slow, fast = Seconds(exchange=10.0, compute=0.5), Seconds(compute=0.5)
    found = Correction.fitted([(slow, 0.0, 1.2 * slow.total)], fast.total)
    assert found.of(slow, 0.0).total == pytest.approx(1.2 * slow.total, rel=0.1)
    assert found.of(fast, 0.0).total < 1.5 * fast.total
