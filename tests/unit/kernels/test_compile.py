"""What is compiled is kept on disk for all processes."""

from __future__ import annotations

import importlib.util
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from partita.kernels import compilations
from partita.kernels import compile as module

caching = pytest.importorskip("numba.core.caching", reason="numba is not installed")

CODE = """
from partita.kernels.compile import compiled


@compiled
def added(values):
    total = 0.0
    for at in range(values.shape[0]):
        total += values[at]
    return total
"""


def loaded(path: Path) -> ModuleType:
    """The module as another process would have it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_what_is_compiled_at_the_same_time_is_kept_in_files_of_its_own(tmp_path, monkeypatch) -> None:
    """Each for its own arguments; before, both took the same file, and one was found for the arguments of the other."""
    (tmp_path / "loops.py").write_text(CODE)
    keep, held = module._Cache.save_overload, []
    monkeypatch.setattr(module._Cache, "save_overload", lambda self, sig, data: held.append((self, sig, data)))
    kinds = (np.int32, np.float64, np.int16)
    for kind in kinds:
        assert loaded(tmp_path / "loops.py").added(np.ones(3, kind)) == 3.0
    monkeypatch.undo()
    look = caching.IndexDataCacheFile._load_index

    def look_slowly(self):
        found = look(self)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(caching.IndexDataCacheFile, "_load_index", look_slowly)
    threads = [threading.Thread(target=keep, args=each) for each in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    monkeypatch.undo()
    before, again = compilations(), loaded(tmp_path / "loops.py")
    for kind in kinds:
        assert again.added(np.ones(3, kind)) == 3.0
    assert compilations() == before, "all were found on disk"
    assert again.added(np.ones(3, np.float32)) == 3.0
    assert compilations() > before
