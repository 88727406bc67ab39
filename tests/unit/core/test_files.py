"""Files are read alike by any number of threads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from partita.core.files import map_array, parse_json, parse_yaml


def run_some_python(phase: str, info: dict[str, int]) -> None:
    sum(range(20))


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads give way, and garbage is collected, as often as can be; collecting runs Python, where threads change."""
    before, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(3)
    gc.callbacks.append(run_some_python)
    yield
    gc.callbacks.remove(run_some_python)
    sys.setswitchinterval(before)
    gc.set_threshold(*thresholds)


def test_arrays_are_mapped_by_threads_at_once(tmp_path: Path, hurried: None) -> None:
    np.save(tmp_path / "a.npy", np.arange(4))

    def read(deep: int) -> int:
        if deep:
            return read(deep - 1)  # the depths of threads are what Python 3.11 mixes up
        return sum(int(map_array(tmp_path / "a.npy")[1]) for _ in range(100))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == [100] * 8


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
@pytest.mark.parametrize("text", ["[", 100_000 * "[", 50_000 * '{"a":'], ids=["open", "deep lists", "deep objects"])
def test_text_that_is_none_is_one_error(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply" if len(text) > 1 else "."):
        parse(text)


def test_yaml_makes_no_objects() -> None:
    with pytest.raises(ValueError, match="could not determine a constructor"):
        parse_yaml("!!python/object/apply:os.system [true]")
