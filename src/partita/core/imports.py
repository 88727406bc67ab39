"""Things of a user's own, named as ``package.module:Name``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from partita.core.errors import ConfigError


def imported(text: str, where: str) -> Any:
    """What ``package.module:Name`` names.

    Args:
        text: the name.
        where: what to name in an error message.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, name = text.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"'{text}' cannot be imported ({error})",
            where=where,
            fix="Write package.module:Name, with the package installed or in a folder of PYTHONPATH",
        ) from error
    return found
