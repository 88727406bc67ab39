"""Tables of things by name: layers, samplers, placements, partitioners and all else that users may add to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from partita.core.errors import ConfigError, nearest

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Things by name.

    Args:
        what: is named, in singular, for messages.
        entries: Partita's own: each the thing itself, or ``"package.module:Name"``, which is imported when it is first
            asked for.
        setting: that names one of them, for messages; by default ``what``.
        also: words that the setting takes besides, which stand for none of them, such as ``auto``.

    Attributes:
        own: the names of Partita's own.
    """

    def __init__(
        self, what: str, entries: Mapping[str, Thing | str], *, setting: str | None = None, also: Sequence[str] = ()
    ) -> None:
        self.what = what
        self.also = tuple(also)
        self.setting = setting or what
        self.own = tuple(entries)
        self._entries: dict[str, Any] = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def register(self, name: str, thing: Thing | str) -> None:
        """Make a thing known by a name in this process.

        Args:
            name: without ``:`` and ``,``.
            thing: the thing, or ``"package.module:Name"``.

        Raises:
            ConfigError: another thing has the name, or it cannot be one.
        """
        if not name or set(name) & set(":,"):
            raise ConfigError(f"'{name}' cannot name a {self.what}", where="name", fix="Leave out ':' and ','")
        if self._entries.get(name, thing) != thing:
            raise ConfigError(f"there is a {self.what} '{name}' already", where="name", fix="Choose another name")
        self._entries[name] = thing

    def remove(self, name: str) -> None:
        """Forget a name that was registered in this process."""
        self._entries.pop(name, None)

    def find(self, name: str) -> Thing:
        """The thing of a name, or what ``package.module:Name`` imports.

        Raises:
            ConfigError: there is none; the message says which name was probably meant.
        """
        if name in self._entries:
            thing = self._entries[name]
            return cast(Thing, imported(thing, self.setting) if isinstance(thing, str) and ":" in thing else thing)
        if ":" in name:
            return cast(Thing, imported(name, self.setting))
        raise ConfigError(
            f"there is no {self.what} '{name}'", where=self.setting, fix=nearest(name, [*self, *self.also])
        )

    def check(self, name: str) -> None:
        """See that a setting takes a name, without importing Partita's own.

        Raises:
            ConfigError: as for :meth:`find`.
        """
        if name not in self._entries and name not in self.also:
            self.find(name)


def imported(text: str, where: str) -> Any:
    """What ``package.module:Name`` names, for instance of a user's own.

    Args:
        text: the name.
        where: what to name in an error message.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, name = text.partition(":")
    try:
        return attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"'{text}' cannot be imported ({error})",
            where=where,
            fix="Write package.module:Name, with the package installed or in a folder of PYTHONPATH",
        ) from error
