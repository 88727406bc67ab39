"""Records of numbers that add up field by field."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

_Record = TypeVar("_Record", bound="Adding")


class Adding:
    """Base of dataclasses whose fields add up: ``a + b`` has the sum of each field, of tuples that of each element."""

    __slots__ = ()

    def __add__(self: _Record, other: _Record) -> _Record:
        return type(self)(*(_sum(a, b) for a, b in zip(self.values(), other.values(), strict=True)))

    def values(self) -> list[Any]:
        """All fields, in their order."""
        return [getattr(self, f.name) for f in fields(self)]  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Values by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]


def _sum(a: Any, b: Any) -> Any:
    return tuple(_sum(*each) for each in zip(a, b, strict=True)) if isinstance(a, tuple) else a + b
