"""What keeps a processor busy, and what only takes time."""

from __future__ import annotations

import time

from partita.comm.group import Group
from partita.plan.processors import share_of_processor, watched


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
