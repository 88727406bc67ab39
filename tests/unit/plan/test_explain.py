"""The reason for a choice, in words."""

from __future__ import annotations

from dataclasses import replace

from partita.core.plan import Candidate, Plan, Seconds
from partita.plan.explain import show_seconds, why

SPENT = {"sample": 1.0, "exchange": 0.0, "load": 0.0, "compute": 2.0, "gradients": 0.1}


def candidate(name: str, **seconds: float) -> Candidate:
    return Candidate(name, name, Seconds(**{**SPENT, **seconds}))


def plan(*candidates: Candidate, sampled: int = 3, workers: int = 2) -> Plan:
    return Plan(candidates, {}, 10, sampled, {"workers": workers})


def test_the_reason_is_the_difference():
    text = why(plan(candidate("gdp"), candidate("dnp", exchange=2.0, compute=1.0)))
    assert text.startswith(
        "gdp is the fastest: dnp, the next, would spend 2.00 s more on sending rows, and 1.00 s less"
    )
    assert text.endswith("dnp would be fastest if sending rows were 2.0x as fast.")


def test_several_reasons():
    text = why(plan(candidate("gdp"), candidate("nfp", sample=2.0, exchange=2.0, load=3.0)))
    assert "1.00 s more on sampling, 2.00 s more on sending rows and 3.00 s more on reading rows." in text


def test_what_would_have_to_change_is_always_said():
    text = why(plan(candidate("gdp"), candidate("dnp", exchange=20.0, compute=1.0)))
    assert text.endswith("dnp would be fastest if sending rows were more than 10x as fast.")
    text = why(plan(candidate("gdp"), candidate("dnp", sample=2.0, exchange=1.0, compute=1.5)))
    assert text.endswith("dnp would be fastest if sampling and sending rows were 4.0x as fast.")
    text = why(plan(candidate("gdp"), candidate("nfp", exchange=2.0)))
    assert text.endswith("nfp is faster in no stage, so no faster link or processor would make it the fastest.")


def test_next_to_nothing():
    assert "equally fast, within 2%" in why(plan(candidate("gdp"), candidate("snp", sample=1.01)))


def test_what_is_hardly_faster():
    text = why(plan(candidate("gdp", compute=2.1), candidate("dnp")))
    assert text == "dnp seems 3% faster, within the precision of trials, and gdp sends less."


def test_nothing_to_choose():
    assert "only strategy" in why(plan(candidate("gdp")))
    assert "one worker" in why(plan(candidate("gdp"), workers=1))
    assert "too short" in why(plan(candidate("gdp"), sampled=0))


def test_times_as_people_read_them():
    assert [show_seconds(each) for each in (12.34, 1.234, 0.0123)] == ["12.3 s", "1.23 s", "12.3 ms"]


def test_another_model():
    grappa = replace(candidate("grappa"), settings={"views": "tournament"})
    text = why(plan(grappa, candidate("gdp", compute=3.0)))
    assert text == (
        "grappa is the fastest, but approximate (results differ from single-process training). gdp, the fastest exact "
        "strategy, takes 4.10 s per epoch."
    )
