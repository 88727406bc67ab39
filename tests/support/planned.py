"""Runs that plan, in workers that are started once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import partita
from partita.comm.context import Context
from partita.core.plan import Candidate, Plan, Seconds
from partita.nn.model import build_model
from partita.plan import choose, kept
from partita.plan.kept import links_here
from partita.plan.links import Curve, Links, links_file, links_hold, measure_links
from partita.train import plan_monitor

WRONG = {"gdp": Seconds(compute=1e-7), "dnp": Seconds(exchange=2e-7), "gsplit": Seconds(load=3e-7)}
"""Seconds of an epoch, which are far from what any machine takes."""


def _planned_again(make: Callable[..., partita.Trainer], out: str) -> dict[str, Any] | None:
    """The plan of one more run like it, which measures and tries out nothing but links, which are as they were."""
    measure, hold, choose.measure_rates, choose.links_hold = choose.measure_rates, choose.links_hold, None, _always
    try:
        plan = make(out=f"{out}/again").plan
    finally:
        choose.measure_rates, choose.links_hold = measure, hold
    return None if plan is None else plan.to_json()


def _always(context: Context, links: Links, times: float) -> bool:
    """A busy machine may measure something else."""
    return True


def links_that_hold(context: Context) -> list[bool]:
    """Whether links are as they were measured; those that were 5,000 times as slow, and those between other workers."""
    found = measure_links(context, quick=True)
    slow = replace(found, send={name: _slowed(curve) for name, curve in found.send.items()})
    times = 50.0  # a busy machine is no other one
    return [links_hold(context, each, times) for each in (found, slow, replace(found, send={}))]


def links_found_again(context: Context) -> list[list[float]]:
    """Seconds of a message by what was measured now, by what is found afterwards, and by what is measured again after
    they were 5,000 times as slow."""
    kept.LINKS_HOLD_TIMES = 50.0  # a busy machine is no other one
    found = [links_here(context), links_here(context)]
    slow = replace(found[0], send={name: _slowed(curve) for name, curve in found[0].send.items()})
    context.agree(lambda: slow.save(links_file(context.mesh.hosts, context.mesh.workers, quick=True)))
    return [list(each.send["same_host"].seconds) for each in (*found, slow, links_here(context), links_here(context))]


def _slowed(curve: Curve) -> Curve:
    return Curve(curve.num_bytes, tuple(5000 * each for each in curve.seconds))


def train_planned(context: Context, *, store: str, out: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train one run that plans whatever it takes, the same with the strategy found, and with wrong plans; and plan one
    for a model of one's own."""
    choose.SHORT_SECONDS, choose.PLANNING_SHARE = 0.0, 1e6
    plan_monitor.CHANGE_SECONDS = plan_monitor.WORTH_SECONDS = plan_monitor.LONG_SECONDS = 0.0
    planned = partita.Trainer(store, out=f"{out}/planned", context=context, **settings)
    found = planned.plan
    assert found is not None
    records = {"planned": planned.fit().record}
    named = partita.Trainer(store, out=f"{out}/named", context=context, **settings, strategy=found.best.name)
    records["named"] = named.fit().record
    again = _planned_again(partial(partita.Trainer, store, context=context, **settings), out)
    assert again == found.to_json(), "such a run was planned before"
    candidates = tuple(Candidate(name, name, seconds) for name, seconds in WRONG.items())
    wrong = Plan(candidates, {}, found.steps, 1, found.made_for)
    for replan in ("auto", "never"):
        trainer = partita.Trainer(
            store, out=f"{out}/{replan}", context=context, plan=wrong, replan=replan, **settings
        )  # fmt: skip
        records[replan] = trainer.fit().record
    approximate = partita.Trainer(store, out=f"{out}/approximate", context=context, allow="approximate", **settings)
    records["approximate"] = approximate.fit().record
    assert approximate.plan is not None
    model = build_model("sage", in_width=7, hidden=16, out_width=planned.job.store.num_classes, layers=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    partita.Trainer(store, out=f"{out}/own", context=context, model=model, **settings)
    same = all(torch.equal(value, before[name].to(value.dtype)) for name, value in model.state_dict().items())
    plans = {"plan": found.to_json(), "approximate": approximate.plan.to_json()}
    return {**plans, "records": records, "own_model_is_as_it_was": same}


def train_at_times(context: Context, *, store: str, out: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a run on a graph with times that plans whatever it takes, the same with gdp, and with a wrong plan, which
    is made again."""
    choose.SHORT_SECONDS, choose.PLANNING_SHARE = 0.0, 1e6
    plan_monitor.CHANGE_SECONDS = plan_monitor.WORTH_SECONDS = plan_monitor.LONG_SECONDS = 0.0
    planned = partita.Trainer(store, out=f"{out}/planned", context=context, **settings)
    found = planned.plan
    assert found is not None
    records = {"planned": planned.fit().record}
    records["gdp"] = partita.Trainer(store, out=f"{out}/gdp", context=context, **settings, strategy="gdp").fit().record
    candidates = tuple(Candidate(name, name, seconds) for name, seconds in WRONG.items())
    wrong = Plan(candidates, {}, found.steps, 1, found.made_for)
    records["wrong"] = partita.Trainer(store, out=f"{out}/wrong", context=context, plan=wrong, **settings).fit().record
    return {"plan": found.to_json(), "records": records}
