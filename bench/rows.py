"""Measurements as rows of a CSV file, to which a benchmark adds one at a time and later goes on with."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows so far; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, fields: Sequence[str], row: Mapping[str, Any]) -> None:
    """Add a row, after a line of names in a new file."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)
