"""Schedules, the controller that ends rounds early, and the number of parts."""

from __future__ import annotations

import json
import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import ConfigError
from partita.isolated.controller import Controller
from partita.isolated.parts_budget import parts_for
from partita.isolated.schedules import VIEW_SCHEDULES, All, Cyclic, Schedule, Tournament

SIZES = [(chunks, workers) for chunks in range(2, 34) for workers in range(1, min(8, (chunks + 1) // 2) + 1)]


def views_of(assignment):
    return [view for phase in assignment for view in phase if view is not None]


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 40))
def test_all_and_cyclic_show_every_part_once_an_epoch(parts, workers, epoch) -> None:
    everything, cyclic = All(parts, workers), Cyclic(parts, workers)
    for schedule in (everything, cyclic):
        assert isinstance(schedule, Schedule)
        assignment = schedule.assignment(epoch)
        assert all(len(phase) == workers for phase in assignment)
        assert sorted(part for view in views_of(assignment) for part in view) == list(range(parts))
    (phase,) = everything.assignment(epoch)
    for worker, view in enumerate(phase):
        assert list(view or ()) == [part for part in range(parts) if part % workers == worker]
    assert len(cyclic.assignment(epoch)) == math.ceil(parts / workers)
    for phase in cyclic.assignment(epoch):
        for worker, view in enumerate(phase):
            assert view is None or (len(view) == 1 and view[0] % workers == worker)


@pytest.mark.parametrize("chunks", range(2, 34))
def test_a_sweep_pairs_all_chunks_once(chunks) -> None:
    for workers in [workers for other, workers in SIZES if other == chunks]:
        check_sweep(chunks, workers)


def check_sweep(chunks: int, workers: int) -> None:
    schedule = Tournament(chunks, workers, epochs=0)
    assert schedule.num_rounds == chunks - 1 + chunks % 2
    met = []
    for pairing in range(schedule.num_rounds):
        views = schedule.pairs(pairing)
        # Disjoint, and every chunk is there: with an odd number one is alone.
        assert sorted(chunk for view in views for chunk in view) == list(range(chunks))
        assert sum(len(view) == 1 for view in views) == chunks % 2
        met += [view for view in views if len(view) == 2]
    assert sorted(met) == list(combinations(range(chunks), 2))
    # And so for the workers, over one sweep of rounds of one epoch.
    trained = [
        parts
        for epoch in range(schedule.num_rounds)
        for phase in schedule.assignment(epoch)
        for parts in phase
        if parts is not None and len(parts) == 2
    ]
    assert sorted(trained) == list(combinations(range(chunks), 2))


@given(st.sampled_from(SIZES), st.integers(0, 60), st.integers(0, 200))
def test_phases_cover_a_round_in_an_order_that_moves_on(size, epochs, epoch) -> None:
    chunks, workers = size
    schedule = Tournament(chunks, workers, epochs)
    assignment = schedule.assignment(epoch)
    assert len(assignment) == math.ceil(chunks / (2 * workers))
    assert all(len(phase) == workers for phase in assignment)
    now = schedule.round_at(epoch)
    assert sorted(views_of(assignment)) == sorted(schedule.pairs(now.pairing))
    following = schedule.assignment(epoch + 1)
    if schedule.round_at(epoch + 1).number == now.number:
        assert following == assignment[1:] + assignment[:1]


@given(st.sampled_from(SIZES), st.integers(0, 80))
def test_lengths_of_rounds(size, epochs) -> None:
    schedule = Tournament(*size, epochs)
    rounds = schedule.num_rounds
    length = max(1, epochs // rounds)
    if epochs >= rounds:
        assert sum(schedule.lengths) == epochs
        assert schedule.lengths == tuple(sorted(schedule.lengths, reverse=True))
        assert set(schedule.lengths) <= {length, length + 1}
    else:
        assert schedule.lengths == (1,) * rounds
    # Two sweeps, epoch by epoch.
    pairings = [pairing for pairing in range(rounds) for _ in range(schedule.lengths[pairing])] * 2
    for epoch, pairing in enumerate(pairings):
        now = schedule.round_at(epoch)
        assert now.pairing == pairing
        assert now.start <= epoch < now.stop
        assert now.planned == now.stop - now.start


@given(st.sampled_from(SIZES), st.integers(0, 60), st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_switches_end_rounds_early_and_nothing_else(size, epochs, switches) -> None:
    schedule = Tournament(*size, epochs)
    number, left = 0, schedule.lengths[0]
    for epoch in range(70):
        if left == 0 or (epoch in switches and left < schedule.lengths[number % schedule.num_rounds]):
            number += 1
            left = schedule.lengths[number % schedule.num_rounds]
        now = schedule.round_at(epoch, switches)
        assert (now.number, now.pairing) == (number, number % schedule.num_rounds)
        left -= 1


def test_known_rounds() -> None:
    assert [Tournament(4, 2, 3).assignment(epoch) for epoch in range(3)] == [
        (((0, 3), (1, 2)),),
        (((1, 3), (0, 2)),),
        (((2, 3), (0, 1)),),
    ]
    assert [Tournament(4, 1, 3).assignment(epoch) for epoch in range(2)] == [
        (((0, 3),), ((1, 2),)),
        (((0, 2),), ((1, 3),)),
    ]
    assert Tournament(5, 2, 5).assignment(0) == (((0,), (1, 4)), ((2, 3), None))
    assert Tournament(4, 2, 11).lengths == (4, 4, 3)


def test_refusals_and_names() -> None:
    with pytest.raises(
        ConfigError, match=r"4 partitions give only 2 pairs per round; 3 workers need at least 6 partitions.*--parts 6"
    ):
        Tournament(4, 3, 10)
    with pytest.raises(ConfigError, match=r"one partition gives no pair.*--parts 2"):
        Tournament(1, 1, 10)
    with pytest.raises(ConfigError, match="Give at least 1"):
        All(0, 1)
    with pytest.raises(ConfigError, match="Did you mean 'tournament'"):
        VIEW_SCHEDULES.find("tournamnt")(4, 2, 10)
    with pytest.raises(ConfigError, match="already"):
        VIEW_SCHEDULES.register("all", Cyclic)
    VIEW_SCHEDULES.register("backwards", lambda parts, workers, epochs: Cyclic(parts, workers))
    assert isinstance(VIEW_SCHEDULES.find("backwards")(3, 2, 1), Cyclic)
    assert list(VIEW_SCHEDULES) == ["all", "cyclic", "tournament", "backwards"]
    VIEW_SCHEDULES.remove("backwards")
    Tournament(6, 3, 10)


# The controller


def run_epochs(controller, schedule, deficits, epochs, steps=4):
    for epoch in epochs:
        for step in range(steps):
            controller.record(epoch, deficits(epoch, step))
        controller.decide(epoch)
    return controller.switches


def test_a_high_deficit_ends_a_round_after_half_of_it() -> None:
    schedule = Tournament(4, 2, 30)  # rounds of 10
    controller = Controller(schedule, window=8)
    # Half of the first round takes 5 epochs; the second one is fine; the last has no pairing after it.
    switches = run_epochs(controller, schedule, lambda epoch, _: 0.4 if 5 <= epoch < 15 else 0.9, range(25))
    assert switches == (5,)
    assert controller.decisions[0].round == 0
    assert controller.decisions[0].deficit == pytest.approx(0.9)
    assert [schedule.round_at(epoch, switches).pairing for epoch in (4, 5, 14, 15, 24, 25)] == [0, 1, 1, 2, 2, 0]


def test_a_full_window_of_the_round_is_needed() -> None:
    schedule = Tournament(4, 2, 12)  # rounds of 4
    assert run_epochs(Controller(schedule, window=9), schedule, lambda *_: 0.9, range(4), steps=4) == (3,)
    assert run_epochs(Controller(schedule, window=17), schedule, lambda *_: 0.9, range(8), steps=4) == ()
    assert run_epochs(Controller(schedule, window=1), schedule, lambda *_: 0.9, range(4), steps=4) == (2, 4)
    # The mean decides, and it must be above the threshold.
    halves = Controller(schedule, window=4)
    assert run_epochs(halves, schedule, lambda _, step: step % 2, range(4)) == ()


@given(
    st.lists(st.sampled_from([0.2, 0.55, 0.9]), min_size=60, max_size=60),
    st.integers(0, 59),
    st.integers(1, 6),
    st.sampled_from([(2, 1), (4, 2), (5, 1), (6, 3)]),
)
def test_a_run_that_is_resumed_decides_the_same(deficits, killed_at, window, size) -> None:
    schedule = Tournament(*size, 20)

    def go_on(controller, steps):
        for step in steps:
            controller.record(step // 3, deficits[step])
            if step % 3 == 2:
                controller.decide(step // 3)

    straight, first, second = (Controller(schedule, 0.5, window) for _ in range(3))
    go_on(straight, range(60))
    go_on(first, range(killed_at))
    second.restore(json.loads(json.dumps(first.to_json())))
    go_on(second, range(killed_at, 60))
    assert second.decisions == straight.decisions
    assert second.to_json() == straight.to_json()


def test_settings_of_the_controller() -> None:
    with pytest.raises(ConfigError, match="threshold from 0 to 1"):
        Controller(Tournament(4, 2, 3), threshold=1.5)
    with pytest.raises(ConfigError, match="at least 1 step"):
        Controller(Tournament(4, 2, 3), window=0)


# The number of parts

GIB = 1 << 30


@given(
    st.integers(0, 1 << 45), st.integers(1 << 20, 1 << 40), st.integers(1, 64), st.floats(0.5, 8), st.floats(0, 0.95)
)
def test_the_smallest_number_of_parts_that_fit(graph_bytes, memory, workers, replication, share) -> None:
    plan = parts_for(graph_bytes, memory, workers, replication=replication, share=share)
    assert plan.fits
    assert plan.parts >= workers
    assert plan.part_bytes <= plan.room <= memory * (1 - share)
    if plan.parts > workers:
        assert replication * graph_bytes / (plan.parts - 1) > plan.room * (1 - 1e-12)
    assert json.loads(json.dumps(plan.to_json()))["fits"]


def test_known_numbers_of_parts() -> None:
    # 60 GiB, doubled, in the third of 12 GiB that computing leaves: 30 parts; or 4 for 4 workers who have plenty.
    plan = parts_for(60 * GIB, 12 * GIB, 4)
    assert (plan.parts, plan.parts_per_worker) == (30, 8)
    assert "30 parts for 4 workers" in plan.explain()
    assert "is enough" in plan.explain()
    assert parts_for(GIB, 12 * GIB, 4).parts == 4
    assert parts_for(60 * GIB, 12 * GIB, 4, share=0, replication=1).parts == 5


def test_what_was_measured_is_checked_again() -> None:
    plan = parts_for(60 * GIB, 12 * GIB, 4)
    assert plan.recheck(1.9).fits
    tight = plan.recheck(2.2)
    assert not tight.fits
    assert "too little" in tight.explain()
    assert tight.again().parts == 33
    assert tight.again().fits
    uneven = plan.recheck(1.9, largest=5 * GIB)
    assert not uneven.fits
    assert "the largest part takes 5.0 GiB" in uneven.explain()
    assert uneven.again().parts == 38
    assert plan.recheck(1.9, largest=4 * GIB - 1).fits
    assert plan.again() is plan


def test_numbers_that_cannot_be() -> None:
    for wrong in ({"workers": 0}, {"graph_bytes": -1}, {"replication": 0.0}, {"replication": math.nan}):
        with pytest.raises(ConfigError, match="out of range"):
            parts_for(**{"graph_bytes": 1, "memory": GIB, "workers": 1, **wrong})
    with pytest.raises(ConfigError, match="less than 1"):
        parts_for(1, GIB, 1, share=1.0)
    with pytest.raises(ConfigError, match="leaves no memory"):
        parts_for(1, 0, 1)
