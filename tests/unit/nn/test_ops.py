from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from partita.core.records import Block
from partita.nn import ops


class Rows:
    """Input rows read on demand; remembers what was asked for."""

    def __init__(self, block: Block, x: Tensor) -> None:
        self.block, self.x, self.asked = block, x, ""
        self.width = x.shape[1]

    def all(self) -> Tensor:
        return self.x

    def of_destinations(self) -> Tensor:
        return self.x[: self.block.num_dst]

    def aggregate(self, reduce: str) -> Tensor:
        self.asked = reduce
        return ops.aggregate(self.block, self.x, reduce)


def rows(count: int, width: int, *, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(count * 31 + width)
    return torch.randn(count, width, dtype=torch.float64, generator=generator).requires_grad_(grad)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_aggregate_is_a_matrix_product_with_its_gradient(block: Block, reduce: str, weighted: bool) -> None:
    if weighted:
        block = block.with_(weight=rows(block.num_edges, 1, grad=False).squeeze(1))
    matrix = torch.zeros(block.num_dst, block.num_src, dtype=torch.float64)
    values = block.weight if weighted else torch.ones(block.num_edges, dtype=torch.float64)
    matrix.index_put_((block.edge_dst(), block.indices.long()), values, accumulate=True)
    if reduce == "mean" and not weighted:
        matrix /= block.indptr.diff().clamp(min=1).unsqueeze(1)
    h = rows(block.num_src, 3)
    torch.testing.assert_close(ops.aggregate(block, h, reduce), matrix @ h, rtol=1e-12, atol=1e-12)
    assert gradcheck(lambda h: ops.aggregate(block, h, reduce), h)


def test_gradients_of_the_other_operations(block: Block) -> None:
    d, s, e = block.num_dst, block.num_src, block.num_edges
    assert gradcheck(lambda h, w: ops.aggregate_heads(block, h, w), (rows(s, 6), rows(e, 2)))
    assert gradcheck(lambda h, w, own: ops.aggregate_heads(block, h, w, own), (rows(s, 6), rows(e, 2), rows(d, 2)))
    assert gradcheck(lambda h: ops.aggregate_with_own(block, h, "mean"), rows(s, 3))
    assert gradcheck(lambda h: ops.segment_max(block, h), rows(s, 3))
    assert gradcheck(lambda v: ops.source_to_edges(block, v), rows(s, 2))
    assert gradcheck(lambda v: ops.destination_to_edges(block, v), rows(d, 2))
    assert gradcheck(lambda v: ops.edges_to_destination(block, v), rows(e, 2))
    assert gradcheck(lambda x: ops.keyed_dropout(x, block.dst_original, 5, 0.4), rows(d, 5))
    assert gradcheck(lambda x: ops.relu_dropout(x, block.dst_original, 5, 0.4), rows(d, 5))


@pytest.mark.parametrize("weighted", [False, True])
def test_aggregate_with_own_is_both_to_the_bit(block: Block, weighted: bool) -> None:
    if weighted:
        block = block.with_(weight=rows(block.num_edges, 1, grad=False).squeeze(1))
    ours, theirs = rows(block.num_src, 3), rows(block.num_src, 3)
    found = ops.aggregate_with_own(block, ours, "mean")
    expected = ops.aggregate(block, theirs, "mean"), ops.own_rows(block, theirs)
    assert all(map(torch.equal, found, expected))
    for aggregated, own in (found, expected):
        (aggregated.sin().sum() + own.exp().sum()).backward()
    assert torch.equal(ours.grad, theirs.grad)
    only_one = rows(block.num_src, 3)
    ops.aggregate_with_own(block, only_one, "mean")[1].sum().backward()
    assert torch.equal(only_one.grad.sum(1), 3.0 * (torch.arange(block.num_src) < block.num_dst))


def test_own_rows_join_the_weighted_sums(block: Block) -> None:
    h, weight, own = rows(block.num_src, 6), rows(block.num_edges, 2), rows(block.num_dst, 2)
    expected = ops.aggregate_heads(block, h, weight) + h[: block.num_dst] * own.repeat_interleave(3, 1)
    torch.testing.assert_close(ops.aggregate_heads(block, h, weight, own), expected)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_norm_relu_and_dropout_in_one_are_the_three(p) -> None:
    draw, original = torch.Generator().manual_seed(1), torch.randperm(5000)[:1300]
    norm = torch.nn.LayerNorm(11, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.uniform_(-1, 2, generator=draw)
        norm.bias.normal_(generator=draw)
    x, factors = rows(1300, 11), rows(1300, 11, grad=False) * torch.arange(11)
    results = []
    for work in (
        lambda: ops.norm_relu_dropout(x, norm, original, 7, p),
        lambda: ops.relu_dropout(norm(x), original, 7, p),
    ):
        wanted = (x, norm.weight, norm.bias)
        results.append((out := work(), *torch.autograd.grad((out * factors).sum(), wanted)))
    for one, three in zip(*results):
        torch.testing.assert_close(one, three, rtol=1e-12, atol=1e-12)
    assert torch.equal(results[0][0] == 0, results[1][0] == 0)
    few, norm = rows(6, 4), torch.nn.LayerNorm(4, dtype=torch.float64)
    assert gradcheck(lambda *_: ops.norm_relu_dropout(few, norm, torch.arange(6), 7, p), (few, *norm.parameters()))


def test_norm_relu_and_dropout_of_rows_that_are_no_numbers() -> None:
    x = torch.randn(5, 8)
    x[2, 3] = torch.nan
    found = ops.norm_relu_dropout(x, torch.nn.LayerNorm(8), torch.arange(5), 7, 0.0)
    assert found.isnan().any(1).tolist() == [False, False, True, False, False]
    assert ops.norm_relu_dropout(x[:0], torch.nn.LayerNorm(8), torch.arange(0), 7, 0.5).shape == (0, 8)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_relu_and_dropout_in_one_are_both_to_the_bit(p) -> None:
    x, original = rows(60, 11), torch.arange(60) * 3
    y = x.detach().clone().requires_grad_()
    found, expected = ops.relu_dropout(x, original, 7, p), ops.keyed_dropout(y.relu(), original, 7, p)
    assert torch.equal(found, expected)
    for result in (found, expected):
        (result * torch.arange(11)).sum().backward()
    assert torch.equal(x.grad, y.grad)
    broken = torch.full((40, 8), torch.nan)
    kept = ops.relu_dropout(broken, torch.arange(40), 7, p).isnan()
    assert torch.equal(kept, ops.keyed_dropout(broken, torch.arange(40), 7, p).isnan())
    assert kept.any()


def test_heads_are_weighted_apart(block: Block) -> None:
    h, weight = rows(block.num_src, 6), rows(block.num_edges, 2)
    apart = [
        ops.aggregate(block.with_(weight=weight[:, head].detach()), h[:, 3 * head : 3 * head + 3], "sum")
        for head in range(2)
    ]
    torch.testing.assert_close(ops.aggregate_heads(block, h, weight), torch.cat(apart, 1))


def test_segment_max_marks_rows_without_edges(block: Block) -> None:
    h = rows(block.num_src, 3)
    untouched = block.indptr.diff() == 0
    assert (ops.segment_max(block, h)[untouched] == 0).all()
    assert (ops.segment_max(block, h, empty=-torch.inf)[untouched] == -torch.inf).all()
    for i in torch.nonzero(~untouched).flatten().tolist():
        of_row = h[block.indices[block.indptr[i] : block.indptr[i + 1]]]
        assert torch.equal(ops.segment_max(block, h)[i], of_row.amax(0))


def test_edges_max_has_no_gradient(block: Block) -> None:
    values = rows(block.num_edges, 2)
    largest = ops.edges_max(block, values)
    assert not largest.requires_grad
    assert torch.equal(largest.isinf().all(1), block.indptr.diff() == 0)


def test_transposed_is_computed_once_and_kept(block: Block) -> None:
    assert block.transposed is None
    ops.aggregate(block, rows(block.num_src, 2), "sum").sum().backward()
    kept = block.transposed
    assert kept is not None
    ops.aggregate(block, rows(block.num_src, 2), "mean").sum().backward()
    assert block.transposed is kept


def test_no_transposed_without_a_gradient(block: Block) -> None:
    ops.aggregate(block, rows(block.num_src, 2, grad=False), "sum")
    assert block.transposed is None


def test_rows_read_on_demand(block: Block) -> None:
    x = rows(block.num_src, 3, grad=False)
    lazy = Rows(block, x)
    assert torch.equal(ops.aggregate(block, lazy, "mean"), ops.aggregate(block, x, "mean"))
    assert lazy.asked == "mean"
    weighted = block.with_(weight=torch.ones(block.num_edges))
    ops.aggregate(weighted, lazy, "mean")
    assert lazy.asked == "sum"  # the weights are the mean's coefficients
    assert torch.equal(ops.own_rows(block, lazy), x[: block.num_dst])
    assert torch.equal(ops.all_rows(lazy), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(block: Block, dtype: torch.dtype) -> None:
    h = rows(block.num_src, 4, grad=False).to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.aggregate(block, h, "sum") + ops.segment_max(block, h)
        out = ops.keyed_dropout(out, block.dst_original, 1, 0.5)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert h.grad is not None
    assert h.grad.dtype == dtype


def test_dropout_of_a_subset_of_rows_is_the_subset_of_the_dropout() -> None:
    x = torch.ones(50, 16)
    original = torch.arange(50) * 7
    whole = ops.keyed_dropout(x, original, 99, 0.5)
    subset = torch.tensor([41, 3, 17])
    assert torch.equal(ops.keyed_dropout(x[subset], original[subset], 99, 0.5), whole[subset])
    assert not torch.equal(ops.keyed_dropout(x, original, 98, 0.5), whole)
    assert 0.4 < (whole == 0).float().mean() < 0.6


def test_rows_of_16_bits_give_gradients_of_16_bits(block: Block) -> None:
    half = rows(block.num_src, 6).detach().bfloat16().requires_grad_()
    whole = half.detach().float().requires_grad_()
    results = []
    for h in (half, whole):
        aggregated, own = ops.aggregate_with_own(block, h, "mean")
        assert aggregated.dtype == torch.float32
        (aggregated.sum() * 2 + (own.float() * own.float()).sum()).backward()
        results.append((aggregated.detach(), h.grad))
    assert half.grad.dtype == torch.bfloat16
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1].float(), results[1][1], rtol=2e-2, atol=2e-2)
    only = half.detach().requires_grad_()
    (found,) = torch.autograd.grad(ops.aggregate(block, only, "sum").sum(), only)
    wide = whole.detach().requires_grad_()
    (expected,) = torch.autograd.grad(ops.aggregate(block, wide, "sum").sum(), wide)
    assert torch.equal(found, expected.bfloat16())
