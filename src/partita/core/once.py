"""A value that is found when somebody first asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Once(Generic[Made]):
    """A function without arguments that is called once at most, and what it returned then is returned from then on.

    As ``functools.cache`` of such a function, but made in a fraction of the time: steps make some that nobody asks.

    Args:
        make: the function; it does not return ``None``.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._made: Made | None = None

    def __call__(self) -> Made:
        """The value."""
        if self._made is None:
            self._made = self._make()
        return self._made
