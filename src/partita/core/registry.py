"""Tables of things by name: layers, samplers, placements, partitioners and all else that users may add to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from partita.core.errors import ConfigError, nearest

Thing = TypeVar("Thing")

_FIX = "Write package.module:Name, with the package installed or in a folder of PYTHONPATH"
_SHORT = {"pyg": ("torch_geometric.nn", "Write pyg:Name; PyG is installed with: pip install 'partita[pyg]'")}
"""Packages that have a short name: what it stands for, and what to do where a name of theirs cannot be imported."""


class Registry(Generic[Thing]):
    """Things by name.

    Args:
        what: is named, in singular, for messages.
        entries: Partita's own: each the thing itself, or ``"package.module:Name"``, which is imported when it is first
            asked for.
        setting: that names one of them, for messages; by default ``what``.
        also: words that the setting takes besides, which stand for none of them, such as ``auto``.
        adapt: makes a thing of the table of what ``package.module:Name`` imports, given that name too.

    Attributes:
        own: the names of Partita's own.
    """

    def __init__(
        self,
        what: str,
        entries: Mapping[str, Thing | str],
        *,
        setting: str | None = None,
        also: Sequence[str] = (),
        adapt: Callable[[str, Any], Thing] | None = None,
    ) -> None:
        self.what = what
        self.also = tuple(also)
        self._adapt = adapt
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
            return self._imported(thing) if isinstance(thing, str) and ":" in thing else cast(Thing, thing)
        if ":" in name:
            return self._imported(name)
        raise ConfigError(
            f"there is no {self.what} '{name}'", where=self.setting, fix=nearest(name, [*self, *self.also])
        )

    def _imported(self, text: str) -> Thing:
        found = imported(text, self.setting)
        return cast(Thing, found if self._adapt is None else self._adapt(text, found))

    def check(self, name: str) -> None:
        """See that a setting takes a name, without importing Partita's own.

        Raises:
            ConfigError: as for :meth:`find`.
        """
        if name not in self._entries and name not in self.also:
            self.find(name)


def imported(text: str, where: str) -> Any:
    """What ``package.module:Name`` names, for instance of a user's own; ``pyg`` is short for ``torch_geometric.nn``.

    Args:
        text: the name.
        where: what to name in an error message.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, name = text.partition(":")
    if module in _SHORT and not name.isidentifier():  # nothing that is reached through what PyG itself imports
        raise ConfigError(f"'{text}' is not the name of a convolution", where=where, fix=_SHORT[module][1])
    module, fix = _SHORT.get(module, (module, _FIX))
    try:
        found = import_module(module)
        return attrgetter(name)(found)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, AttributeError) and (meant := _close(name, dir(found))):
            fix = f"Did you mean '{meant[0]}'?"
        raise ConfigError(f"'{text}' cannot be imported ({error})", where=where, fix=fix) from error


def _close(name: str, known: Sequence[str]) -> list[str]:
    """The known names that were probably meant: those that begin so, else those that are much like it."""
    return [each for each in known if each.startswith(name)] or get_close_matches(name, known, n=1)
