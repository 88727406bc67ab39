"""Small files, written so that a kill never leaves half of one."""

from __future__ import annotations

import os
from pathlib import Path

from partita.core.errors import ConfigError


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


def require_parent(path: Path) -> None:
    """See that a file can be written where it is to be.

    Raises:
        ConfigError: there is no such directory.
    """
    if not path.parent.is_dir():
        raise ConfigError("there is no such directory", where=str(path.parent), fix="Make it, or name another file")
