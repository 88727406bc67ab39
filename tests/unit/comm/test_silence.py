"""Who holds a run up is judged right, and nobody who only takes his time is blamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.comm.pulse import Pulse, Signs, read_signs
from partita.comm.silence import Sight, Silence, Silent


def look(size: int, seen, times: int, *, seconds: float = 10.0, stopping: bool = False) -> list[Silent | None]:
    """What is judged of workers that are looked at every second; ``seen(t)`` are their sights at second t."""
    silence = Silence(size, seconds)
    return [silence.look(seen(time), 1.0, stopping=stopping) for time in range(times)]


def test_a_stopped_worker_is_named_though_the_other_waits() -> None:
    found = look(2, lambda _: [Sight(Signs(7, 1, main_waits=1)), Sight(Signs(9, 1), stopped=True)], 20)
    assert found[:11] == [None] * 11
    assert found[11] == Silent((1,), 11.0, "has been stopped")
    assert str(found[11]) == "worker 1 has been stopped for 11 s"


def test_a_worker_that_says_nothing_is_named() -> None:
    found = look(2, lambda t: [Sight(Signs(t), beats=t), Sight(Signs(9, main_waits=1), beats=4)], 20)
    assert found[11] == Silent((1,), 11.0, "has given no sign of life")


def test_a_loop_without_end_is_named_while_it_should_make_steps() -> None:
    found = look(2, lambda t: [Sight(Signs(7, 1, main_waits=1)), Sight(Signs(9, 1), cpu_seconds=t)], 20)
    assert found[11] == Silent((1,), 11.0, "has made no step")


def test_work_that_is_no_step_takes_its_time() -> None:
    found = look(2, lambda t: [Sight(Signs(7, main_waits=1)), Sight(Signs(9), cpu_seconds=t)], 100)
    assert found == [None] * 100
    assert look(2, lambda t: [Sight(Signs(7, main_waits=1)), Sight(Signs(9), disk_bytes=t)], 100) == [None] * 100


def test_one_that_does_nothing_at_all_is_named() -> None:
    found = look(2, lambda t: [Sight(Signs(7, main_waits=1)), Sight(Signs(9), cpu_seconds=0.001 * t)], 20)
    assert found[11] == Silent((1,), 11.0, "has made no step")


def test_nobody_is_named_that_nobody_waits_for() -> None:
    assert look(2, lambda _: [Sight(Signs(7)), Sight(Signs(9))], 100) == [None] * 100
    assert look(2, lambda _: [Sight(Signs(7)), Sight(Signs(9), ended=True)], 100) == [None] * 100


def test_steps_that_were_long_before_may_be_long_again() -> None:
    def seen(t: int) -> list[Sight]:
        return [Sight(Signs(t // 8 if t < 40 else 5, 1))]

    found = look(1, seen, 200)
    assert found[:110] == [None] * 110
    assert found[-1] is not None
    assert found[-1].ranks == (0,)


def test_a_worker_whose_main_thread_is_elsewhere_is_named_where_all_wait() -> None:
    found = look(2, lambda _: [Sight(Signs(7, 1, main_waits=1)), Sight(Signs(9, 1, others_wait=1))], 20)
    assert found[11] == Silent((1,), 11.0, "has made no step")


def test_all_are_named_where_all_wait_for_each_other() -> None:
    found = look(3, lambda _: [Sight(Signs(7, 1, main_waits=1))] * 3, 20)
    assert str(found[11]) == "workers 0, 1 and 2 have waited for each other for 11 s"


def test_a_connection_that_is_not_made_is_named() -> None:
    found = look(2, lambda t: [Sight(Signs(7, main_waits=1, connecting=1), cpu_seconds=t)] * 2, 20)
    assert "have waited to be connected (another process may have connected in place of one) for 11 s" in str(found[11])


def test_workers_that_have_ended_are_not_named() -> None:
    ended = Sight(Signs(7), ended=True)
    assert look(2, lambda t: [ended, Sight(Signs(9), cpu_seconds=t)], 100) == [None] * 100
    found = look(2, lambda _: [ended, Sight(Signs(9, main_waits=1))], 20)
    assert found[11] is not None
    assert found[11].ranks == (1,)


def test_nobody_is_named_without_a_heartbeat() -> None:
    assert look(1, lambda _: [Sight(Signs(1), stopped=True)], 999, seconds=0) == [None] * 999


@pytest.mark.parametrize("sight", [Sight(Signs(9), stopped=True), Sight(Signs(9, 1))])
def test_it_is_judged_sooner_when_the_run_is_to_end(sight: Sight) -> None:
    found = look(1, lambda _: [sight], 10, seconds=60.0, stopping=True)
    assert found[5] is None
    assert found[6] is not None


def test_a_checkpoint_takes_its_time_when_the_run_is_to_end() -> None:
    assert look(2, lambda _: [Sight(Signs(7, main_waits=1)), Sight(Signs(9))], 50, seconds=60.0, stopping=True) == (
        [None] * 50
    )


def test_signs_are_seen_by_another_process(tmp_path: Path) -> None:
    assert read_signs(tmp_path / "pulse-0") == Signs()
    (tmp_path / "pulse-0").write_bytes(b"123")
    assert read_signs(tmp_path / "pulse-0") == Signs()
    pulse = Pulse(tmp_path / "pulse-0")
    with pulse.stepping():
        with pulse.exchanging():
            assert read_signs(tmp_path / "pulse-0") == Signs(1, 0, 1, 0, 0)
        pulse.step()
        assert read_signs(tmp_path / "pulse-0") == Signs(3, 1, 0, 0, 0) == pulse.signs
        with pulse.resting():
            assert not pulse.signs.stepping
        assert pulse.signs.stepping
    assert read_signs(tmp_path / "pulse-0") == Signs(3, 0, 0, 0, 0)
