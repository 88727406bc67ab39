"""Small files, written so that a kill never leaves half of one."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from partita.core.asides import written_aside
from partita.core.errors import ConfigError, PartitaError

if TYPE_CHECKING:
    import numpy as np

RUN_FORMAT = 1
"""Version of run folders: how ``run.json`` is to be read."""
ANALYSIS = "analysis.json"
"""What is known of the answers of a run's best model besides its metrics, in the run's folder."""
ANALYSIS_FORMAT = 1
"""Version of :data:`ANALYSIS`."""

ONE_HEADER = threading.Lock()
"""Held while numpy reads the header of a ``.npy`` file.

The parser of Python 3.11 counts its depth for all threads together, and ends with "AST constructor recursion depth
mismatch" where two threads are in it at once.
"""


def write_text(path: Path, text: str) -> None:
    """Write a file aside and rename it into place."""
    with written_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def parse_json(text: str | bytes) -> Any:
    """What JSON text says.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """What YAML text says; tags that name types of Python are refused.

    Raises:
        ValueError: it is not YAML, or nested too deeply.
    """
    import yaml  # which no help text waits for

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_file(path: Path) -> bytes:
    """All of a small file; nothing else than a file is waited for.

    Raises:
        OSError: it cannot be read, or is a directory, a pipe or a device.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.read_bytes()


def map_array(path: Path) -> np.ndarray:
    """The array of a ``.npy`` file, mapped read-only.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file, or its header promises more than there is.
    """
    import numpy as np  # which no help text waits for

    try:
        with ONE_HEADER:
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except (SyntaxError, EOFError, TokenError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"its header is damaged ({error})") from error


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
        found = parse_json(read_file(Path(path)))
    except FileNotFoundError:
        raise error("there is no such file", where=str(path), fix=fix) from None
    except OSError as reason:
        raise error(f"cannot be read: {reason.strerror or reason}", where=str(path), fix=fix) from None
    except ValueError as reason:
        raise error(f"cannot be read: {reason}", where=str(path), fix=fix) from None
    if not isinstance(found, dict):
        raise error("is not a JSON object", where=str(path), fix=fix)
    return found
