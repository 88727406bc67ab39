"""Which implementation of the kernels runs."""

from __future__ import annotations

import importlib
from types import ModuleType, TracebackType
from typing import Literal

_chosen: str | None = None


class use:
    """Choose the implementation for the whole process; as a context manager, until the end of the block.

    Args:
        name: ``"cpu"`` (numba) or ``"reference"``.

    Raises:
        ValueError: unknown name.
        ImportError: ``"cpu"`` without numba.
    """

    def __init__(self, name: Literal["cpu", "reference"]) -> None:
        global _chosen
        if name not in ("cpu", "reference"):
            raise ValueError(f"kernels {name!r} are none of 'cpu', 'reference'")
        importlib.import_module(f"partita.kernels.{name}")
        self._before = _chosen
        _chosen = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _chosen
        _chosen = self._before


def load() -> None:
    """Import the chosen implementation now instead of at the first kernel call."""
    implementation()


def implementation() -> ModuleType:
    """The chosen module; at first use the compiled one, or the reference where numba is not installed."""
    global _chosen
    if _chosen is None:
        try:
            importlib.import_module("numba")
            _chosen = "cpu"
        except ImportError:
            _chosen = "reference"
    return importlib.import_module(f"partita.kernels.{_chosen}")
