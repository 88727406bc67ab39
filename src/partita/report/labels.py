"""How names of run records are written for people: the records keep their keys, tables and plots show these."""

from __future__ import annotations

STAGES_OF_TRAINING = {
    "wait_for_view": "wait for partition",
    "sum_gradients": "all-reduce",
    "settle": "synchronize",
    "join_models": "average models",
    "sample": "sampling",
    "load": "loading",
}
"""Stages of the training loop and of its background threads, by their keys in ``run.json``."""

_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "roc_auc": "ROC AUC",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R²",
    "mrr": "MRR",
    "hits@1": "Hits@1",
    "hits@3": "Hits@3",
    "hits@10": "Hits@10",
    "map@10": "MAP@10",
    "auc": "AUC",
    "ap": "AP",
}
_TASKS = {
    "classes": "classification",
    "multilabel": "multi-label classification",
    "regression": "regression",
    "links": "link prediction",
}


def stage_label(name: str) -> str:
    """A stage of training, for instance ``sum_gradients`` -> ``all-reduce``."""
    return STAGES_OF_TRAINING.get(name, name.replace("_", " "))


def metric_label(name: str) -> str:
    """A metric, for instance ``roc_auc`` -> ``ROC AUC``; with the prefix of a split, ``val_mae`` -> ``val MAE``."""
    if name.startswith("val_"):
        return f"val {metric_label(name.removeprefix('val_'))}"
    return _METRICS.get(name, name.replace("_", " "))


def task_label(name: str) -> str:
    """A task, for instance ``classes`` -> ``classification``."""
    return _TASKS.get(name, name)
