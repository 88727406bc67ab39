"""Reading rows, aggregation and its gradients, maximum, transpose: compiled against reference against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import kernels

FLOATS = [torch.float16, torch.float32, torch.float64]


@st.composite
def blocks(draw, max_dst=20, max_src=30):
    """``indptr``, ``indices``, S of a random block with empty rows and parallel edges."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = random.integers(0, draw(st.integers(1, 12)), draw(st.integers(0, max_dst)))
    src = draw(st.integers(1, max_src))
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return indptr, torch.from_numpy(random.integers(0, src, int(indptr[-1]))).to(dtype), src


def close(compiled, plain):
    torch.testing.assert_close(compiled, plain, rtol=1e-5 if plain.dtype == torch.float32 else 1e-12, atol=1e-5)


def dense_matrix(indptr, indices, weight, num_src, reduce):
    """The (D, S) matrix that an aggregation multiplies with, float64."""
    matrix = torch.zeros(indptr.shape[0] - 1, num_src, dtype=torch.float64)
    for i in range(matrix.shape[0]):
        for e in range(int(indptr[i]), int(indptr[i + 1])):
            factor = 1.0 if weight is None else float(weight[e])
            matrix[i, int(indices[e])] += factor / (int(indptr[i + 1] - indptr[i]) if reduce == "mean" else 1)
    return matrix


@settings(max_examples=40, deadline=None)
@given(
    blocks(), st.sampled_from(FLOATS), st.sampled_from([torch.float32, torch.float64]), st.booleans(), st.integers(0, 9)
)
def test_gather(both, block, dtype, out_dtype, scaled, columns):
    _, ids, rows = block
    x = torch.randn(rows, columns).to(dtype)
    scale = torch.rand(rows) if scaled else None
    compiled, plain = both(lambda: kernels.gather_rows(x, ids, scale=scale, dtype=out_dtype))
    assert torch.equal(compiled, plain)
    out = torch.full_like(plain, torch.nan)
    assert kernels.gather_rows(x, ids, scale=scale, dtype=out_dtype, out=out) is out
    assert torch.equal(out, plain)


@settings(max_examples=60, deadline=None)
@given(blocks(), st.sampled_from([*FLOATS, torch.int8, torch.bfloat16]), st.integers(0, 9), st.integers(0, 3))
def test_rows_move_to_other_places(both, block, dtype, columns, before):
    """Of any dtype and width, also where rows do not begin at a whole word; other rows stay as they are."""
    _, ids, rows = block
    x = torch.randint(-100, 100, (rows + before, columns)).to(dtype)[before:]
    given_out = torch.randint(-100, 100, (len(ids) + 3 + before, columns)).to(dtype)[before:]
    at = torch.randperm(len(ids) + 3)[: len(ids)].to(ids.dtype)

    def moved(which):
        out = given_out.clone()
        kernels.move_rows(x if which is not None else x[ids.long()], which, out, at)
        return out

    wanted = given_out.clone()
    wanted[at.long()] = x[ids.long()]
    for which in (ids, None):
        for found in both(lambda which=which: moved(which)):
            assert torch.equal(found, wanted)


def test_rows_do_not_move_out_of_bounds(both):
    x, out, ids = torch.ones(3, 2), torch.zeros(4, 2), torch.tensor([0, 2])
    for of, at in ((torch.tensor([0, 3]), ids), (ids, torch.tensor([0, 4])), (ids, torch.tensor([-1, 0]))):
        with pytest.raises(IndexError):
            both(lambda of=of, at=at: kernels.move_rows(x, of, out, at))
    for wrong in (out.double(), torch.zeros(4, 3), out[:, :1]):
        with pytest.raises(ValueError, match="do not go"):
            kernels.move_rows(x, ids, wrong, ids)
    with pytest.raises(ValueError, match="3 rows"):
        kernels.move_rows(x, None, out, ids)


@settings(max_examples=20, deadline=None)
@given(blocks(), st.integers(0, 9))
def test_halves_are_gathered_as_they_are(both, block, columns):
    _, ids, rows = block
    x = torch.randint(-(2**15), 2**15, (rows, columns), dtype=torch.int16).view(torch.float16)
    compiled, plain = both(lambda: kernels.gather_rows(x, ids, dtype=torch.float16))
    assert compiled.dtype == torch.float16
    assert torch.equal(compiled.view(torch.int16), plain.view(torch.int16))
    assert torch.equal(plain.view(torch.int16), x.view(torch.int16)[ids.long()])


def test_every_half_is_widened_exactly():
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    half = bits.view(torch.float16).reshape(1024, 64)
    ids = torch.arange(1024)
    assert torch.equal(kernels.gather_rows(half, ids).view(torch.int32).isnan(), half.float().view(torch.int32).isnan())
    torch.testing.assert_close(kernels.gather_rows(half, ids), half.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        kernels.aggregate(half, torch.arange(1025), ids), half.float(), rtol=0, atol=0, equal_nan=True
    )


def test_gather_from_a_read_only_map(tmp_path):
    from partita.sample.topology import as_tensor

    x = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    mapped = as_tensor(np.load(tmp_path / "x.npy", mmap_mode="r", allow_pickle=False))
    assert torch.equal(kernels.gather_rows(mapped, torch.tensor([3, 3, 49])), torch.from_numpy(x)[[3, 3, 49]].float())


@settings(max_examples=60, deadline=None)
@given(
    blocks(),
    st.sampled_from(FLOATS),
    st.sampled_from([None, torch.float32, torch.float64]),
    st.sampled_from(["sum", "mean"]),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
)
def test_aggregate(both, block, dtype, out_dtype, reduce, heads, scaled):
    indptr, indices, src = block
    x = torch.randn(src, 6).to(dtype)
    weight = None if heads is None else torch.randn(indices.shape[0], heads)
    scale = torch.rand(src) if scaled else None
    compiled, plain = both(
        lambda: kernels.aggregate(x, indptr, indices, weight, reduce=reduce, scale=scale, dtype=out_dtype)
    )
    close(compiled, plain)
    assert compiled.dtype == (out_dtype or (torch.float64 if dtype == torch.float64 else torch.float32))
    rows = x.double() if scale is None else x.double() * scale.double()[:, None]
    for head in range(heads or 1):
        own = slice(head * 6 // (heads or 1), (head + 1) * 6 // (heads or 1))
        per_edge = None if weight is None else weight[:, head]
        expected = dense_matrix(indptr, indices, per_edge, src, reduce) @ rows[:, own]
        torch.testing.assert_close(compiled[:, own].double(), expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(blocks(), st.sampled_from([torch.float32, torch.float64]), st.sampled_from(["sum", "mean"]), st.booleans())
def test_gradients_of_aggregate(both, block, dtype, reduce, weighted):
    indptr, indices, src = block
    heads = 2 if weighted else 1
    x = torch.randn(src, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(indices.shape[0], heads, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(indptr.shape[0] - 1, 4, dtype=torch.float64)
    counts = indptr[1:] - indptr[:-1]
    dst = torch.repeat_interleave(counts)
    rows = x[indices.long()].reshape(-1, heads, 4 // heads)
    rows = (rows * weight[:, :, None] if weighted else rows).reshape(-1, 4)
    if reduce == "mean":
        rows = rows / counts[dst][:, None]
    (torch.zeros_like(grad).index_add(0, dst, rows) * grad).sum().backward()

    narrow = grad.to(dtype)
    transposed = kernels.transpose(indptr, indices, src)
    given_weight = weight.detach() if weighted else None
    compiled, plain = both(
        lambda: kernels.aggregate_backward(narrow, transposed, indptr, src, given_weight, reduce=reduce)
    )
    assert compiled.dtype == dtype
    close(compiled, plain)
    torch.testing.assert_close(compiled.double(), x.grad, rtol=1e-4, atol=1e-4)
    if weighted:
        compiled, plain = both(
            lambda: kernels.aggregate_weight_grad(narrow, x.detach(), indptr, indices, heads, reduce=reduce)
        )
        close(compiled, plain)
        torch.testing.assert_close(compiled.double(), weight.grad, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(blocks(), st.sampled_from([torch.float32, torch.float64]), st.booleans())
def test_segment_max(both, block, dtype, nan):
    indptr, indices, src = block
    x = torch.randint(-3, 3, (src, 5)).to(dtype)  # many ties
    x[::7, 1] = -torch.inf
    if nan:
        x[::5, 0] = torch.nan
    (values, argmax), (plain, plain_argmax) = both(lambda: kernels.segment_max(x, indptr, indices))
    torch.testing.assert_close(values, plain, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(argmax, plain_argmax)
    for i in range(values.shape[0]):
        rows = x[indices[indptr[i] : indptr[i + 1]].long()]
        if len(rows) == 0:
            assert (values[i] == 0).all()
            assert (argmax[i] == -1).all()
        else:
            torch.testing.assert_close(values[i], rows.amax(0), rtol=0, atol=0, equal_nan=True)
    grad = torch.randn(values.shape, dtype=dtype)
    compiled, plain = both(lambda: kernels.segment_max_backward(grad, argmax, indices, src))
    close(compiled, plain)
    assert compiled.sum().item() == pytest.approx(grad[argmax >= 0].sum().item(), abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(blocks())
def test_transpose(both, block):
    indptr, indices, src = block
    compiled, plain = both(lambda: kernels.transpose(indptr, indices, src))
    for name, dtype in (("indptr", torch.int64), ("dst", torch.int32), ("edge", torch.int64)):
        assert getattr(compiled, name).dtype == dtype
        assert torch.equal(getattr(compiled, name), getattr(plain, name))
    dst = torch.repeat_interleave(indptr[1:] - indptr[:-1])
    assert torch.equal(dst[compiled.edge].int(), compiled.dst)
    assert torch.equal(indices[compiled.edge].long(), torch.repeat_interleave(compiled.indptr.diff()))


def test_results_do_not_depend_on_threads():
    random = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 40, (3000,), generator=random)
    counts[17] = 30_000  # one row holds a third of the work
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    indices = torch.randint(0, 5000, (int(indptr[-1]),), generator=random, dtype=torch.int32)
    x, grad = torch.randn(5000, 32, generator=random), torch.randn(3000, 32, generator=random)
    transposed = kernels.transpose(indptr, indices, 5000)

    def everything():
        values, argmax = kernels.segment_max(x, indptr, indices)
        return (
            kernels.aggregate(x, indptr, indices, reduce="mean"),
            kernels.aggregate_backward(grad, transposed, indptr, 5000, reduce="mean"),
            kernels.aggregate_weight_grad(grad, x, indptr, indices, 4),
            values,
            kernels.segment_max_backward(grad, argmax, indices, 5000),
            kernels.gather_rows(x, indices),
            kernels.dropout(x, torch.arange(5000), 1, 0.5),
            kernels.edge_dropout(indptr, torch.arange(3000), 1, 0.5, 4),
        )

    with kernels.limited(1):
        expected = everything()
    try:
        for count in (2, 3, 7):
            kernels.set_threads(count)
            for found, wanted in zip(everything(), expected):
                assert torch.equal(found, wanted)
    finally:
        kernels.set_threads(None)


def test_wrong_arguments():
    x, indptr, indices = torch.randn(3, 4), torch.tensor([0, 2]), torch.tensor([0, 2])
    with pytest.raises(IndexError, match="it holds the id 2, but there are 2 nodes"):
        kernels.aggregate(x[:2], indptr, indices)
    with pytest.raises(IndexError, match="ids: -1"):
        kernels.gather_rows(x, torch.tensor([-1]))
    with pytest.raises(ValueError, match="3 heads do not divide 4"):
        kernels.aggregate(x, indptr, indices, torch.ones(2, 3))
    with pytest.raises(ValueError, match="number of edges"):
        kernels.aggregate(x, indptr, indices[:1])
    with pytest.raises(ValueError, match="1 weights for 2 edges"):
        kernels.aggregate(x, indptr, indices, torch.ones(1))
    with pytest.raises(ValueError, match="'max' is none of"):
        kernels.aggregate(x, indptr, indices, reduce="max")
    with pytest.raises(ValueError, match="float32 or float64"):
        kernels.gather_rows(x, indices, dtype=torch.int64)
    with pytest.raises(ValueError, match="out must be"):
        kernels.gather_rows(x, indices, out=torch.empty(2, 3))
    with pytest.raises(ValueError, match="transposed index of 3 sources for 4"):
        kernels.aggregate_backward(torch.ones(1, 4), kernels.transpose(indptr, indices, 3), indptr, 4)


def awkward_values():
    """Every kind of float32, and values half-way between two of bfloat16."""
    bits = torch.randint(-(2**31), 2**31, (4000,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    ties = (torch.randint(0, 2**15, (500,)).to(torch.int32) << 16) + 0x8000
    special = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan, 3.4e38, 1e-45, -1e-40, 1.0])
    return torch.cat([bits.view(torch.float32), ties.view(torch.float32), special])


def test_rounding_to_bfloat16_is_that_of_torch():
    values = awkward_values()[:, None]
    each = torch.arange(len(values))
    edges = kernels.transpose(torch.arange(len(values) + 1), each, len(values))
    found = kernels.aggregate_backward(values, edges, torch.arange(len(values) + 1), len(values), dtype=torch.bfloat16)
    torch.testing.assert_close(found, (values + 0.0).bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_bfloat16_are_summed_in_float32(both, reduce, weighted):
    draw = torch.Generator().manual_seed(5)
    indptr = torch.tensor([0, 3, 3, 10, 14])
    indices, x = torch.randint(0, 9, (14,), generator=draw), torch.randn(9, 21, generator=draw).bfloat16()
    weight = torch.rand(14, generator=draw) if weighted else None
    found, plain = both(lambda: kernels.aggregate(x, indptr, indices, weight, reduce=reduce))
    assert found.dtype == torch.float32
    assert torch.equal(found, kernels.aggregate(x.float(), indptr, indices, weight, reduce=reduce))
    torch.testing.assert_close(found, plain)
    edges, grad = kernels.transpose(indptr, indices, 9), torch.randn(4, 21, generator=draw)
    exact = kernels.aggregate_backward(grad, edges, indptr, 9, weight, reduce=reduce)
    rounded, plain = both(
        lambda: kernels.aggregate_backward(grad, edges, indptr, 9, weight, reduce=reduce, dtype=torch.bfloat16)
    )
    assert torch.equal(rounded, exact.bfloat16())
    torch.testing.assert_close(rounded, plain)
