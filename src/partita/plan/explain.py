"""Says in words why the fastest strategy is the fastest, and what would change that."""

from __future__ import annotations

from partita.core.plan import STAGES, Plan

_WORTH_SAYING = 0.02  # of an epoch
_MORE = 1.001  # than equal, up to rounding
_LIKELY = 10.0
"""Larger factors than this are not told apart."""


def why(plan: Plan) -> str:
    """One sentence or two on the first candidate and the second."""
    best, *others = plan.candidates
    if plan.made_for.get("workers") == 1:
        return "one worker computes everything, so there is nothing to choose."
    if plan.sampled_steps == 0:
        return "run too short to benchmark strategies."
    if not others:
        return f"{best.name} is the only strategy that can be used."
    if not best.exact:
        exact = next((each for each in others if each.exact), None)
        text = f"{best.name} is the fastest, but approximate (results differ from single-process training)"
        if exact is not None:
            text += f". {exact.name}, the fastest exact strategy, takes {show_seconds(exact.epoch.total)} per epoch"
        return f"{text}."
    second = others[0]
    if second.epoch.total < best.epoch.total:
        less = 1 - second.epoch.total / best.epoch.total
        of = "trials" if plan.machine is None else "estimates"
        return f"{second.name} seems {less:.0%} faster, within the precision of {of}, and {best.name} sends less."
    spent, other = best.epoch.to_json(), second.epoch.to_json()
    lost = second.epoch.total - best.epoch.total
    more = {name: other[name] - spent[name] for name in STAGES}
    least = _WORTH_SAYING * best.epoch.total
    losses = [f"{show_seconds(more[name])} more on {text}" for name, text in STAGES.items() if more[name] > least]
    gains = [f"{show_seconds(-more[name])} less on {text}" for name, text in STAGES.items() if more[name] < -least]
    if not losses:
        return f"{best.name} and {second.name} are equally fast, within {_WORTH_SAYING:.0%}, so either may be faster."
    text = f"{best.name} is the fastest: {second.name}, the next, would spend {_listed(losses)}"
    text += f", and {_listed(gains)}." if gains else "."
    return f"{text} {_change(second.name, more, lost)}"


def _change(name: str, more: dict[str, float], lost: float) -> str:
    """What would have to be faster for the second strategy to win.

    Args:
        name: of the strategy.
        more: seconds that it takes more than the best one, by stage.
        lost: their sum, above 0.
    """
    stage = max(more, key=lambda stage: more[stage])
    if more[stage] > _MORE * lost:
        # With this stage k times as fast for both, the difference would be gone: lost = more (1 - 1/k).
        return f"{name} would be fastest if {STAGES[stage]} were {_factor(lost / more[stage])}x as fast."
    slower = {stage: spent for stage, spent in more.items() if spent > 0}
    if sum(slower.values()) > _MORE * lost:
        stages = _listed([STAGES[stage] for stage in slower])
        return f"{name} would be fastest if {stages} were {_factor(lost / sum(slower.values()))}x as fast."
    return f"{name} is faster in no stage, so no faster link or processor would make it the fastest."


def _factor(share: float) -> str:
    """How many times as fast something must be to take that share less."""
    factor = 1 / (1 - share)
    return f"more than {_LIKELY:.0f}" if factor > _LIKELY else f"{factor:.1f}"


def _listed(things: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(things[:-1]), things[-1]]))


def show_seconds(seconds: float) -> str:
    """A time as a person reads it."""
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
