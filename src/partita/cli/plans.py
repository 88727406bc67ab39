"""``plan``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.options import config_options, with_options
from partita.cli.shell import print_table, shown

_PLAN_HELP = """Measure this machine, and say which strategy trains fastest on it, and why.

All strategies reach the same model. Some steps are sampled once, without training; from them follows what every worker
would compute and send with each strategy. What that takes is measured with all workers busy.

Examples:

    partita plan graph2 --workers 2

    partita plan graph2 --workers 2 --model gat --hidden 512

    partita plan graph2 --workers 2 --json --out plan.json
"""
_SHOWN = 12

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]


def plan(
    store: Annotated[Path, typer.Argument(help="The graph store to train on, in a part for each worker.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the plan to this file, as JSON.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file of settings; options win over it.")] = None,
    json: Json = False,
    **settings: Any,
) -> None:
    """Plan."""
    import json as encoder
    import sys

    from partita.config import Config
    from partita.plan.explain import why
    from partita.plan.search import make_plan
    from partita.runs.folder import write_text

    parsed = Config.load(config, settings) if config is not None else Config.make(settings, where="command line")
    with shown(quiet=json):
        found = make_plan(store, parsed).to_json()
    if out is not None:
        write_text(out, encoder.dumps(found, indent=1) + "\n")
    if json:
        sys.stdout.write(encoder.dumps(found) + "\n")
        return
    from partita.report.terminal import plan_tables

    for table in plan_tables(found, most=_SHOWN):
        print_table(table)
    typer.echo(why(found))
    typer.echo(f"Next: partita train {store} --out run --workers {parsed.workers} --strategy {_best(found)}")


def _best(found: Mapping[str, Any]) -> str:
    return str(found["candidates"][0]["name"])


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    parameters = [one for one in config_options() if one.name not in ("strategy", "preset")]
    app.command(help=_PLAN_HELP)(with_options(plan, parameters))
