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
from partita.report import answers, figures, link_answers, tables
from partita.report.cards import headline
from partita.report.figures import Figure
from partita.report.records import RunFiles, of_files, read_runs
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
    with of_files(runs):
        found = read_runs(runs)
        sections = [*_of_runs(found), ("Partitions", list(_of_stores(partitions)))]
        title = ", ".join([*(run.name for run in found), *partitions])
        numbers = {"runs": [_numbers(run) for run in found], "partitions": partitions}
        page = _page(title, _headlines(found), [(name, blocks) for name, blocks in sections if blocks], numbers)
    write_text(out, page)
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

    split = runs[0].shown_split
    if len(runs) > 1:
        yield "Comparison", _there(tables.summary(runs), tables.differences(runs))
    yield "Training", [*figures.curves(runs), *each(answers.metrics, link_answers.metrics)]
    yield (
        f"Predictions on {split} {runs[0].seed_noun}s",
        [
            *each(link_answers.ranks, link_answers.scores, link_answers.relations, link_answers.examples),
            *each(answers.confusion, answers.confused, answers.values),
            *tables.classes(runs),
            *each(answers.by_time, answers.by_degree, answers.by_homophily, answers.calibration, answers.curves_of_two),
        ],
    )
    yield "Embeddings", each(answers.embeddings)
    yield "Data", each(tables.node_types, tables.relations, answers.balance)
    yield "Time and memory", [
        *_there(figures.stages(runs), figures.memory(runs), tables.ahead(runs)),
        *each(tables.known_ahead, tables.edges_read, tables.learnt_ahead, figures.timeline),
    ]  # fmt: skip
    yield "Plan", each(figures.planned, tables.candidates)
    yield "Workers", [*each(tables.placements, figures.work), *_there(figures.traffic(runs))]
    alone = [tables.summary(runs)] if len(runs) == 1 else []
    yield "Settings and machine", [*alone, *each(tables.settings), tables.machine(runs), *each(tables.notes)]


def _of_stores(partitions: Mapping[str, Mapping[str, Any]]) -> Iterable[Block]:
    for name, quality in partitions.items():
        yield tables.quality(name, quality)
        if quality["num_parts"] > 1:
            yield figures.parts(name, quality)
            yield from _there(figures.between_parts(name, quality))


def _numbers(run: RunFiles) -> dict[str, Any]:
    """What the page shows of a run, to be downloaded."""
    analysis = dict(run.analysis)
    for split, of in analysis.get("splits", {}).items():
        if "map" in of:
            plane = [row[:2] for row in of["map"]["components"]]
            analysis["splits"] = {**analysis["splits"], split: {**of, "map": {**of["map"], "components": plane}}}
    return {
        "name": run.name, "run": run.record, "settings": run.settings, "epochs": run.epochs, "analysis": analysis
    }  # fmt: skip


MOST_HEADLINES = 6


def _headlines(runs: Sequence[RunFiles]) -> str:
    """Cards of every run; of many runs the table alone has them."""
    if len(runs) > MOST_HEADLINES:
        return ""
    rows = []
    for run in runs:
        cards = "".join(
            f'<div class="card {card.mood}"><span>{escape(card.label)}</span><strong>{escape(card.value)}</strong>'
            f"<small>{escape(card.note)}</small></div>"
            for card in headline(run)
        )
        name = f"<h3>{escape(run.name)}</h3>" if len(runs) > 1 else ""
        rows.append(f'{name}<div class="cards">{cards}</div>')
    return "\n".join(rows)


def _named(block: Block, name: str) -> Block:
    return replace(block, title=f"{block.title}: {name}") if name else block


def _there(*blocks: Block | None) -> list[Block]:
    return [block for block in blocks if block is not None]


def _page(
    title: str, headlines: str, sections: Sequence[tuple[str, Sequence[Block]]], numbers: Mapping[str, Any]
) -> str:
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
        "HEADLINES": headlines,
        "BODY": "\n".join(body),
        "FIGURES": _json(plots),
        "NUMBERS": _json(numbers),
        "PLOTLY": _plotly() if plots else "",
        "SCRIPT": (assets / "page.js").read_text(encoding="utf-8"),
    }
    page = (assets / "page.html").read_text(encoding="utf-8")
    # Split first: what is put in may contain what looks like a place for something else.
    pieces = page.split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _json(value: Any) -> str:
    """JSON for a script element, in which only ``</`` and ``<!--`` could do harm."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """Texts such that Plotly, which reads some HTML in them, shows them as they are; templates are ours."""
    if isinstance(value, str):
        return value.replace("&", "&amp;").replace("<", "&lt;")
    if isinstance(value, dict):
        return {name: each if name in _TEMPLATES else _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


_TEMPLATES = ("hovertemplate", "texttemplate")


def _plot(figure: Figure, plots: list[dict[str, Any]]) -> str:
    number = len(plots)
    plots.append(_plain({"data": figure.data, "layout": {"height": figure.height, **figure.layout}}))
    return (
        f'<figure><figcaption>{escape(figure.title)}</figcaption><p class="note">{escape(figure.note)}</p>'
        f'<div class="plot" id="p{number}" style="min-height:{figure.height}px"></div></figure>'
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join("<tr>" + f"<th>{escape(row[0])}</th>" + "".join(map(_cell, row[1:])) + "</tr>" for row in table.rows)
    title = f"<figcaption>{escape(table.title)}</figcaption>" if table.title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    style = "scroll long" if table.long else "scroll"
    return (
        f'<figure class="table">{title}{note}<div class="{style}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div><p class='cue'></p></figure>"
    )


def _cell(text: str) -> str:
    """A cell; a long text has a width of its own, and goes over several lines."""
    return f'<td class="text">{escape(text)}</td>' if len(text) > 28 else f"<td>{escape(text)}</td>"


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
