"""``measure``, ``plan``."""

from __future__ import annotations

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

    partita plan graph8 --hosts 2 --workers 4 --links links.json
"""
_MEASURE_HELP = """Measure how fast workers exchange rows and sum tensors, and keep it for plans.

Under torchrun on several hosts, what goes between the hosts is measured too.

Examples:

    partita measure --workers 2

    partita measure --workers 2 --out links.json

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint host1:29400 --no-python partita measure --out links.json
"""
_SHOWN = 12

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]


def plan(
    store: Annotated[Path, typer.Argument(help="The graph store to train on, in a part for each worker.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the plan to this file, as JSON.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file of settings; options win over it.")] = None,
    hosts: Annotated[int, typer.Option("--hosts", min=1, help="Hosts, with --workers on each of them.")] = 1,
    links: Annotated[
        Path | None, typer.Option("--links", help="File of partita measure, possibly of other machines.")
    ] = None,
    json: Json = False,
    **settings: Any,
) -> None:
    """Plan."""
    import json as encoder
    import sys

    from partita.config import Config
    from partita.plan.explain import why
    from partita.plan.links import Links
    from partita.plan.search import make_plan
    from partita.runs.folder import write_text

    parsed = Config.load(config, settings) if config is not None else Config.make(settings, where="command line")
    with shown(quiet=json):
        given = None if links is None else Links.load(links)
        found = make_plan(store, parsed, hosts=hosts, links=given).to_json()
    if out is not None:
        write_text(out, encoder.dumps(found, indent=1) + "\n")
    if json:
        sys.stdout.write(encoder.dumps(found) + "\n")
        return
    from partita.report.terminal import plan_tables

    for table in plan_tables(found, most=_SHOWN):
        print_table(table)
    typer.echo(why(found))
    if given is not None and not given.is_of_here:
        system, cores = given.machine.get("system"), given.machine.get("cores")
        typer.echo(f"Links were measured elsewhere, or long ago: {system}, {cores} cores, {given.date}.")
    if hosts == 1:
        best = found["candidates"][0]["name"]
        typer.echo(f"Next: partita train {store} --out run --workers {parsed.workers} --strategy {best}")


def measure(
    *,
    workers: Annotated[int, typer.Option("--workers", min=2, help="Processes on this machine.")] = 2,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: where plans look for it.")] = None,
    json: Json = False,
) -> None:
    """Measure."""
    import os
    import sys

    from partita.comm.context import Context
    from partita.comm.launch import launch
    from partita.plan.links import Links, links_file
    from partita.plan.measure import links_on_worker

    with shown(quiet=json):
        if "RANK" in os.environ:  # by torchrun, one process a worker
            context = Context.from_environment()
            assert context is not None
            values = links_on_worker(context)
            leads = context.mesh.rank == 0
            context.close()
            if not leads:
                return
        else:
            values = launch("partita.plan.measure:links_on_worker", workers)
    found = Links.from_json(values)
    path = out or links_file(found.hosts, found.workers)
    found.save(path)
    if json:
        import json as encoder

        sys.stdout.write(encoder.dumps(values) + "\n")
        return
    from partita.report.terminal import links_table

    print_table(links_table(values))
    typer.echo(f"Kept in {path}")


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    parameters = [one for one in config_options() if one.name not in ("strategy", "preset")]
    app.command(help=_MEASURE_HELP)(measure)
    app.command(help=_PLAN_HELP)(with_options(plan, parameters))
