"""Two products in one pass: what plain operations give, in every dtype, with its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from partita.nn.products import two_products


def operands(dtype: torch.dtype, rows: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = ((rows, 3), (4, 3), (4,), (rows, 2), (4, 2))
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, other: Tensor) -> Tensor:
    return functional.linear(x, weight, bias) + functional.linear(y, other)


@pytest.mark.parametrize("rows", [0, 7])
def test_it_is_the_sum_of_two_linear_maps_with_its_gradient(rows) -> None:
    given = operands(torch.float64, rows)
    torch.testing.assert_close(two_products(*given), plain(*given), rtol=1e-14, atol=1e-14)
    x, weight, _, y, other = given
    torch.testing.assert_close(two_products(x, weight, None, y, other), plain(x, weight, None, y, other))
    if rows:
        assert gradcheck(two_products, given)
        assert gradcheck(lambda x, w, y, v: two_products(x, w, None, y, v), (x, weight, y, other))


def test_inputs_without_a_gradient_get_none() -> None:
    x, weight, bias, y, other = operands(torch.float64)
    x, y = x.detach(), y.detach()
    two_products(x, weight, bias, y, other).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    assert bias.grad is not None
    assert other.grad is not None


def test_autocast_decides_the_dtype_of_the_product_and_not_of_the_gradients() -> None:
    ours, theirs = operands(torch.float32), operands(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = two_products(*ours), plain(*theirs)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    for result in (found, expected):
        result.float().square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert one.grad.dtype == torch.float32
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=2e-1)
