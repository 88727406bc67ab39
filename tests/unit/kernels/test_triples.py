"""Products of rows of nodes with those of their relations: against complex numbers, and autograd of these."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from partita import kernels


def by_torch(x: Tensor, table: Tensor, index: Tensor, conjugate: bool) -> Tensor:
    left, right = (torch.complex(*rows.chunk(2, 1)) for rows in (x, table[index]))
    found = left * (right.conj() if conjugate else right)
    return torch.cat([found.real, found.imag], 1)


@settings(max_examples=60)
@given(
    st.integers(0, 40), st.integers(1, 70), st.integers(1, 5), st.booleans(),
    st.sampled_from([torch.float32, torch.float64]), st.integers(0, 2**32),
)  # fmt: skip
def test_products_and_gradients_are_those_of_complex_numbers(both, rows, half, relations, conjugate, dtype, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2 * half, generator=draw, dtype=dtype).requires_grad_()
    table = torch.randn(relations, 2 * half, generator=draw, dtype=dtype).requires_grad_()
    index = torch.randint(relations, (rows,), generator=draw)
    wanted = by_torch(x, table, index, conjugate)
    grad = torch.randn(wanted.shape, generator=draw, dtype=dtype)
    gradients = torch.autograd.grad(wanted, (x, table), grad)
    given = (x.detach(), table.detach(), index)
    for found in both(lambda: kernels.complex_rows(*given, conjugate=conjugate)):
        torch.testing.assert_close(found, wanted.detach())
    for found in both(lambda: kernels.complex_rows_backward(grad, *given, conjugate=conjugate)):
        torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-5)


def test_any_number_of_threads_gives_the_same() -> None:
    x, grad, table, index = torch.randn(3000, 120), torch.randn(3000, 120), torch.randn(3, 120), torch.arange(3000) % 3
    found = []
    for threads in (1, 3):
        kernels.set_threads(threads)
        found.append([kernels.complex_rows(x, table, index), *kernels.complex_rows_backward(grad, x, table, index)])
    kernels.set_threads(None)
    assert all(map(torch.equal, *found))


def test_what_does_not_fit_is_refused() -> None:
    x, index = torch.zeros(2, 4), torch.tensor([0, 1])
    for table in (torch.zeros(2, 6), torch.zeros(2, 4, dtype=torch.float64)):
        with pytest.raises(ValueError, match="with 2 rows of"):
            kernels.complex_rows(x, table, index)
    with pytest.raises(ValueError, match="with 2 rows of"):
        kernels.complex_rows(x[:, :3], torch.zeros(2, 3), index)
    with pytest.raises(IndexError, match="index: 0 to 1, but there are 1 rows"):
        kernels.complex_rows(x, torch.zeros(1, 4), index)
