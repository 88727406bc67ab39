"""What keeps a processor busy, and what only takes time."""

from __future__ import annotations

import time

import pytest

from partita.comm.group import Group
from partita.plan.processors import lasting, share_of_processor, watched


def test_who_sleeps_leaves_the_processor_to_others():
    took, busy = watched(lambda: time.sleep(0.1))
    assert took >= 0.1
    assert busy < took


def test_who_computes_does_not():
    until = time.process_time() + 0.05

    def compute() -> None:
        while time.process_time() < until:
            pass

    took, busy = watched(compute)
    assert took > 0
    assert busy >= 0.04


def test_a_worker_has_a_share_of_a_processor():
    assert 0 < share_of_processor(Group.alone()) <= 1


@pytest.mark.parametrize("took", [0.04, 0.07, 0.3])
def test_what_workers_take_who_share_processors_does_not_depend_on_who_was_at_work(took):
    assert lasting(took, 0.04, 0.5) == pytest.approx(0.08)


def test_what_a_worker_takes_with_a_processor_of_its_own_is_what_passes():
    assert lasting(0.07, 0.04, 0.97) == 0.07
