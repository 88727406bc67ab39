"""Products by group in one node of autograd are those of one product after the other."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from partita.nn.grouped import MANY_GROUPS, grouped_linear, linears


def one_by_one(pieces, weights, biases):
    return torch.cat([functional.linear(*each) for each in zip(pieces, weights, biases)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("width", [8, 5, 0])
@pytest.mark.parametrize("sizes", [[3, 0, 5], [0, 0], [4] * (MANY_GROUPS + 3), [0, 7] * MANY_GROUPS])
def test_rows_and_gradients_are_those_of_single_products(sizes, width, biased, dtype):
    torch.manual_seed(len(sizes))
    count = len(sizes)
    rows = torch.randn(sum(sizes), width, dtype=dtype, requires_grad=True)
    # As R-GCN has it: transposed.
    weight = torch.randn(count, width, 4, dtype=dtype, requires_grad=True)
    bias = torch.randn(count, 4, dtype=dtype, requires_grad=True) if biased else None
    tensors = [rows, weight] + [bias] * biased
    out = grouped_linear(rows, weight.transpose(1, 2), sizes, bias)
    plain = one_by_one(rows.split(sizes), weight.transpose(1, 2).unbind(), bias.unbind() if biased else [None] * count)
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=1e-5)
    for grad in (torch.randn_like(plain), torch.ones(1, 1, dtype=dtype).expand_as(plain)):
        found = torch.autograd.grad(out, tensors, grad, retain_graph=True)
        wanted = torch.autograd.grad(plain, tensors, grad, retain_graph=True)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_many_groups_are_multiplied_together(monkeypatch):
    if not hasattr(functional, "grouped_mm"):
        pytest.skip("this PyTorch has no grouped_mm")
    calls = []
    grouped_mm = functional.grouped_mm
    monkeypatch.setattr(functional, "grouped_mm", lambda *a, **k: (calls.append(1), grouped_mm(*a, **k))[1])
    rows = torch.randn(3 * MANY_GROUPS, 8, requires_grad=True)
    grouped_linear(rows, torch.randn(MANY_GROUPS, 4, 8, requires_grad=True), [3] * MANY_GROUPS).sum().backward()
    assert len(calls) == 3
    grouped_linear(rows, torch.randn(3, 4, 8), [MANY_GROUPS] * 3)
    grouped_linear(rows.double(), torch.randn(MANY_GROUPS, 4, 8).double(), [3] * MANY_GROUPS)
    assert len(calls) == 3


@pytest.mark.parametrize("sizes", [(3, 0, 5), (0, 0, 0)])
def test_pieces_may_have_other_widths_and_want_no_gradient(sizes):
    widths = (2, 5, 1)
    pieces = [torch.randn(n, width).requires_grad_(width == 5) for n, width in zip(sizes, widths)]
    weights = [torch.randn(4, width, requires_grad=True) for width in widths]
    biases = [torch.randn(4, requires_grad=True), None, torch.randn(4, requires_grad=True)]
    tensors = [pieces[1], *weights, biases[0], biases[2]]
    out, plain = linears(pieces, weights, biases), one_by_one(pieces, weights, biases)
    torch.testing.assert_close(out, plain)
    grad = torch.randn_like(plain)
    for mine, theirs in zip(*(torch.autograd.grad(each, tensors, grad) for each in (out, plain)), strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linears(pieces, weights, biases).dtype == torch.bfloat16
