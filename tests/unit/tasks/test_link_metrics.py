"""MRR, Hits@k, AUC and average precision, by their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.tasks.links.metrics import (
    auc,
    average_precision,
    compared,
    link_metrics,
    link_metrics_by,
    ranks_among,
    realistic_ranks,
)

scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12).map(np.array)


@given(scores, scores)
def test_auc_is_the_share_of_pairs_in_order(positive, negative) -> None:
    pairs = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    assert auc(positive, negative) == pytest.approx(sum(pairs) / len(pairs))


@given(scores, scores)
def test_average_precision_goes_down_all_thresholds(positive, negative) -> None:
    total, recall = 0.0, 0.0
    for threshold in sorted({*positive, *negative}, reverse=True):
        taken, wrong = (positive >= threshold).sum(), (negative >= threshold).sum()
        total += (taken / len(positive) - recall) * taken / (taken + wrong)
        recall = taken / len(positive)
    assert average_precision(positive, negative) == pytest.approx(total)


def test_known_values() -> None:
    """Those of scikit-learn's documentation: labels 0, 0, 1, 1 and scores 0.1, 0.4, 0.35, 0.8."""
    positive, negative = np.array([0.35, 0.8]), np.array([0.1, 0.4])
    assert auc(positive, negative) == 0.75
    assert average_precision(positive, negative) == pytest.approx(0.8333333333)


def test_what_has_no_value() -> None:
    some, none = np.array([1.0]), np.array([])
    for measure in (auc, average_precision):
        assert math.isnan(measure(some, none))
        assert math.isnan(measure(none, some))
        assert math.isnan(measure(np.array([np.nan]), some))
    assert link_metrics(none) == {}
    assert link_metrics_by(none, np.array([], np.int64)) == {}


def test_ranks_and_what_they_come_to() -> None:
    ranks = realistic_ranks(torch.tensor([0, 0, 2, 9, 99]), torch.tensor([0, 1, 0, 0, 2]))
    assert ranks.tolist() == [1.0, 1.5, 3.0, 10.0, 101.0]
    found = link_metrics(ranks)
    assert found["mrr"] == pytest.approx((1 + 1 / 1.5 + 1 / 3 + 0.1 + 1 / 101) / 5)
    assert (found["hits@1"], found["hits@3"], found["hits@10"]) == (0.2, 0.6, 0.8)
    by = link_metrics_by(ranks, np.array([4, 0, 4, 4, 0]))
    assert list(by) == [0, 4]
    assert by[4] == {"ranks": 3, **link_metrics(ranks[[0, 2, 3]])}


@given(
    st.lists(st.lists(st.sampled_from([-1.0, 0.0, 1e-7, 1.0, 5.0, math.nan]), min_size=4, max_size=4), max_size=4),
    st.lists(st.booleans(), min_size=16, max_size=16),
)
def test_ranks_among_given_negatives(rows, allowed) -> None:
    negative = torch.tensor(rows).reshape(-1, 4)
    allowed = torch.tensor(allowed).view(4, 4)[: len(negative)]
    true = torch.zeros(len(negative))
    wanted = [
        1 + sum(1.0 if not score < 1e-5 else 0.5 if score > -1e-5 else 0 for score in row[keep].tolist())
        for row, keep in zip(negative, allowed, strict=True)
    ]
    assert ranks_among(true, negative, allowed).tolist() == wanted


def test_equal_is_within_a_tolerance_of_the_true_score() -> None:
    true = torch.tensor([100.0, -100.0])
    others = torch.tensor([[100.0005, 100.01, 99.9995, 99.0], [-100.0005, -99.99, -99.9995, -101.0]])
    higher, equal = compared(true, others)
    assert higher.tolist() == [[False, True, False, False]] * 2
    assert equal.tolist() == [[True, False, True, False]] * 2
