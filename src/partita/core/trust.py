"""What files may do: they hold values, and name code only where a user says that they may."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from partita.core.errors import ConfigError

IMPORTS = "imports"
"""The word that lets a file name code, ``package.module:Name``, which is then imported and called."""

_CODE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_NAMES = {"metadata", "metapath"}
"""Values that name types and relations: these may look like code, and nothing is ever imported for them."""
_CONVOLUTION = re.compile(r"pyg:[^\W\d]\w*")
"""PyG's convolutions by name, which are found among them and nowhere else."""


def names_code(value: object) -> bool:
    """Whether a value is the name of something to import, or a list of names in one text that has such a one."""
    parts = re.split(r"[^\w.:]+", value) if isinstance(value, str) else []
    return any(_CODE.fullmatch(part) and not _CONVOLUTION.fullmatch(part) for part in parts)


def check_trust(trust: str | None) -> None:
    """See that the word is one.

    Raises:
        ConfigError: it is another one.
    """
    if trust not in (None, IMPORTS):
        raise ConfigError(f"'{trust}' is nothing that a file can be trusted with", where="trust", fix=f"Say {IMPORTS}")


def refuse_code(values: Mapping[str, Any], where: str, trust: str | None) -> None:
    """See that what a file holds names no code, unless the file is trusted.

    Args:
        values: what was read; everything in it is looked at.
        where: the file.
        trust: :data:`IMPORTS` to allow it.

    Raises:
        ConfigError: a value names code, or ``trust`` is another word.
    """
    check_trust(trust)
    found = None if trust else _first(values, "")
    if found is not None:
        name, value = found
        raise ConfigError(
            f"'{value}' names code, which would be imported and run, and files may not do that",
            where=f"{where}: {name}",
            fix=f"If you know where the file is from, add --trust {IMPORTS} (in Python trust='{IMPORTS}')",
        )


def _first(value: Any, name: str) -> tuple[str, str] | None:
    """The first value that names code, and its place."""
    if names_code(value):
        return name, value
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"{name}.{key}".lstrip("."), each) for key, each in value.items() if key not in _NAMES]
    elif isinstance(value, list | tuple):
        parts = [(name, each) for each in value]
    return next(filter(None, (_first(each, place) for place, each in parts)), None)
