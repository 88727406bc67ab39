"""Annotations enforced while testing: in every test, the first calls of each function, and some of the later ones.

Checking every call takes as long as the calls: half the time of a test of steps. A function that is given what it
does not take is mostly given it in its first calls, and every test begins anew.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

# An int is accepted where a float is asked for, as type checkers do.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
FIRST, EVERY = 4, 64

_of_jaxtyping = jaxtyping.jaxtyped
_calls: dict[Any, int] = {}


def begin_test() -> None:
    """Check the first calls of all functions again."""
    _calls.clear()


def install(packages: Iterable[str]) -> None:
    """Enforce the annotations of functions and dataclasses of packages that are not imported yet."""
    jaxtyping.jaxtyped = _sometimes  # what the decorators that the hook writes are looked up as
    jaxtyping.install_import_hook(list(packages), f"{__name__}.check")


def _sometimes(fn: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    if fn is None:
        return functools.partial(_sometimes, typechecker=typechecker)
    if inspect.isclass(fn):
        made: Any = fn
        if dataclasses.is_dataclass(fn) and "__init__" in vars(fn):
            made.__init__ = _sometimes(made.__init__, typechecker=typechecker)
        return made
    checked: Any = None
    # Functions inside functions are made again in every call, of the same code.
    code = fn.__code__

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        before = _calls.get(code, 0)
        _calls[code] = before + 1
        if before >= FIRST and before % EVERY:
            return fn(*args, **kwargs)
        if checked is None:
            checked = _of_jaxtyping(fn, typechecker=typechecker)
        return checked(*args, **kwargs)

    return wrapper
