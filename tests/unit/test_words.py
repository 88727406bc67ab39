"""What users read says things with the field's words: phrases that once stood there do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PHRASES = (
    "said to be of the class", "worst f1 first", "ahead of the trainer", "of the threads ahead of it",
    "what came of it", "what the plan weighed", "who computes what", "wait for view", "join models", "sum gradients",
    "a strategy loses most", "tried: for ", "^an epoch of {", "estimated from 1$", "trains another model",
    "lists of placements are not shown", "times as fast, ", "too short to compare", "matrix products by",
    "matrix multiplication by {", "what multiplies", r"\bmend\b", "are no fractions", "is no number of parts",
    "needed: {wanted}", "are asked for", "is asked for", "pairs? at a time", "at a time, too few", "as promised",
    r"metadata promises", "^made$", "^ingested$", "else found out", "given besides win", "how sage joins",
    "go to the worker that owns them, or in equal shares", "whose neighborhoods are cut off", "what views have",
    "of everything random", "of all draws", "everything random", "a function of this", "the row before the last layer",
    "lies now", "go on with", "joined in hidden", "hop next to the seeds", "(edge|node) a line", "seconds an epoch",
    "seeds a second", "as far as there", "hardly surer", "a partition is an order", "a sample is a pure function",
    "agree by a sync", "beside pyg's loader", "loading beside computing", "what other loaders do not promise",
    "whoever knocks", "nothing is left", "means something", "the same in python",
    "(?<!there )is no (option|graph|format|topology|way|halo|identifier)\\b", "are no room",
    "from now on, about", "nobody did it",
)  # fmt: skip
"""Regular expressions, matched without regard to case."""

_ANY = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.IGNORECASE | re.MULTILINE)


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module that a user may be shown, as they are written: all but docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in documentation or id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


@pytest.mark.parametrize("folder", ["src", "bench", "examples"])
def test_messages(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in texts_of(path)
        for match in _ANY.finditer(text)
    ]
    assert found == []


def test_pages() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.sh"))]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in pages
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for match in _ANY.finditer(line)
    ]
    assert found == []
