"""``evaluate``: the metrics of a run on a split, from full-graph inference."""

from __future__ import annotations

import os
from typing import Any

import torch

from partita.comm.context import Context
from partita.infer.layerwise import LayerwiseInference
from partita.infer.run import inference_of, join, launched, on_workers
from partita.nn.model import Model
from partita.runs.load import load_run
from partita.tasks.metrics import Judged, judge
from partita.tasks.task import Task, make_task


def evaluate_split(inference: LayerwiseInference, task: Task, split: str) -> Judged:
    """Metrics of a model on one split of a store, as far as it is labeled.

    Collective: every worker computes its nodes; the first one gets the outputs of the split and computes the
    metrics over all of them at once, in the order of the split; all return them.

    Args:
        inference: over the store of the task.
        task: what the model has learned.
        split: its name.

    Raises:
        StoreError: the store has no such split.
    """
    seeds = task.seeds(split)
    outputs = [rows.output for rows in inference.collect(task.requests(seeds))]
    found: Judged | None = None
    if inference.context.mesh.rank == 0:
        rows = torch.cat(outputs) if outputs else torch.empty((0, task.width))
        outputs.clear()  # from here on there is one copy
        output = task.outputs(rows, seeds)
        targets = task.targets(seeds)
        known = task.labeled(targets)
        if not bool(known.all()):
            output, targets = output[known], targets[known]
        found = judge(task, output, targets)
    return Judged(*inference.context.group("all").broadcast(found))


def evaluate(
    run: str | os.PathLike[str],
    *,
    split: str = "test",
    store: str | os.PathLike[str] | None = None,
    model: Model | None = None,
    memory_limit: int | str | None = None,
    workers: int = 1,
    context: Context | None = None,
) -> dict[str, Any]:
    """Evaluate the best checkpoint of a run.

    In processes that torchrun has started, every one of them calls this, and they share the work.

    Args:
        run: the run folder. Of several workers only the first one reads it.
        split: ``train``, ``val``, ``test`` or another split of the store.
        store: path of the graph store, if it has moved.
        model: for runs of a user's own model: one of the same shape.
        memory_limit: bytes per worker, or text such as ``"2GiB"``; default as in the run's settings.
        workers: so many processes are started on this machine to share the work; 1 for none.
        context: of this worker, where the caller has made one.

    Returns:
        ``{"split": ..., "nodes": ..., "checkpoint": ..., <metric>: value, ...}``, on all workers.

    Raises:
        RunError, StoreError, ConfigError: the run, the store or the split cannot be used.
    """
    if workers > 1 and context is None and not launched():
        options = {"split": split, "store": store, "memory_limit": memory_limit}
        return on_workers("partita.infer.evaluate:evaluate_on_worker", workers, model, run=run, **options)
    context = join(context, workers)
    loaded = load_run(run, store=store, model=model, context=context)
    inference = inference_of(loaded.model, loaded.store, loaded.config, context, memory_limit=memory_limit)
    judged = evaluate_split(inference, make_task(loaded.config, loaded.store), split)
    return {
        "split": split,
        "nodes": len(loaded.store.split(split)),
        "checkpoint": loaded.checkpoint.name,
        **judged.metrics,
    }


def evaluate_on_worker(context: Context, **options: Any) -> dict[str, Any]:
    """What every worker that :func:`evaluate` starts runs."""
    return evaluate(**options, context=context)
