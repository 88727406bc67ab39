"""``evaluate``: the metrics of a run on a split, from full-graph inference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.metadata import SPLIT_PREFIX
from partita.graph.store import GraphStore
from partita.infer.analysis import Analysis, EmbeddingSample, Observer, Outcome, sample_positions
from partita.infer.given_candidates import GivenCandidates
from partita.infer.layerwise import LayerwiseInference
from partita.infer.link_analysis import ALL_CANDIDATES, GIVEN_CANDIDATES
from partita.infer.links import NodeRows, judge_links
from partita.infer.run import inference_of, ingest_order, join, launched, on_workers, require_memory
from partita.infer.temporal import TemporalInference
from partita.nn.model import Model
from partita.runs.folder import RunFolder
from partita.runs.load import load_run
from partita.tasks.links.edges import target_relations
from partita.tasks.metrics import Judged, judge
from partita.tasks.periods import judge_by_time
from partita.tasks.task import EdgeTask, Task, make_task

ALL = "all"
"""Name of a split that every store has: all nodes that have a label."""


def evaluate_split(
    inference: LayerwiseInference, task: Task, split: str, observer: Observer | None = None, *, by_time: bool = False
) -> Judged:
    """Metrics of a model on one split of a store, as far as it is labeled.

    Collective: every worker computes its nodes; the first one gets the outputs of the split and computes the
    metrics over all of them at once, in the order of the split; all return them.

    Args:
        inference: over the store of the task.
        task: what the model has learned.
        split: its name.
        observer: is given the answers, on the first worker; all workers have one, or none.
        by_time: say also how good answers are by the times of seeds, where these have some.

    Raises:
        StoreError: the store has no such split.
    """
    if isinstance(task, EdgeTask):
        if isinstance(inference, TemporalInference):
            # Here, as it loads the compiler, for which no other task should wait.
            from partita.infer.links_in_time import in_time, judge_links_in_time

            return judge_links_in_time(inference, in_time(task), split, observer)
        return judge_links(inference, task, split, observer)
    seeds = task.seeds(split)
    sample = EmbeddingSample(seeds) if observer is not None and _has_embeddings(inference.model, seeds) else None
    inference.tap = sample
    outputs = [rows.output for rows in inference.collect(task.requests(seeds))]
    embeddings = None if sample is None else sample.gather(inference.context)
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
        if by_time:
            found = found._replace(times=judge_by_time(task, seeds[known.to(seeds.device)], output, targets))
        if observer is not None:
            observer(_outcome(split, seeds, known, output, targets, embeddings))
    return Judged(*inference.context.group("all").broadcast(found))


def _has_embeddings(model: Model, seeds: Tensor) -> bool:
    return seeds.ndim == 1 and not model.whole and len(model.stages) > 1


def _outcome(
    split: str, seeds: Tensor, known: Tensor, output: Tensor, targets: Tensor, embeddings: Tensor | None
) -> Outcome:
    """The labeled answers; of the sample of embeddings, those of labeled nodes."""
    known = known.cpu()
    if embeddings is None:
        return Outcome(split, seeds[known], output, targets, sample_positions(int(known.sum())), None)
    sample = torch.from_numpy(sample_positions(len(seeds)))
    kept = known[sample]
    places = torch.cumsum(known.long(), 0) - 1
    return Outcome(split, seeds[known], output, targets, places[sample[kept]].numpy(), embeddings[kept])


def evaluate(
    run: str | os.PathLike[str],
    *,
    split: str = "test",
    store: str | os.PathLike[str] | None = None,
    model: nn.Module | None = None,
    eval_negatives: int | None = None,
    candidates: str | os.PathLike[str] | None = None,
    memory_limit: int | str | None = None,
    trust: str | None = None,
    workers: int = 1,
    context: Context | None = None,
) -> dict[str, Any]:
    """Evaluate the best checkpoint of a run.

    In processes that torchrun has started, every one of them calls this, and they share the work. Where the run folder
    lacks what a report shows of the split (``analysis.json``), that is added.

    Args:
        run: the run folder. Of several workers only the first one reads it.
        split: ``train``, ``val``, ``test`` or another split of the store; ``all`` for all nodes that have a label.
        store: path of a graph store with the same features and labels; default the one that the run was trained on.
        model: for runs of a user's own model: one of the same shape.
        eval_negatives: of a run on links: each end of an edge is ranked among so many sampled nodes; 0: among all of
            its type; default as in the run's settings.
        candidates: of a run on links: an ``.npz`` file of links, and of the nodes that their ends are ranked among; see
            :meth:`partita.infer.given_candidates.GivenCandidates.read`. They are judged in place of a split's.
        memory_limit: bytes per worker, or text such as ``"2GiB"``; default as in the run's settings.
        trust: ``"imports"``: the run may name code to import, such as a model or a loss of one's own.
        workers: so many processes are started on this machine to share the work; 1 for none.
        context: of this worker, where the caller has made one.

    Returns:
        ``{"split": ..., "nodes": ..., "checkpoint": ..., <metric>: value, ...}``, on all workers. Of a run on links
        ``"edges"`` in place of ``"nodes"``, and ``"candidates"``, how many sampled nodes an end is ranked among,
        ``"all"``, or ``"given"``, and then no split and only the metrics that are made of ranks; of a typed graph
        ``"relations"``, the edges and metrics of each by its name; of nodes that are asked about at several times
        ``"times"``, see :func:`partita.tasks.periods.judge_by_time`; and ``"notes"``, a list of texts, where something
        is not as it was in training.

    Raises:
        RunError, StoreError, ConfigError: the run, the store or the split cannot be used.
        InputError: the file of candidates cannot be read, or names what is not in the graph.
    """
    if workers > 1 and context is None and not launched():
        options = {
            "split": split,
            "store": store,
            "eval_negatives": eval_negatives,
            "candidates": None if candidates is None else str(candidates),
            "memory_limit": memory_limit,
            "trust": trust,
        }
        return on_workers("partita.infer.evaluate:evaluate_on_worker", workers, model, run=run, **options)
    context = join(context, workers)
    loaded = load_run(run, store=store, model=model, trust=trust, context=context)
    graph = with_all(loaded.store) if split == ALL else loaded.store
    inference = inference_of(loaded.model, graph, loaded.config, context, memory_limit=memory_limit)
    require_memory(inference, graph, context)
    task, name = make_task(_judged_by(loaded.config, eval_negatives), graph), loaded.checkpoint.name
    if isinstance(task, EdgeTask):
        task.attach(loaded.model)
    elif eval_negatives is not None or candidates is not None:
        where = "eval_negatives" if candidates is None else "candidates"
        raise ConfigError("only links have negatives", where=where, fix=f"Leave {where} out")
    if eval_negatives is not None and candidates is not None:
        fix = "Leave one of both out"
        raise ConfigError("candidates are given, and others sampled", where="eval_negatives", fix=fix)
    if candidates is not None and split != "test":
        fix = "Leave one of both out"
        raise ConfigError("the links that are judged are those of the file of candidates", where="split", fix=fix)
    notes = {"notes": list(loaded.notes)} if loaded.notes else {}
    if candidates is not None and isinstance(inference, TemporalInference):
        fix = "Leave it out: an end is ranked among the nodes that are there, or --eval-negatives of them"
        raise ConfigError("candidates of a file are asked about at no time", where="candidates", fix=fix)
    if candidates is not None and isinstance(task, EdgeTask):
        found = _among_given(inference, task, loaded.config, Path(candidates))
        return {**found, "checkpoint": name, **notes}
    own = not loaded.notes and eval_negatives in (None, loaded.config.eval_negatives)
    missing = context.agree(lambda: own and _lacks_analysis(RunFolder(run), loaded.store, name, split))
    observer = Analysis(task, name) if missing else None
    judged = evaluate_split(inference, task, split, observer, by_time=True)
    if observer is not None and context.mesh.rank == 0:
        observer.write(RunFolder(run).analysis)
    return {
        "split": split,
        **(_of_links(task, split) if isinstance(task, EdgeTask) else {"nodes": len(graph.split(split))}),
        "checkpoint": name,
        **judged.metrics,
        **({"relations": judged.relations} if judged.relations else {}),
        **({"times": judged.times} if judged.times and len(judged.times) > 1 else {}),
        **notes,
    }


def _judged_by(config: Config, eval_negatives: int | None) -> Config:
    """The settings of a run, with other candidates of links where they are given.

    Raises:
        ConfigError: the number is out of range.
    """
    if eval_negatives is None:
        return config
    Config.make({"eval_negatives": eval_negatives}, where="evaluate")  # sees that it is in range
    return config.model_copy(update={"eval_negatives": eval_negatives})


def _among_given(inference: LayerwiseInference, task: EdgeTask, config: Config, path: Path) -> dict[str, Any]:
    """What is said of the links in a file, which are ranked among candidates of their own."""
    schema = task.store.schema
    learned = [0] if schema is None else target_relations(schema, config.target_relations)
    given = GivenCandidates.read(task.store, path, learned[0] if len(learned) == 1 else None)
    found = given.judge(NodeRows.of(inference), task)
    return {"edges": len(given.links), "candidates": GIVEN_CANDIDATES, **found}


def _of_links(task: EdgeTask, split: str) -> dict[str, Any]:
    return {"edges": len(task.seeds(split)), "candidates": task.eval_negatives or ALL_CANDIDATES}


def with_all(store: GraphStore) -> GraphStore:
    """The store with a split ``"all"`` of all nodes that have a label, unless it has a split of that name."""
    if ALL in store.splits or store.y is None:
        return store
    labels, order = store.y, ingest_order(store)
    nodes = np.arange(store.num_nodes) if order is None else order.numpy()
    if labels.ndim == 1:
        there = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
        nodes = nodes[there[nodes]]
    return store.with_({SPLIT_PREFIX + ALL: nodes})


def _lacks_analysis(folder: RunFolder, store: GraphStore, checkpoint: str, split: str) -> bool:
    """Whether an analysis of the split of a run's own store can be added to the run."""
    own = folder.read_record()["store"]["fingerprint"] == store.fingerprint
    return own and os.access(folder.path, os.W_OK) and not Analysis.covers(folder.analysis, checkpoint, split)


def evaluate_on_worker(context: Context, **options: Any) -> dict[str, Any]:
    """What every worker that :func:`evaluate` starts runs."""
    return evaluate(**options, context=context)
