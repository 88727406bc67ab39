"""The shared pool: ranges, errors, callers that compete, and the choice of implementation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita import kernels
from partita.kernels import threads
from partita.kernels.dispatch import implementation


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


@given(
    st.lists(st.integers(0, 10**4), min_size=1, max_size=80),
    st.integers(1, 300),
    st.integers(1, 9),
    st.integers(1, 10**6),
)
def test_ranges_are_as_equal_as_rows_allow_and_never_small(counts, width, count, grain):
    indptr = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))])
    rows, work = len(counts), (np.array(counts) + 1) * width
    threads.set_threads(count)
    try:
        balanced = threads.balanced_bounds(indptr, width, grain)
        even = threads.even_bounds(rows, int(work.sum()), grain)
    finally:
        threads.set_threads(None)
    for bounds in (balanced, even):
        parts = len(bounds) - 1
        assert (bounds[0], bounds[-1]) == (0, rows)
        assert parts == max(1, min(count, rows, work.sum() // grain))
    assert np.ptp(np.diff(even)) <= 1
    of_ranges = [work[low:high].sum() for low, high in pairwise(balanced)]
    assert max(of_ranges) <= work.sum() / len(of_ranges) + work.max() + width


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_more_threads_than_rows(four_threads, rows):
    indptr = np.arange(rows + 1) * 10**6
    for bounds in (threads.balanced_bounds(indptr, 100), threads.even_bounds(rows, 10**9)):
        found = []
        threads.run(lambda low, high, seen=found: seen.extend(range(low, high)), bounds)
        assert sorted(found) == list(range(rows))
        assert len(bounds) - 1 <= max(rows, 1)


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_the_same_bits_on_as_many_threads_as_torch_has(dtype, monkeypatch, torch_threads):
    random = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 40, (3000,), generator=random)
    counts[17] = 30_000
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    edges, sources = int(indptr[-1]), 5000
    indices = torch.randint(0, sources, (edges,), generator=random, dtype=torch.int32)
    x, grad = (torch.randn(n, 96, generator=random, dtype=dtype) for n in (sources, 3000))
    weight, scale = torch.rand(edges, 4, generator=random, dtype=dtype), torch.rand(sources, generator=random)
    transposed, original = kernels.transpose(indptr, indices, sources), torch.arange(sources)
    dst, norm, bias = original[:3000], torch.rand(96, dtype=dtype), torch.rand(96, dtype=dtype)
    ranges = []

    def run(kernel, bounds):
        ranges.append(len(bounds) - 1)
        return undisturbed(kernel, bounds)

    undisturbed = threads.run
    monkeypatch.setattr(threads, "run", run)

    def everything():
        values, argmax = kernels.segment_max(x, indptr, indices)
        out, moments = kernels.norm_relu_dropout(x, norm, bias, 1e-5, original, 1, 0.5)
        return (
            values,
            kernels.segment_max_backward(grad, argmax, indices, sources),
            kernels.aggregate(x, indptr, indices, reduce="mean"),
            kernels.aggregate(x.half(), indptr, indices, weight, scale=scale, dtype=dtype),
            kernels.aggregate_backward(grad, transposed, indptr, sources, weight),
            kernels.aggregate_weight_grad(grad, x, indptr, indices, 4),
            kernels.gather_rows(x, indices, dtype=dtype, scale=scale),
            kernels.expand_rows(x.to(torch.int8), indices, norm, bias, scale=scale, dtype=dtype),
            kernels.dropout(x, original, 1, 0.5, relu=True),
            kernels.edge_dropout(indptr, dst, 1, 0.5, 4, dtype),
            *kernels.gcn_coefficients(indptr, None, dst, None, indptr, indices % 3000, dtype),
            out,
            moments,
            *kernels.norm_relu_dropout_backward(torch.ones_like(out), out, x, norm, moments, 0.5),
        )

    found = []
    with kernels.use("cpu"):
        for count in (1, 2, 4):
            torch_threads(count)
            ranges.clear()
            found.append(everything())
            # All work of this size is divided, but for the degrees of 3000 nodes.
            assert ranges.count(count) >= len(ranges) - 1
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


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
from partita.kernels.dispatch import implementation
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
