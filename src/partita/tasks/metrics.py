"""What a model is judged by. Values are exact over a whole split, never means over batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from jaxtyping import Float, Num
from torch import Tensor

from partita.core.errors import ConfigError, nearest
from partita.core.registry import Registry
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
    """

    metrics: Metrics
    classes: ClassCounts | None


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
    """F1 over all labels together (``"micro"``), or the mean of the F1 of all classes or labels."""
    from torchmetrics.functional import classification as tm  # two seconds to import, so only when it is needed

    of = tm.multilabel_f1_score if answers.truth.ndim == 2 else tm.multiclass_f1_score
    return float(of(answers.predicted.long(), answers.truth.long(), answers.scores.shape[1], average=average))


def roc_auc(answers: Answers) -> float | None:
    """The mean over classes, one against the rest, or over labels.

    Those that have no example, or nothing else, are left out; ``None`` where none is left.
    """
    from torchmetrics.functional.classification import binary_auroc

    scores, truth = answers.scores, answers.truth
    exclusive = truth.ndim == 1 or bool((truth.sum(dim=1) == 1).all())
    columns = range(scores.shape[1])
    if len(columns) == 2 and exclusive:
        columns = columns[1:]  # two classes: one curve, of the second class
    areas = []
    for column in columns:
        holds = (truth == column).long() if truth.ndim == 1 else truth[:, column].long()
        if 0 < int(holds.sum()) < len(holds):
            areas.append(float(binary_auroc(scores[:, column], holds)))
    return sum(areas) / len(areas) if areas else None


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
    },
)


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
