"""Records of numbers that add up field by field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

_Record = TypeVar("_Record", bound="Adding")


class Adding:
    """Base of dataclasses whose fields add up: ``a + b`` has the sum of each field, of tuples that of each element."""

    __slots__ = ()

    def __add__(self: _Record, other: _Record) -> _Record:
        kind = type(self)
        return kind(*[_sum(getattr(self, name), getattr(other, name)) for name in _names(kind)])

    def values(self) -> list[Any]:
        """All fields, in their order."""
        return [getattr(self, name) for name in _names(type(self))]

    def to_json(self) -> dict[str, Any]:
        """Values by name."""
        return {name: getattr(self, name) for name in _names(type(self))}


def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


_names: Callable[[type], tuple[str, ...]] = cache(_names_of)  # kept, as every step adds some records


def _sum(a: Any, b: Any) -> Any:
    return tuple([_sum(*each) for each in zip(a, b, strict=True)]) if isinstance(a, tuple) else a + b
