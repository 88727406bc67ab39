"""How rows of a table move."""

from __future__ import annotations

import pytest
import torch

from partita import kernels

SETTINGS = {"betas": (0.9, 0.999), "eps": 1e-8, "size": 0.1}


def tables(dtype: torch.dtype) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    rows, mean = (torch.randn(40, 7, dtype=dtype, generator=draw) for _ in range(2))
    return [rows, mean, torch.rand(40, 7, dtype=dtype, generator=draw)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_is_that_of_the_reference(dtype) -> None:
    at, gradient = torch.randperm(40)[:11], torch.randn(11, 7, dtype=dtype)
    found, expected, before = tables(dtype), tables(dtype), tables(dtype)
    kernels.adam_rows(*found, at, gradient, **SETTINGS)
    with kernels.use("reference"):
        kernels.adam_rows(*expected, at, gradient, **SETTINGS)
    others = torch.ones(40, dtype=torch.bool).index_fill_(0, at, False)
    for one, other, old in zip(found, expected, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14 if dtype == torch.float64 else 1e-5, atol=1e-6)
        assert torch.equal(one[others], old[others])
        assert not torch.equal(one, old)


def test_adam_is_the_same_on_any_number_of_threads() -> None:
    found = []
    for threads in (1, 3):
        draw = torch.Generator().manual_seed(2)
        rows = [torch.rand(2000, 128, generator=draw) for _ in range(3)]
        with kernels.limited(threads):
            kernels.adam_rows(*rows, torch.arange(2000), torch.rand(2000, 128, generator=draw), **SETTINGS)
        found.append(rows)
    assert all(map(torch.equal, *found))


def test_adam_refuses_what_does_not_fit() -> None:
    rows, at = tables(torch.float32), torch.tensor([1, 40])
    with pytest.raises(IndexError):
        kernels.adam_rows(*rows, at, torch.zeros(2, 7), **SETTINGS)
    with pytest.raises(ValueError, match="fitting shapes"):
        kernels.adam_rows(*rows, at - 1, torch.zeros(2, 6), **SETTINGS)
    with pytest.raises(ValueError, match="one dtype"):
        kernels.adam_rows(*rows, at - 1, torch.zeros(2, 7, dtype=torch.float64), **SETTINGS)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.adam_rows(rows[0].t().contiguous().t(), *rows[1:], at - 1, torch.zeros(2, 7), **SETTINGS)
