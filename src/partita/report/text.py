"""Names and numbers as reports write them."""

from __future__ import annotations

from partita.core.options import format_bytes

LOWER_IS_BETTER = frozenset({"loss", "mae", "rmse"})
"""Metrics of which less is better; of all others more is."""

OUTPUT_NOUNS = {"multilabel": "labels"}
"""What a task's outputs are, unless they are classes."""

IN_PERCENT = "accuracy"
"""The metric whose headline is in percent."""


def sentence(text: str) -> str:
    """With a capital letter at the beginning."""
    return text[:1].upper() + text[1:]


def count(number: int, noun: str) -> str:
    """``1, "part"`` -> ``1 part``; ``1200, "part"`` -> ``1,200 parts``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def score(value: float | None) -> str:
    """A metric: four decimals, of large values none."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"


def percent(value: float) -> str:
    """``0.9493`` -> ``94.9%``."""
    return f"{100 * value:.1f}%"


def duration(seconds: float | None) -> str:
    """``0.0217`` -> ``21.7 ms``; ``75`` -> ``1.2 min``."""
    if seconds is None:
        return "-"
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{1000 * seconds:.3g} ms"


def byte_count(value: float | None) -> str:
    """Bytes with their unit, or a dash."""
    return "-" if value is None else format_bytes(value)


def short_name(name: str, most: int = 22) -> str:
    """A name for an axis."""
    return name if len(name) <= most else name[: most - 1] + "…"
