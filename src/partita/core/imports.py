"""Importing many modules at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage in the block.

    Modules that are imported make hundreds of thousands of objects and little garbage; looking through them again and
    again takes a tenth of the time that importing torch takes.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
