"""Small tables for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_LEFT = "style='text-align:left'"


def facts_table(title: str, facts: Mapping[str, object]) -> str:
    """Names and values as an HTML table; everything is escaped, numbers get thousands separators."""
    rows = "".join(
        f"<tr><th {_LEFT}>{escape(name)}</th><td {_LEFT}>{escape(_text(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption {_LEFT}><b>{escape(title)}</b></caption>{rows}</table>"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
