"""Rows that lie in two places are found, and what lies in none is an error."""

from __future__ import annotations

import pytest
import torch

from partita.features.rows import FeatureColumn
from partita.infer.row_table import RowTable, read_rows

X = torch.arange(30.0).reshape(10, 3)


def test_rows_are_found_wherever_they_are() -> None:
    away = torch.tensor([0, 8])
    scale = torch.arange(1.0, 11.0)
    home = FeatureColumn(X[3:6], scale=scale[3:6])
    table = RowTable(home, 10, 3, away, FeatureColumn(X[away], scale=scale[away]))
    assert not table.whole
    for ids in ([8, 3, 0, 5, 5], [4], [0, 8], []):
        at = torch.tensor(ids, dtype=torch.int32)
        assert torch.equal(table.read(at), (X * scale[:, None])[at.long()])


@pytest.mark.parametrize("ids", [[1], [7], [9], [3, 2]])
def test_rows_that_are_not_there(ids) -> None:
    table = RowTable(FeatureColumn(X[3:6]), 10, 3, torch.tensor([0, 8]), FeatureColumn(X[[0, 8]]))
    with pytest.raises(IndexError, match="does not hold"):
        table.read(torch.tensor(ids))
    with pytest.raises(IndexError, match="does not hold"):
        RowTable(FeatureColumn(X[3:6]), 10, 3).read(torch.tensor([8]))


def test_rows_that_follow_one_another_are_not_copied() -> None:
    column = FeatureColumn(torch.arange(12.0).reshape(6, 2))
    rows = read_rows(column, torch.arange(2, 5))
    assert rows.data_ptr() == column.x[2:].data_ptr()
    for ids in ([2, 4, 3], [3, 3], [5, 4], []):
        at = torch.tensor(ids, dtype=torch.int32)
        found = read_rows(column, at)
        assert torch.equal(found, column.x[at.long()])
        assert not ids or found.data_ptr() != column.x[ids[0] :].data_ptr()
    half = FeatureColumn(column.x.half())
    assert read_rows(half, torch.arange(2, 5)).dtype == torch.float32
    scaled = FeatureColumn(column.x, scale=torch.full((6,), 2.0))
    assert torch.equal(read_rows(scaled, torch.arange(2, 5)), 2 * rows)
