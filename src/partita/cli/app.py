"""The verbs, in the order in which data passes through them."""

from __future__ import annotations

from typing import Annotated

import typer

from partita.cli import data, help, partitions, plans, reports, runs

app = typer.Typer(
    name="partita",
    help="Trains graph neural networks on graphs too big or too slow for one device.",
    epilog="Start with: partita generate sbm graph, then partita train graph --out run. "
    "Every verb has examples: partita help train",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import partita

        typer.echo(f"partita {partita.__version__}")
        raise typer.Exit


@app.callback()
def _shared(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    pass


data.register(app)
partitions.register(app)
plans.register(app)
runs.register(app)
reports.register(app)
help.register(app)
