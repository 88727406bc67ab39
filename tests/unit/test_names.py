"""No name of a registry is compared outside the file of its table, and no modules import each other in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from partita.registries import KINDS

ROOT = Path(__file__).parents[2] / "src"
FILES = sorted((ROOT / "partita").rglob("*.py"))

ORDINARY = {"none", "auto", "all", "mean", "sum", "max", "torch", "x", "y", "name", "own", "partitioned"}
"""Words that name something in a registry and are also said of other things."""


ALLOWED = {
    ("partita/cli/plans.py", "strategy"): "a setting",
    ("partita/nn/model.py", "layer"): "a key of a described model",
    ("partita/nn/work.py", "source"): "an end of edges",
    ("partita/partitioning/spring_plus.py", "links"): "an option of a partitioner",
    ("partita/plan/described.py", "source"): "an end of edges",
    ("partita/plan/machine.py", "source"): "a key of a described value",
    ("partita/report/figures.py", "step"): "an event of a run",
    ("partita/report/terminal.py", "strategy"): "an event of a run",
    ("partita/sources/objects.py", "data"): "an array that SciPy writes",
}
"""Where a name of a registry is the name of something else."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tables() -> dict[str, tuple[str, str]]:
    """For each registered name that is no ordinary word: its kind, and the module of its table.

    Columns are left out: they are parts of a file format, and what reads one knows which.
    """
    return {
        name: (kind, KINDS._entries[kind].partition(":")[0])
        for kind in set(KINDS) - {"column"}
        for name in KINDS.find(kind)
        if name not in ORDINARY
    }


def compared(path: Path) -> Iterator[tuple[int, str]]:
    """Words with which something is compared, and where."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        else:
            continue
        for side in sides:
            for each in side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side]:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield node.lineno, each.value


def test_no_name_is_compared_outside_its_table() -> None:
    known = tables()
    found = [
        f"{path.relative_to(ROOT)}:{line} compares with the {known[word][0]} '{word}'"
        for path in FILES
        for line, word in compared(path)
        if word in known and module_of(path) != known[word][1] and (str(path.relative_to(ROOT)), word) not in ALLOWED
    ]
    assert not found, "\n".join(found)


def imports(path: Path, modules: set[str]) -> set[str]:
    """Modules that a file imports anywhere, also within functions; not those for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {full if (full := f"{node.module}.{each.name}") in modules else node.module for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & modules


def test_no_import_circle() -> None:
    modules = {module_of(path): path for path in FILES}
    graph = {name: imports(path, set(modules)) - {name} for name, path in modules.items()}
    left = dict(graph)
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    while ends := [name for name in left if not any(name in needs for other, needs in left.items() if other != name)]:
        for name in ends:
            del left[name]
    assert not left, f"a circle among {sorted(left)}"


@pytest.mark.parametrize(
    "line", ['if sampler == "walk": ...', 'if kind in ("gat", "x"): ...', 'match a:\n case "gsplit": ...']
)
def test_a_comparison_is_seen(tmp_path, line) -> None:
    (tmp_path / "some.py").write_text(line)
    assert any(word in tables() for _, word in compared(tmp_path / "some.py"))
