"""``split``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.options import Json, given, record_options, with_options
from partita.cli.shell import finish, print_table, shown, tell
from partita.graph.options import SplitLinksOptions

_SPLIT_HELP = """Hold edges of a graph out for link prediction: write a store that lists them instead.

No messages go along them, nor along their reverses and parallel edges. Of a typed graph, shares are of each relation.

Examples:

    partita split graph links

    partita split graph links --val 0.05 --test 0.1 --seed 3

    partita split shop links --relations purchased
"""


def split(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A whole graph store without held-out edges.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The store to create.")],
    *,
    json: Json = False,
    **options: Any,
) -> None:
    """Split."""
    from partita.graph.split_links import split_links
    from partita.report.terminal import type_tables

    with shown(quiet=json):
        made = split_links(store, out, **given(SplitLinksOptions, options))
    summary, note = made.summary(), made.metadata.notes["links"]
    shown_keys = ("path", "nodes", "edges", "held_out", "held_out_relations", "fingerprint")
    values = {name: summary[name] for name in shown_keys if name in summary} | {"whole": note.get("whole", [])}
    if json:
        finish(values, "", as_json=True)
        return
    finish({name: values[name] for name in ("path", "nodes", "edges", "held_out")}, "Split", as_json=False)
    for table in list(type_tables(summary, None))[1:]:
        print_table(table)
    if values["whole"]:
        tell(f"Too small for an edge in each split, so all edges stay: {', '.join(values['whole'])}")


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    app.command(help=_SPLIT_HELP)(with_options(split, record_options(SplitLinksOptions)))
