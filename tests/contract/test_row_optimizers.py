"""What every optimizer of learnt rows must do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partita.setup.learnt import ROW_OPTIMIZERS

every = pytest.mark.parametrize("name", list(ROW_OPTIMIZERS))
N, WIDTH = 11, 5


def begun(name: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, dict[str, Tensor]]:
    rows = torch.randn(N, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(2))
    return rows, {slot: torch.zeros(N, c, dtype=dtype) for slot, c in ROW_OPTIMIZERS.find(name).slots(WIDTH).items()}


def gradients(count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(count))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_rows_that_are_reached_change(name, dtype) -> None:
    rows, slots = begun(name, dtype)
    before = rows.clone()
    at = torch.tensor([7, 2, 4])
    for step in (1, 2, 3):
        ROW_OPTIMIZERS.find(name).update(rows, slots, at, gradients(3, dtype), 0.1, step)
    others = torch.ones(N, dtype=torch.bool).index_fill_(0, at, False)
    assert torch.equal(rows[others], before[others])
    assert not torch.equal(rows[at], before[at])
    assert all(not slot[others].any() for slot in slots.values())
    assert rows.dtype == dtype
    assert rows.isfinite().all()


@every
def test_the_order_of_rows_does_not_matter(name) -> None:
    at, values, order = torch.tensor([7, 2, 4]), gradients(3), torch.tensor([2, 0, 1])
    (one, one_slots), (other, other_slots) = begun(name), begun(name)
    for step in (1, 2):
        ROW_OPTIMIZERS.find(name).update(one, one_slots, at, values, 0.1, step)
        ROW_OPTIMIZERS.find(name).update(other, other_slots, at[order], values[order], 0.1, step)
    assert torch.equal(one, other)
    assert all(torch.equal(one_slots[slot], other_slots[slot]) for slot in one_slots)


@every
def test_no_row_is_as_good_as_some(name) -> None:
    rows, slots = begun(name)
    before = rows.clone()
    ROW_OPTIMIZERS.find(name).update(rows, slots, torch.empty(0, dtype=torch.int64), gradients(0), 0.1, 1)
    assert torch.equal(rows, before)


@every
def test_rows_go_to_where_a_loss_is_least(name) -> None:
    rows, slots = begun(name)
    at, far = torch.arange(N), float((rows - 3).abs().max())
    for step in range(1, 401):
        ROW_OPTIMIZERS.find(name).update(rows, slots, at, 2 * (rows - 3), 0.1, step)
    assert float((rows - 3).abs().max()) < far / 2
