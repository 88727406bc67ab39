"""Dropout, edge dropout, the keyed permutation, counting: compiled against reference against statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from partita import kernels
from partita.core.keys import fold

KEY = 0xFEDCBA9876543210


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 20),
    st.integers(0, 11),
    st.floats(0, 1),
    st.integers(0, 2**64 - 1),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_dropout_is_the_reference(both, rows, columns, p, key, dtype):
    x, original = torch.randn(rows, columns).to(dtype), torch.randperm(10**6)[:rows]
    compiled, plain = both(lambda: kernels.dropout(x, original, key, p))
    torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=0)
    assert torch.equal(compiled == 0, plain == 0)
    positive, plain = both(lambda: kernels.dropout(x, original, key, p, relu=True))
    torch.testing.assert_close(positive, plain, rtol=1e-6, atol=0)
    assert torch.equal(positive, compiled.relu())
    in_place = x.clone()
    assert kernels.dropout(in_place, original, key, p, out=in_place) is in_place
    assert torch.equal(in_place, compiled)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([0, 1, 7, 511, 512, 513, 1100]),
    st.integers(1, 21),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.integers(0, 2**64 - 1),
)
def test_norm_relu_dropout_is_the_reference(both, rows, columns, p, dtype, key):
    draw = torch.Generator().manual_seed(rows)
    x, grad = (torch.randn(rows, columns, generator=draw).to(dtype) for _ in range(2))
    weight, bias = torch.rand(columns, generator=draw) + 0.5, torch.randn(columns, generator=draw)
    original = torch.randperm(10**6, generator=draw)[:rows]
    (out, moments), (wanted, _) = both(
        lambda: kernels.norm_relu_dropout(x, weight, bias, 1e-5, original, key, p),
    )
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 1e-2}[dtype]
    assert out.dtype == wanted.dtype == dtype
    torch.testing.assert_close(out, wanted, rtol=tolerance, atol=tolerance)
    compiled, plain = both(lambda: kernels.norm_relu_dropout_backward(grad, out, x, weight, moments, p))
    for one, other, scale in zip(compiled, plain, (1, 40, 40)):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)


def test_what_norm_relu_dropout_keeps_is_what_dropout_keeps():
    x, original = torch.randn(50, 9), torch.randperm(1000)[:50]
    ones, threes = torch.ones(9), torch.full((9,), 30.0)  # nothing is negative
    kept = kernels.norm_relu_dropout(x, ones, threes, 1e-5, original, KEY, 0.4)[0] != 0
    assert torch.equal(kept, kernels.dropout(torch.ones(50, 9), original, KEY, 0.4) != 0)


def test_gradients_of_a_norm_do_not_depend_on_threads():
    x, grad, weight = torch.randn(9000, 33), torch.randn(9000, 33), torch.rand(33)
    results = []
    for count in (1, 2, 4):
        kernels.set_threads(count)
        try:
            out, moments = kernels.norm_relu_dropout(x, weight, weight, 1e-5, torch.arange(9000), KEY, 0.5)
            results.append((out, moments, *kernels.norm_relu_dropout_backward(grad, out, x, weight, moments, 0.5)))
        finally:
            kernels.set_threads(None)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.75, 1.0])
def test_dropout_rate_and_expectation(p):
    dropped = kernels.dropout(torch.ones(2000, 103), torch.arange(2000), KEY, p)
    zeros = int((dropped == 0).sum())
    if p in (0.0, 1.0):
        assert zeros == p * dropped.numel()
        return
    assert stats.binomtest(zeros, dropped.numel(), p).pvalue > 1e-4
    assert torch.equal(dropped.unique(), torch.tensor([0, 1 / (1 - round(p * 65536) / 65536)]))
    for count, trials in ((dropped == 0).sum(0), 2000), ((dropped == 0).sum(1), 103):  # no odd column, no odd row
        z = (count.double() - trials * p) / np.sqrt(trials * p * (1 - p))
        assert z.abs().max() < 5
    kept = (dropped != 0).double() - (1 - p)
    assert abs(float((kept[:, 1:] * kept[:, :-1]).mean())) < 5 * p * (1 - p) / np.sqrt(2000 * 102)
    assert abs(float((kept[1:] * kept[:-1]).mean())) < 5 * p * (1 - p) / np.sqrt(1999 * 103)


def test_dropout_belongs_to_the_node_not_to_the_row():
    x, order = torch.randn(100, 9), torch.randperm(100)
    whole = kernels.dropout(x, torch.arange(100), KEY, 0.4)
    assert torch.equal(kernels.dropout(x[order], order, KEY, 0.4), whole[order])
    assert not torch.equal(kernels.dropout(x, torch.arange(100), KEY + 1, 0.4) == 0, whole == 0)
    grad = torch.ones_like(x)
    assert torch.equal(kernels.dropout(grad, torch.arange(100), KEY, 0.4) != 0, whole != 0)  # the backward pass


def test_dropout_follows_the_written_rule():
    dropped = kernels.dropout(torch.ones(1, 6), torch.tensor([77]), KEY, 0.3)
    for c in range(6):
        lane = (fold(fold(KEY, 77), c // 4) >> (16 * (c % 4))) & 0xFFFF
        assert (float(dropped[0, c]) != 0) == (lane >= round(0.3 * 65536))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.integers(1, 9), st.floats(0, 1), st.sampled_from([torch.float32, torch.float64]))
def test_edge_dropout(both, rows, heads, p, dtype):
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(0, 6, (rows,)).cumsum(0)])
    original = torch.randperm(1000)[:rows]
    compiled, plain = both(lambda: kernels.edge_dropout(indptr, original, KEY, p, heads, dtype))
    assert compiled.shape == (int(indptr[-1]), heads)
    torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=0)


def test_edge_dropout_belongs_to_the_edge():
    indptr = torch.arange(0, 6001, 3)
    whole = kernels.edge_dropout(indptr, torch.arange(2000), KEY, 0.25, 5)
    assert stats.binomtest(int((whole == 0).sum()), whole.numel(), 0.25).pvalue > 1e-4
    part = kernels.edge_dropout(indptr[:11], torch.arange(1990, 2000), KEY, 0.25, 5)
    assert torch.equal(part, whole[-30:])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1), st.data())
def test_permutation_is_a_bijection(both, n, key, data):
    compiled, plain = both(lambda: kernels.keyed_permutation(0, n, n, key))
    assert torch.equal(compiled, plain)
    assert torch.equal(compiled.sort().values, torch.arange(n))
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    assert torch.equal(kernels.keyed_permutation(start, stop, n, key), compiled[start:stop])


@pytest.mark.parametrize("n", [2**31 - 1, 2**40 + 3, 2**62])
def test_permutation_of_very_many(both, n):
    compiled, plain = both(lambda: kernels.keyed_permutation(n - 100, n, n, KEY))
    assert torch.equal(compiled, plain)
    assert compiled.unique().shape == (100,)
    assert 0 <= int(compiled.min()) <= int(compiled.max()) < n


@pytest.mark.parametrize("n", [3, 5, 8, 100])
def test_permutation_is_uniform(n):
    """Every place holds every element equally often, and the first two places are independent."""
    trials = 6000 if n < 100 else 20_000
    found = torch.stack([kernels.keyed_permutation(0, min(n, 4), n, fold(KEY, t)) for t in range(trials)]).numpy()
    for place in range(found.shape[1]):
        assert stats.chisquare(np.bincount(found[:, place], minlength=n)).pvalue > 1e-4
    if n <= 8:
        pairs = np.bincount(found[:, 0] * n + found[:, 1], minlength=n * n)
        assert stats.chisquare(pairs[np.eye(n).ravel() == 0]).pvalue > 1e-4


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 199), max_size=300), st.sampled_from([torch.int32, torch.int64]))
def test_count_distinct(both, ids, dtype):
    tensor = torch.tensor(ids, dtype=dtype)
    assert both(lambda: kernels.count_distinct(tensor, 200)) == (len(set(ids)),) * 2


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"probability 1\.5"):
        kernels.dropout(torch.ones(1, 1), torch.zeros(1), KEY, 1.5)
    with pytest.raises(ValueError, match="1 rows with 2"):
        kernels.dropout(torch.ones(1, 1), torch.zeros(2), KEY, 0.5)
    with pytest.raises(ValueError, match="places 3 to 9"):
        kernels.keyed_permutation(3, 9, 8, KEY)
    with pytest.raises(IndexError, match="ids: 8 to 8"):
        kernels.count_distinct(torch.tensor([8]), 8)
