"""``evaluate``: the metrics of a run on a split, from full-graph inference."""

from __future__ import annotations

import os
from typing import Any

import torch

from partita.comm.axis import Workers
from partita.comm.context import Context
from partita.core.protocols import Topology
from partita.features.rows import FeatureColumn
from partita.infer.layerwise import LayerwiseInference
from partita.infer.ranges import Ranges
from partita.infer.row_table import RowTable
from partita.infer.run import join, launched, memory_limit_of, on_workers, open_inference
from partita.nn.model import Model
from partita.runs.load import load_run
from partita.sample.base import EvaluationSampler
from partita.setup.sampler import evaluation_sampler
from partita.tasks.metrics import Judged, judge
from partita.tasks.task import Task, make_task


def evaluate_split(
    model: Model,
    task: Task,
    topology: Topology,
    inputs: FeatureColumn | RowTable,
    split: str,
    *,
    memory_limit: int | None = None,
    context: Workers | None = None,
    sampler: EvaluationSampler | None = None,
) -> Judged:
    """Metrics of a model on one split of a store, as far as it is labeled.

    Collective: every worker computes its nodes; the first one gets the outputs of the split and computes the
    metrics over all of them at once, in the order of the split; all return them.

    Args:
        model: the same weights on all workers.
        task: what the model has learned.
        topology: see :class:`~partita.infer.layerwise.LayerwiseInference`, likewise the next one.
        inputs: the input rows.
        split: its name.
        memory_limit: bytes of private memory per worker.
        context: of this worker; ``None``: it is the only one.
        sampler: see :class:`~partita.infer.layerwise.LayerwiseInference`.

    Raises:
        StoreError: the store has no such split.
    """
    context = context or Context.alone()
    seeds, ranges = task.seeds(split), Ranges.of(task.store, context.mesh)
    inference = LayerwiseInference(
        model, topology, inputs, memory_limit=memory_limit, context=context, ranges=ranges, sampler=sampler
    )
    outputs = [rows.output for rows in inference.collect(task.requests(seeds))]
    found: Judged | None = None
    if context.mesh.rank == 0:
        rows = torch.cat(outputs) if outputs else torch.empty((0, task.width))
        outputs.clear()  # from here on there is one copy
        output = task.outputs(rows, seeds)
        targets = task.targets(seeds)
        known = task.labeled(targets)
        if not bool(known.all()):
            output, targets = output[known], targets[known]
        found = judge(task, output, targets)
    return Judged(*context.group("all").broadcast(found))


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
        store: where the run's store lies now, if it was moved.
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
    topology, inputs = open_inference(loaded.store, loaded.config, context.mesh)
    limit = memory_limit_of(memory_limit, loaded.config)
    judged = evaluate_split(
        loaded.model,
        make_task(loaded.config, loaded.store),
        topology,
        inputs,
        split,
        memory_limit=limit,
        context=context,
        sampler=evaluation_sampler(loaded.config),
    )
    return {
        "split": split,
        "nodes": len(loaded.store.split(split)),
        "checkpoint": loaded.checkpoint.name,
        **judged.metrics,
    }


def evaluate_on_worker(context: Context, **options: Any) -> dict[str, Any]:
    """What every worker that :func:`evaluate` starts runs."""
    return evaluate(**options, context=context)
