"""Metrics against counting by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import ConfigError
from partita.tasks.metrics import METRICS, better, judge, selection_metric
from partita.tasks.task import Answers


def auc_by_pairs(score: list[float], truth: list[int]) -> float:
    pairs = [(s, t) for s, st_ in zip(score, truth) if st_ for t, tt in zip(score, truth) if not tt]
    return sum((s > t) + 0.5 * (s == t) for s, t in pairs) / len(pairs)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=2, max_size=30))
def test_two_classes_by_hand(tasks, rows) -> None:
    y = torch.tensor([label for label, _ in rows])
    output = torch.tensor([[0.0, float(score)] for _, score in rows])
    metrics = judge(tasks["classes"], output, y).metrics
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


def test_macro_f1_by_hand(tasks) -> None:
    output = torch.eye(3)[[0, 0, 1, 2, 2, 1]] * 5
    y = torch.tensor([0, 1, 1, 2, 0, 0])
    expected = (2 * 1 / (2 + 3) + 2 * 1 / (2 + 2) + 2 * 1 / (2 + 1)) / 3
    assert judge(tasks["classes"], output, y).metrics["macro_f1"] == pytest.approx(expected)


def test_multilabel_by_hand(tasks) -> None:
    output = torch.tensor([[4.0, -4.0], [4.0, 4.0], [-4.0, -4.0]])
    y = torch.tensor([[1, 0], [0, 1], [1, 0]], dtype=torch.uint8)
    metrics = judge(tasks["multilabel"], output, y).metrics
    assert metrics["micro_f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metrics["macro_f1"] == pytest.approx((0.5 + 1.0) / 2)


def test_regression_by_hand(tasks) -> None:
    metrics = judge(tasks["regression"], torch.tensor([[1.0], [3.0]]), torch.tensor([2.0, 5.0])).metrics
    assert metrics == pytest.approx({"loss": 2.5, "mae": 1.5, "rmse": math.sqrt(2.5), "r2": 1 - 5 / 4.5})


def test_selection(tasks) -> None:
    for name, task in tasks.items():
        assert selection_metric(task, "auto", of=name) == task.metrics[0]
        assert selection_metric(task, "loss", of=name) == "loss"
    with pytest.raises(ConfigError, match=r"'acuracy' is not reported for task 'classes'.*'accuracy'"):
        selection_metric(tasks["classes"], "acuracy", of="classes")
    with pytest.raises(ConfigError, match="'mae' is not reported"):
        selection_metric(tasks["classes"], "mae", of="classes")


def test_better() -> None:
    assert {name for name in METRICS if better(name, 1.0, 2.0)} == {"loss", "mae", "rmse"}
    assert not any(better(name, 1.0, 1.0) for name in METRICS)


@pytest.mark.parametrize("kind", ["classes", "multilabel"])
@pytest.mark.parametrize("columns", [2, 5])
@pytest.mark.parametrize("rows", [7, 3000])
def test_values_are_those_of_torchmetrics_to_the_bit(tasks, kind: str, columns: int, rows: int) -> None:
    tm = pytest.importorskip("torchmetrics.functional.classification")
    for round_to, scale in [(None, 1.0), (1, 3.0), (0, 300.0), (0, 1.0)]:
        output = torch.randn(rows, columns) * scale
        output = output if round_to is None else output.round(decimals=round_to)
        if kind == "classes":
            y = torch.randint(0, max(2, columns - 1), (rows,))
            f1_score, settings = tm.multiclass_f1_score, {"num_classes": columns}
        else:
            y = (torch.rand(rows, columns) < torch.linspace(0.2, 0.9, columns)).to(torch.uint8)
            y[:, -1] = 0 if columns > 2 else y[:, -1]
            f1_score, settings = tm.multilabel_f1_score, {"num_labels": columns}
        answers = Answers(tasks[kind], output, y)
        for average in ("micro", "macro"):
            expected = float(f1_score(answers.predicted.long(), y.long(), average=average, **settings))
            assert METRICS.find(f"{average}_f1").of(answers) == expected
        truth = [(y == column).long() if y.ndim == 1 else y[:, column].long() for column in range(columns)]
        areas = [
            float(tm.binary_auroc(answers.scores[:, column], truth[column]))
            for column in range(1 if kind == "classes" and columns == 2 else 0, columns)
            if 0 < int(truth[column].sum()) < rows
        ]
        if columns > 2 or kind == "classes":
            assert METRICS.find("roc_auc").of(answers) == (sum(areas) / len(areas) if areas else None)
