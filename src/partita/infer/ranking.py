"""Where the true ends of links rank among all nodes, in bounded memory.

The score of the true end is known beforehand. Every worker then compares it with those of its own nodes, block by
block, and counts; the sums of all workers' counts give the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.core.node_types import NodeTypes
from partita.infer.known_answers import KnownAnswers, LinkQueries
from partita.nn.decoders import Decoder
from partita.tasks.links.metrics import count_compared

_QUERIES = 512
"""Of a block: enough for products to be fast."""

BLOCK_BYTES = 24 << 20
"""What blocks may take where nothing else is said: larger ones are given back to the system after each use, and taken
anew page by page."""


def type_ranges(types: NodeTypes, kind: int, first: int, last: int) -> list[tuple[int, int]]:
    """The store ids of a type from ``first`` to ``last - 1``, as ranges that are not empty."""
    starts, ends = types.offsets[kind : -1 : types.count], types.offsets[kind + 1 :: types.count]
    pairs = zip(np.maximum(starts, first).tolist(), np.minimum(ends, last).tolist(), strict=True)
    return [(low, high) for low, high in pairs if low < high]


def score_blocks(
    decoder: Decoder,
    queries: LinkQueries,
    given: Float[Tensor, "n d"],
    rows: Float[Tensor, "m d"],
    first: int,
    types: NodeTypes,
    memory_limit: int,
) -> Iterator[tuple[Int64[Tensor, "k"], int, Float[Tensor, "k c"]]]:
    """Scores of queries against those candidates that have the type of their answers, in blocks.

    Every candidate's row is read once for each type of answers.

    Args:
        decoder: gives the scores.
        queries: the queries.
        given: rows of the given ends.
        rows: of the nodes with the store ids ``first`` to ``first + m - 1``; in any dtype, in memory or mapped.
        first: store id of the first one.
        types: of all nodes.
        memory_limit: bytes that a block may take, about.

    Yields:
        which queries, ascending; the store id of the first candidate; and the scores.
    """
    item, width = given.element_size(), max(1, given.shape[1])
    relations = torch.from_numpy(queries.relations).to(given.device)
    score = decoder.scorer(queries.side, given, relations)
    for kind in np.unique(queries.types).tolist():
        members = torch.from_numpy(np.flatnonzero(queries.types == kind))
        pair = 2 * item + 8  # scores, their differences, and what is compared
        together = max(1, min(_QUERIES, len(members), memory_limit // 2 // (pair + width * item)))
        per_block = max(1, memory_limit // (together * pair + 2 * width * item))
        for low, high in type_ranges(types, kind, first, first + len(rows)):
            for begin in range(low, high, per_block):
                end = min(begin + per_block, high)
                candidates = rows[begin - first : end - first].to(given)
                for some in members.split(together):
                    yield some, begin, score(some, candidates)


@torch.no_grad()
def count_better(
    decoder: Decoder,
    queries: LinkQueries,
    given: Float[Tensor, "n d"],
    true_scores: Float[Tensor, "n"],
    rows: Float[Tensor, "m d"],
    first: int,
    types: NodeTypes,
    *,
    known: KnownAnswers | None = None,
    memory_limit: int = BLOCK_BYTES,
) -> Int64[Tensor, "2 n"]:
    """How many of a worker's nodes score higher than the true end, and how many the same.

    Candidates are the nodes of the type that the end has, but the true one itself and others that are known answers.
    Counts of several ranges of nodes add up to those of all.

    Args:
        decoder: gives the scores.
        queries: the queries; ``true`` are the ends that rank.
        given: rows of the given ends.
        true_scores: scores of the links.
        rows: of the nodes with the store ids ``first`` to ``first + m - 1``; in any dtype, in memory or mapped.
        first: store id of the first one.
        types: of all nodes.
        known: answers that are left out (filtered ranking); ``None``: none (raw ranking).
        memory_limit: bytes that a block of queries and candidates may take, about.

    Returns:
        on the CPU; the first row are those that score higher. :func:`~partita.tasks.links.metrics.realistic_ranks`
        makes ranks of them.
    """
    counts = torch.zeros((2, len(queries)), dtype=torch.int64)
    for some, begin, scores in score_blocks(decoder, queries, given, rows, first, types, memory_limit):
        scores[leave_out(scores, queries, some, begin, known)] = -torch.inf
        counts[:, some] += count_compared(true_scores[some.to(true_scores.device)], scores)
    return counts


def leave_out(
    scores: Float[Tensor, "k c"], queries: LinkQueries, some: Int64[Tensor, "k"], begin: int, known: KnownAnswers | None
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """Places in a block of scores of the true answers, and of all that are known.

    Args:
        scores: of some queries against the candidates from the store id ``begin`` on.
        queries: all queries.
        some: which of them.
        begin: store id of the first candidate.
        known: answers; ``None``: the true ones only.
    """
    end = begin + scores.shape[1]
    true = queries.true[some.numpy()]
    at = np.flatnonzero((true >= begin) & (true < end))
    places, ids = [at], [true[at]]
    if known is not None:
        places_known, ids_known = known.within(some.numpy(), begin, end)
        places.append(places_known)
        ids.append(ids_known)
    rows, columns = (torch.from_numpy(np.concatenate(each)).to(scores.device) for each in (places, ids))
    return rows, columns - begin
