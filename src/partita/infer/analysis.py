"""What a report shows of a model's answers, beyond metrics: small counts and samples, exact, kept in the run folder.

``analysis.json`` holds them, so that a report needs neither the model nor the graph. Its size does not grow with the
graph: counts are over whole splits, lists of nodes are cut to fixed lengths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Num
from torch import Tensor

from partita.comm.axis import Workers
from partita.core.errors import PartitaError, RunError
from partita.core.files import ANALYSIS_FORMAT, read_object, write_text
from partita.graph.store import GraphStore
from partita.tasks.periods import judge_by_time
from partita.tasks.task import EdgeTask, Task

SAMPLE = 1500
"""Nodes of a split whose embeddings, or values, are kept."""
COMPONENTS = 16
"""Principal components that are kept of embeddings."""
MOST_CLASSES = 30
"""Classes of a confusion matrix; the nodes of all others are one row and one column."""
MOST_BALANCED = 60
"""Classes whose nodes are counted by split; all others together are one."""
PAIRS, EXAMPLES = 20, 5
BINS, HOMOPHILY_BINS, CURVE = 20, 10, 101
_ROWS_AT_ONCE = 1 << 16
_LABELED_AT_ONCE = 1 << 12
_EDGES_AT_ONCE = 1 << 20

Ids = Int64[np.ndarray, "n"]


class EmbeddingSample:
    """Keeps the rows of some nodes that went into the last layer, as inference passes over them.

    Args:
        seeds: nodes of a split; of more than :data:`SAMPLE` so many are drawn, always the same ones.
    """

    def __init__(self, seeds: Int[Tensor, "S"]) -> None:
        self.positions = sample_positions(len(seeds))
        self.ids = seeds.cpu()[torch.from_numpy(self.positions)].long()
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._width = 0

    def __call__(self, ids: Int[Tensor, "n"], rows: Float[Tensor, "n F"]) -> None:
        """Keep those of the rows that belong to the sample."""
        wanted = torch.isin(ids.long(), self.ids)
        self._width = rows.shape[1]
        if bool(wanted.any()):
            self._kept.append((ids[wanted].long(), rows[wanted].float()))

    def gather(self, context: Workers) -> Float[Tensor, "R F"] | None:
        """The rows in order of :attr:`positions` on the first worker; ``None`` on the others. All call this."""
        group = context.group("all")
        counts = group.gather([sum(len(ids) for ids, _ in self._kept), self._width])
        width = max(width for _, width in counts)
        ids = torch.cat([torch.empty(0, dtype=torch.int64), *(ids for ids, _ in self._kept)])
        rows = torch.cat([torch.empty((0, width)), *(rows for _, rows in self._kept)])
        if group.size > 1:
            leads = context.mesh.rank == 0
            send = [len(ids), *[0] * (group.size - 1)]
            receive = [count if leads else 0 for count, _ in counts]
            ids = group.exchange(ids, send, receive, "ids")
            rows = group.exchange(rows, send, receive, "forward")
            if not leads:
                return None
        order = torch.empty(len(self.ids), dtype=torch.int64)
        order[torch.argsort(self.ids)] = torch.argsort(ids)
        return rows[order]


def sample_positions(total: int) -> Ids:
    """Ascending positions of at most :data:`SAMPLE` of so many items; the same ones at every call."""
    if total <= SAMPLE:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).choice(total, SAMPLE, replace=False))


@dataclass(frozen=True)
class Outcome:
    """What an evaluation of a split has found, on the first worker.

    Attributes:
        split: its name.
        seeds: (R) store ids of the labeled nodes, or (R, k) of rows of nodes.
        output: (R, C) what the model says.
        targets: (R, ...) what is known.
        sample: positions in ``seeds``.
        embeddings: (n, F) rows of the sample that went into the last layer; ``None`` where there are none.
    """

    split: str
    seeds: Int[Tensor, "R ..."]
    output: Float[Tensor, "R C"]
    targets: Num[Tensor, "R ..."]
    sample: Int64[np.ndarray, "n"]
    embeddings: Float[Tensor, "n F"] | None

    def analyzed(self, task: Task) -> dict[str, Any]:
        """See :meth:`Finding.analyzed`."""
        return analyze(task, self) if len(self.seeds) else {}


@runtime_checkable
class Finding(Protocol):
    """What an evaluation of a split has found."""

    @property
    def split(self) -> str:
        """Name of the split."""
        ...

    def analyzed(self, task: Task) -> dict[str, Any]:
        """What ``analysis.json`` says of the split; nothing where there was nothing to answer."""
        ...


Observer = Callable[[Finding], None]


class Analysis:
    """Gathers what is to be known of splits, and writes it.

    Args:
        task: that the model has learned.
        checkpoint: name of the checkpoint that the answers are of.
    """

    def __init__(self, task: Task, checkpoint: str) -> None:
        self._task = task
        self._found: dict[str, Any] = {"format": ANALYSIS_FORMAT, "checkpoint": checkpoint, "splits": {}}

    def __call__(self, found: Finding) -> None:
        """Analyze a split; an :data:`Observer`."""
        if analyzed := found.analyzed(self._task):
            self._found["splits"][found.split] = analyzed

    def write(self, path: Path) -> None:
        """Write ``analysis.json``; splits that are there already and of the same checkpoint are kept."""
        before = _readable(path)
        if before.get("checkpoint") == self._found["checkpoint"]:
            self._found["splits"] = {**before["splits"], **self._found["splits"]}
        labels = before.get("labels") or _labels(self._task)
        write_text(path, json.dumps({**self._found, "labels": labels}, separators=(",", ":")) + "\n")

    @staticmethod
    def covers(path: Path, checkpoint: str, split: str) -> bool:
        """Whether a file holds the analysis of a split by a checkpoint."""
        found = _readable(path)
        return found.get("checkpoint") == checkpoint and split in found["splits"]


def _readable(path: Path) -> dict[str, Any]:
    """What an earlier file holds; nothing where it is of another format, or damaged."""
    try:
        found = read_object(path, RunError, "")
    except PartitaError:
        return {}
    return found if found.get("format") == ANALYSIS_FORMAT and isinstance(found.get("splits"), dict) else {}


def analyze(task: Task, outcome: Outcome) -> dict[str, Any]:
    """What ``analysis.json`` says of a split.

    Targets of whole numbers are classes, rows of them are labels, others are values.

    Args:
        task: gives the predictions.
        outcome: at least one row.
    """
    targets = outcome.targets.cpu()
    found: dict[str, Any] = {}  # of a task whose targets are something else
    predicted = task.predicted(outcome.output[:1].float())
    if targets.shape[1:] == predicted.shape[1:]:
        if targets.ndim == 1 and targets.is_floating_point():
            found = _values_analysis(task, outcome, targets)
        elif outcome.output.shape[1] == len(task.class_names):
            make = _classes_analysis if targets.ndim == 1 else _labels_analysis
            found = make(task, outcome, targets)
    times = judge_by_time(task, outcome.seeds, outcome.output, targets)
    return {"nodes": len(targets), **found, **({"by_time": times} if times else {})}


def _answers(task: Task, output: Float[Tensor, "R C"]) -> tuple[Tensor, Tensor]:
    """Predictions, and their scores: the probability of the class, or the value."""
    said, scores = [], []
    for piece in output.split(_ROWS_AT_ONCE):
        predicted, score = task.predicted(piece.float()), task.scores(piece.float())
        said.append(predicted.cpu())
        scores.append((score if predicted.is_floating_point() else score.gather(1, predicted[:, None].long())).cpu())
    return torch.cat(said), torch.cat(scores)


def _classes_analysis(task: Task, outcome: Outcome, targets: Tensor) -> dict[str, Any]:
    predicted, scores = _answers(task, outcome.output)
    truth, said = targets.numpy().astype(np.int64), predicted.numpy().astype(np.int64)
    confidence, names = scores.squeeze(1).numpy().astype(np.float64), task.class_names
    right = truth == said
    found: dict[str, Any] = {
        "kind": "classes",
        "correct": int(right.sum()),
        "confusion": _confusion(truth, said, names),
        "calibration": _calibration([(confidence, right)]),
        "baseline": _majority(task, truth),
    }
    nodes = _nodes(outcome)
    if nodes is not None:
        found["confused"] = _confused(task, nodes, truth, said, confidence)
        found["by_degree"] = _by_degree(task.store, nodes, right.astype(np.float64))
        y = task.store.y
        if not task.store.edges_are_cut and y is not None and np.array_equal(y[nodes], truth):
            found["by_homophily"] = _by_homophily(task.store, nodes, truth, right)
    if len(names) == 2:
        found["curve"] = _curve(task.scores(outcome.output.float())[:, 1].double().cpu().numpy(), truth == 1)
    found |= _map(task, outcome, [names[each] for each in truth[outcome.sample]], right[outcome.sample])
    return found


def _labels_analysis(task: Task, outcome: Outcome, targets: Tensor) -> dict[str, Any]:
    truth = targets.bool()
    said = torch.cat([task.predicted(piece.float()).bool().cpu() for piece in outcome.output.split(_ROWS_AT_ONCE)])
    hits = (truth & said).sum(1).double().numpy()
    wrong = (truth ^ said).sum(1).double().numpy()
    pieces = (
        (task.scores(output.float()).double().cpu().numpy().ravel(), holds.numpy().ravel())
        for output, holds in zip(outcome.output.split(_LABELED_AT_ONCE), truth.split(_LABELED_AT_ONCE), strict=True)
    )
    found: dict[str, Any] = {
        "kind": "labels",
        "correct": int((truth == said).all(1).sum()),
        "calibration": _calibration(pieces),
        "baseline": _frequent_labels(task, truth),
    }
    nodes = _nodes(outcome)
    if nodes is not None:
        found["by_degree"] = _by_degree(task.store, nodes, hits, wrong)
    return found


def _values_analysis(task: Task, outcome: Outcome, targets: Tensor) -> dict[str, Any]:
    predicted, _ = _answers(task, outcome.output)
    truth, said = targets.double().numpy(), predicted.double().numpy()
    residual = said - truth
    spread = float(((truth - truth.mean()) ** 2).sum())
    sample = outcome.sample
    found: dict[str, Any] = {
        "kind": "values",
        "r2": 1 - float((residual**2).sum()) / spread if spread > 0 else None,
        "bias": float(residual.mean()),
        "residuals": _histogram(residual),
        "baseline": _mean(task, truth),
    }
    nodes = _nodes(outcome)
    names: list[str] = []
    if nodes is not None:
        names = _names(task.store, nodes[sample])
        found["by_degree"] = _by_degree(task.store, nodes, np.abs(residual))
        worst = np.argsort(-np.abs(residual), kind="stable")[:PAIRS]
        found["worst"] = {
            "nodes": _names(task.store, nodes[worst]), "true": short(truth[worst]), "predicted": short(said[worst])
        }  # fmt: skip
    found["points"] = {"nodes": names, "true": short(truth[sample]), "predicted": short(said[sample])}
    found |= _map(task, outcome, short(truth[sample]), None)
    return found


# Parts of an analysis


def _nodes(outcome: Outcome) -> Ids | None:
    """Store ids, where the seeds are nodes."""
    return outcome.seeds.cpu().numpy().astype(np.int64) if outcome.seeds.ndim == 1 else None


def _names(store: GraphStore, nodes: Ids) -> list[str]:
    return [str(name) for name in store.names(nodes)]


def _confusion(truth: Ids, said: Ids, names: list[str]) -> dict[str, Any]:
    """Nodes by true class (rows) and predicted class; the classes that occur most, in order of their numbers."""
    number = len(names)
    shown = np.arange(number)
    if number > MOST_CLASSES:
        nodes = np.bincount(truth, minlength=number) * number + np.bincount(said, minlength=number)
        shown = np.sort(np.argsort(-nodes, kind="stable")[:MOST_CLASSES])
    place = np.full(number, len(shown))
    place[shown] = np.arange(len(shown))
    size = len(shown) + (number > len(shown))
    counts = np.bincount(place[truth] * size + place[said], minlength=size * size).reshape(size, size)
    labels = [names[each] for each in shown.tolist()]
    others = number - len(shown)
    return {"classes": labels, "others": others, "counts": counts.tolist()}


def _confused(
    task: Task, nodes: Ids, truth: Ids, said: Ids, confidence: Float64[np.ndarray, "n"]
) -> list[dict[str, Any]]:
    """The pairs of true and predicted class with most nodes, with the nodes of which the model was surest."""
    wrong = np.flatnonzero(truth != said)
    names, width = task.class_names, len(task.class_names)
    pairs, counts = np.unique(truth[wrong] * width + said[wrong], return_counts=True)
    of_class = np.bincount(truth, minlength=width)
    found = []
    for at in np.argsort(-counts, kind="stable")[:PAIRS].tolist():
        true, predicted = divmod(int(pairs[at]), width)
        these = wrong[(truth[wrong] == true) & (said[wrong] == predicted)]
        surest = these[np.argsort(-confidence[these], kind="stable")[:EXAMPLES]]
        found.append(
            {
                "true": names[true], "predicted": names[predicted], "nodes": int(counts[at]),
                "of": int(of_class[true]), "examples": _names(task.store, nodes[surest]),
                "confidence": short(confidence[surest]),
            }
        )  # fmt: skip
    return found


def _calibration(pieces: Iterable[tuple[Float64[np.ndarray, "n"], Bool[np.ndarray, "n"]]]) -> dict[str, Any]:
    """Answers by how sure the model is, in equal bins of 0 to 1: how many, how many right, and the sum of confidences.

    The expected calibration error is the mean over answers of ``abs(share right - mean confidence)`` of their bins
    (Guo et al., On Calibration of Modern Neural Networks, ICML 2017).

    Args:
        pieces: confidences, and which of the answers are right.
    """
    counts, correct, sums = (np.zeros(BINS) for _ in range(3))
    for confidence, right in pieces:
        place = np.clip((confidence * BINS).astype(np.int64), 0, BINS - 1)
        counts += np.bincount(place, minlength=BINS)
        correct += np.bincount(place, weights=right, minlength=BINS)
        sums += np.bincount(place, weights=confidence, minlength=BINS)
    return {
        "bins": BINS,
        "counts": counts.astype(np.int64).tolist(),
        "correct": correct.astype(np.int64).tolist(),
        "confidence": short(sums),
        "expected_error": float(np.abs(correct - sums).sum() / max(1.0, counts.sum())),
    }


def _by_degree(
    store: GraphStore, nodes: Ids, value: Float64[np.ndarray, "n"], other: Float64[np.ndarray, "n"] | None = None
) -> dict[str, Any]:
    """Sums by in-degree: 0, 1, 2-3, 4-7, ...; degrees that do not occur are left out."""
    degree = store.in_degree(nodes)
    bucket = np.frexp(degree.astype(np.float64))[1].astype(np.int64)  # 0, 1, 2, 2, 3, 3, 3, 3, ...
    number = int(bucket.max()) + 1
    counts = np.bincount(bucket, minlength=number)
    kept = np.flatnonzero(counts)
    found: dict[str, Any] = {
        "from": [0 if each == 0 else 1 << (each - 1) for each in kept.tolist()],
        "to": [0 if each == 0 else (1 << each) - 1 for each in kept.tolist()],
        "nodes": counts[kept].tolist(),
        "sum": short(np.bincount(bucket, weights=value, minlength=number)[kept]),
    }
    if other is not None:
        found["wrong"] = short(np.bincount(bucket, weights=other, minlength=number)[kept])
    return found


def _by_homophily(store: GraphStore, nodes: Ids, truth: Ids, right: Bool[np.ndarray, "n"]) -> dict[str, Any]:
    """Nodes and right answers by the share of a node's labeled in-neighbors that are of its class."""
    share = same_class_share(store, nodes, truth)
    known = ~np.isnan(share)
    place = np.minimum((share[known] * HOMOPHILY_BINS).astype(np.int64), HOMOPHILY_BINS - 1)
    return {
        "bins": HOMOPHILY_BINS,
        "nodes": np.bincount(place, minlength=HOMOPHILY_BINS).tolist(),
        "correct": np.bincount(place[right[known]], minlength=HOMOPHILY_BINS).tolist(),
        "unknown": {"nodes": int((~known).sum()), "correct": int(right[~known].sum())},
    }


def same_class_share(store: GraphStore, nodes: Ids, classes: Ids) -> Float64[np.ndarray, "n"]:
    """The share of each node's labeled in-neighbors, itself left out, that are of a class; NaN where there is none.

    Args:
        store: with a class of every node, and all edges.
        nodes: store ids.
        classes: of the nodes.
    """
    y, indptr, indices = store.y, store.indptr, store.indices
    assert y is not None
    share = np.full(len(nodes), np.nan)
    ends = np.cumsum(store.in_degree(nodes))
    start = 0
    while start < len(nodes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _EDGES_AT_ONCE, side="right")))
        piece = nodes[start:stop]
        degree = indptr[piece + 1] - indptr[piece]
        of = np.repeat(np.arange(len(piece)), degree)
        offset = np.arange(len(of)) - np.repeat(np.cumsum(degree) - degree, degree)
        source = indices[np.repeat(indptr[piece], degree) + offset]
        label = y[source]
        counted = (label >= 0) & (source != piece[of])
        known = np.bincount(of[counted], minlength=len(piece))
        same = np.bincount(of[counted & (label == classes[start:stop][of])], minlength=len(piece))
        np.divide(same, known, out=share[start:stop], where=known > 0)
        start = stop
    return share


def _curve(score: Float64[np.ndarray, "n"], positive: Bool[np.ndarray, "n"]) -> dict[str, Any] | None:
    """ROC and precision-recall of the second of two classes at thresholds of evenly spread scores."""
    positives = int(positive.sum())
    if not 0 < positives < len(positive):
        return None
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(positive[order])
    last = np.flatnonzero(np.diff(score[order], append=-np.inf))  # equal scores are one threshold
    last = last[np.unique(np.linspace(0, len(last) - 1, CURVE).round().astype(np.int64))]
    true, taken = hits[last], last + 1
    return {
        "threshold": short(score[order][last]),
        "true_positive_rate": short(true / positives),
        "false_positive_rate": short((taken - true) / (len(positive) - positives)),
        "precision": short(true / taken),
    }


def _histogram(values: Float64[np.ndarray, "n"], bins: int = 40) -> dict[str, Any]:
    """Counts in equal bins between the 0.5 % and the 99.5 % quantile, and how many lie below and above."""
    low, high = (float(each) for each in np.quantile(values, (0.005, 0.995)))
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(values, bins, (low, high))
    return {
        "edges": short(edges), "counts": counts.tolist(),
        "below": int((values < low).sum()), "above": int((values > high).sum()),
    }  # fmt: skip


def _map(task: Task, outcome: Outcome, labels: list[Any], right: Any) -> dict[str, Any]:
    """Principal components of the sample's embeddings, or of its outputs where the model has one layer."""
    source = "embeddings" if outcome.embeddings is not None else "outputs"
    rows = outcome.embeddings if outcome.embeddings is not None else outcome.output[outcome.sample]
    nodes = _nodes(outcome)
    if nodes is None or len(rows) < 3 or rows.shape[1] < 2 or not bool(rows.isfinite().all()):
        return {}
    components, variance = principal_components(rows.double().cpu().numpy(), COMPONENTS)
    if not variance.any():
        return {}
    return {
        "map": {
            "of": source,
            "width": rows.shape[1],
            "nodes": _names(task.store, nodes[outcome.sample]),
            "labels": labels,
            **({} if right is None else {"correct": [int(each) for each in right]}),
            "components": [short(row) for row in components],
            "variance": short(variance),
        }
    }


def principal_components(
    rows: Float64[np.ndarray, "n F"], number: int
) -> tuple[Float64[np.ndarray, "n K"], Float64[np.ndarray, "K"]]:
    """The first principal components of rows, and the share of the variance that each explains.

    The sign of each is such that its largest entry is positive.
    """
    rows = rows - rows.mean(axis=0)
    # PyTorch's, as NumPy's keeps 32 MiB from its first product on, which a limit on memory may not have.
    left, singular, _ = (
        part.numpy() for part in torch.linalg.svd(torch.from_numpy(np.ascontiguousarray(rows)), full_matrices=False)
    )
    number = min(number, len(singular))
    scores = left[:, :number] * singular[:number]
    largest = np.abs(scores).argmax(axis=0)
    scores *= np.where(scores[largest, np.arange(number)] < 0, -1.0, 1.0)
    total = float((singular**2).sum())
    return scores, singular[:number] ** 2 / total if total > 0 else np.zeros(number)


# Labels of the splits, and what is reached without a model


def _targets(task: Task, split: str) -> Tensor:
    seeds = task.seeds(split)
    pieces = [task.targets(piece) for piece in seeds.split(_ROWS_AT_ONCE * 16)]
    targets = torch.cat(pieces) if pieces else task.targets(seeds)
    return targets[task.labeled(targets)].cpu()


def _labels(task: Task) -> dict[str, Any]:
    """How many nodes of every split are of each class or have each label; of values, their distribution."""
    found: dict[str, Any] = {}
    values: dict[str, Float64[np.ndarray, "n"]] = {}
    for split in () if isinstance(task, EdgeTask) else task.store.splits:
        targets = _targets(task, split)
        if targets.is_floating_point():
            values[split] = targets.double().numpy()
        elif targets.ndim == 2:
            found[split] = targets.long().sum(0).tolist()
        elif not bool((targets >= len(task.class_names)).any()):
            found[split] = torch.bincount(targets.long(), minlength=len(task.class_names)).tolist()
    if values:
        together = np.concatenate(list(values.values()))
        if not len(together):
            return {}
        low, high = float(together.min()), float(together.max())
        edges = np.linspace(low, high if high > low else low + 1.0, 31)
        counts = {split: np.histogram(each, edges)[0].tolist() for split, each in values.items()}
        return {"kind": "values", "edges": short(edges), "splits": counts}
    return {"kind": "classes", **_most(task.class_names, found)} if found else {}


def _most(names: list[str], counts: Mapping[str, list[int]]) -> dict[str, Any]:
    """The classes with most nodes, in order of their numbers, and all others as one."""
    totals = np.sum(list(counts.values()), axis=0)
    if len(names) <= MOST_BALANCED:
        return {"names": names, "others": 0, "splits": dict(counts)}
    shown = np.sort(np.argsort(-totals, kind="stable")[:MOST_BALANCED]).tolist()
    cut = {
        split: [*(each[place] for place in shown), sum(each) - sum(each[place] for place in shown)]
        for split, each in counts.items()
    }
    return {"names": [names[place] for place in shown], "others": len(names) - len(shown), "splits": cut}


def _majority(task: Task, truth: Ids) -> dict[str, Any]:
    """Metrics of always giving the most frequent class of the training nodes."""
    train = torch.bincount(_targets(task, "train").long(), minlength=len(task.class_names))
    best = int(train.argmax())
    hits = int((truth == best).sum())
    occurring = len(np.unique(np.append(truth, best)))
    metrics = {"accuracy": hits / len(truth), "macro_f1": 2 * hits / (len(truth) + hits) / occurring, "roc_auc": 0.5}
    return {"rule": "most frequent training class", "answer": task.class_names[best], "metrics": metrics}


def _frequent_labels(task: Task, truth: Bool[Tensor, "R C"]) -> dict[str, Any]:
    """Metrics of always giving the labels that more than half of the training nodes have."""
    given = _targets(task, "train").double().mean(0) > 0.5
    hits, holding = truth[:, given].sum(0).double(), truth.sum(0).double()
    every = torch.zeros(truth.shape[1], dtype=torch.float64)
    every[given] = 2 * hits / (len(truth) + holding[given])
    micro = 2 * float(hits.sum()) / max(1.0, float(holding.sum()) + len(truth) * int(given.sum()))
    metrics = {"micro_f1": micro, "macro_f1": float(every.mean()), "roc_auc": 0.5}
    names = [task.class_names[place] for place in torch.nonzero(given).flatten().tolist()]
    return {"rule": "labels of most training nodes", "answer": ", ".join(names) or "none", "metrics": metrics}


def _mean(task: Task, truth: Float64[np.ndarray, "n"]) -> dict[str, Any]:
    """Metrics of always giving the mean of the training nodes."""
    mean = float(_targets(task, "train").double().mean())
    error = truth - mean
    spread = float(((truth - truth.mean()) ** 2).sum())
    metrics = {"mae": float(np.abs(error).mean()), "rmse": float(np.sqrt((error**2).mean()))}
    if spread > 0:
        metrics["r2"] = 1 - float((error**2).sum()) / spread
    return {"rule": "mean of the training nodes", "answer": f"{mean:.6g}", "metrics": metrics}


def short(values: Any) -> list[float]:
    """Floats with six significant digits."""
    return [float(f"{each:.6g}") for each in np.asarray(values, dtype=np.float64).tolist()]
