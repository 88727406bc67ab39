"""Ages of rows, and what a model is told of them."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from partita.core.errors import ConfigError
from partita.core.node_types import NodeTypes
from partita.nn.ages import COLUMNS, AgeEncoder, RowTimes, age_features
from partita.nn.encoder import Encoder

LEAST, LARGEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
TYPES = NodeTypes(np.array([0, 4, 7]), 2)  # of two types


def row_times(*times: int, latest: int = 100) -> RowTimes:
    return RowTimes(torch.tensor(times), NodeTypes(np.array([0, len(times)])), latest)


def ages(times: list[int], at: list[int], latest: int = 100) -> list[int]:
    return row_times(*times, latest=latest).ages(torch.arange(len(times)), torch.tensor(at)).tolist()


def test_ages_are_not_below_zero_and_unknown_ones_are_marked() -> None:
    assert ages([3, 10, 12, LEAST, LARGEST], [10, 10, 10, 10, 10]) == [7, 0, 0, -1, -1]


def test_seeds_that_are_asked_about_once_all_is_known() -> None:
    assert ages([3, 120, LEAST], [LARGEST] * 3, latest=150) == [147, 30, -1]


def test_ages_that_64_bits_cannot_hold_are_the_largest_ones() -> None:
    found = ages([LEAST + 1, -2, 5], [LARGEST - 1] * 3, latest=LARGEST - 1)
    assert found == [LARGEST, LARGEST, LARGEST - 6]
    assert age_features(torch.tensor(found), 1.0).isfinite().all()


def test_features_are_what_they_are_said_to_be() -> None:
    found = age_features(torch.tensor([0, 5, 20, 80, -1]), 20.0)
    assert found.dtype == torch.float64
    for row, age in zip(found, (0.0, 0.25, 1.0, 4.0), strict=False):
        falling = [2.0 ** (-age / (4.0 / 2**n)) for n in range(12)]
        assert row.tolist() == pytest.approx([np.log2(1 + 512 * age) / 9, *falling], rel=1e-12)
    assert found[-1].tolist() == [0.0] * COLUMNS  # no time: no features


def test_features_are_bounded_and_monotone() -> None:
    found = age_features(torch.tensor([*range(0, 4000, 7), 10**6, 10**12, LARGEST]), 365.0)
    assert found.min() >= 0
    assert age_features(torch.tensor([LARGEST]), 1.0).max() <= 8.0001
    assert (found[:, 0].diff() > 0).all()
    assert (found[:, 1:].diff(dim=0) <= 0).all()


def test_the_unit_of_times_does_not_matter() -> None:
    days, second = torch.arange(0, 3000, 11), 86_400
    wanted = age_features(days, 365.0)
    for times in (second, second * 10**6, second * 10**9):
        torch.testing.assert_close(age_features(days * times, 365.0 * times), wanted, rtol=1e-12, atol=1e-15)


def test_rows_of_types_without_times_stay_as_they_are() -> None:
    encoder = AgeEncoder([1], 3, 10.0).double()
    torch.nn.init.ones_(encoder.lins[0].weight)
    with pytest.raises(ValueError, match="no times of rows"):
        encoder.of(torch.tensor([2]), torch.tensor([5]), 2)
    encoder.source = RowTimes(torch.tensor([1, 2, 3, 4, 5, LEAST, 7]), TYPES, 100)
    times, slots = torch.tensor([10, 20]), 2
    requests = torch.tensor([[node * slots + slot for node in (0, 4, 5)] for slot in (0, 1)]).flatten()
    rows = torch.zeros(6, 3, dtype=torch.float64, requires_grad=True)
    out = encoder(rows, encoder.of(requests, times, slots))
    assert out[[0, 2, 3, 5]].tolist() == [[0.0] * 3] * 4
    for row, age in ((1, 5), (4, 15)):
        assert out[row].tolist() == pytest.approx([float(age_features(torch.tensor([age]), 10.0).sum())] * 3)
    out.sum().backward()
    assert rows.grad is not None
    assert encoder.lins[0].weight.grad is not None
    empty = encoder(rows[:0], encoder.of(requests[:0], times, slots))
    assert empty.shape == (0, 3)


def test_copies_read_the_same_times() -> None:
    encoder = AgeEncoder([0], 3, 10.0)
    encoder.source = row_times(1, 2)
    assert deepcopy(encoder).source is encoder.source


def test_an_encoder_is_described_with_its_ages() -> None:
    encoder = Encoder((2, 0), 4, ("a", "b"), dated=("b",), age_unit=0.1 + 0.2)
    assert encoder.describe() == {
        "widths": [2, 0], "out_width": 4, "node_types": ["a", "b"], "dated": ["b"], "age_unit": 0.1 + 0.2
    }  # fmt: skip
    again, plain = Encoder.from_description(encoder.describe()), Encoder((2, 0), 4, ("a", "b"))
    for each in (encoder, again, plain):
        each.reset(7)
    assert {name: value.tolist() for name, value in again.state_dict().items()} == {
        name: value.tolist() for name, value in encoder.state_dict().items()
    }
    for name, value in plain.state_dict().items():  # parameters beside others do not change these
        assert torch.equal(value, encoder.state_dict()[name])
    assert "b: 0 + age" in str(encoder)


def test_what_is_no_type_or_no_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match="no node type 'c'"):
        Encoder((2, 0), 4, ("a", "b"), dated=("c",))
    for unit in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="must be above 0"):
            Encoder((2, 0), 4, ("a", "b"), dated=("a",), age_unit=unit)
