"""Values of rows of small integers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import kernels


def unpacked(x: torch.Tensor) -> torch.Tensor:
    """The small integers of rows, one by one."""
    if x.dtype == torch.int8:
        return x.int() + 128
    return torch.tensor([[half for both in row for half in (both % 16, both // 16)] for row in x.tolist()]).view(
        x.shape[0], 2 * x.shape[1]
    )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([torch.int8, torch.uint8]), st.sampled_from([torch.float32, torch.float64]), st.data())
def test_expand(both, stored, dtype, data):
    rows, width, num = (data.draw(st.integers(low, 9)) for low in (1, 0, 0))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    x = torch.randint(-128, 128, (rows, width), dtype=torch.int8, generator=generator).view(stored)
    columns = width * (1 if stored == torch.int8 else 2)
    first = data.draw(st.integers(0, columns))
    last = data.draw(st.integers(first, columns))
    step, offset = (torch.randn(last - first, generator=generator) for _ in range(2))
    scale = torch.rand(rows, generator=generator) if data.draw(st.booleans()) else None
    ids = torch.randint(0, rows, (num,), generator=generator)
    compiled, plain = both(lambda: kernels.expand_rows(x, ids, step, offset, first=first, scale=scale, dtype=dtype))
    assert plain.dtype == dtype
    assert torch.equal(compiled, plain)
    expected = unpacked(x)[ids, first:last].to(dtype) * step.to(dtype) + offset.to(dtype)
    assert torch.equal(plain, expected if scale is None else expected * scale[ids].to(dtype)[:, None])
    copied, same = both(lambda: kernels.gather_rows(x, ids, dtype=stored))
    assert torch.equal(copied, same)
    assert torch.equal(copied, x[ids])


def test_bad_arguments():
    x, ids, column = torch.zeros(3, 2, dtype=torch.uint8), torch.tensor([0, 2]), torch.ones(4)
    with pytest.raises(IndexError, match="ids: 3 to 3"):
        kernels.expand_rows(x, ids + 3 - ids, column, column)
    with pytest.raises(ValueError, match="no small integers"):
        kernels.expand_rows(x.float(), ids, column, column)
    with pytest.raises(ValueError, match="columns 1 to 5 of 4"):
        kernels.expand_rows(x, ids, column, column, first=1)
    with pytest.raises(ValueError, match="dtype"):
        kernels.expand_rows(x, ids, column, column, dtype=torch.float16)
    with pytest.raises(ValueError, match="expand_rows gives"):
        kernels.gather_rows(x, ids)
