"""``--help-all``, and ``completion``: a script for shells."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from partita.cli.overview import COMPLETE
from partita.core.options import OLD_NAMES

HELP_ALL = "help_all"
_COMPLETION_HELP = """Print a script that completes commands and options in your shell.

Examples:

    partita completion bash >> ~/.bashrc

    partita completion zsh >> ~/.zshrc

    partita completion fish > ~/.config/fish/completions/partita.fish
"""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print the script."""
    from typer.completion import completion_init, get_completion_script

    completion_init()
    typer.echo(get_completion_script(prog_name="partita", complete_var=COMPLETE, shell=shell))


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(help=_COMPLETION_HELP)(completion)


def help_all(context: typer.Context, wanted: bool) -> None:
    """Show the help with all options, those too that ``--help`` leaves out."""
    if not wanted or context.resilient_parsing:
        return
    for option in context.command.params:
        if option.name not in OLD_NAMES:
            option.hidden = False  # type: ignore[attr-defined]
    typer.echo(context.get_help(), color=context.color)
    raise typer.Exit
