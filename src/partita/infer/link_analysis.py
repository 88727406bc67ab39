"""What a report shows of a model of links: ranks, metrics of each relation, scores, and a few links by users' ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from partita.graph.store import GraphStore
from partita.infer.analysis import short
from partita.nn.decoders import Side
from partita.tasks.links.edges import RELATION, SOURCE, TARGET
from partita.tasks.links.metrics import link_metrics, link_metrics_by
from partita.tasks.task import Task

MOST_RELATIONS = 300
"""Relations whose metrics are kept, those with most edges; all others together are one."""
ALL_CANDIDATES, GIVEN_CANDIDATES = "all", "given"
"""In records, where ends are ranked among all nodes of their type, or those of a file; else the number of others."""
EXAMPLES = 10
"""Links that are kept of the best ranked ones, and of the worst."""
SCORE_BINS = 40
_SIDES: tuple[Side, ...] = ("tail", "head")


@dataclass(frozen=True)
class LinkOutcome:
    """What an evaluation of a split of held-out edges has found; the same on all workers.

    Attributes:
        split: its name.
        links: (n, 2) sources and targets, of a typed graph (n, 3) with numbers of relations, in time (n, 4); ids of
            the store.
        ranks: (S, n) of their ends, from 1.
        scores: (k) of them, or of none.
        others: (m) scores of pairs that are no edges.
        candidates: so many sampled nodes are ranked besides each end; 0: all of its type.
        sides: whose ranks these are.
    """

    split: str
    links: Int64[np.ndarray, "n ends"]
    ranks: Float64[np.ndarray, "S n"]
    scores: Float[np.ndarray, "k"]
    others: Float[np.ndarray, "m"]
    candidates: int = 0
    sides: tuple[Side, ...] = ("tail", "head")

    def analyzed(self, task: Task) -> dict[str, Any]:
        """What ``analysis.json`` says of the split; nothing of one without edges."""
        if not len(self.links):
            return {}
        together = self.ranks.sum(axis=0)
        order = np.argsort(together, kind="stable")
        few = min(EXAMPLES, len(order) // 2)
        return {
            "kind": "links",
            "edges": len(self.links),
            "candidates": self.candidates or ALL_CANDIDATES,
            "ranks": rank_histogram(self.ranks, self.sides),
            "relations": self._relations(task.store),
            "best": self._examples(task.store, order[:few]),
            "worst": self._examples(task.store, np.argsort(-together, kind="stable")[:few]),
            "scores": score_histogram(self.scores, self.others),
        }

    def of_relations(self, store: GraphStore) -> dict[str, dict[str, Any]] | None:
        """Metrics of every relation that has edges here, by its name: ``edges``, ``mrr``, ``hits@1``, ``hits@3`` and
        ``hits@10``, most edges first; ``None`` of an untyped graph."""
        if store.schema is None:
            return None
        found = link_metrics_by(self.ranks.ravel(), np.tile(self.links[:, RELATION], len(self.sides)))
        names = store.schema.short_relations
        most = sorted(found.items(), key=lambda item: (-item[1]["ranks"], item[0]))
        return {names[at]: {"edges": of.pop("ranks") // len(self.sides), **of} for at, of in most}

    def _relations(self, store: GraphStore) -> list[dict[str, Any]]:
        known = self.of_relations(store)
        if known is None:
            return []
        found = [{"name": name, **of} for name, of in list(known.items())[:MOST_RELATIONS]]
        if rest := len(known) - len(found):
            assert store.schema is not None
            names = np.array(store.schema.short_relations, dtype=object)[self.links[:, RELATION]]
            other = ~np.isin(names, [each["name"] for each in found])
            of = link_metrics(self.ranks[:, other].ravel())
            found.append({"name": f"{rest:,} others", "edges": int(other.sum()), **of})
        return found

    def _examples(self, store: GraphStore, places: Int64[np.ndarray, "k"]) -> list[dict[str, Any]]:
        links, ranks = self.links[places], dict[Side, list[float | None]]()
        for side in _SIDES:
            known = side in self.sides
            ranks[side] = self.ranks[self.sides.index(side), places].tolist() if known else [None] * len(places)
        names = [list(map(str, store.names(links[:, end]))) for end in (SOURCE, TARGET)]
        relations = [None] * len(places)
        if store.schema is not None:
            relations = [store.schema.short_relations[at] for at in links[:, RELATION]]
        return [
            {"source": source, "relation": relation, "target": target, "tail_rank": tail, "head_rank": head}
            for source, target, relation, tail, head in zip(*names, relations, *ranks.values(), strict=True)
        ]


def rank_histogram(ranks: Float64[np.ndarray, "S n"], sides: Sequence[Side] = _SIDES) -> dict[str, Any]:
    """How many tails, and heads, have a rank up to each bound and above the one before: 1, 2, 3, 5, 10, 20, 50, ..."""
    bounds = [1, 2, 3, 5]
    while bounds[-1] < ranks.max():
        bounds.append(bounds[-1] * 5 // 2 if str(bounds[-1])[0] == "2" else bounds[-1] * 2)
    counts = [np.bincount(np.searchsorted(bounds, of), minlength=len(bounds)).tolist() for of in ranks]
    return {"up_to": bounds, **{f"{side}s": of for side, of in zip(sides, counts, strict=True)}}


def score_histogram(links: Float[np.ndarray, "n"], others: Float[np.ndarray, "m"]) -> dict[str, Any]:
    """Counts of both in the same equal bins from the 0.5 % to the 99.5 % quantile; those outside are in the last
    ones. ``not_finite`` scores are in none."""
    finite = [of[np.isfinite(of)].astype(np.float64) for of in (links, others)]
    together = np.concatenate(finite)
    if not len(together):
        return {}
    low, high = (float(each) for each in np.quantile(together, (0.005, 0.995)))
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, SCORE_BINS + 1)
    counts = [np.histogram(of.clip(low, high), edges)[0].tolist() for of in finite]
    missing = len(links) + len(others) - len(together)
    return {"edges": short(edges), "links": counts[0], "others": counts[1], "not_finite": missing}
