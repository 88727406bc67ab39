"""``evaluate``: the metrics of a run on a split, from full-graph inference."""

from __future__ import annotations

import os
from typing import Any

import torch

from partita.config import parse_bytes
from partita.core.errors import ConfigError
from partita.features.rows import FeatureColumn
from partita.graph.store import GraphStore
from partita.infer.layerwise import LayerwiseInference
from partita.infer.metrics import Metrics, as_target, compute_metrics, has_label
from partita.nn.model import Model
from partita.runs.load import load_run, open_features, open_topology
from partita.sample.topology import LocalTopology, as_tensor


def evaluate_split(
    model: Model,
    store: GraphStore,
    topology: LocalTopology,
    column: FeatureColumn,
    split: str,
    *,
    memory_limit: int | None = None,
) -> Metrics:
    """Metrics of a model on the labelled nodes of one split of a store.

    Raises:
        ConfigError: the store has no labels.
        StoreError: the store has no such split.
    """
    if store.task is None or store.y is None:
        raise ConfigError("the store has no labels", where=str(store.path), fix="Ingest again with --labels FILE")
    ids = as_tensor(store.split(split))
    inference = LayerwiseInference(model, topology, column, memory_limit=memory_limit)
    outputs = [rows.output for rows in inference.run(ids)]
    output = torch.cat(outputs) if outputs else torch.empty((0, store.num_classes))
    y = as_tensor(store.y)[ids]
    known = has_label(store.task, y)
    return compute_metrics(store.task, output[known], as_target(store.task, y[known]))


def evaluate(
    run: str | os.PathLike[str],
    *,
    split: str = "test",
    store: str | os.PathLike[str] | None = None,
    model: Model | None = None,
    memory_limit: int | str | None = None,
) -> dict[str, Any]:
    """Evaluate the best checkpoint of a run.

    Args:
        run: the run folder.
        split: ``train``, ``val``, ``test`` or another split of the store.
        store: where the run's store lies now, if it was moved.
        model: for runs of a user's own model: one of the same shape.
        memory_limit: bytes, or text such as ``"2GiB"``; default as in the run's settings.

    Returns:
        ``{"split": ..., "nodes": ..., "checkpoint": ..., <metric>: value, ...}``

    Raises:
        RunError, StoreError, ConfigError: the run, the store or the split cannot be used.
    """
    loaded = load_run(run, store=store, model=model)
    limit = parse_bytes(memory_limit) if memory_limit is not None else loaded.config.memory_limit
    metrics = evaluate_split(
        loaded.model,
        loaded.store,
        open_topology(loaded.store, loaded.config),
        open_features(loaded.store, loaded.config),
        split,
        memory_limit=limit,  # type: ignore[arg-type]
    )
    return {
        "split": split,
        "nodes": len(loaded.store.split(split)),
        "checkpoint": loaded.checkpoint.name,
        **metrics,
    }
