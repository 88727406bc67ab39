"""Records that are read from files: what does not fit is said, before anything relies on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
        ValueError: a value is of another type; the message names it.
        TypeError: a value is missing, or there is no such field.
    """
    from pydantic import ValidationError  # which nobody waits for who reads no such file

    for name, check in _checks(kind).items():  # type: ignore[arg-type]  # classes are hashable
        try:
            if name in values:
                check(values[name], strict=True)
        except ValidationError as error:
            place, problem = first_problem(error)
            raise ValueError(f"{'.'.join([name, *place])}: {problem}") from None
    return kind(**values)


@cache
def _checks(kind: type) -> dict[str, Callable[..., Any]]:
    """What checks a value, by field."""
    from pydantic import TypeAdapter

    return {name: TypeAdapter(hint).validate_python for name, hint in get_type_hints(kind).items()}


def first_problem(error: ValidationError) -> tuple[list[str], str]:
    """Where in a nested value something is wrong first, and what."""
    problem = error.errors()[0]
    return list(map(str, problem["loc"])), problem["msg"]


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
        raise error(
            f"what it says does not fit together ({type(reason).__name__}: {reason})", where=where, fix=fix
        ) from reason
