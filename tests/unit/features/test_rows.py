"""Input rows: the same numbers whether read, summed by id, scaled or dropped."""

from __future__ import annotations

import pytest
import torch

from partita.core.keys import StepKey
from partita.core.records import Block
from partita.features.rows import FeatureColumn, l1_scale

KEY = StepKey(1, 2, 3)


def blocks() -> tuple[Block, Block]:
    """The same block with de-duplicated sources and without."""
    local = Block(
        dst=torch.tensor([4, 0], dtype=torch.int32),
        src=torch.tensor([4, 0, 2, 3], dtype=torch.int32),
        indptr=torch.tensor([0, 3, 5]),
        indices=torch.tensor([2, 3, 2, 1, 3], dtype=torch.int32),
        dst_original=torch.tensor([40, 0]),
        src_original=torch.tensor([40, 0, 20, 30]),
    )
    by_id = local.with_(src=None, indices=torch.tensor([2, 3, 2, 0, 3], dtype=torch.int32), src_original=None)
    return local, by_id


@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("scaled", [False, True])
def test_by_id_equals_from_rows(stored, dtype, reduce, scaled) -> None:
    x = torch.arange(15).reshape(5, 3).to(stored)
    scale = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.25]) if scaled else None
    column = FeatureColumn(x, dtype=dtype, scale=scale)
    dense = x.to(dtype) * (1 if scale is None else scale[:, None].to(dtype))
    local, by_id = blocks()
    rows = column.rows(local, None)
    assert (rows.width, rows.all().dtype) == (3, dtype)
    torch.testing.assert_close(rows.all(), dense[[4, 0, 2, 3]])
    expected = torch.stack([dense[2] * 2 + dense[3], dense[0] + dense[3]])
    if reduce == "mean":
        expected /= torch.tensor([[3.0], [2.0]])
    for block in (local, by_id):
        torch.testing.assert_close(column.rows(block, None).of_destinations(), dense[[4, 0]])
        torch.testing.assert_close(column.rows(block, None).aggregate(reduce), expected)


def test_edge_weights_apply() -> None:
    local, by_id = blocks()
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    x = torch.eye(5)
    expected = torch.tensor([[0.0, 0, 4, 2, 0], [4.0, 0, 0, 5, 0]])
    for block in (local, by_id):
        found = FeatureColumn(x).rows(block.with_(weight=weight), None).aggregate("sum")
        torch.testing.assert_close(found, expected)


def test_rows_of_an_unknown_set_of_sources_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="de-duplicated"):
        FeatureColumn(torch.eye(5)).rows(blocks()[1], None).all()


def test_input_dropout_is_keyed_by_row_and_only_in_training() -> None:
    local, _ = blocks()
    column = FeatureColumn(torch.ones(5, 64), dropout=0.5)
    assert not column.sums_by_id(training=True)
    assert column.sums_by_id(training=False)
    assert torch.equal(column.rows(local, None).all(), torch.ones(4, 64))
    rows = column.rows(local, KEY)
    dropped = rows.all()
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(rows.of_destinations(), dropped[:2])
    torch.testing.assert_close(rows.aggregate("sum")[1], dropped[1] + dropped[3])
    assert torch.equal(column.rows(local, KEY).all(), dropped)
    assert not torch.equal(column.rows(local, StepKey(1, 2, 4)).all(), dropped)


def test_l1_scale_brings_rows_to_one_and_leaves_empty_ones() -> None:
    x = torch.tensor([[1.0, -3.0], [0.0, 0.0], [0.5, 0.5]])
    assert l1_scale(x).tolist() == [0.25, 1.0, 1.0]
    assert torch.equal(l1_scale(x.half()), l1_scale(x))
