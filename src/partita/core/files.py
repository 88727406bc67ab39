"""Small files, written so that a kill never leaves half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from partita.core.errors import ConfigError, PartitaError

RUN_FORMAT = 1
"""Version of run folders: how ``run.json`` is to be read."""
ANALYSIS = "analysis.json"
"""What is known of the answers of a run's best model besides its metrics, in the run's folder."""
ANALYSIS_FORMAT = 1
"""Version of :data:`ANALYSIS`."""


def write_text(path: Path, text: str) -> None:
    """Write a file aside and rename it into place."""
    aside = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def require_parent(path: Path) -> None:
    """See that a file can be written where it is to be.

    Raises:
        ConfigError: there is no such directory.
    """
    if not path.parent.is_dir():
        raise ConfigError("there is no such directory", where=str(path.parent), fix="Make it, or name another file")


def read_object(path: str | os.PathLike[str], error: type[PartitaError], fix: str) -> dict[str, Any]:
    """The JSON object that a file holds.

    Args:
        path: of the file.
        error: to raise.
        fix: how to come by such a file.

    Raises:
        PartitaError: of the given type: there is no such file, it cannot be read, or it holds something else.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error("there is no such file", where=str(path), fix=fix) from None
    except (OSError, ValueError) as reason:
        raise error(f"cannot be read: {reason}", where=str(path), fix=fix) from None
    if not isinstance(found, dict):
        raise error("is not a JSON object", where=str(path), fix=fix)
    return found
