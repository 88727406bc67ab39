"""Memory that goes back to the system, the most that was seen of it, and things named by where they are."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time

import numpy as np
import pytest

from partita.core import memory
from partita.core.errors import ConfigError
from partita.core.registry import imported


def test_a_large_array_goes_back_when_it_is_dropped() -> None:
    before = memory.private_bytes()
    array = memory.fresh_array((4096, 4096), np.float32)
    array[:] = 1
    assert (array.shape, array.dtype) == ((4096, 4096), np.float32)
    held = memory.private_bytes() - before
    assert held >= array.nbytes * 0.9
    del array
    assert memory.private_bytes() - before <= held / 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc of glibc")
def test_freed_memory_is_kept_for_the_next_piece_and_given_back_at_the_end() -> None:
    size = 80 * 2**20
    with memory.keeping_freed():
        array = np.ones(size, np.uint8)
        at = array.ctypes.data
        held = memory.private_bytes()
        del array
        assert memory.private_bytes() >= held - size // 10
        again = np.ones(size, np.uint8)
        assert again.ctypes.data == at
        assert memory.private_bytes() <= held + size // 10
        del again
    assert memory.private_bytes() <= held - size * 0.9


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc of glibc")
def test_threads_that_begin_later_use_freed_memory_again_too() -> None:
    """In a process of its own, where no earlier thread has an arena."""
    script = """
import threading
import numpy as np
from partita.core import memory

SIZE = 80 * 2**20

def work():
    array = np.ones(SIZE, np.uint8)
    held = memory.private_bytes()
    del array
    found.append(held - memory.private_bytes())

found = []
with memory.keeping_freed():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert found[0] < SIZE / 10, found
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc of glibc")
def test_the_user_and_the_outer_block_decide_what_is_kept() -> None:
    """In a process of its own: in this one other tests may have left a free piece of that size."""
    script = """
import os
import numpy as np
from partita.core import memory

SIZE = 80 * 2**20

def freed():
    held = memory.private_bytes()
    array = np.ones(SIZE, np.uint8)
    assert memory.private_bytes() >= held + SIZE * 0.9
    del array
    return held + SIZE - memory.private_bytes()

with memory.keeping_freed():
    with memory.keeping_freed():
        pass
    assert freed() < SIZE / 10
os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
with memory.keeping_freed():
    assert freed() > SIZE * 0.9
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_small_arrays_and_empty_ones() -> None:
    assert memory.fresh_array(0, np.int64).shape == (0,)
    assert memory.fresh_array((3, 0), np.float16).shape == (3, 0)
    assert memory.fresh_array(5, np.int32).nbytes == 20


def test_memory_that_cannot_be_had_is_a_memory_error(monkeypatch) -> None:
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="8,000,000 bytes"):
        memory.fresh_array(1_000_000, np.int64)


def test_the_clock_sees_what_nobody_looked_at() -> None:
    peak = memory.PeakMemory()
    with peak.watching(0.001):
        array = memory.fresh_array(2**23, np.float64)
        array[:] = 1
        deadline = time.monotonic() + 20
        while peak.peak_bytes < array.nbytes * 0.9:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        del array
    assert peak.peak_bytes >= 2**26 * 0.9


def test_things_by_where_they_are() -> None:
    assert imported("partita.core.memory:PeakMemory.look", "here") is memory.PeakMemory.look
    for wrong in ("no_such_package:Name", "partita.core.memory:Nothing", ":Name"):
        with pytest.raises(ConfigError, match=r"here: .* cannot be imported"):
            imported(wrong, "here")
