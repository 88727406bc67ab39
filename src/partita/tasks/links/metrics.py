"""What rankings of links come to: MRR and Hits@k, and of scores AUC and average precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64, Shaped
from torch import Tensor

from partita.tasks.task import Answers

HITS = (1, 3, 10)
"""The k of Hits@k."""
LINK_METRICS = ("mrr", *(f"hits@{k}" for k in HITS), "auc", "ap")
"""Names of what links are judged by."""
MAP = "map@10"
TIMED_METRICS = ("mrr", *(f"hits@{k}" for k in HITS), MAP)
"""Of what they are judged by where they are asked about at times."""
_MAP_AT = 10

TIE_RELATIVE, TIE_ABSOLUTE = 1e-5, 1e-6
"""Scores that differ by no more than ``TIE_RELATIVE * |score of the true one| + TIE_ABSOLUTE`` are equal. As LibKGE has
it: the same score comes out a little different where products are cut into other blocks."""


def tolerance(true: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """By how much the scores of others may differ from that of the true one and still be equal to it."""
    return TIE_RELATIVE * true.abs() + TIE_ABSOLUTE


def compared(true: Float[Tensor, "B"], others: Float[Tensor, "B K"]) -> tuple[Bool[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """Which scores are higher than that of the true one, and which equal.

    What is not a number counts as higher, and so do all others where the true one's is not: a model that has diverged
    must not rank well.
    """
    true, most = true.unsqueeze(1), tolerance(true).unsqueeze(1)
    equal = (others - true).abs() <= most
    return ~(equal | (others < true)), equal


def count_compared(true: Float[Tensor, "B"], others: Float[Tensor, "B K"]) -> Int64[Tensor, "2 B"]:
    """How many scores are higher than that of the true one, and how many equal, as :func:`compared` has it.

    Args:
        true: scores of the true ones.
        others: those of others; -inf is no other at all.
    """
    true, most = true.unsqueeze(1), tolerance(true).unsqueeze(1)
    not_higher, lower = (_count(each) for each in (others <= true + most, others < true - most))
    counts = torch.stack([others.shape[1] - not_higher, not_higher - lower])
    if bool((strange := true.isnan().squeeze(1).cpu()).any()):  # all others are higher, but those that are none
        there = _count(others != -torch.inf)
        counts[:, strange] = torch.stack([there, torch.zeros_like(there)])[:, strange]
    return counts


def _count(found: Bool[Tensor, "B K"]) -> Int64[Tensor, "B"]:
    """How many hold in each row; NumPy counts bytes, which PyTorch sums as 64-bit integers, far slower."""
    return torch.tensor([np.count_nonzero(row) for row in found.cpu().numpy()], dtype=torch.int64)


def realistic_ranks(higher: Int[Tensor, "B"], equal: Int[Tensor, "B"]) -> Float64[np.ndarray, "B"]:
    """``1 + higher + equal / 2``: the mean over all orders of those with equal scores, so that a model which scores all
    alike gains nothing.

    Args:
        higher: candidates that score higher than the true one.
        equal: others that score the same.
    """
    return 1.0 + higher.numpy() + equal.numpy() / 2.0


def ranks_among(
    true: Float[Tensor, "B"], negative: Float[Tensor, "B K"], allowed: Bool[Tensor, "B K"]
) -> Float64[np.ndarray, "B"]:
    """Ranks of links among negatives of their own, as those of OGB.

    Args:
        true: scores of the links.
        negative: those of their negatives.
        allowed: which of these count.
    """
    higher, equal = compared(true, negative)
    return realistic_ranks((higher & allowed).sum(1), (equal & allowed).sum(1))


def link_metrics(ranks: Float64[np.ndarray, "n"]) -> dict[str, float]:
    """``mrr``, the mean of 1 / rank, and ``hits@1``, ``hits@3``, ``hits@10``, the share of ranks that are no higher;
    nothing where there are no ranks."""
    if len(ranks) == 0:
        return {}
    hits = {f"hits@{k}": float((ranks <= k).mean()) for k in HITS}
    return {"mrr": float((1.0 / ranks).mean()), **hits}


def mean_average_precision(
    ranks: Float64[np.ndarray, "n"], questions: Int[np.ndarray, "n"], at: int = _MAP_AT
) -> float:
    """The mean over questions of the average precision among the best ``at`` candidates: of a question the precision at
    the place of each of its answers that is there, summed, divided by its number of answers, or by ``at`` where it has
    more. As RelBench's ``link_prediction_map``; places among equal scores are those of :func:`realistic_ranks`.

    Args:
        ranks: of answers among all candidates but the other answers to their question.
        questions: number of the question of each.
        at: so many candidates are looked at.
    """
    if len(ranks) == 0:
        return float("nan")
    order = np.lexsort((ranks, questions))
    _, first, counts = np.unique(questions[order], return_index=True, return_counts=True)
    before = np.arange(len(ranks)) - np.repeat(first, counts)  # other answers that are better
    places = ranks[order] + before
    precision = np.where(places <= at, (1 + before) / places, 0.0)
    return float((np.add.reduceat(precision, first) / np.minimum(counts, at)).mean())


def link_metrics_by(ranks: Float64[np.ndarray, "n"], groups: Int[np.ndarray, "n"]) -> dict[int, dict[str, Any]]:
    """The same for every group that has ranks, such as a relation, by its number; with ``ranks``, how many it has."""
    order = np.argsort(groups, kind="stable")
    numbers, first = np.unique(groups[order], return_index=True)
    pieces = np.split(ranks[order], first[1:]) if len(numbers) else []
    return {
        int(number): {"ranks": len(piece), **link_metrics(piece)} for number, piece in zip(numbers, pieces, strict=True)
    }


def auc(positive: Float[np.ndarray, "n"], negative: Float[np.ndarray, "m"]) -> float:
    """Area under the receiver operating characteristic: how often a link scores higher than a negative, half of that
    where they score the same. NaN where one of both is missing, or a score is not a number.
    """
    if not _comparable(positive, negative):
        return float("nan")
    ascending = np.sort(negative)
    below, not_above = (np.searchsorted(ascending, positive, side) for side in ("left", "right"))
    return float((below.mean() + not_above.mean()) / 2 / len(negative))


def average_precision(positive: Float[np.ndarray, "n"], negative: Float[np.ndarray, "m"]) -> float:
    """Sum of precision times the gain of recall over all thresholds, from the highest score down; those that score the
    same come at once. As ``sklearn.metrics.average_precision_score``. NaN as for :func:`auc`.
    """
    if not _comparable(positive, negative):
        return float("nan")
    levels = np.unique(positive)[::-1]  # recall is gained nowhere else
    at_least = [len(each) - np.searchsorted(np.sort(each), levels, "left") for each in (positive, negative)]
    precision = at_least[0] / (at_least[0] + at_least[1])
    return float((np.diff(at_least[0], prepend=0) * precision).sum() / len(positive))


def _comparable(*scores: Shaped[np.ndarray, "_"]) -> bool:
    return all(len(each) and not np.isnan(each).any() for each in scores)


def among_negatives(metric: str, answers: Answers) -> float | None:
    """A metric of links among negatives of their own, which rows of scores hold behind that of the link; -inf is none.

    ``None`` where there are no negatives.
    """
    true, negative = answers.output[:, 0], answers.output[:, 1:]
    allowed = negative > -torch.inf
    if not bool(allowed.any()):
        return None
    of_scores = {"auc": auc, "ap": average_precision}
    if metric in of_scores:
        return of_scores[metric](true.double().numpy(), negative[allowed].double().numpy())
    ranks = ranks_among(true, negative, allowed)
    return mean_average_precision(ranks, np.arange(len(ranks))) if metric == MAP else link_metrics(ranks)[metric]
