"""``report``: a page about runs and stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli.options import Json
from partita.cli.shell import finish, shown
from partita.core.errors import ConfigError

_REPORT_HELP = """Make one HTML page about runs, side by side, and about the parts of stores.

The page needs no network: open it in a browser, send it, print it.

Examples:

    partita report run --out report.html

    partita report run1 run2 run3 --out compared.html

    partita report graph4 --out parts.html
"""


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN|STORE...", help="Run folders and graph stores.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    json: Json = False,
) -> None:
    """Report."""
    from partita.core.files import require_parent
    from partita.graph.metadata import FILE_NAME
    from partita.graph.store import GraphStore
    from partita.partitioning.quality import edges_between, store_quality
    from partita.report.page import write_report

    require_parent(out)
    if out.exists() and not overwrite:
        raise ConfigError("already exists", where=str(out), fix="Name another file, or use --overwrite")
    stores = [path for path in paths if (path / FILE_NAME).is_file()]
    partitions: dict[str, Any] = {}
    with shown(quiet=json):
        for path in stores:
            store = GraphStore.open(path)
            between = edges_between(store)
            partitions[str(path)] = store_quality(store).to_json()
            if between is not None:
                partitions[str(path)]["edges_between"] = between.tolist()
        write_report([path for path in paths if path not in stores], out, partitions=partitions)
    finish({"report": str(out), "bytes": out.stat().st_size}, "Report", as_json=json)


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(help=_REPORT_HELP)(report)
