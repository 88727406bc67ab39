"""What a model is judged by. Values are exact over a whole split, never means over batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from partita.core.errors import ConfigError, nearest
from partita.core.registry import Registry
from partita.tasks.links.metrics import LINK_METRICS, MAP, among_negatives
from partita.tasks.task import Answers, ClassCounts, Task, weights_of

Metrics = dict[str, float]
LOSS = "loss"
"""The metric that every task has."""
_ROWS_AT_ONCE = 1 << 16


class Judged(NamedTuple):
    """What an evaluation finds.

    Attributes:
        metrics: over all classes together.
        classes: of each class; ``None`` where the task has none.
        relations: edges and metrics of each relation by its name; ``None`` where these are not what is predicted.
        times: of each period of time, see :func:`partita.tasks.periods.judge_by_time`, where that was asked for.
    """

    metrics: Metrics
    classes: ClassCounts | None
    relations: dict[str, dict[str, Any]] | None = None
    times: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Metric:
    """A number that says how good answers are.

    Attributes:
        of: computes it from at least one answer; ``None`` where these have no such number.
        higher_is_better: or lower.
    """

    of: Callable[[Answers], float | None]
    higher_is_better: bool = True


def loss(answers: Answers) -> float:
    """Mean of the loss over the seeds, by their weights where they have any."""
    task, weights = answers.task, weights_of(answers.task, answers.truth)
    whole = max(len(answers.truth), 1) if weights is None else float(weights.sum())
    pieces = zip(answers.output.split(_ROWS_AT_ONCE), answers.truth.split(_ROWS_AT_ONCE))
    # In double precision: a copy of a piece only.
    return sum(float(task.loss_sum(output.double(), truth)) for output, truth in pieces) / whole


def accuracy(answers: Answers) -> float:
    """The share of rows whose class is predicted."""
    return int((answers.predicted == answers.truth).sum()) / len(answers.truth)


def f1(answers: Answers, average: Literal["micro", "macro"]) -> float:
    """F1 over all labels together (``"micro"``), or the mean of the F1 of all classes or labels.

    The mean leaves out classes that neither occur nor are predicted; of a label of this kind F1 is 0.
    """
    predicted, truth, width = answers.predicted.long(), answers.truth.long(), answers.scores.shape[1]
    if truth.ndim == 2:
        right = ((predicted == truth) & (truth == 1)).sum(0)
        found, there = (predicted == 1).sum(0), (truth == 1).sum(0)
    else:
        right = predicted[predicted == truth].bincount(minlength=width)
        found, there = predicted.bincount(minlength=width), truth.bincount(minlength=width)
    if average == "micro":
        right, found, there = right.sum(), found.sum(), there.sum()
    of_each = torch.where(found + there > 0, 2.0 * right / (found + there), 0.0)
    if average == "micro":
        return float(of_each)
    weights = torch.ones_like(of_each) if truth.ndim == 2 else (found + there > 0).to(of_each.dtype)
    return float((weights * of_each / weights.sum()).sum())


def roc_auc(answers: Answers) -> float | None:
    """The mean over classes, one against the rest, or over labels.

    Those that have no example, or nothing else, are left out; ``None`` where none is left.
    """
    scores, truth = answers.scores, answers.truth
    exclusive = truth.ndim == 1 or bool((truth.sum(dim=1) == 1).all())
    columns = range(scores.shape[1])
    if len(columns) == 2 and exclusive:
        columns = columns[1:]  # two classes: one curve, of the second class
    areas = []
    for column in columns:
        holds = (truth == column).long() if truth.ndim == 1 else truth[:, column].long()
        if 0 < int(holds.sum()) < len(holds):
            areas.append(_area_under_roc(scores[:, column], holds))
    return sum(areas) / len(areas) if areas else None


def _area_under_roc(scores: Float[Tensor, "R"], holds: Int64[Tensor, "R"]) -> float:
    """The area under the curve of true over false positives; some rows hold (1), some do not (0).

    Equal scores are one point of the curve. Scores outside 0..1 are logits, as ``torchmetrics`` takes them, whose
    values these are, to the bit: its import takes two seconds of every run.
    """
    if not bool(((scores >= 0) & (scores <= 1)).all()):
        scores = scores.sigmoid()
    order = scores.argsort(descending=True)
    scores, holds = scores[order], holds[order]
    last = torch.cat([torch.where(scores[1:] - scores[:-1])[0], torch.tensor([len(holds) - 1])])
    right = holds.cumsum(0)[last]
    wrong = 1 + last - right
    start = torch.zeros(1, dtype=torch.int64)
    right, wrong = torch.cat([start, right]), torch.cat([start, wrong])
    return float(torch.trapz(right / right[-1], wrong / wrong[-1]))


def mae(answers: Answers) -> float:
    """Mean absolute error."""
    return float((answers.predicted.double() - answers.truth.double()).abs().mean())


def rmse(answers: Answers) -> float:
    """Root of the mean squared error."""
    return float((answers.predicted.double() - answers.truth.double()).square().mean().sqrt())


def r2(answers: Answers) -> float | None:
    """Coefficient of determination: 1 - squared error / squared deviation from the mean of the values judged.

    ``None`` where these do not differ.
    """
    truth = answers.truth.double()
    spread = float((truth - truth.mean()).square().sum())
    return 1 - float((answers.predicted.double() - truth).square().sum()) / spread if spread else None


def _as_metric(name: str, found: Any) -> Metric:
    if isinstance(found, Metric):
        return found
    if not callable(found):
        fix = "Name a partita.tasks.metrics.Metric, or a function of Answers"
        raise ConfigError(f"'{name}' is a {type(found).__name__}, not a metric", where="metric", fix=fix)
    return Metric(found)


METRICS: Registry[Metric] = Registry(
    "metric",
    {
        LOSS: Metric(loss, higher_is_better=False),
        "accuracy": Metric(accuracy),
        "micro_f1": Metric(partial(f1, average="micro")),
        "macro_f1": Metric(partial(f1, average="macro")),
        "roc_auc": Metric(roc_auc),
        "mae": Metric(mae, higher_is_better=False),
        "rmse": Metric(rmse, higher_is_better=False),
        "r2": Metric(r2),
        **{name: Metric(partial(among_negatives, name)) for name in (*LINK_METRICS, MAP)},
    },
    adapt=_as_metric,
)
"""By name. ``package.module:Name`` may be a :class:`Metric`, or a function as its ``of``, of which higher is better."""


def judge(task: Task, output: Float[Tensor, "R C"], targets: Num[Tensor, "R ..."]) -> Judged:
    """All metrics of a task over the rows given (a whole split); of no rows only a loss of 0."""
    answers = Answers(task, output.detach().float(), targets)
    names = (LOSS, *task.metrics) if len(targets) else (LOSS,)
    found = {name: METRICS.find(name).of(answers) for name in names}
    return Judged({name: value for name, value in found.items() if value is not None}, task.class_counts(answers))


def better(metric: str, value: float, than: float) -> bool:
    """Whether ``value`` is strictly better than another value of the same metric."""
    return value > than if METRICS.find(metric).higher_is_better else value < than


def selection_metric(task: Task, name: str, *, of: str) -> str:
    """The metric that picks the best model.

    Args:
        task: what is learned.
        name: as the settings say; "auto" for the task's first one.
        of: what the task is called.

    Raises:
        ConfigError: the task does not report a metric of that name, or names one that there is not.
    """
    for metric in task.metrics:
        METRICS.check(metric)
    known = (*task.metrics, LOSS)
    if name == "auto":
        return known[0]
    if name not in known:
        raise ConfigError(f"metric '{name}' is not reported for task '{of}'", fix=nearest(name, known))
    return name
