"""Draws docs/images/strategies/*.svg: what every worker reads, computes and sends in the step of strategy_example.py.

Run it after the engine has changed: python docs/draw_strategies.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strategy_example import FANOUTS, FEATURES, KINDS, NODES, Share, check_traffic, owner, run

from partita.core.records import Counts
from partita.parallel.strategies import parse_strategy

IMAGES = Path(__file__).with_name("images") / "strategies"

PICTURES = {
    "one_process": ("gdp", 1, 1),
    "gdp": ("gdp", 2, 1),
    "nfp": ("nfp", 2, 1),
    "snp": ("snp", 2, 1),
    "dnp": ("dnp", 2, 1),
    "gsplit": ("gsplit", 2, 1),
    "mixed_list": ("by-owner,data,data", 2, 1),
    "mixed_hosts": ("data@hosts+gsplit@workers", 4, 2),
}
"""For each picture: the strategy, the number of workers, and of hosts."""

LEFT, PANEL, GAP, SLOT, RADIUS = 66, 326, 14, 26.5, 10.5
WIDTH = LEFT + 2 * PANEL + GAP + 8
LEVEL_Y = (250, 146, 56)
PART_Y = 204
PANEL_HEIGHT = 330
COLOURS = ("#2f6fbf", "#d9822b")
HALVES = ("#a9c8ec", "#f6cf9f")
PANELS = ("#f2f7fd", "#fef8f0")
TRAVEL = "#8b1a6b"
INK, GREY = "#1f2933", "#9aa5b1"


def picture(strategy: str, workers: int, hosts: int) -> str:
    """The SVG of one strategy."""
    shares = run(strategy, workers, hosts)
    pairs = max(1, workers // 2)
    top, legend = 64, 62
    height = top + pairs * (PANEL_HEIGHT + 12) + legend
    check_traffic(shares)
    name = "one process" if workers == 1 else strategy
    placed = parse_strategy(strategy, len(FANOUTS))
    how = f"input rows: {placed.inputs}, layer 1: {placed.placements[0]}, layer 2: {placed.placements[1]}"
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img" '
        f'aria-label="{name}: what every worker reads, computes and sends">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{TRAVEL}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(12, 24, name, size=17, weight="bold"),
        _text(
            WIDTH - 12,
            24,
            how if workers > 1 else "colors: the owner, among two workers",
            anchor="end",
            fill="#52606d",
        ),
        *_totals(shares),
    ]
    corners = [_corner(rank, top) for rank in range(workers)]
    for rank, share in enumerate(shares):
        text += _panel(share, rank, *corners[rank], workers, hosts)
    for rank, share in enumerate(shares):
        text += _arrows(share, rank, top)
    for rank, share in enumerate(shares):
        text += _rows(share, *corners[rank])
    text += _legend(height - legend + 16)
    return "\n".join([*text, "</svg>", ""])


def _totals(shares: Sequence[Share]) -> list[str]:
    """What all workers did, one number beside the other."""
    total = sum((share.counts for share in shares), Counts.zero(len(FANOUTS)))
    moved = sum(share.sent[kind] for share in shares for kind in KINDS)
    halved = shares[0].columns.stop < FEATURES
    numbers = (
        (sum(total.computed_destinations), "rows computed"),
        (total.input_rows_read, "half input rows read" if halved else "input rows read"),
        (total.sampled_edges, "edges drawn"),
        (moved, "bytes moved"),
    )
    text = []
    for place, (number, what) in enumerate(numbers):
        bold = f'<tspan font-weight="bold" font-size="15">{number}</tspan> {what}'
        text.append(_text(12 + 180 * place, 49, bold, size=12))
    return text


def _corner(rank: int, top: int) -> tuple[float, float]:
    return LEFT + (rank % 2) * (PANEL + GAP), top + (rank // 2) * (PANEL_HEIGHT + 12)


def _place(node: int) -> float:
    """Every node has the same place in every panel."""
    return 17 + node * SLOT


def _panel(share: Share, rank: int, x: float, y: float, workers: int, hosts: int) -> list[str]:
    me = rank % 2
    owns = f"owns {NODES[0]} to {NODES[-1]}" if workers == 1 else f"owns {('a to f', 'g to l')[me]}"
    host = f"host {rank // 2}, " if hosts > 1 else ""
    fill, stroke = ("#f4f6f8", "#cbd2d9") if workers == 1 else (PANELS[me], COLOURS[me])
    text = [
        f'<rect x="{x}" y="{y}" width="{PANEL}" height="{PANEL_HEIGHT}" rx="8" fill="{fill}" stroke="{stroke}"/>',
        _text(x + 12, y + 21, f"{host}worker {rank}", weight="bold", fill=INK if workers == 1 else COLOURS[me]),
        _text(x + PANEL - 12, y + 21, owns, anchor="end", fill="#52606d", size=11),
    ]
    if me == 0:
        for level, label in enumerate(("input", "layer 1", "layer 2")):
            text.append(_text(LEFT - 8, y + LEVEL_Y[level] + 4, label, anchor="end", size=11.5, fill="#52606d"))
            if level == 2:
                text.append(_text(LEFT - 8, y + LEVEL_Y[level] + 17, "(seeds)", anchor="end", size=10, fill="#52606d"))
    for level in range(1, len(share.levels)):
        for u, v, to_part in sorted(share.levels[level].edges):
            end = y + (PART_Y + 6 if to_part else LEVEL_Y[level] + RADIUS)
            dashed = ' stroke-dasharray="2 3"' if u == v else ""
            text.append(
                f'<line x1="{x + _place(u):g}" y1="{y + LEVEL_Y[level - 1] - RADIUS:g}" x2="{x + _place(v):g}" '
                f'y2="{end:g}" stroke="{GREY}" stroke-width="1.1"{dashed}/>'
            )
    return text + _counts(share, x, y)


def _rows(share: Share, x: float, y: float) -> list[str]:
    text = []
    for number, level in enumerate(share.levels):
        for node in sorted(level.made):
            text += _row(x + _place(node), y + LEVEL_Y[number], node, share.columns if number == 0 else None)
        for node, _ in sorted(level.got):
            text += _row(x + _place(node), y + LEVEL_Y[number], node, received=True)
        for node, _ in sorted(level.parts):
            text += _part(x + _place(node), y + PART_Y, node)
    return text


def _counts(share: Share, x: float, y: float) -> list[str]:
    first, second = share.counts.computed_destinations
    parts = sum(len(level.parts) for level in share.levels)
    partial = f", {parts} partial" if parts else ""
    columns = share.columns.stop - share.columns.start
    half = f" ({columns} of {FEATURES} columns)" if columns < FEATURES else ""
    lines = (
        f"computes {second} + {first} rows{partial}; draws {share.counts.sampled_edges} edges",
        f"reads {share.counts.input_rows_read} input rows{half}",
        f"sends {sum(share.sent[kind] for kind in KINDS)} bytes",
    )
    return [_text(x + 12, y + 284 + 17 * line, words, size=11.5) for line, words in enumerate(lines)]


def _arrows(share: Share, rank: int, top: int) -> list[str]:
    x, y = _corner(rank, top)
    text = []
    for number, level in enumerate(share.levels):
        for node, origin in sorted(level.got):
            start = _corner(origin, top)[0] + _place(node)
            end, row = x + _place(node), y + LEVEL_Y[number] - RADIUS
            rise = 19 if origin % 2 else 27  # one height for each direction
            text.append(
                _arrow(f"M{start:g},{row:g} C{start:g},{row - rise:g} {end:g},{row - rise:g} {end:g},{row - 1:g}")
            )
        for node, asker in sorted(level.parts):
            end = _corner(asker, top)[0] + _place(node) + (9 if asker % 2 == 0 else -9)
            text.append(_arrow(f"M{x + _place(node):g},{y + PART_Y:g} L{end:g},{y + LEVEL_Y[number] + 7:g}"))
    return text


def _arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{TRAVEL}" stroke-width="1.8" marker-end="url(#tip)"/>'


def _row(x: float, y: float, node: int, columns: slice | None = None, *, received: bool = False) -> list[str]:
    color = COLOURS[owner(node)]
    circle = f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS}"'
    if received:
        return [
            f'{circle} fill="#ffffff" stroke="{color}" stroke-width="1.6" stroke-dasharray="3 2"/>',
            _text(x, y + 4, NODES[node], anchor="middle", fill=color, weight="bold"),
        ]
    if columns is not None and columns.stop - columns.start < FEATURES:
        sweep = 0 if columns.start == 0 else 1
        return [
            f'{circle} fill="#ffffff" stroke="{color}" stroke-width="1.2"/>',
            f'<path d="M{x:g},{y - RADIUS:g} A{RADIUS},{RADIUS} 0 0 {sweep} {x:g},{y + RADIUS:g} z" '
            f'fill="{HALVES[owner(node)]}"/>',
            _text(x, y + 4, NODES[node], anchor="middle", weight="bold"),
        ]
    return [
        f'{circle} fill="{color}"/>',
        _text(x, y + 4, NODES[node], anchor="middle", fill="#ffffff", weight="bold"),
    ]


def _part(x: float, y: float, node: int) -> list[str]:
    return [
        f'<rect x="{x - 7:g}" y="{y - 7:g}" width="14" height="14" fill="#ffffff" stroke="{COLOURS[owner(node)]}" '
        'stroke-width="1.6"/>',
        _text(x, y + 4, NODES[node], anchor="middle", fill=COLOURS[owner(node)], size=11),
    ]


def _legend(y: float) -> list[str]:
    """What the signs mean, the same under every picture."""
    text = [*_row(24, y, 0), *_row(49, y, 6), _text(66, y + 4, "row computed or read here", size=11)]
    text += [_text(66, y + 17, "(color of its owner)", size=11)]
    text += [*_row(266, y, 8, received=True), _text(282, y + 4, "row received from its owner", size=11)]
    text += [*_part(488, y, 8), _text(502, y + 4, "partial row, for the other worker", size=11)]
    y += 28
    text += [_arrow(f"M234,{y:g} L276,{y:g}"), _text(282, y + 4, "row that travels", size=11)]
    text += [*_row(400, y, 0, slice(0, FEATURES // 2)), _text(416, y + 4, "half the columns", size=11)]
    line = f'<line x1="{{}}" y1="{y:g}" x2="{{}}" y2="{y:g}" stroke="{GREY}" stroke-width="1.4"{{}}/>'
    text += [line.format(526, 548, ""), _text(553, y + 4, "edge", size=11)]
    text += [line.format(590, 612, ' stroke-dasharray="2 3"'), _text(617, y + 4, "the node's own row", size=11)]
    return text


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: float = 12, weight: str = "normal", fill: str = INK
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}" font-weight="{weight}" '
        f'fill="{fill}">{words}</text>'
    )


def main() -> None:
    """Draw all pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, (strategy, workers, hosts) in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(picture(strategy, workers, hosts), encoding="utf-8")


if __name__ == "__main__":
    main()
