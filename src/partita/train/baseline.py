"""What a run is compared with: a model that predicts the same for every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.tasks.metrics import LOSS, Metrics, better, judge
from partita.tasks.task import AdjustableTask, ClassCounts, Task


def baseline_of(task: Task, splits: Sequence[str]) -> dict[str, Any] | None:
    """What predicting the largest class, the most frequent labels, or the mean of the training nodes comes to.

    Args:
        task: what is learned.
        splits: names of those to judge.

    Returns:
        ``{"prediction": class, labels joined by ";", or value, "metrics": {split: {metric: value}}, "train":
        {"classes": names, "nodes": training nodes of each}}``, the last one without classes not; ``None``: the task
        has no such model.
    """
    row = task.baseline() if isinstance(task, AdjustableTask) else None
    if row is None:
        return None
    metrics, counts = dict[str, Metrics](), None
    for split in ("train", *splits):
        targets = task.targets(task.seeds(split))
        targets = targets[task.labeled(targets)]
        judged = judge(task, row.expand(len(targets), -1), targets)
        if split == "train":
            counts = judged.classes
        else:
            metrics[split] = judged.metrics
    prediction = task.columns(row[None], flat=True)["prediction"][0]
    found = {"prediction": getattr(prediction, "item", lambda: prediction)(), "metrics": metrics}
    if counts is not None:
        found["train"] = {"classes": task.class_names, "nodes": counts["nodes"]}
    return found


def warnings_of(
    task: Task,
    metric: str,
    metrics: Mapping[str, Metrics],
    baseline: Mapping[str, Any] | None,
    classes: Mapping[str, ClassCounts],
    *,
    weighted: bool,
) -> list[str]:
    """What is suspicious about the model that a run has chosen.

    Args:
        task: what is learned.
        metric: that has picked the model.
        metrics: of the model, by split.
        baseline: see :func:`baseline_of`.
        classes: of every class, by split.
        weighted: classes have weights already.
    """
    found = []
    for split in metrics:
        counts = classes.get(split)
        if counts is None or sum(nodes > 0 for nodes in counts["nodes"]) < 2:
            continue
        predicted = [name for name, nodes in zip(task.class_names, counts["predicted"], strict=True) if nodes]
        if len(predicted) < 2:
            what = f"only class {predicted[0]}" if predicted else "no label"
            hint = "" if weighted else "; class weights may help (class_weights balanced)"
            found.append(f"the model predicts {what} for the nodes of split {split}{hint}")
            break
    for split, of_split in metrics.items():
        theirs = baseline["metrics"][split].get(metric) if baseline is not None and metric != LOSS else None
        value = of_split.get(metric)
        if baseline is None or theirs is None or value is None:
            continue
        if not better(metric, value, theirs):
            prediction = baseline["prediction"]
            always = f"{prediction:.6g}" if isinstance(prediction, float) else f"'{prediction}'"
            found.append(
                f"{metric.replace('_', ' ')} {value:.4f} on split {split} is no better than predicting {always} for "
                f"every node ({theirs:.4f})"
            )
    return found
