"""Says in words why the fastest strategy is the fastest, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SPENT_ON = {
    "sample": "sampling",
    "exchange": "sending rows",
    "load": "reading rows",
    "compute": "computing",
    "gradients": "summing gradients",
}
_WORTH_SAYING = 0.02  # of an epoch


def why(plan: Mapping[str, Any]) -> str:
    """One sentence or two on the first candidate and the second.

    Args:
        plan: as :meth:`partita.plan.search.Plan.to_json` gives it.
    """
    best, *others = plan["candidates"]
    if not others:
        return f"{best['name']} is the only strategy that can be used."
    second = others[0]
    spent, other = best["epoch_seconds"], second["epoch_seconds"]
    lost = other["total"] - spent["total"]
    more = {name: other[name] - spent[name] for name in _SPENT_ON}
    least = _WORTH_SAYING * spent["total"]
    losses = [f"{_s(more[name])} more on {text}" for name, text in _SPENT_ON.items() if more[name] > least]
    gains = [f"{_s(-more[name])} less on {text}" for name, text in _SPENT_ON.items() if more[name] < -least]
    if not losses:
        return f"{best['name']} and {second['name']} take as long as each other, within {_WORTH_SAYING:.0%}."
    text = f"{best['name']} is the fastest: {second['name']}, the next, would spend {' and '.join(losses)}"
    text += f", and {' and '.join(gains)}." if gains else "."
    change = max(more, key=lambda name: more[name])
    if 0 < lost < other[change] and more[change] > lost:
        # With this part k times as fast for both, the difference would be gone: lost = more (1 - 1/k).
        factor = 1 / (1 - lost / more[change])
        text += f" With {_SPENT_ON[change]} {factor:.1f} times as fast, {second['name']} would be."
    return text


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
