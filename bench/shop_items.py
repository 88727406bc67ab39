"""Predictions of what is bought next without a model: by popularity, by the past, and by what is bought together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from shop_data import Columns, Questions
from shop_flat import of_kinds

from partita.sources.shop.business import AGAIN, REMEMBERED, Business
from partita.sources.shop.tables import DAY

TOP = 10


def mean_precisions(tables: dict[str, Columns], knowing: Business | None) -> dict[str, list[float]]:
    """MAP@10 of each way, for validation and for tests.

    Args:
        tables: of the shop.
        knowing: the shop as it was simulated, for what can be known at best; ``None``: it is not.
    """
    questions, items = Questions.of(tables["next_purchases"]), tables["next_items"]
    found: dict[str, list[float]] = {}
    for split in (1, 2):
        mine = np.flatnonzero(questions.split == split)
        wanted = np.zeros((len(mine), len(tables["products"]["price"])), bool)
        of_mine = np.isin(items["question_id"], mine)
        wanted[np.searchsorted(mine, items["question_id"][of_mine]), items["product_id"][of_mine]] = True
        for way, scores in _ways(tables, questions.customer[mine], int(questions.asked[mine[0]]), split, knowing):
            found.setdefault(way, []).append(mean_precision(scores, wanted))
    return found


def mean_precision(scores: np.ndarray, wanted: np.ndarray) -> float:
    """Mean over rows of the precision at each hit among the best, over the hits that there can be."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
    hits = np.take_along_axis(wanted, best, 1)
    precisions = np.cumsum(hits, 1) / np.arange(1, hits.shape[1] + 1)
    return float(((precisions * hits).sum(1) / np.minimum(wanted.sum(1), TOP)).mean())


def _ways(
    tables: dict[str, Columns], asked: np.ndarray, time: int, split: int, knowing: Business | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Scores of all products for the customers who are asked about at a time."""
    sold = tables["purchases"]
    known = sold["bought_at"] <= time
    who, what, when = (sold[name][known] for name in ("customer_id", "product_id", "bought_at"))
    customers, products = len(tables["customers"]["signed_up"]), len(tables["products"]["price"])
    recent = when > time - 30 * DAY
    popular = np.bincount(what[recent], minlength=products).astype(np.float32)
    yield "popularity of 30 days", np.broadcast_to(popular, (len(asked), products))
    segment, segments = of_kinds(tables["customers"]["segment"])
    codes = segment[who[recent]] * products + what[recent]
    yield (
        "popularity of 30 days in the segment",
        np.bincount(codes, minlength=len(segments) * products).reshape(-1, products)[segment[asked]],
    )
    weights = np.bincount(who * products + what, np.exp((when - time) / (60 * DAY)), customers * products)
    past = weights.reshape(customers, products).astype(np.float32)
    yield "own purchases, recent ones first", past[asked] + 1e-6 * popular
    late = when > time - 180 * DAY
    baskets = np.zeros((customers, products), np.float32)
    baskets[who[late], what[late]] = 1
    together = baskets.T @ baskets
    sizes = np.sqrt(np.maximum(together.diagonal(), 1))
    together /= sizes[:, None] * sizes
    np.fill_diagonal(together, 0)
    fit = past[asked] @ together
    yield "what is bought together", fit
    yield "what is bought together, times popularity of 30 days", fit * popular
    if knowing is not None:
        shares = knowing.tastes[len(knowing.tastes) - 3 + split][knowing.groups[asked]]
        order = np.lexsort((when, who))
        ends = np.searchsorted(who[order], asked, side="right")
        counts = np.minimum(ends - np.searchsorted(who[order], asked), REMEMBERED)
        again = np.zeros_like(shares)
        for number in range(REMEMBERED):
            some = np.flatnonzero(number < counts)
            np.add.at(again, (some, what[order][ends[some] - 1 - number]), 1 / counts[some])
        yield "tastes and popularity known", (1 - AGAIN) * shares + AGAIN * again
