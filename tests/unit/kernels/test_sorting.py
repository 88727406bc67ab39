"""Sorts of compiled loops: in order, and still so where loops of other processes are loaded beside them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import partita
from partita.kernels.compile import COMPILES
from partita.kernels.sorting import argsort, sort

SOURCES = Path(partita.__file__).parent
OF_NUMBA = {"sort", "argsort", "sorted", "lexsort", "unique", "searchsorted", "median", "partition", "argpartition"}


@given(
    values=st.lists(st.integers(0, 60), max_size=300),
    dtype=st.sampled_from([np.int32, np.int64, np.uint64]),
)
def test_sorts_are_those_of_numpy(values: list[int], dtype: type) -> None:
    given = np.array(values, dtype)
    assert np.array_equal(argsort(given), np.argsort(given, kind="stable"))
    part = np.concatenate([given, given])[: len(given)]
    sort(part)
    assert np.array_equal(part, np.sort(given))


def test_no_compiled_loop_uses_a_sort_of_numba() -> None:
    """See the module: it may be given a part of another one."""
    found = []
    for path in SOURCES.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            if not any(word in ast.dump(each) for each in function.decorator_list for word in ("'njit'", "'compiled'")):
                continue
            for call in ast.walk(function):
                own = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in OF_NUMBA
                if own or (isinstance(call, ast.Call) and ast.unparse(call.func) == "sorted"):
                    found.append(f"{path.relative_to(SOURCES)}:{call.lineno}")
    assert not found


LOOPS = """
from partita.kernels.compile import compiled
from partita.kernels.sorting import argsort, sort

@compiled
def by_value(values):
    sort(values)

@compiled
def by_order(values):
    values[:] = values[argsort(values)]
"""
PROGRAM = """
import sys
import numpy as np
import loops

for name in sys.argv[1:]:
    values = np.random.default_rng(0).integers(0, 3000, 31)
    getattr(loops, name)(values)
    assert (np.diff(values) >= 0).all(), name
"""


@pytest.mark.skipif(not COMPILES, reason="nothing is compiled here")
def test_loops_that_different_processes_have_compiled(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for names in (["by_value"], ["by_order"], ["by_value", "by_order"], ["by_order", "by_value"]):
        done = subprocess.run(
            [sys.executable, "program.py", *names], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
