"""A pipeline changes when items are made, never which or in what order."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.train.pipeline import Pipeline, PipelineStage
from partita.train.spans import Spans


def _square(in_order: bool = False) -> PipelineStage:
    return PipelineStage("sample", lambda step, _: step * step, in_order)


def _text(in_order: bool = False) -> PipelineStage:
    return PipelineStage("load", lambda step, square: f"{step}: {square}", in_order)


def _take_all(pipeline: Pipeline, count: int) -> list[object]:
    return [pipeline.take() for _ in range(count)]


def _wait_for(true) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        time.sleep(0.001)


@given(st.integers(0, 5), st.integers(0, 12), st.integers(0, 4), st.booleans(), st.booleans())
def test_same_items_whatever_the_look_ahead(start, count, ahead, sample_in_order, load_in_order) -> None:
    stages = [_square(sample_in_order), _text(load_in_order)]
    with Pipeline(stages, start, start + count, ahead) as pipeline:
        found = [pipeline.take() for _ in range(count)]
        with pytest.raises(IndexError):
            pipeline.take()
    assert found == [f"{step}: {step * step}" for step in range(start, start + count)]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 12))
def test_lanes_work_side_by_side_each_in_order(lanes, ahead, count) -> None:
    lock, busy, begun = threading.Lock(), set[int](), list[int]()

    def sample(step: int, _: None) -> int:
        with lock:
            begun.append(step)
            assert step % lanes not in busy
            busy.add(step % lanes)
        time.sleep(0.0005 * (step % 2))
        with lock:
            busy.remove(step % lanes)
        return step

    with Pipeline([PipelineStage("sample", sample, True, lanes), _text(True)], 0, count, ahead) as pipeline:
        assert _take_all(pipeline, count) == [f"{step}: {step}" for step in range(count)]
    for number in range(lanes):
        own = [step for step in begun if step % lanes == number]
        assert own == sorted(own)


def test_a_lane_goes_on_while_another_waits() -> None:
    second = threading.Event()

    def sample(step: int, _: None) -> int:
        if step == 0:
            assert second.wait(10)
        else:
            second.set()
        return step

    with Pipeline([PipelineStage("sample", sample, True, 2)], 0, 3, 2) as pipeline:
        assert _take_all(pipeline, 3) == [0, 1, 2]


def test_each_stage_is_ahead_by_no_more_than_asked() -> None:
    sampled: list[int] = []
    loaded: list[int] = []

    def sample(step: int, _: None) -> int:
        sampled.append(step)
        return step

    def load(step: int, item: int) -> int:
        loaded.append(step)
        return item

    with Pipeline([PipelineStage("sample", sample), PipelineStage("load", load)], 0, 20, 2) as pipeline:
        for taken in range(3):
            _wait_for(lambda: len(sampled) == taken + 4 and len(loaded) == taken + 2)  # noqa: B023
            time.sleep(0.01)
            assert sorted(sampled) == list(range(taken + 4))
            assert loaded == list(range(taken + 2))
            assert pipeline.take() == taken


def test_stages_that_are_held_begin_again_when_told_to_or_when_nothing_is_left() -> None:
    sampled: list[int] = []

    def sample(step: int, _: None) -> int:
        sampled.append(step)
        return step

    for in_order in (False, True):
        sampled.clear()
        with Pipeline([PipelineStage("sample", sample, in_order)], 0, 20, 2) as pipeline:
            _wait_for(lambda: len(pipeline._made[-1]) == 2)
            assert pipeline.take(hold=True) == 0
            if not in_order:
                time.sleep(0.01)
                assert len(sampled) == 2
                pipeline.go_on()
            _wait_for(lambda: len(sampled) == 3)
            assert pipeline.take(hold=True) == 1
            assert pipeline.take(hold=True) == 2
            _wait_for(lambda: len(sampled) == 5)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("at", ["sample", "load"])
def test_an_error_comes_at_its_place_or_before(ahead, at) -> None:
    told: list[str] = []

    def work(name: str):
        def make(step: int, item: object) -> int:
            if name == at and step == 2:
                raise ValueError(f"{name} of two")
            return step

        return make

    stages = [PipelineStage(name, work(name), in_order=True) for name in ("sample", "load")]
    pipeline = Pipeline(stages, 0, 6, ahead, failed=lambda error: told.append(str(error)))
    with pytest.raises(ValueError, match=f"{at} of two"), pipeline:
        _take_all(pipeline, 3)
    assert told == ([f"{at} of two"] if ahead else [])


def test_the_failure_of_a_stage_is_told_at_once() -> None:
    failed = threading.Event()

    def sample(step: int, _: None) -> int:
        if step == 1:
            raise ValueError("one")
        return step

    stages = [PipelineStage("sample", sample, in_order=True)]
    with pytest.raises(ValueError, match="one"), Pipeline(stages, 0, 9, 2, failed=lambda _: failed.set()):
        assert failed.wait(5)  # nothing was taken


def test_a_pure_stage_may_fail_at_what_nobody_takes() -> None:
    failed = threading.Event()

    def sample(step: int, _: None) -> int:
        if step == 2:
            raise ValueError("two")
        return step

    with Pipeline([PipelineStage("sample", sample)], 0, 9, 2, failed=lambda _: failed.set()) as pipeline:
        assert pipeline.take() == 0
        assert failed.wait(5)


@pytest.mark.parametrize("kinds", [(True, True), (False, True), (True, False)])
def test_what_others_take_part_in_is_done_to_the_end(kinds) -> None:
    """Workers that stop after the same step have begun, and end, the same items."""
    for pause in (0.0, 0.002):
        done: dict[str, list[int]] = {"sample": [], "load": []}

        def work(name: str, pause: float = pause, done: dict[str, list[int]] = done):
            def make(step: int, item: object) -> int:
                time.sleep(pause)
                done[name].append(step)
                return step

            return make

        names = ("sample", "load")
        stages = [PipelineStage(name, work(name), kind) for name, kind in zip(names, kinds, strict=True)]
        with Pipeline(stages, 0, 100, 2) as pipeline:
            for _ in range(5):
                pipeline.take()
        if kinds[0]:
            assert done["sample"] == list(range(9))
        if kinds[1]:
            assert done["load"] == list(range(7))
            assert set(range(7)) <= set(done["sample"])


@pytest.mark.parametrize("in_order", [False, True])
def test_leaving_early_leaves_no_thread(in_order) -> None:
    before = threading.active_count()
    with Pipeline([_square(in_order), _text(in_order)], 0, 1000, 3) as pipeline:
        pipeline.take()
    assert threading.active_count() == before


def test_after_an_error_nobody_waits_for_an_exchange_that_may_never_end() -> None:
    release, inside = threading.Event(), threading.Event()

    def stuck(step: int, _: None) -> int:
        inside.set()
        release.wait(30)
        return step

    started = time.monotonic()
    pipeline = Pipeline([PipelineStage("sample", stuck, in_order=True)], 0, 5, 2).__enter__()
    assert inside.wait(5)
    pipeline.__exit__(RuntimeError, RuntimeError("elsewhere"), None)
    assert time.monotonic() - started < 10
    release.set()
    for thread, _ in pipeline._threads:
        thread.join(5)
        assert not thread.is_alive()


def test_spans_say_who_worked_when_and_what_waited() -> None:
    spans = Spans(traced=True)
    with Pipeline([_square(), _text()], 0, 4, 2, spans=spans) as pipeline:
        for _ in range(4):
            pipeline.take()
    spans.add("forward", 3, 5_000, 7_000, lane="trainer")
    summary = spans.summary()
    assert summary.keys() == {"sample", "load"}
    assert all(found["items"] == 4 and found["seconds"] > 0 for found in summary.values())
    assert 0 <= summary["load"]["waiting"] <= 2
    events = spans.events(7)
    assert {event["pid"] for event in events} == {7}
    done = [(event["name"], event["args"]["step"]) for event in events if event["ph"] == "X"]
    assert sorted(done) == sorted(
        [("sample", i) for i in range(4)] + [("load", i) for i in range(4)] + [("forward", 3)]
    )
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(lanes.values()) == {"sample", "load", "trainer"}
    assert [event["dur"] for event in events if event["name"] == "forward"] == [2.0]
    assert sum(event["ph"] == "C" for event in events) == 4


@given(st.integers(0, 3), st.integers(1, 12), st.integers(0, 3), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_a_stage_that_waits_for_later_items(start, count, ahead, after, early, in_order) -> None:
    """It sees so many of them made, or all; no stage is ahead by more than this needs; all take the same items."""
    lock, made, seen, taken = threading.Lock(), set[int](), list[tuple[int, bool]](), [start]
    stop = start + count

    def sample(step: int, _: None) -> int:
        with lock:
            assert step <= taken[0] + 3 * max(ahead, 1) + after + early
            made.add(step)
        return step

    def plan(step: int, item: int) -> int:
        with lock:
            wanted = range(step, min(stop, step + 1 + after))
            seen.append((step, made >= set(wanted)))
        return item

    stages = [
        PipelineStage("sample", sample, in_order),
        PipelineStage("prepare", plan, in_order, after=after, early=early),
        PipelineStage("load", lambda step, item: (step, item), in_order),
    ]
    with Pipeline(stages, start, stop, ahead) as pipeline:
        for step in range(start, stop):
            assert pipeline.take() == (step, step)
            with lock:
                taken[0] = step + 1
    assert seen == [(step, True) for step in range(start, stop)]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_stage_may_begin_early(ahead) -> None:
    """As a look ahead wants it: the second chunk is prepared while the first is taken."""
    prepared = list[int]()
    stages = [
        PipelineStage("sample", lambda step, _: step),
        PipelineStage("prepare", lambda step, item: prepared.append(step) or item, after=4, early=6),
    ]
    with Pipeline(stages, 0, 40, ahead) as pipeline:
        assert pipeline.take() == 0
        if ahead:
            _wait_for(lambda: len(prepared) == 1 + ahead + 6)
            time.sleep(0.02)
        assert prepared == list(range(1 + (ahead + 6 if ahead else 0)))


@pytest.mark.parametrize("ahead", [1, 3])
def test_what_others_take_part_in_is_done_to_the_end_with_a_look_ahead(ahead) -> None:
    """Two workers that stop after the same step have begun and ended the same items."""
    found = []
    for pause in (0.0, 0.002):
        done: dict[str, list[int]] = {"sample": [], "prepare": [], "load": []}

        def work(name: str, done=done, pause=pause):
            def make(step: int, item: object) -> int:
                time.sleep(pause * (step % 3))
                done[name].append(step)
                return step

            return make

        stages = [
            PipelineStage("sample", work("sample"), True),
            PipelineStage("prepare", work("prepare"), True, after=3, early=2),
            PipelineStage("load", work("load"), True),
        ]
        with Pipeline(stages, 0, 50, ahead) as pipeline:
            _take_all(pipeline, 4)
        found.append(done)
    assert found[0] == found[1]
    assert found[0]["sample"] == list(range(4 + 3 * ahead + 5))


@pytest.mark.parametrize(("ahead", "look"), [(1, 0), (3, 0), (2, 4)])
def test_workers_that_settle_it_make_only_what_one_of_them_has_begun(ahead, look) -> None:
    """Every item needs all workers, who are not equally far when they stop after the same step."""
    together = {name: [threading.Barrier(3) for _ in range(100)] for name in ("sample", "load")}
    everybody, values = threading.Barrier(3), dict[int, list[int]]()
    done = [{"sample": [], "load": []} for _ in range(3)]
    blocked = threading.Event()

    def settle(rank: int, begun: list[int]) -> list[int]:
        values[rank] = begun
        everybody.wait(20)
        return [max(each) for each in zip(*values.values(), strict=True)]

    def work(rank: int, name: str):
        def make(step: int, item: object) -> int:
            if rank and step >= 8:  # the first worker is ahead, and waits for others, as they leave
                blocked.wait(20)
            together[name][step].wait(20)
            done[rank][name].append(step)
            return step

        return make

    def run(rank: int) -> None:
        after = {"after": look, "early": look}
        stages = [
            PipelineStage("sample", work(rank, "sample"), True),
            PipelineStage("load", work(rank, "load"), True, **after),
        ]
        with Pipeline(stages, 0, 100, ahead, settle=lambda begun: settle(rank, begun)) as pipeline:
            _take_all(pipeline, 3)
            if rank == 0:
                blocked.set()

    before = threading.active_count()
    workers = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(30)
    assert threading.active_count() == before
    assert done[0] == done[1] == done[2]
    most = [max(each) for each in zip(*values.values(), strict=True)]
    assert done[0] == {"sample": list(range(most[0])), "load": list(range(most[1]))}


def test_an_error_while_workers_settle_what_they_make_leaves_no_thread() -> None:
    def settle(begun: list[int]) -> list[int]:
        raise ValueError(f"{len(begun)} stages")

    pipeline = Pipeline([_square(True), _text(True)], 0, 1000, 3, settle=settle)
    with pytest.raises(ValueError, match="2 stages"), pipeline:
        pipeline.take()
    for thread, _ in pipeline._threads:
        thread.join(5)
        assert not thread.is_alive()
