"""The best new neighbors of given nodes among all nodes, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.node_types import NodeTypes
from partita.infer.known_answers import KnownAnswers, LinkQueries
from partita.infer.ranking import BLOCK_BYTES, leave_out, score_blocks
from partita.nn.decoders import Decoder

NOBODY = -1
"""In place of a store id where there are fewer candidates than were asked for."""


@dataclass(frozen=True, eq=False)
class TopLinks:
    """The best candidates of every query: highest score first, equal ones in the order of their original indices.

    Attributes:
        ids: store ids; :data:`NOBODY` after the last one.
        original: their original indices, by which equal scores are put in order.
        scores: float32 or float64; ``-inf`` after the last one.
    """

    ids: Int64[Tensor, "n k"]
    original: Int64[Tensor, "n k"]
    scores: Float[Tensor, "n k"]

    @classmethod
    def none(cls, queries: int, like: Float[Tensor, "..."]) -> TopLinks:
        """Of no candidates at all."""
        ids = torch.full((queries, 0), NOBODY)
        return cls(ids, ids, like.new_empty((queries, 0), device="cpu"))

    @classmethod
    def merged(cls, several: Sequence[TopLinks], k: int) -> TopLinks:
        """The k best of several lists of different candidates for the same queries, in whatever order they come.

        Args:
            several: of workers, or of blocks.
            k: how many are kept; where there are fewer, :data:`NOBODY` follows.
        """
        ids, original, scores = (
            torch.cat([getattr(each, name) for each in several], dim=1) for name in ("ids", "original", "scores")
        )
        if (missing := k - ids.shape[1]) > 0:
            ids, original = (torch.nn.functional.pad(each, (0, missing), value=NOBODY) for each in (ids, original))
            scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
        # Two stable sorts: by original index, then by score. Nobody comes last: no candidate scores -inf.
        order = torch.argsort(original, dim=1, stable=True)
        order = order.gather(1, torch.argsort(scores.gather(1, order), dim=1, descending=True, stable=True))[:, :k]
        return cls(*(each.gather(1, order) for each in (ids, original, scores)))

    def add(
        self,
        some: Int64[Tensor, "k"],
        scores: Float[Tensor, "k c"],
        ids: Int64[Tensor, "c"],
        original: Int64[Tensor, "N"] | None,
    ) -> None:
        """Look at further candidates of some queries.

        Args:
            some: places of the queries, distinct.
            scores: -inf of those that do not count.
            ids: store ids of the candidates, ascending.
            original: original index of every node; ``None``: the store id.
        """
        k = self.ids.shape[1]
        before = TopLinks(self.ids[some], self.original[some], self.scores[some])
        both = TopLinks.merged([before, _best_of_block(scores, ids, original, k)], k)
        self.ids[some], self.original[some], self.scores[some] = both.ids, both.original, both.scores


@torch.no_grad()
def top_links(
    decoder: Decoder,
    queries: LinkQueries,
    given: Float[Tensor, "n d"],
    rows: Float[Tensor, "m d"],
    first: int,
    types: NodeTypes,
    k: int,
    *,
    original: Int64[Tensor, "N"] | None = None,
    known: KnownAnswers | None = None,
    itself: bool = False,
    memory_limit: int = BLOCK_BYTES,
) -> TopLinks:
    """The k best answers to queries among a worker's nodes; :meth:`TopLinks.merged` makes one list of all workers'.

    Args:
        decoder: gives the scores.
        queries: the queries; answers of theirs are left out like those known.
        given: rows of the given ends.
        rows: of the nodes with the store ids ``first`` to ``first + m - 1``; in any dtype, in memory or mapped.
        first: store id of the first one.
        types: of all nodes.
        k: how many are wanted.
        original: original index of every node; ``None``: the store id.
        known: answers that are left out, such as edges that are there; ``None``: none.
        itself: a node may be its own neighbor.
        memory_limit: bytes that a block of queries and candidates may take, about.

    Raises:
        ConfigError: k is below 1, or a score is not a number.
    """
    if k < 1:
        raise ConfigError(f"the {k} best are none", where="links", fix="Ask for at least 1")
    best = TopLinks.merged([TopLinks.none(len(queries), given)], k)
    for some, begin, scores in score_blocks(decoder, queries, given, rows, first, types, memory_limit):
        scores = checked(scores)
        scores[leave_out(scores, queries, some, begin, known)] = -torch.inf
        if not itself:
            own = torch.from_numpy(queries.given)[some] - begin
            there = torch.nonzero((own >= 0) & (own < scores.shape[1])).squeeze(1)
            scores[there, own[there]] = -torch.inf
        best.add(some, scores.cpu(), torch.arange(begin, begin + scores.shape[1]), original)
    return best


def checked(scores: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """The scores.

    Raises:
        ConfigError: one is not a number.
    """
    if bool(scores.isnan().any()):
        raise ConfigError(
            "a link's score is not a number, so that none is the best",
            where="links",
            fix="Train again with a lower learning rate",
        )
    return scores


def _best_of_block(
    scores: Float[Tensor, "n c"], ids: Int64[Tensor, "c"], original: Int64[Tensor, "N"] | None, k: int
) -> TopLinks:
    """The k best columns of a block, whose candidates are in ascending order."""
    indices = ids if original is None else original[ids]
    if original is not None:  # ties are for the lowest index, so columns come in its order
        order = torch.argsort(indices)
        ids, indices, scores = ids[order], indices[order], scores[:, order]
    at = _first_best(scores, min(k, scores.shape[1]))
    found = scores.gather(1, at)
    nobody = found == -torch.inf
    return TopLinks(ids[at].masked_fill(nobody, NOBODY), indices[at].masked_fill(nobody, NOBODY), found)


def _first_best(scores: Float[Tensor, "n c"], k: int) -> Int64[Tensor, "n k"]:
    """Columns of the k highest scores of each row, in any order; of equal ones the first, which ``topk`` does not
    promise."""
    found = scores.topk(k, dim=1)
    lowest = found.values[:, -1:]
    unclear = torch.nonzero(((scores >= lowest).sum(1) > k) & (lowest[:, 0] > -torch.inf)).squeeze(1)
    at = found.indices
    at[unclear] = torch.argsort(scores[unclear], dim=1, descending=True, stable=True)[:, :k]
    return at
