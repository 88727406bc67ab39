"""The Triton kernels, imported for the interpreter or for a device, and gone again afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest

import partita.kernels
from partita.kernels import dispatch

PREFIX = "partita.kernels."
PROBE = "gpu_probe"
LAUNCHING = ("launch", "norm", "rows", "sampling")


@contextmanager
def gpu_kernels(*, interpreted: bool) -> Iterator[None]:
    """Have ``partita.kernels.gpu`` and its parts imported for the interpreter, or for a device, inside the block.

    Triton looks at ``TRITON_INTERPRET`` when a kernel is decorated: the variable is set for the import only, so that
    both kinds fit into one process, one after the other.
    """
    pytest.importorskip("triton", reason="the GPU kernels need triton")
    before = _taken()
    variable = os.environ.pop("TRITON_INTERPRET", None)
    try:
        if interpreted:
            os.environ["TRITON_INTERPRET"] = "1"
        import_module(PREFIX + "gpu")
        import_module(PROBE)
    finally:
        os.environ.pop("TRITON_INTERPRET", None)
        if variable is not None:
            os.environ["TRITON_INTERPRET"] = variable
    yield
    _taken()
    sys.modules.update(before)
    if PREFIX + "gpu" in before:
        partita.kernels.gpu = before[PREFIX + "gpu"]


def replace_launch(patch: pytest.MonkeyPatch, launch: Callable) -> None:
    """Let the kernels that are imported now be started by another function."""
    for name in LAUNCHING:
        patch.setattr(import_module(f"{PREFIX}gpu.{name}"), "launch", launch)


def _taken() -> dict[str, object]:
    """The modules imported so far, which are forgotten."""
    found = {name: module for name, module in sys.modules.items() if name.startswith((PREFIX + "gpu", PROBE))}
    for name in found:
        del sys.modules[name]
    vars(partita.kernels).pop("gpu", None)
    dispatch._imported.cache_clear()
    return found
