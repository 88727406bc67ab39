"""The shared pool: ranges, errors, callers that compete, and the choice of implementation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita import kernels
from partita.kernels import threads
from partita.kernels.choice import implementation


@pytest.fixture
def four_threads():
    threads.set_threads(4)
    yield
    threads.set_threads(None)


@given(st.lists(st.integers(0, 10**6), max_size=50), st.integers(1, 300))
def test_bounds_cover_all_rows_once(counts, width):
    indptr = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))])
    with threads.limited(4):
        for bounds in (threads.balanced_bounds(indptr, width), threads.even_bounds(len(counts), 10**6 * len(counts))):
            assert bounds[0] == 0
            assert bounds[-1] == len(counts)
            assert (np.diff(bounds) >= 0).all()
            assert len(bounds) <= 5


def test_bounds_balance_edges(four_threads):
    indptr = np.concatenate([[0], np.cumsum(np.r_[np.full(100, 1000), np.full(100_000, 1)])])
    bounds = threads.balanced_bounds(indptr, 100)
    work = np.diff(indptr[bounds] + np.array(bounds))
    assert len(work) == 4
    assert work.max() <= 1.02 * work.mean()


def test_small_work_stays_in_the_calling_thread(four_threads):
    seen = []
    threads.run(lambda low, high: seen.append(threading.get_ident()), threads.even_bounds(100, 100))
    assert seen == [threading.get_ident()]


def test_limited_is_per_thread(four_threads):
    with threads.limited(1):
        assert threads.num_threads() == 1
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(threads.num_threads).result() == 4
    assert threads.num_threads() == 4
    with pytest.raises(ValueError, match="at least 1"):
        threads.set_threads(0)


def test_default_follows_torch():
    assert threads.num_threads() == torch.get_num_threads()


@pytest.mark.parametrize("failing", [0, 2])
def test_an_error_comes_out_after_all_ranges_have_ended(failing):
    running, ended = threading.Barrier(3), []

    def kernel(low, high):
        running.wait(10)
        if low == failing:
            raise RuntimeError("range failed")
        ended.append(low)

    with pytest.raises(RuntimeError, match="range failed"):
        threads.run(kernel, [0, 1, 2, 3])
    assert sorted(ended) == [low for low in range(3) if low != failing]


def test_many_callers_do_not_deadlock(four_threads):
    def call(seed):
        total = np.zeros(8, np.int64)

        def kernel(low, high):
            total[low:high] += seed

        for _ in range(200):
            threads.run(kernel, [0, 2, 4, 6, 8])
        return total

    with ThreadPoolExecutor(8) as pool:
        for seed, total in enumerate(pool.map(call, range(8))):
            assert (total == 200 * seed).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_gets_a_pool_of_its_own():
    code = """
import os
from partita.kernels import threads
from partita.kernels.choice import implementation
threads.run(lambda low, high: None, [0, 1, 2])
child = os.fork()
if child == 0:
    done = []
    threads.run(lambda low, high: done.append(low), [0, 1, 2])
    os._exit(len(done))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_import_compiles_nothing_and_reference_is_the_fallback():
    code = """
import sys
import partita.kernels as kernels
assert "numba" not in sys.modules and "partita.kernels.cpu" not in sys.modules
sys.modules["numba"] = None  # as if it were not installed
import torch
assert kernels.count_distinct(torch.tensor([1, 1, 2]), 3) == 2
assert "partita.kernels.cpu" not in sys.modules
try:
    kernels.use("cpu")
except ImportError:
    pass
else:
    raise AssertionError("numba was there")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_use_is_undone_at_the_end_of_the_block():
    with kernels.use("cpu"):
        with kernels.use("reference"):
            assert implementation().__name__.endswith("reference")
        assert implementation().__name__.endswith("cpu")
    with pytest.raises(ValueError, match="none of 'cpu'"):
        kernels.use("tpu")
