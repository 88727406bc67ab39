"""What a run says of its plan, and when it goes on with another strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.comm.meter import KINDS
from partita.core.plan import Candidate, Plan, Seconds
from partita.train.plan_monitor import PlanMonitor, stage_seconds

NOTHING_SENT = dict.fromkeys(KINDS, 0.0)


def following(**candidates: Seconds) -> PlanMonitor:
    ranked = sorted(candidates.items(), key=lambda each: each[1].total)
    return PlanMonitor(Plan(tuple(Candidate(name, name, epoch) for name, epoch in ranked), {}, 10, 5, {}))


def take(run: PlanMonitor, seconds: float, stages: Seconds) -> None:
    run.begin(Seconds(1.0, 2.0, 3.0, 4.0, 5.0))
    run.note(seconds, stages + Seconds(1.0, 2.0, 3.0, 4.0, 5.0))


def test_what_goes_as_planned_is_not_worth_a_word():
    run = following(gdp=Seconds(sample=1.0, compute=2.0), dnp=Seconds(compute=4.0))
    take(run, 3.5, Seconds(sample=1.15, compute=2.35))
    assert run.judge(10) == {"text": None, "strategy": None}


def test_stages_that_work_at_the_same_time_are_no_surprise():
    """Busy for twice the epoch in all, in the same proportion."""
    run = following(gdp=Seconds(sample=1.0, compute=2.0), dnp=Seconds(compute=4.0))
    take(run, 3.0, Seconds(sample=2.0, compute=4.0))
    assert run.judge(10)["text"] is None


def test_another_strategy_is_ahead():
    run = following(dnp=Seconds(exchange=1.0, compute=2.0), gdp=Seconds(compute=3.5), snp=Seconds(exchange=4.0))
    take(run, 6.0, Seconds(exchange=4.0, compute=2.0))
    found = run.judge(10)
    assert found["strategy"] == "gdp"
    assert found["text"] == "an epoch took 6.00 s instead of 3.00 s: 3.00 s more on sending rows"
    event = run.switch(4, 0.5)
    assert (event["from"], event["to"]) == ("dnp", "gdp")
    take(run, 3.5, Seconds(compute=3.5))
    assert run.judge(9) == {"text": None, "strategy": None}
    record = run.record()
    assert record["strategy"] == "gdp"
    assert record["estimated_epoch_seconds"]["total"] == 3.5
    assert record["measured_epoch_seconds"]["total"] == 3.5
    assert [switch["epoch"] for switch in record["switches"]] == [4]


def test_what_is_dearer_for_all_changes_nothing():
    """The machine is busy with something else: everything takes twice as long, whatever the strategy."""
    run = following(gdp=Seconds(compute=2.0), dnp=Seconds(exchange=0.2, compute=2.1))
    take(run, 4.0, Seconds(compute=4.0))
    found = run.judge(100)
    assert found["text"] is not None
    assert found["strategy"] is None
    take(run, 4.1, Seconds(compute=4.1))
    assert run.judge(99)["text"] is None  # it is expected by now


@pytest.mark.parametrize(("epochs", "to"), [(4, None), (5, "gdp")])
def test_what_is_left_must_be_worth_it(epochs, to):
    run = following(dnp=Seconds(exchange=1.0, compute=2.0), gdp=Seconds(compute=3.5))
    take(run, 6.0, Seconds(exchange=4.0, compute=2.0))
    assert run.judge(epochs)["strategy"] == to


def test_a_change_must_be_worth_what_it_costs():
    """Four seconds an epoch are to be gained, and to begin takes about one epoch, of thirty."""
    for epochs, to in ((7, None), (8, "gdp")):
        run = following(dnp=Seconds(exchange=1.0, compute=20.0), gdp=Seconds(compute=26.0))
        take(run, 30.0, Seconds(exchange=10.0, compute=20.0))
        assert run.judge(epochs)["strategy"] == to


def test_a_short_epoch_may_be_warming_up():
    run = following(dnp=Seconds(exchange=0.1, compute=0.2), gdp=Seconds(compute=0.35))
    take(run, 1.5, Seconds(exchange=1.0, compute=0.5))
    assert run.judge(1000)["text"] is None
    take(run, 0.6, Seconds(exchange=0.4, compute=0.2))
    assert run.judge(1000)["strategy"] == "gdp"


def test_one_slow_epoch_is_no_reason():
    run = following(dnp=Seconds(exchange=1.0, compute=2.0), gdp=Seconds(compute=3.5))
    take(run, 3.0, Seconds(exchange=1.0, compute=2.0))
    take(run, 6.0, Seconds(exchange=4.0, compute=2.0))
    assert run.judge(100)["text"] is None
    take(run, 6.0, Seconds(exchange=4.0, compute=2.0))
    assert run.judge(100)["strategy"] == "gdp"


def test_a_tenth_is_the_least_gain():
    run = following(dnp=Seconds(exchange=1.0, compute=2.0), gdp=Seconds(compute=3.65))
    take(run, 4.0, Seconds(exchange=2.0, compute=2.0))
    assert run.judge(1000)["strategy"] is None


def test_before_an_epoch_there_is_nothing_to_say():
    run = following(gdp=Seconds(compute=2.0))
    assert run.judge(5) == {"text": None, "strategy": None}
    assert "measured_epoch_seconds" not in run.record()


def test_a_run_does_not_change_to_another_model():
    """Isolated training was allowed, and lost; it is not taken later, when the state of the model is another's."""
    run = following(dnp=Seconds(exchange=1.0, compute=2.0), gdp=Seconds(compute=3.5))
    isolated = Candidate("grappa", "grappa", Seconds(compute=3.1), settings={"views": "tournament"})
    run.plan = replace(run.plan, candidates=(*run.plan.candidates, isolated))
    take(run, 6.0, Seconds(exchange=4.0, compute=2.0))
    assert run.judge(10)["strategy"] == "gdp"


def test_a_short_run_knows_its_total_only():
    run = following(gdp=Seconds(compute=2.0))
    run.plan = replace(run.plan, sampled_steps=0)
    take(run, 9.0, Seconds(sample=4.0, compute=5.0))
    assert run.judge(10) == {"text": None, "strategy": None}
    record = run.record()
    assert record["estimated_epoch_seconds"] == {"total": 2.0}
    assert record["measured_epoch_seconds"]["sample"] == 4.0


def test_busy_seconds_by_stage():
    spans = {"sample": {"seconds": 3.0}, "load": {"seconds": 2.0}}
    trainer = {"forward": 4.0, "backward": 5.0, "optimizer": 0.5, "sum_gradients": 0.25, "settle": 0.125, "evaluate": 9}
    sent = {**NOTHING_SENT, "ids": 0.5, "features": 0.75, "forward": 1.0, "backward": 1.5, "gradients": 0.2}
    found = stage_seconds(spans, trainer, sent)
    assert found == Seconds(sample=2.5, exchange=3.75, load=1.25, compute=7.0, gradients=0.375)
    without = stage_seconds({"sample": {"seconds": 3.0}}, trainer, sent)
    assert (without.sample, without.load) == (1.75, 0.0)
