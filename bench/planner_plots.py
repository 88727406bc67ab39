"""Pictures of what bench/planner.py has measured: estimated against measured time, and the time of every strategy.

python bench/planner_plots.py docs/planner_measured.csv docs/images
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner import STRATEGIES, key_of
from rows import read_rows

COLORS = dict(zip(STRATEGIES, ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd"), strict=True))
OTHER = "#555555"
SIZE, EDGE = 460, 60
MOST = 8.0
"""Times of the best, at most; what takes longer is drawn at the edge."""


def scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    """A logarithmic axis."""
    return lambda value: begin + (end - begin) * math.log(value / low) / math.log(high / low)


def document(width: float, height: float, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
    return "\n".join([head + 'font-size="12"><rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, more: str = 'stroke="#ddd"') -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def legend(x: float, y: float) -> list[str]:
    parts = []
    for number, (name, color) in enumerate([*COLORS.items(), ("a list", OTHER)]):
        parts.append(f'<circle cx="{x + 70 * number:.1f}" cy="{y - 4}" r="4" fill="{color}"/>')
        parts.append(text(x + 70 * number + 8, y, name, "start"))
    return parts


def against(rows: list[dict[str, Any]]) -> str:
    """Estimated against measured seconds of an epoch; full marks were tried out, hollow ones were not."""
    pairs = [(float(row["measured_seconds"]), float(row["estimated_seconds"]), row) for row in rows]
    low, high = min(min(pair[:2]) for pair in pairs) / 1.3, max(max(pair[:2]) for pair in pairs) * 1.3
    x, y = scale(low, high, EDGE, SIZE), scale(low, high, SIZE, EDGE)
    parts = []
    for tick in (a * 10.0**n for n in range(-3, 4) for a in (1, 2, 5)):
        if low < tick < high:
            parts += [line(x(tick), EDGE, x(tick), SIZE), line(EDGE, y(tick), SIZE, y(tick))]
            parts += [text(x(tick), SIZE + 16, f"{tick:g}"), text(EDGE - 6, y(tick) + 4, f"{tick:g}", "end")]
    for factor, style in ((1.0, 'stroke="#333"'), (1.15, 'stroke="#999" stroke-dasharray="4"')):
        for times in {factor, 1 / factor}:
            begin, end = max(low, low / times), min(high, high / times)
            parts.append(line(x(begin), y(begin * times), x(end), y(end * times), style))
    for measured, estimated, row in pairs:
        color = COLORS.get(row["strategy"], OTHER)
        fill = color if row["tried_steps"] != "0" else "none"
        parts.append(
            f'<circle cx="{x(measured):.1f}" cy="{y(estimated):.1f}" r="3.5" fill="{fill}" stroke="{color}" '
            f'fill-opacity="0.6"><title>{row["strategy"]}: {", ".join(key_of(row))}</title></circle>'
        )
    middle = (EDGE + SIZE) / 2
    parts += [
        text(middle, SIZE + 36, "measured seconds of an epoch"),
        text(18, middle, "estimated seconds of an epoch", more=f'transform="rotate(-90 18 {middle})"'),
        text(middle, 20, "full: tried out; hollow: not; dashed: 15 % off"),
        *legend(EDGE, 42),
    ]
    return document(SIZE + 20, SIZE + 50, parts)


def spread(rows: list[dict[str, Any]]) -> str:
    """What every strategy takes in every cell, as a multiple of the fastest; a ring around the planner's pick."""
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault(key_of(row), []).append(row)
    left, width, step = 330, 900, 15
    x, height = scale(0.97, MOST, left, width - 20), 80 + step * len(cells)
    parts = legend(left, 42)
    parts.append(text(left, 20, "epoch time, times the fastest; ring: the planner's pick; italics: held out", "start"))
    for tick in (1, 1.05, 1.3, 2, 3, 5, MOST):
        parts += [line(x(tick), 56, x(tick), height - 24), text(x(tick), height - 8, f"{tick:g}")]
    for number, (key, found) in enumerate(sorted(cells.items())):
        y = 68 + step * number
        best = min(float(row["measured_seconds"]) for row in found)
        style = 'font-size="11"' + (' font-style="italic"' if found[0]["held_out"] == "1" else "")
        parts.append(text(left - 8, y + 4, " ".join(key), "end", style))
        for row in found:
            at = x(min(MOST, float(row["measured_seconds"]) / best))
            color = COLORS.get(row["strategy"], OTHER)
            parts.append(f'<circle cx="{at:.1f}" cy="{y}" r="4" fill="{color}" fill-opacity="0.75"/>')
            if row["rank"] == "0":
                parts.append(f'<circle cx="{at:.1f}" cy="{y}" r="6.5" fill="none" stroke="black"/>')
    return document(width, height, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    rows = [row for row in read_rows(options.measured) if row["measured_seconds"]]
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "planner_estimates.svg").write_text(against(rows))
    (options.folder / "planner_times.svg").write_text(spread(rows))


if __name__ == "__main__":
    main()
