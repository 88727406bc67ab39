"""``measure``, ``plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.options import Json, Trust, config_options, with_options
from partita.cli.shell import print_table, say, shown, tell

_PLAN_HELP = """Measure this machine, and say which strategy trains fastest on it, and why.

All strategies reach the same model. Some steps are sampled once, without training; from them follows what every worker
would compute and send with each strategy. What that takes is measured with all workers busy.

Examples:

    partita plan graph2 --workers 2

    partita plan graph2 --workers 2 --model gat --hidden 512

    partita plan graph2 --workers 2 --json --out plan.json

    partita plan graph8 --hosts 2 --workers 4 --links links.json

    partita plan graph8 --hosts 2 --workers 4 --links links.json --shards

    partita plan graph64 --hosts 8 --workers 8 --machine examples/machines/p3.16xlarge.yaml
"""
_MEASURE_HELP = """Measure how fast workers exchange rows and sum tensors, and keep it for plans.

Under torchrun on several hosts, what goes between the hosts is measured too.

Examples:

    partita measure --workers 2

    partita measure --workers 2 --out links.json

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint host1:29400 --no-python partita measure --out links.json
"""


def plan(
    store: Annotated[Path, typer.Argument(help="The graph store to train on, with one part per worker.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the plan to this file, as JSON.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML file of settings; options take precedence.")
    ] = None,
    hosts: Annotated[
        int, typer.Option("--hosts", min=1, max=2**12, help="Number of hosts, with --workers on each.")
    ] = 1,
    links: Annotated[
        Path | None, typer.Option("--links", help="Link measurements (partita measure --out), also of other machines.")
    ] = None,
    shards: Annotated[
        bool, typer.Option("--shards", help="Hosts hold shards (partita shard) instead of the whole store.")
    ] = False,
    machine: Annotated[
        Path | None,
        typer.Option("--machine", help="YAML file that describes the machine to plan for; nothing is measured here."),
    ] = None,
    trust: Trust = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all strategies, not only those with a name.")] = False,
    json: Json = False,
    **settings: Any,
) -> None:
    """Plan."""
    import json as encoder
    import sys

    from partita.config import Config
    from partita.core.files import require_parent, write_text
    from partita.core.plan import Plan
    from partita.plan.explain import why
    from partita.plan.links import Links

    notes = list[str]()
    if config is not None:
        parsed = Config.load(config, settings, notes=notes, trust=trust)
    else:
        parsed = Config.make(settings, where="command line")
    say(notes)
    if out is not None:
        require_parent(out)
    given = None if links is None else Links.load(links)
    with shown(quiet=json):
        found = _plan(store, parsed, hosts, given, shards, machine, quiet=json)
    if found is None:  # the first process of a torchrun shows it
        return
    if out is not None:
        write_text(out, encoder.dumps(found, indent=1) + "\n")
    if json:
        sys.stdout.write(encoder.dumps(found) + "\n")
        return
    from partita.report.terminal import plan_tables

    made = Plan.from_json(found)
    tell(f"{why(made)}\n")
    for table in plan_tables(made, most=len(made.candidates) if everything else 1):
        print_table(table)
    if given is not None and not given.is_of_here:
        system, cores = given.machine.get("system"), given.machine.get("cores")
        made_on = f"{system}, {cores} cores, {given.date}"
        tell(f"Note: the link measurements come from another machine, or are old: {made_on}.")
    if hosts == 1 and machine is None:
        said = [f"--config {config}"] if config is not None else []
        said += [_as_option(name, value) for name, value in settings.items() if value is not None]
        tell(f"Next: partita train {store} --out run {' '.join(said)} --strategy {made.best.name}")


def _as_option(name: str, value: Any) -> str:
    """As one writes it in a shell."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {value}"


def _plan(
    store: Path, config: Any, hosts: int, links: Any, shards: bool, machine: Path | None, *, quiet: bool
) -> dict[str, Any] | None:
    import os
    import sys

    from partita.comm.launch import launch
    from partita.comm.local import workers_ready
    from partita.train.planning import check_choice
    from partita.train.purposes import PURPOSES

    check_choice(config)
    if links is not None or hosts > 1 or shards or machine is not None:
        from partita.train.planning import make_plan

        return make_plan(store, config, hosts=hosts, links=links, shards=shards, machine=machine).to_json()
    arguments = {"store": str(store), "config": config.model_dump(mode="json"), "quiet": quiet}
    if "RANK" in os.environ or config.workers == 1:
        return plan_worker(None, **arguments)
    with workers_ready("partita.train.planning"):
        return launch(
            "partita.cli.plans:plan_worker", config.workers, arguments={**arguments, "terminal": sys.stderr.isatty()},
            threads=config.threads, device=config.device, purposes=PURPOSES,
        )  # fmt: skip


def plan_worker(
    context: Any, *, store: str, config: dict[str, Any], quiet: bool, terminal: bool | None = None
) -> dict[str, Any] | None:
    """Plan in this process, as one of several workers or alone.

    Args:
        context: of this worker; ``None``: see :class:`partita.Trainer`.
        store: path of the store.
        config: the settings.
        quiet: show nothing.
        terminal: whether standard error is shown on a terminal; ``None``: found out.

    Returns:
        The plan, on the first worker.
    """
    import os

    from partita.train.planning import plan_on_worker

    leads = context.mesh.rank == 0 if context is not None else int(os.environ.get("RANK", "0")) == 0
    with shown(quiet=quiet or not leads, terminal=terminal):
        found = plan_on_worker(context, store=store, config=config)
    return found if leads else None


def measure(
    *,
    workers: Annotated[int, typer.Option("--workers", min=2, max=2**12, help="Processes on this machine.")] = 2,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write (default: where partita plan looks for it).")
    ] = None,
    json: Json = False,
) -> None:
    """Measure."""
    import os
    import sys

    from partita.comm.context import Context
    from partita.comm.launch import launch
    from partita.plan.links import Links, links_file, links_on_worker

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
            values = launch("partita.plan.links:links_on_worker", workers)
    found = Links.from_json(values)
    path = out or links_file(found.hosts, found.workers)
    found.save(path)
    if json:
        import json as encoder

        sys.stdout.write(encoder.dumps(values) + "\n")
        return
    from partita.report.terminal import links_table

    print_table(links_table(values))
    tell(f"Kept in {path}")


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    parameters = [one for one in config_options() if one.name not in ("strategy", "preset")]
    app.command(help=_MEASURE_HELP)(measure)
    app.command(help=_PLAN_HELP)(with_options(plan, parameters))
