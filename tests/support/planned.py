"""Runs that plan, in workers that are started once."""

from __future__ import annotations

from typing import Any

import torch

import partita
from partita.comm.context import Context
from partita.core.plan import Candidate, Plan, Seconds
from partita.nn.model import build_model
from partita.plan import choose
from partita.train import plan_monitor

WRONG = {"gdp": Seconds(compute=1e-7), "dnp": Seconds(exchange=2e-7), "gsplit": Seconds(load=3e-7)}
"""Seconds of an epoch, which are far from what any machine takes."""


def train_planned(context: Context, *, store: str, out: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train one run that plans whatever it takes, the same with the strategy found, and with wrong plans; and plan one
    for a model of one's own."""
    choose.SHORT_SECONDS, choose.TRIALS_SHARE = 0.0, 1e6
    plan_monitor.CHANGE_SECONDS = plan_monitor.WORTH_SECONDS = plan_monitor.LONG_SECONDS = 0.0
    planned = partita.Trainer(store, out=f"{out}/planned", context=context, **settings)
    found = planned.plan
    assert found is not None
    records = {"planned": planned.fit().record}
    named = partita.Trainer(store, out=f"{out}/named", context=context, **settings, strategy=found.best.name)
    records["named"] = named.fit().record
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
