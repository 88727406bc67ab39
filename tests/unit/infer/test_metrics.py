"""Metrics against counting by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import ConfigError
from partita.infer.metrics import (
    TASK_METRICS,
    better,
    compute_metrics,
    loss_sum,
    probabilities,
    selection_metric,
)


def auc_by_pairs(score: list[float], truth: list[int]) -> float:
    pairs = [(s, t) for s, st_ in zip(score, truth) if st_ for t, tt in zip(score, truth) if not tt]
    return sum((s > t) + 0.5 * (s == t) for s, t in pairs) / len(pairs)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=2, max_size=30))
def test_two_classes_by_hand(rows) -> None:
    y = torch.tensor([label for label, _ in rows])
    output = torch.tensor([[0.0, float(score)] for _, score in rows])
    metrics = compute_metrics("classes", output, y)
    predicted = [int(score > 0) for _, score in rows]
    assert metrics["accuracy"] == pytest.approx(sum(p == row[0] for p, row in zip(predicted, rows)) / len(rows))
    assert metrics["loss"] == pytest.approx(
        sum(math.log(1 + math.exp(-s if label else s)) for label, s in rows) / len(rows), rel=1e-6
    )
    if len({label for label, _ in rows}) == 2:
        expected = auc_by_pairs([score for _, score in rows], [label for label, _ in rows])
        assert metrics["roc_auc"] == pytest.approx(expected, abs=1e-5)
    else:
        assert "roc_auc" not in metrics


def test_macro_f1_by_hand() -> None:
    output = torch.eye(3)[[0, 0, 1, 2, 2, 1]] * 5
    y = torch.tensor([0, 1, 1, 2, 0, 0])
    expected = (2 * 1 / (2 + 3) + 2 * 1 / (2 + 2) + 2 * 1 / (2 + 1)) / 3
    assert compute_metrics("classes", output, y)["macro_f1"] == pytest.approx(expected)


def test_multilabel_by_hand() -> None:
    output = torch.tensor([[4.0, -4.0], [4.0, 4.0], [-4.0, -4.0]])
    y = torch.tensor([[1, 0], [0, 1], [1, 0]], dtype=torch.uint8)
    metrics = compute_metrics("multilabel", output, y)
    assert metrics["micro_f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metrics["macro_f1"] == pytest.approx((0.5 + 1.0) / 2)


def test_regression_by_hand() -> None:
    metrics = compute_metrics("regression", torch.tensor([[1.0], [3.0]]), torch.tensor([2.0, 5.0]))
    assert metrics == pytest.approx({"loss": 2.5, "mae": 1.5, "rmse": math.sqrt(2.5)})


def test_loss_of_a_batch_is_the_sum_over_its_parts() -> None:
    torch.manual_seed(0)
    output = torch.randn(10, 4, dtype=torch.float64)
    targets = {
        "classes": torch.randint(0, 4, (10,)),
        "multilabel": torch.randint(0, 2, (10, 4), dtype=torch.uint8),
        "regression": torch.randn(10, dtype=torch.float64),
    }
    for task, y in targets.items():
        rows = output[:, :1] if task == "regression" else output
        whole = loss_sum(task, rows, y)
        parts = loss_sum(task, rows[:3], y[:3]) + loss_sum(task, rows[3:], y[3:])
        torch.testing.assert_close(whole, parts)


def test_an_empty_split_has_no_metrics_but_does_not_fail() -> None:
    for task, columns in [("classes", 3), ("multilabel", 3), ("regression", 1)]:
        y = torch.empty((0, 3), dtype=torch.uint8) if task == "multilabel" else torch.empty(0, dtype=torch.int64)
        assert set(compute_metrics(task, torch.empty(0, columns), y)) == {"loss"}


def test_selection() -> None:
    assert all(selection_metric(task, "auto") == names[0] for task, names in TASK_METRICS.items())
    assert selection_metric("classes", "loss") == "loss"
    with pytest.raises(ConfigError, match="'accuracy'"):
        selection_metric("classes", "acuracy")
    assert better("mae", 1.0, 2.0)
    assert not better("accuracy", 1.0, 2.0)
    assert not better("accuracy", 1.0, 1.0)


def test_probabilities() -> None:
    assert probabilities("classes", torch.zeros(1, 4)).tolist() == [[0.25] * 4]
    assert probabilities("multilabel", torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]
    assert probabilities("regression", torch.tensor([[7.0]])).item() == 7.0
