"""The verbs, in the order in which data passes through them."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from partita.cli import data, help, partitions, plans, reports, runs, split
from partita.cli.overview import COMPLETE


class UnexpectedEnd(Exception):
    """An ``EOFError`` of a command. Typer takes that for the end of a user's answers and says only "Aborted"."""


class _Verbs(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise UnexpectedEnd(*error.args) from error


app = typer.Typer(
    name="partita",
    cls=_Verbs,
    help="Trains graph neural networks on graphs too big or too slow for one device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _shared(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    # Both are handled before the commands are imported; completion has to know them.
    pass


data.register(app)
split.register(app)
partitions.register(app)
plans.register(app)
runs.register(app)
reports.register(app)
help.register(app)


def command() -> Any:
    """The command with all verbs, ready to be called with arguments."""
    from typer.main import get_command

    if COMPLETE in os.environ:
        from typer.completion import completion_init

        completion_init()
    found = get_command(app)
    _say_defaults(found)
    return found


def _say_defaults(command: Any) -> None:
    """Put every default into the help of its option."""
    for each in getattr(command, "commands", {}).values():
        _say_defaults(each)
    for option in command.params:
        default = option.default
        if not getattr(option, "show_default", False) or default is None or isinstance(default, bool):
            continue
        shown = option.show_default if isinstance(option.show_default, str) else default
        if getattr(option, "help", None) and "default" not in option.help.lower():
            option.help = f"{option.help} Default: {shown}."
        option.show_default = False
