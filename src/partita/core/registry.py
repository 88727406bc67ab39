"""Tables of things by name, to which users add their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from partita.core.errors import ConfigError, nearest
from partita.core.imports import imported

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Things by name.

    Args:
        what: is named, in singular, for messages.
        known: those of Partita, which cannot be replaced.
    """

    def __init__(self, what: str, known: Mapping[str, Thing]) -> None:
        self._what = what
        self._known = dict(known)
        self._registered: dict[str, Thing] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        yield from self._registered

    def register(self, name: str, thing: Thing) -> None:
        """Make a thing known by a name in this process; one that was registered before is replaced.

        Raises:
            ConfigError: the name belongs to Partita's own.
        """
        if name in self._known:
            raise ConfigError(f"'{name}' is a {self._what} of Partita", where="name", fix="Choose another")
        self._registered[name] = thing

    def find(self, name: str) -> Thing:
        """The thing of a name, or what ``package.module:Name`` imports.

        Raises:
            ConfigError: there is none; the message says which name was probably meant.
        """
        if ":" in name:
            return imported(name, self._what)
        found = self._registered.get(name, self._known.get(name))
        if found is None:
            raise ConfigError(f"there is no {self._what} '{name}'", where=self._what, fix=nearest(name, self))
        return found
