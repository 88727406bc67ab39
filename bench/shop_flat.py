"""Predictions of who stays away without a graph: columns about each customer, and trees on them."""

from __future__ import annotations

import numpy as np
from shop_data import Columns, History, Questions

from partita.sources.shop.tables import DAY

WINDOWS = (7, 30, 90, None)
"""Days before a question; ``None``: all."""


def flat_columns(tables: dict[str, Columns], questions: Questions) -> Columns:
    """What is known at the time of each question about its customer, and nothing about other customers."""
    who, when = questions.customer, questions.asked
    people, sold, reviews = tables["customers"], tables["purchases"], tables["reviews"]
    category, kinds = of_kinds(tables["products"]["category"])
    bought = History(
        sold["customer_id"], sold["bought_at"],
        {"price": sold["price"], "amount": sold["price"] * sold["quantity"]}
        | {f"of {kind}": (category[sold["product_id"]] == number) * 1.0 for number, kind in enumerate(kinds)},
    )  # fmt: skip
    rated = History(reviews["customer_id"], reviews["written_at"], {"rating": reviews["rating"] * 1.0})
    found = dict[str, np.ndarray]()
    for number in (1, 2, 3):
        last = bought.nth_last(number, who, when)
        found[f"days since purchase {number} before"] = np.where(last < 0, np.nan, (when - bought.when[last]) / DAY)
    for days in WINDOWS:
        count = bought.count(who, when, days)
        found[f"purchases in {days} days"] = count
        found[f"amount in {days} days"] = bought.sum("amount", who, when, days)
        found[f"mean price in {days} days"] = _mean(bought.sum("price", who, when, days), count)
    for days in (90, None):
        count = rated.count(who, when, days)
        found[f"own reviews in {days} days"] = count
        found[f"own mean rating in {days} days"] = _mean(rated.sum("rating", who, when, days), count)
    last = rated.nth_last(1, who, when)
    found["last own rating"] = np.where(last < 0, np.nan, rated.values["rating"][last])
    for kind in kinds:
        found[f"of {kind} in 90 days"] = bought.sum(f"of {kind}", who, when, 90)
    found["days since sign-up"] = (when - people["signed_up"][who]) / DAY
    found["purchases a day"] = found["purchases in None days"] / np.maximum(found["days since sign-up"], 1)
    found["age"] = people["age"][who]
    found["day of the year"] = when / DAY % 365.25
    for name in ("segment", "city"):
        numbers, names = of_kinds(people[name])
        found |= {f"{name} {each}": numbers[who] == number for number, each in enumerate(names)}
    return found


def neighbors_columns(tables: dict[str, Columns], questions: Questions) -> Columns:
    """What others think of what a customer bought: mean ratings until the question, of purchases of late.

    These are columns made by hand for the planted rule, so they show what a graph can add.
    """
    sold, reviews = tables["purchases"], tables["reviews"]
    products = len(tables["products"]["price"])
    found = {
        f"mean rating of what was bought, {days} days": np.full(len(questions.asked), np.nan) for days in (15, 30, 60)
    }
    for time in np.unique(questions.asked):
        known = reviews["written_at"] <= time
        rated, ratings = reviews["product_id"][known], reviews["rating"][known]
        mean, prior = ratings.mean(), 1.0
        quality = (np.bincount(rated, ratings - mean, products)) / (np.bincount(rated, minlength=products) + prior)
        recent = (sold["bought_at"] <= time) & (sold["bought_at"] > time - 150 * DAY)
        who, what = sold["customer_id"][recent], sold["product_id"][recent]
        mine = questions.asked == time
        asked = questions.customer[mine]
        for days, column in zip((15, 30, 60), found.values(), strict=True):
            weight = np.exp(-(time - sold["bought_at"][recent]) / (days * DAY))
            size = len(tables["customers"]["signed_up"])
            total, weights = np.bincount(who, weight * quality[what], size), np.bincount(who, weight, size)
            column[mine] = total[asked] / (weights[asked] + 0.2)
    return found


def boosted(columns: Columns, churned: np.ndarray, split: np.ndarray, seed: int) -> np.ndarray:
    """Scores of all questions by gradient boosting, trained on those for training."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        raise SystemExit("The baseline needs scikit-learn: pip install scikit-learn") from None
    x = np.column_stack([each.astype(np.float32) for each in columns.values()])
    trees = HistGradientBoostingClassifier(max_iter=200, learning_rate=0.06, random_state=seed, early_stopping=False)
    trees.fit(x[split == 0], churned[split == 0])
    return trees.predict_proba(x)[:, 1]


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve; a pair of equal scores counts one half."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    positive = int(labels.sum())
    return float((ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))


def of_kinds(texts: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Numbers of the distinct texts, and these."""
    names, numbers = np.unique(texts, return_inverse=True)
    return numbers, names.tolist()


def _mean(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
