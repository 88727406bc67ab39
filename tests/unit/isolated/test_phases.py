"""The steps of an epoch of isolated training: every seed once, whatever happened before."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.isolated.phases import Done, EpochPlan, progress_from_json, view_name
from partita.isolated.schedules import VIEW_SCHEDULES

PARTS = st.integers(2, 9)
SEEDS = st.lists(st.integers(0, 40), min_size=9, max_size=9)


@st.composite
def plans(draw, joint: bool | None = None):
    parts, seeds = draw(PARTS), draw(SEEDS)
    name = draw(st.sampled_from(["all", "cyclic", "tournament"]))
    workers = draw(st.integers(1, (parts + 1) // 2 if name == "tournament" else parts))
    joint = draw(st.booleans()) if joint is None else joint
    batch_size, epoch = draw(st.integers(1, 60)), draw(st.integers(0, 5))

    def make(workers=workers, base=None, first=0):
        assignment = VIEW_SCHEDULES.find(name)(parts, workers, 7).assignment(epoch)
        return EpochPlan.make(assignment, lambda some: sum(seeds[p] for p in some), batch_size, joint, base, first)

    return make, workers, parts, seeds, batch_size


def taken(plan: EpochPlan, start: int = 0, stop: int | None = None) -> dict[str, list[int]]:
    """Places in the order of each view that steps of an epoch take."""
    found: dict[str, list[int]] = {}
    for phase in plan.phases:
        for step in range(phase.steps):
            if start <= phase.first + step < (plan.steps if stop is None else stop):
                total = 0
                for worker, share in enumerate(phase.shares):
                    places = range(phase.before(worker, step), phase.before(worker, step + 1))
                    assert not places or step < phase.steps_of(worker)
                    found.setdefault(view_name(share.parts), []).extend(places)
                    total += len(places)
                assert phase.size(step) == total
    return found


@given(plans())
def test_every_seed_comes_once(plan) -> None:
    make, _, parts, seeds, batch_size = plan
    plan = make()
    found = taken(plan)
    covered = []
    for phase in plan.phases:
        for share in phase.shares:
            if share.parts:
                covered += share.parts
                assert share.seeds == sum(seeds[part] for part in share.parts)
                assert found.get(view_name(share.parts), []) == list(range(share.seeds))
        if phase.steps and phase.joint:
            sizes = [phase.size(step) for step in range(phase.steps)]
            workers = len(phase.shares)
            assert all(abs(size - batch_size) < workers for size in sizes[:-1])
            assert sizes[-1] < batch_size + workers
        if not phase.joint:
            for worker, share in enumerate(phase.shares):
                sizes = [phase.before(worker, s + 1) - phase.before(worker, s) for s in range(phase.steps_of(worker))]
                assert sizes == [batch_size] * (share.seeds // batch_size) + [share.seeds % batch_size] * bool(
                    share.seeds % batch_size
                )
    assert sorted(covered) == list(range(parts))


@given(plans(), st.data())
def test_an_epoch_can_be_left_anywhere_and_gone_on_with(plan, data) -> None:
    make, workers, *_ = plan
    plan = make()
    step = data.draw(st.integers(0, max(0, plan.steps - 1)))
    # As the same workers do: the same steps.
    values = json.loads(json.dumps(plan.to_json()))
    again = make(base=progress_from_json(values["base"]), first=values["first"])
    assert [phase.first for phase in again.from_step(step)] == [phase.first for phase in plan.from_step(step)]
    assert taken(again) == taken(plan)
    # As other workers do, who have the same views or others.
    progress = plan.progress(step)
    other = make(data.draw(st.integers(1, workers)), base=progress, first=step)
    assert other.first == step
    before, after = taken(plan, 0, step), taken(other, step)
    assert {name: done.seeds for name, done in progress.items() if done.seeds} == {
        name: len(places) for name, places in before.items() if places
    }
    for phase in other.phases:
        for share in phase.shares:
            name = view_name(share.parts)
            if name in progress:
                assert before.get(name, []) + after.get(name, []) == list(range(share.seeds))
            elif share.parts:
                assert after.get(name, []) == list(range(share.seeds))
    # And what they have done can be interrupted again.
    middle = (other.first + other.steps) // 2
    for name, done in other.progress(middle).items():
        if name in after or name in before:
            assert done.seeds <= len(before.get(name, [])) + len(after.get(name, []))


@given(plans(joint=False), st.integers(1, 3))
def test_steps_of_a_view_do_not_depend_on_the_others(plan, workers) -> None:
    make, *_ = plan
    one, other = taken(make(1)), taken(make())
    for name in one.keys() & other.keys():
        assert one[name] == other[name]


def test_a_single_view_has_the_batches_of_the_whole_graph() -> None:
    plan = EpochPlan.make((((0,),),), lambda parts: 25, 10, True)
    phase = plan.phases[0]
    assert [phase.before(0, step) for step in range(4)] == [0, 10, 20, 25]
    assert (plan.steps, phase.size(2)) == (3, 5)
    assert plan.progress(2) == {"0": Done(20, 2)}
    assert plan.from_step(3) == []


def test_two_views_end_together() -> None:
    plan = EpochPlan.make((((0, 3), (1, 2)), ((4,), None)), {(0, 3): 30, (1, 2): 10, (4,): 5}.__getitem__, 8, True)
    first, second = plan.phases
    assert (first.steps, second.steps, plan.steps) == (5, 1, 6)
    assert [first.before(0, step) for step in range(6)] == [0, 6, 12, 18, 24, 30]
    assert [first.before(1, step) for step in range(6)] == [0, 2, 4, 6, 8, 10]
    assert plan.progress(5) == {"0+3": Done(30, 5), "1+2": Done(10, 5), "4": Done(0, 0)}
    own = EpochPlan.make((((0,), (1,)),), {(0,): 30, (1,): 10}.__getitem__, 8, False)
    assert (own.phases[0].steps, own.phases[0].steps_of(1), own.phases[0].size(1)) == (4, 2, 10)
    with pytest.raises(KeyError):
        EpochPlan.make((((7,),),), {}.__getitem__, 8, True)
