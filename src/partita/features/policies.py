"""Which rows are worth keeping close: a score for every node, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int, Int32, Int64, Num
from torch import Tensor

from partita.comm.group import Group
from partita.core import progress
from partita.core.registry import Registry

ITERATIONS = 20
"""Steps of the power iteration: what is left of the start has weight 0.85 ** 20, or 4 %."""

DAMPING = 0.85
"""Probability of going on instead of restarting."""

_ROWS_AT_ONCE = 1 << 20

LOOK_AHEAD = "look-ahead"
"""Of the policies the one that keeps what batches that are known ahead use again first."""


@runtime_checkable
class CacheStatistics(Protocol):
    """What scores are made of, for the cache of one worker."""

    def degrees(self) -> Num[Tensor, "N"]:
        """In-degrees."""
        ...

    def visits(self) -> Num[Tensor, "N"]:
        """Visits of walks from the seeds."""
        ...

    def frequencies(self) -> Int32[Tensor, "N"]:
        """Steps of epoch 0 in which each row is read, summed over all workers. It needs a dry run."""
        ...

    def by_rule(self) -> Int32[Tensor, "N"]:
        """The same as the strategy's rule wants them. It needs a dry run."""
        ...


@dataclass(frozen=True)
class CachePolicy:
    """How rows are chosen.

    Attributes:
        score: a number of at least 0 for every node; the rows with the highest are kept. ``None``: rows come and go,
            see :class:`~partita.features.look_ahead_cache.LookAheadCache`.
        needs_dry_run: scores are made of how often rows are read in an epoch.
    """

    score: Callable[[CacheStatistics], Num[Tensor, "N"]] | None
    needs_dry_run: bool = False


POLICIES: Registry[CachePolicy] = Registry(
    "cache policy",
    {
        "in-degree": CachePolicy(lambda statistics: statistics.degrees()),
        "pagerank": CachePolicy(lambda statistics: statistics.visits()),
        "presample": CachePolicy(lambda statistics: statistics.frequencies(), needs_dry_run=True),
        "strategy": CachePolicy(lambda statistics: statistics.by_rule(), needs_dry_run=True),
        LOOK_AHEAD: CachePolicy(None),
    },
    setting="cache_policy",
)
"""By name; see ``docs/features.md``."""


def best_first(
    scores: Num[Tensor, "N"], count: int | None = None, allowed: Bool[Tensor, "N"] | None = None
) -> Int64[Tensor, "m"]:
    """Nodes by descending score, ties by ascending id; nodes of score 0 are left out.

    Args:
        scores: at least 0.
        count: at most so many nodes; ``None`` for all.
        allowed: nodes to choose from; ``None`` for all.
    """
    positive = scores > 0
    ids = (positive if allowed is None else positive & allowed).nonzero().flatten()
    found = scores[ids].numpy()
    count = len(ids) if count is None else min(count, len(ids))
    if count == 0:
        return ids[:0]
    if count < len(ids):  # sort the chosen only
        least = np.partition(found, len(found) - count)[len(found) - count]
        above, equal = np.flatnonzero(found > least), np.flatnonzero(found == least)
        chosen = np.sort(np.concatenate([above, equal[: count - len(above)]]))
        ids, found = ids[torch.from_numpy(chosen)], found[chosen]
    return ids[torch.from_numpy(np.argsort(-found, kind="stable"))]


def fit_by_bytes(scores: Sequence[Num[Tensor, "_"]], row_bytes: Sequence[int], room: int) -> list[int]:
    """How many of the best rows of each kind are kept, where kinds have rows of other sizes.

    A row that is read twice as often saves twice its bytes, so per byte of the cache it is its score that counts: rows
    are taken by descending score, ties by kind. What does not fit is left out, and narrower rows still follow.

    Args:
        scores: of the candidates of each kind, descending.
        row_bytes: of each kind.
        room: bytes.
    """
    sizes = np.array(row_bytes, dtype=np.int64)
    counts = np.array([len(each) for each in scores], dtype=np.int64)
    if int((counts * sizes).sum()) <= room:
        return counts.tolist()
    every, kinds = torch.cat(list(scores)).numpy(), np.repeat(np.arange(len(sizes)), counts)
    kinds = kinds[np.argsort(-every, kind="stable")]
    kept = np.zeros_like(counts)
    while len(kinds):
        filled = np.cumsum(sizes[kinds])
        cut = int(np.searchsorted(filled, room, side="right"))
        kept += np.bincount(kinds[:cut], minlength=len(sizes))
        if cut == len(kinds):
            break
        room -= int(filled[cut - 1]) if cut else 0
        kinds = kinds[cut:][kinds[cut:] != kinds[cut]]
    return kept.tolist()


def in_degrees(indptr: Int64[Tensor, "N_1"]) -> Int64[Tensor, "N"]:
    """In-degrees, DSP's default. They say how often a node is read as far as edges go both ways."""
    return indptr.diff()


def pagerank(
    indptr: Int64[Tensor, "N_1"],
    indices: Int[Tensor, "E"],
    first_edge: int,
    rows: range,
    group: Group,
    restart: Num[Tensor, "N"],
) -> Float64[Tensor, "N"]:
    """How often a walk along sampling visits each node: weighted reverse PageRank.

    The walk starts at a node drawn by ``restart`` (training nodes), goes from a destination to one of its
    in-neighbors, each edge alike, and starts again with probability 1 - :data:`DAMPING`, and where a node has no
    in-neighbor. Min et al., "Graph neural network training with data tiering" (arXiv:2111.05894), rank nodes so.
    All workers call this; each walks over its own rows, and the vector of visits is summed in every iteration.

    Args:
        indptr: of the whole graph.
        indices: sources of edges, those from the edge number ``first_edge`` on.
        first_edge: see ``indices``.
        rows: destinations that this worker walks from; every node is in one worker's rows.
        group: the workers.
        restart: weight of each node as a start, at least 0, some above.

    Returns:
        Probabilities of being at each node; they add up to 1.
    """
    from partita.features.pagerank import walk_back  # compiled: loading the compiler takes a while

    start = restart.double() / restart.double().sum()
    ends = indptr.diff() == 0
    visits = start
    with progress.task("rank nodes", total=ITERATIONS * len(rows), unit="nodes") as task:
        for _ in range(ITERATIONS):
            walked = torch.zeros_like(start)
            for low in range(rows.start, rows.stop, _ROWS_AT_ONCE):
                high = min(low + _ROWS_AT_ONCE, rows.stop)
                walk_back(indptr.numpy(), indices.numpy(), first_edge, low, high, visits.numpy(), walked.numpy())
                task.advance(high - low)
            group.sum_([walked], kind="metadata")
            stopped = visits[ends].sum()
            visits = DAMPING * (walked + stopped * start) + (1 - DAMPING) * start
    return visits


def share_of_rows(indptr: Int64[Tensor, "N_1"], nodes: range, place: int, size: int) -> range:
    """Cut consecutive nodes into pieces of about as many edges, and return one of them.

    Args:
        indptr: of the whole graph.
        nodes: to be cut.
        place: number of the piece.
        size: number of pieces.
    """
    first, last = int(indptr[nodes.start]), int(indptr[nodes.stop])
    edges = torch.tensor([first + (last - first) * piece // size for piece in range(size + 1)])
    cuts = torch.searchsorted(indptr[nodes.start : nodes.stop + 1], edges) + nodes.start
    cuts[0], cuts[-1] = nodes.start, nodes.stop
    return range(int(cuts[place]), int(cuts[place + 1]))
