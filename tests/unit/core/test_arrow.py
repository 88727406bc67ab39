"""Arrays of pyarrow become NumPy's as pyarrow itself makes them, and pandas stays where it is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from partita.core.arrow import as_numpy

ARRAYS = {
    **{name: pa.array([3, 1, 2], getattr(pa, name)()) for name in ("int8", "uint16", "int32", "int64", "uint64")},
    **{name: pa.array(np.array([0.5, -1.0, 2.0], name)) for name in ("float16", "float32", "float64")},
    "bool": pa.array([True, False, True]),
    "nulls": pa.array([1, None, 2]),
    "missing": pa.array([True, None]),
    "text": pa.array(["a", "b"]),
    "date": pa.array([1, 2], pa.date32()),
    "empty": pa.array([], pa.int64()),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_values_are_those_of_pyarrow(name) -> None:
    for array in (ARRAYS[name], ARRAYS[name].slice(1)):
        found, expected = as_numpy(array), array.to_numpy(zero_copy_only=False)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_values_outlive_the_array() -> None:
    found = as_numpy(pa.array(range(100_000)).slice(5))
    assert found.sum() == sum(range(5, 100_000))


def test_pandas_is_not_imported(tmp_path) -> None:
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n1,2\n2,0\n")
    code = "import sys, partita; partita.ingest('edges.csv', 'graph'); print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.endswith("False\n")
