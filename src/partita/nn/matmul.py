"""Products of rows and weights: who computes them, and with as few passes over the rows as can be.

PyTorch multiplies with the library that it was built with, which is not the fastest one on every processor. A backend
is a name in :data:`BACKENDS`; :func:`use` puts one to use, and everything here goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from partita.core.errors import ConfigError
from partita.core.registry import Registry

LEAST_ROWS = 256
"""Products of fewer rows are left to PyTorch."""
MOST_ROWS = 4096
"""So many rows at most are given to oneDNN at a time; with :data:`LEAST_ROWS` a power of two times those."""
LEAST_COLUMNS = 16
"""Narrower products than this are bound by memory, and left to PyTorch."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The products that training needs, for float32 tensors on the CPU that are not empty.

    Attributes:
        linear: ``(x, weight, bias)`` give ``x W^T + b``.
        two: ``(x, weight, bias, y, other)`` give ``x W^T + b + y V^T``.
        by_weight: ``(grad, weight)`` give ``grad W``, the gradient of the rows.
        by_rows: ``(grad, x)`` give ``grad^T x``, the gradient of the weight.
        needs_onednn: it can only be used where :func:`onednn_works`.
    """

    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    two: Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor], Tensor]
    by_weight: Callable[[Tensor, Tensor], Tensor]
    by_rows: Callable[[Tensor, Tensor], Tensor]
    needs_onednn: bool = False


def _two_by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, other: Tensor) -> Tensor:
    return functional.linear(x, weight, bias).addmm_(y, other.t())  # the second is added where the first was written


def _by_rows_of_torch(grad: Tensor, x: Tensor) -> Tensor:
    return grad.t() @ x


def _pieces(rows: int) -> list[slice]:
    """Rows in pieces of :data:`MOST_ROWS`, then halves of that down to :data:`LEAST_ROWS`, then what is left.

    oneDNN compiles a program for every number of rows and keeps it. Batches have other numbers of rows in every step,
    which would cost half a millisecond a product, and hundreds of MiB over a run.
    """
    pieces, begin, size = [], 0, MOST_ROWS
    while begin < rows:
        while size > rows - begin and size >= LEAST_ROWS:
            size //= 2
        end = begin + size if size >= LEAST_ROWS else rows
        pieces.append(slice(begin, end))
        begin = end
    return pieces


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _piece(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x, weight, bias) if len(x) < LEAST_ROWS else _onednn(x, weight, bias)


def _linear_by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    pieces = _pieces(len(x))
    if len(pieces) == 1:
        return _piece(x, weight, bias)
    out = x.new_empty(len(x), len(weight))
    for rows in pieces:
        out[rows] = _piece(x[rows], weight, bias)  # it comes from the processor's cache
    return out


def _two_by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, other: Tensor) -> Tensor:
    out = x.new_empty(len(x), len(weight))
    for rows in _pieces(len(x)):
        torch.add(_piece(x[rows], weight, bias), _piece(y[rows], other), out=out[rows])
    return out


def _by_weight_of_onednn(grad: Tensor, weight: Tensor) -> Tensor:
    return _linear_by_onednn(grad, weight.t())


def _by_rows_of_onednn(grad: Tensor, x: Tensor) -> Tensor:
    """The narrower side is copied, transposed; the wider one is read as it lies."""
    swapped = x.shape[1] < grad.shape[1]
    left, right = (x, grad) if swapped else (grad, x)
    total = None
    for rows in _pieces(len(x)):
        part = _piece_by_rows(left[rows], right[rows])
        total = part if total is None else total.add_(part)
    assert total is not None
    return total.t() if swapped else total


def _piece_by_rows(left: Tensor, right: Tensor) -> Tensor:
    if len(left) < LEAST_ROWS:
        return left.t() @ right
    # Of columns of a wider matrix, such as scores, the transposed product takes a thousand times as long.
    return _onednn(left.contiguous().t(), right.contiguous().t())


def _round(rows: int) -> tuple[int, int]:
    """A number of rows rounded down to one that others of about this size are rounded to, and the next step of these.

    Products of bfloat16 compute faster than threads wake up: the rows of a batch should be few pieces, and their
    sizes few, for the reason that :func:`_pieces` gives.
    """
    step = max(LEAST_ROWS, 1 << max(0, rows.bit_length() - 5))
    return rows - rows % step, step


def _windows(rows: int) -> list[slice]:
    """The rounded number of rows; and where rows are left, as many as a step has that end with them."""
    whole, step = _round(rows)
    return [slice(0, whole)] + ([slice(rows - step, rows)] if whole < rows else [])


def _linear_of_half(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = x.new_empty(len(x), len(weight))
    for rows in _windows(len(x)):
        _write_product(x[rows], weight, bias, out[rows])
    return out


def _two_of_half(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, other: Tensor) -> Tensor:
    out = x.new_empty(len(x), len(weight))
    for rows in _windows(len(x)):  # rows of both windows are written again before they are added to
        _write_product(x[rows], weight, bias, out[rows])
        out[rows].addmm_(y[rows], other.t())
    return out


def _write_product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _by_weight_of_half(grad: Tensor, weight: Tensor) -> Tensor:
    return _linear_of_half(grad, weight.t())


def _by_rows_of_half(grad: Tensor, x: Tensor) -> Tensor:
    whole, step = _round(len(x))
    total = (grad[:whole].t() @ x[:whole]).float()
    if whole < len(x):
        missing = whole + step - len(x)
        left, right = (functional.pad(each[whole:], (0, 0, 0, missing)) for each in (grad, x))  # by rows of zeros
        total += left.t() @ right
    return total


_HALF = Backend(_linear_of_half, _two_of_half, _by_weight_of_half, _by_rows_of_half)
"""PyTorch's products of bfloat16, which are those of oneDNN."""

BACKENDS: Registry[Backend] = Registry(
    "matrix-multiplication backend",
    {
        "torch": Backend(functional.linear, _two_by_torch, torch.matmul, _by_rows_of_torch),
        "onednn": Backend(_linear_by_onednn, _two_by_onednn, _by_weight_of_onednn, _by_rows_of_torch, True),
        # That gradient sums over rows, which oneDNN reads transposed: not always faster, where the others are.
        "onednn-all": Backend(_linear_by_onednn, _two_by_onednn, _by_weight_of_onednn, _by_rows_of_onednn, True),
    },
    setting="matmul",
    also=("auto",),
)
"""By name."""
TORCH = "torch"
_TORCH = BACKENDS.find(TORCH)

_chosen: ContextVar[Backend] = ContextVar("partita_products", default=_TORCH)


def onednn_works() -> bool:
    """Whether this PyTorch has oneDNN, switched on, with the product that is used here, which is not public."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    taken = torch.ops.mkldnn._linear_pointwise.default._schema.arguments  # not called: that would start oneDNN
    return [argument.name for argument in taken] == ["X", "W", "B", "attr", "scalars", "algorithm"]


def require(name: str) -> None:
    """See that a backend can be used here.

    Raises:
        ConfigError: there is none of this name, or this PyTorch does not have it.
    """
    if BACKENDS.find(name).needs_onednn and not onednn_works():
        raise ConfigError(
            f"'{name}' needs oneDNN, which this PyTorch ({torch.__version__}) does not have, or which is switched off",
            where="matmul",
            fix="Use matmul torch or auto, or install a build of PyTorch with oneDNN",
        )


@contextmanager
def use(name: str) -> Iterator[None]:
    """Let products that are begun in the current thread within the block be computed by a backend.

    That of PyTorch computes whatever is not float32 on the CPU, and all under autocast, in any case.

    Raises:
        ConfigError: see :func:`require`.
    """
    require(name)
    token = _chosen.set(BACKENDS.find(name))
    try:
        yield
    finally:
        _chosen.reset(token)


def _backend(*operands: Tensor) -> Backend:
    """What computes a product of rows (n, F) and weights (m, F), given in pairs."""
    if all(tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu" for tensor in operands):
        return _HALF if len(operands[0]) >= LEAST_ROWS else _TORCH
    chosen = _chosen.get()
    if chosen is _TORCH:
        return chosen
    for tensor in operands:
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.shape[1] < LEAST_COLUMNS:
            return _TORCH
    if len(operands[0]) < LEAST_ROWS or len(operands[1]) < LEAST_COLUMNS:
        return _TORCH
    return chosen


def by_torch(x: Float[Tensor, "n F"], weight: Float[Tensor, "..."]) -> bool:
    """Whether PyTorch computes products of such rows and weights, as they are."""
    device = x.device.type
    cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    exact = x.dtype == weight.dtype and x.dtype in (torch.float32, torch.float64)
    return exact and not cast and (_chosen.get() is _TORCH or x.dtype == torch.float64)


def operands(x: Float[Tensor, "n F"], weight: Float[Tensor, "m F"]) -> tuple[Backend, Tensor, Tensor]:
    """What computes ``x W^T``, and both as it takes them: in the dtype of autocast, where that is on."""
    x, weight = _as_autocast(x, weight)
    return _backend(x, weight), x, weight


def write_product(
    backend: Backend, x: Float[Tensor, "n F"], weight: Float[Tensor, "m F"], out: Float[Tensor, "n m"]
) -> None:
    """Write ``x W^T``, computed by a backend, into a tensor that may be a view and of another dtype."""
    if backend is _TORCH and x.dtype == weight.dtype == out.dtype:
        torch.mm(x, weight.t(), out=out)
    else:
        out.copy_(backend.linear(x, weight, None))


def linear(
    x: Float[Tensor, "n F"], weight: Float[Tensor, "m F"], bias: Float[Tensor, "m"] | None = None
) -> Float[Tensor, "n m"]:
    """``x W^T + b``. Computed in the dtype of autocast, where that is on."""
    x, weight, bias = _as_autocast(x, weight, bias)
    backend = _backend(x, weight)
    if backend is _TORCH:
        return functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias, backend)


def _as_autocast(x: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """The tensors in the dtype of autocast for rows such as ``x``, where that is on."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        return tuple(tensor if tensor is None else tensor.to(dtype) for tensor in (x, *others))
    return (x, *others)


class Linear(nn.Linear):
    """``torch.nn.Linear``, computed by the backend in use."""

    def forward(self, input: Float[Tensor, "n F"]) -> Float[Tensor, "n m"]:
        """See :func:`linear`."""
        return linear(input, self.weight, self.bias)


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, backend: Backend) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.backend = backend  # backward may run in another thread
        return backend.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_wanted, weight_wanted, bias_wanted, _ = ctx.needs_input_grad
        return (
            ctx.backend.by_weight(grad, weight) if x_wanted else None,
            ctx.backend.by_rows(grad, x) if weight_wanted else None,
            grad.sum(0) if bias_wanted else None,
            None,
        )


def two_products(
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "m F"],
    bias: Float[Tensor, "m"] | None,
    y: Float[Tensor, "n G"],
    other: Float[Tensor, "m G"],
) -> Float[Tensor, "n m"]:
    """``x W^T + b + y V^T``, without a pass of its own for the sum.

    Computed in the dtype of autocast, where that is on.
    """
    return _TwoProducts.apply(x, weight, bias, y, other)


class _TwoProducts(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, other: Tensor) -> Tensor:
        x, weight, bias, y, other = _as_autocast(x, weight, bias, y, other)
        ctx.save_for_backward(x, weight, y, other)
        ctx.bias = bias is not None
        ctx.backend = _backend(x, weight, y, other)
        return ctx.backend.two(x, weight, bias, y, other)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y, other = ctx.saved_tensors
        backend: Backend = ctx.backend
        x_wanted, weight_wanted, bias_wanted, y_wanted, other_wanted = ctx.needs_input_grad
        # autograd gives gradients the dtypes of what they belong to
        return (
            backend.by_weight(grad, weight) if x_wanted else None,
            backend.by_rows(grad, x) if weight_wanted else None,
            grad.sum(0) if ctx.bias and bias_wanted else None,
            backend.by_weight(grad, other) if y_wanted else None,
            backend.by_rows(grad, y) if other_wanted else None,
        )
