"""Relations as one word: source type, name and target type with colons between."""

from __future__ import annotations

SEPARATOR = ":"
"""Names of types hold none; that of a relation may, as in ``http://...``."""


def joined(source: str, name: str, target: str) -> str:
    """The word for a relation."""
    return SEPARATOR.join((source, name, target))


def separated(word: str) -> tuple[str, str, str]:
    """The inverse: source type, name and target type; empty where the word has too few separators."""
    source, _, rest = word.partition(SEPARATOR)
    name, _, target = rest.rpartition(SEPARATOR)
    return source, name, target
