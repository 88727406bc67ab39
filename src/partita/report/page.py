"""One HTML page about runs and stores, with all that it needs in itself: nothing is loaded from anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from partita.core.errors import ConfigError
from partita.core.files import require_parent, write_text
from partita.report import figures, tables
from partita.report.figures import Figure
from partita.report.records import RunFiles, read_runs
from partita.report.tables import Table

Block = Figure | Table


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    partitions: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write a page about runs, side by side, and about the parts of stores.

    The page holds its plots, the program that draws them, and its style; it needs no network. It follows the reader's
    choice of light or dark, and can be printed.

    Args:
        runs: run folders, of one task.
        out: the HTML file to write; replaced where it exists.
        partitions: what :meth:`partita.partitioning.quality.Quality.to_json` says of stores, by their names.

    Returns:
        ``out``.

    Raises:
        RunError: a folder is not one of a run, cannot be read, or no epoch has ended in it.
        ConfigError: there is nothing to report, runs have different tasks, or plotly is not installed.
    """
    out, partitions = Path(out), partitions or {}
    if not runs and not partitions:
        raise ConfigError("neither a run nor a store", where="report", fix="Name at least one")
    require_parent(out)
    found = read_runs(runs)
    pairs = [(tables.quality(name, of), figures.parts(name, of)) for name, of in partitions.items()]
    sections = [*_of_runs(found), ("Partitions", [block for pair in pairs for block in pair])]
    title = ", ".join([*(run.name for run in found), *partitions])
    write_text(out, _page(title, [(name, blocks) for name, blocks in sections if blocks]))
    return out


def _of_runs(runs: Sequence[RunFiles]) -> Iterable[tuple[str, list[Block]]]:
    if not runs:
        return

    def each(*makes: Callable[[RunFiles], Block | Sequence[Block] | None]) -> list[Block]:
        """What is shown of every run by itself, with its name where there are several."""
        found = []
        for run in runs:
            for made in (make(run) for make in makes):
                blocks = made if isinstance(made, Sequence) else [made]
                found += [_named(block, run.name if len(runs) > 1 else "") for block in blocks if block is not None]
        return found

    yield "Summary", _there(tables.summary(runs), tables.differences(runs))
    yield "Learning", [*figures.curves(runs), *tables.classes(runs)]
    yield "Time", [*_there(figures.stages(runs), tables.ahead(runs)), *each(figures.timeline)]
    yield "Plan", each(figures.planned, tables.candidates)
    yield "Computation and communication", [*each(tables.placements, figures.work), *_there(figures.traffic(runs))]
    yield "Memory", _there(figures.memory(runs))
    yield "Settings and machine", [tables.machine(runs), *each(tables.notes, tables.settings)]


def _named(block: Block, name: str) -> Block:
    return replace(block, title=f"{block.title}: {name}") if name else block


def _there(*blocks: Block | None) -> list[Block]:
    return [block for block in blocks if block is not None]


def _page(title: str, sections: Sequence[tuple[str, Sequence[Block]]]) -> str:
    plots: list[dict[str, Any]] = []
    body, links = list[str](), list[str]()
    for number, (name, blocks) in enumerate(sections):
        shown = "\n".join(_plot(each, plots) if isinstance(each, Figure) else _table(each) for each in blocks)
        body.append(f'<section id="s{number}"><h2>{escape(name)}</h2>\n<div class="blocks">{shown}</div></section>')
        links.append(f'<a href="#s{number}">{escape(name)}</a>')
    made = f"Partita {metadata.version('partita')}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    assets = resources.files("partita.report")
    parts = {
        "TITLE": escape(title),
        "MADE": made,
        "STYLE": (assets / "page.css").read_text(encoding="utf-8"),
        "LINKS": " ".join(links),
        "BODY": "\n".join(body),
        # Inside a script element only "</" could end it.
        "FIGURES": json.dumps(plots).replace("</", "<\\/"),
        "PLOTLY": _plotly() if plots else "",
        "SCRIPT": (assets / "page.js").read_text(encoding="utf-8"),
    }
    page = (assets / "page.html").read_text(encoding="utf-8")
    # Split first: what is put in may contain what looks like a place for something else.
    pieces = page.split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _plot(figure: Figure, plots: list[dict[str, Any]]) -> str:
    number = len(plots)
    plots.append({"data": figure.data, "layout": {"height": figure.height, **figure.layout}})
    return (
        f'<figure><figcaption>{escape(figure.title)}</figcaption><p class="note">{escape(figure.note)}</p>'
        f'<div class="plot" id="p{number}" style="min-height:{figure.height}px"></div></figure>'
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(
        "<tr>" + f"<th>{escape(row[0])}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.rows
    )
    title = f"<figcaption>{escape(table.title)}</figcaption>" if table.title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    style = "scroll long" if table.long else "scroll"
    return (
        f'<figure>{title}{note}<div class="{style}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></figure>"
    )


def _plotly() -> str:
    """The program that draws plots.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError(
            "plotly, which draws the plots, is not installed",
            where="report",
            fix="Install it with: pip install 'partita[report]'",
        ) from None
    return str(get_plotlyjs()).replace("</script", "<\\/script")
