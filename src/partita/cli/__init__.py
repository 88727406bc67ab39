"""The ``partita`` command: one verb per stage, a thin shell over the Python API."""

from __future__ import annotations

from partita.cli.main import main

__all__ = ["main"]
