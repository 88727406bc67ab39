"""Products of rows and weights, with as few passes over the rows as can be."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional


def two_products(
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "m F"],
    bias: Float[Tensor, "m"] | None,
    y: Float[Tensor, "n G"],
    other: Float[Tensor, "m G"],
) -> Float[Tensor, "n m"]:
    """``x W^T + b + y V^T``: the second product is added where the first was written.

    Computed in the dtype of autocast, where that is on.
    """
    return _TwoProducts.apply(x, weight, bias, y, other)


class _TwoProducts(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, other: Tensor) -> Tensor:
        device = x.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            x, weight, y, other = (tensor.to(dtype) for tensor in (x, weight, y, other))
            bias = None if bias is None else bias.to(dtype)
        ctx.save_for_backward(x, weight, y, other)
        ctx.bias = bias is not None
        result = functional.linear(x, weight, bias)
        return result.addmm_(y, other.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y, other = ctx.saved_tensors
        x_wanted, weight_wanted, bias_wanted, y_wanted, other_wanted = ctx.needs_input_grad
        by_output = grad.t()
        # autograd gives gradients the dtypes of what they belong to
        return (
            grad @ weight if x_wanted else None,
            by_output @ x if weight_wanted else None,
            grad.sum(0) if ctx.bias and bias_wanted else None,
            grad @ other if y_wanted else None,
            by_output @ y if other_wanted else None,
        )
