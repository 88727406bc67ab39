"""Says in words why the fastest strategy is the fastest, and what would change that."""

from __future__ import annotations

from partita.core.plan import STAGES, Plan

_WORTH_SAYING = 0.02  # of an epoch
_LIKELY = 10.0
"""Nobody's links or processors become so many times as fast."""


def why(plan: Plan) -> str:
    """One sentence or two on the first candidate and the second."""
    best, *others = plan.candidates
    if plan.made_for.get("workers") == 1:
        return "one worker computes everything, so there is nothing to choose."
    if plan.sampled_steps == 0:
        return "the run is too short to compare others."
    if not others:
        return f"{best.name} is the only strategy that can be used."
    if not best.exact:
        exact = next((each for each in others if each.exact), None)
        text = f"{best.name} is the fastest, and trains another model than one process does"
        if exact is not None:
            text += f": {exact.name}, which does not, takes {show_seconds(exact.epoch.total)} an epoch"
        return f"{text}."
    second = others[0]
    if second.epoch.total < best.epoch.total:
        less = 1 - second.epoch.total / best.epoch.total
        return f"{second.name} seems {less:.0%} faster, which is too little to be sure of, and {best.name} sends less."
    spent, other = best.epoch.to_json(), second.epoch.to_json()
    lost = second.epoch.total - best.epoch.total
    more = {name: other[name] - spent[name] for name in STAGES}
    least = _WORTH_SAYING * best.epoch.total
    losses = [f"{show_seconds(more[name])} more on {text}" for name, text in STAGES.items() if more[name] > least]
    gains = [f"{show_seconds(-more[name])} less on {text}" for name, text in STAGES.items() if more[name] < -least]
    if not losses:
        return f"{best.name} and {second.name} take as long as each other, within {_WORTH_SAYING:.0%}."
    text = f"{best.name} is the fastest: {second.name}, the next, would spend {_listed(losses)}"
    text += f", and {_listed(gains)}." if gains else "."
    change = max(more, key=lambda name: more[name])
    if 0 < lost < other[change] and more[change] > lost:
        # With this part k times as fast for both, the difference would be gone: lost = more (1 - 1/k).
        factor = 1 / (1 - lost / more[change])
        if factor < _LIKELY:
            text += f" With {STAGES[change]} {factor:.1f} times as fast, {second.name} would be."
    return text


def _listed(things: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(things[:-1]), things[-1]]))


def show_seconds(seconds: float) -> str:
    """A time as a person reads it."""
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
