"""Records that are read from files: what does not fit is said, before anything relies on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from partita.core.errors import PartitaError

if TYPE_CHECKING:
    from pydantic import ValidationError

Record = TypeVar("Record")


def typed(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """A dataclass of values by name, if each is of the type of its field; a whole number is a float as well.

    Dataclasses among the values are not looked into: they have been checked when they were made.

    Raises:
        ValueError: a value is of another type or missing, or there is no such field; the message names it.
    """
    from pydantic import ValidationError  # which nobody waits for who reads no such file

    for name, check in _checks(kind).items():  # type: ignore[arg-type]  # classes are hashable
        try:
            if name in values:
                check(values[name], strict=True)
        except ValidationError as error:
            place, said = first_problem(error)
            raise ValueError(f"{'.'.join([name, *place])}: {said}") from None
    known = {each.name: each.default is MISSING and each.default_factory is MISSING for each in fields(kind)}  # type: ignore[arg-type]
    for name in values.keys() - known.keys():
        raise ValueError(f"{name!r} is unknown")
    for name, needed in known.items():
        if needed and name not in values:
            raise ValueError(f"{name!r} is missing")
    return kind(**values)


def number(value: object) -> float:
    """A finite number as a record has it, so no text and no truth value.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def problem(error: Exception) -> str:
    """What is wrong with a record, in words, where Python raised an error while reading it."""
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)


@cache
def _checks(kind: type) -> dict[str, Callable[..., Any]]:
    """What checks a value, by field."""
    from pydantic import TypeAdapter

    return {name: TypeAdapter(hint).validate_python for name, hint in get_type_hints(kind).items()}


def first_problem(error: ValidationError) -> tuple[list[str], str]:
    """Where in a nested value something is wrong first, and what."""
    first = error.errors()[0]
    return list(map(str, first["loc"])), first["msg"]


@contextmanager
def fitting(where: str, error: type[PartitaError], fix: str) -> Iterator[None]:
    """Around what makes something of a file's values: what these lack, or hold in another form, is the file's fault.

    Args:
        where: the file or folder.
        error: to raise.
        fix: what to do about it.

    Raises:
        PartitaError: of the given type, instead of what Python raises where it has expected another key, entry, type
            or number.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as reason:
        raise error(f"what it says does not fit together ({problem(reason)})", where=where, fix=fix) from reason
