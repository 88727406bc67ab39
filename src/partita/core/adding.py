"""Records of numbers that add up field by field."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

_Record = TypeVar("_Record", bound="Adding")


class Adding:
    """Base of dataclasses whose fields add up: ``a + b`` has the sum of each field."""

    __slots__ = ()

    def __add__(self: _Record, other: _Record) -> _Record:
        return type(self)(*(a + b for a, b in zip(self.values(), other.values(), strict=True)))

    def values(self) -> list[Any]:
        """All fields, in their order."""
        return [getattr(self, f.name) for f in fields(self)]  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Values by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
