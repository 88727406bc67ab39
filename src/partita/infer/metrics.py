"""What a model is judged by, per task. Values are exact over a whole split, never means over batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional

from partita.core.errors import ConfigError, nearest

Metrics = dict[str, float]
ClassCounts = dict[str, list[int]]
"""``nodes`` of every class, how many nodes were ``predicted`` to be of it, and how many of these are (``correct``)."""

# The first metric of a task picks the best model unless the run says otherwise.
TASK_METRICS = {
    "classes": ("accuracy", "macro_f1", "roc_auc"),
    "multilabel": ("micro_f1", "macro_f1", "roc_auc"),
    "regression": ("mae", "rmse"),
}
LOWER_IS_BETTER = {"mae", "rmse", "loss"}
_ROWS_AT_ONCE = 1 << 16


def better(metric: str, value: float, than: float) -> bool:
    """Whether ``value`` is strictly better than another value of the same metric."""
    return value < than if metric in LOWER_IS_BETTER else value > than


def selection_metric(task: str, name: str) -> str:
    """The metric that picks the best model.

    Raises:
        ConfigError: the task does not report a metric of that name.
    """
    if name == "auto":
        return TASK_METRICS[task][0]
    known = (*TASK_METRICS[task], "loss")
    if name not in known:
        raise ConfigError(f"metric '{name}' is not reported for task '{task}'", fix=nearest(name, known))
    return name


def _classes_loss(output: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(output, y, reduction="sum")


def _multilabel_loss(output: Tensor, y: Tensor) -> Tensor:
    loss = functional.binary_cross_entropy_with_logits(output, y.to(output.dtype), reduction="sum")
    return loss / output.shape[1]


def _regression_loss(output: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(output.squeeze(1), y.to(output.dtype), reduction="sum")


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": _classes_loss,
    "multilabel": _multilabel_loss,
    "regression": _regression_loss,
}


def loss_sum(task: str, output: Float[Tensor, "B C"], y: Num[Tensor, "B ..."]) -> Float[Tensor, ""]:
    """Loss summed over nodes: cross-entropy, binary cross-entropy (mean over labels) or squared error.

    Args:
        task: ``classes``, ``multilabel`` or ``regression``.
        output: (B, C) logits; (B, 1) for regression.
        y: int64 (B) class, uint8 (B, C) labels, or float (B).
    """
    return LOSSES[task](output, y)


def compute_metrics(task: str, output: Float[Tensor, "R C"], y: Num[Tensor, "R ..."]) -> Metrics:
    """All metrics of a task over the rows given (a whole split).

    ROC-AUC is the mean over classes, one against the rest; classes that have no example, or nothing else, are left
    out; it is absent where no class is left.
    """
    from torchmetrics.functional import classification as tm  # two seconds to import, so only when it is needed

    output = output.detach().float()
    rows, columns = output.shape
    pieces = zip(output.split(_ROWS_AT_ONCE), y.split(_ROWS_AT_ONCE))  # in double precision: a copy of a piece only
    metrics: Metrics = {"loss": sum(float(loss_sum(task, o.double(), t)) for o, t in pieces) / max(rows, 1)}
    if rows == 0:
        return metrics
    if task == "regression":
        error = output.squeeze(1).double() - y.double()
        return metrics | {"mae": float(error.abs().mean()), "rmse": float(error.square().mean().sqrt())}
    if task == "multilabel":
        truth, score = y.long(), output.sigmoid()
        metrics["micro_f1"] = float(tm.multilabel_f1_score(score, truth, columns, average="micro"))
        metrics["macro_f1"] = float(tm.multilabel_f1_score(score, truth, columns, average="macro"))
        exclusive = bool((truth.sum(dim=1) == 1).all())
        auc = _roc_auc(score, lambda column: truth[:, column], exclusive=exclusive)
    else:
        predicted = output.argmax(dim=1)
        metrics["accuracy"] = int((predicted == y).sum()) / rows
        metrics["macro_f1"] = float(tm.multiclass_f1_score(predicted, y.long(), columns, average="macro"))
        auc = _roc_auc(output.softmax(dim=1), lambda column: (y == column).long(), exclusive=True)
    return metrics if auc is None else metrics | {"roc_auc": auc}


def class_counts(task: str, output: Float[Tensor, "R C"], y: Num[Tensor, "R ..."]) -> ClassCounts | None:
    """What precision, recall and F1 of every class, or of every label, follow from; ``None`` for a regression."""
    columns = output.shape[1]
    if task == "regression":
        return None
    if task == "multilabel":
        truth, said = y.bool(), output > 0
        tallies = [truth.sum(0), said.sum(0), (truth & said).sum(0)]
    else:
        truth, said = y.long(), output.argmax(dim=1)
        tallies = [torch.bincount(each, minlength=columns) for each in (truth, said, truth[truth == said])]
    return dict(zip(("nodes", "predicted", "correct"), (each.tolist() for each in tallies), strict=True))


def _roc_auc(score: Tensor, truth: Callable[[int], Tensor], *, exclusive: bool) -> float | None:
    from torchmetrics.functional.classification import binary_auroc

    columns = range(score.shape[1])
    if len(columns) == 2 and exclusive:
        columns = columns[1:]  # two classes: one curve, of the second class
    areas = []
    for column in columns:
        holds = truth(column)
        if 0 < int(holds.sum()) < len(holds):
            areas.append(float(binary_auroc(score[:, column], holds)))
    return sum(areas) / len(areas) if areas else None


def probabilities(task: str, output: Float[Tensor, "R C"]) -> Float[Tensor, "R C"]:
    """Class probabilities (rows sum to 1), label probabilities, or the value itself for regression."""
    if task == "classes":
        return output.softmax(dim=1)
    return output.sigmoid() if task == "multilabel" else output


def as_target(task: str, y: Num[Tensor, "N ..."]) -> Num[Tensor, "N ..."]:
    """Labels in the dtype that :func:`loss_sum` takes."""
    return y.to(torch.int64) if task == "classes" else y
