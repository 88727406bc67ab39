"""Decoders with reciprocal relations: a second set of parameters of relations, by which heads are ranked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.nn.decoders.base import Decoder, Scorer, Side


class Reciprocal(Decoder):
    """Another decoder with twice the relations: heads of (?, r, t) are scored as tails of (t, r', ?).

    So a triple has two scores, one beside other tails and one beside other heads. Calling the decoder gives the first.
    Reciprocal (inverse) relations of Lacroix, Usunier and Obozinski, "Canonical tensor decomposition for knowledge base
    completion", ICML 2018, section 3.

    Args:
        inner: the decoder of 2 R relations, those of r' behind those of r.

    Attributes:
        inner: as given.

    Raises:
        ConfigError: the decoder has no parameters of relations.
    """

    one_score = False

    def __init__(self, inner: Decoder) -> None:
        super().__init__(inner.width, inner.num_relations // 2)
        if not inner.reads_relations:
            raise ConfigError(
                f"decoder '{inner.name}' has no parameters of relations",
                where="reciprocal",
                fix="Leave reciprocal out, or use a decoder that has some, such as distmult or complex",
            )
        self.inner, self.name = inner, inner.name

    def forward(
        self, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """The score of every triple beside other tails."""
        return self.toward("tail", heads, tails, relations)

    def toward(
        self, side: Side, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """See :meth:`Decoder.toward`."""
        ends = (heads, tails) if side == "tail" else (tails, heads)
        score: Float[Tensor, "B"] = self.inner(*ends, self._of(side, relations))
        return score

    def against(
        self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"], candidates: Float[Tensor, "... d"]
    ) -> Float[Tensor, "B K"]:
        """See :meth:`Decoder.against`."""
        return self.inner.against("tail", given, self._of(side, relations), candidates)

    def scores(
        self,
        heads: Float[Tensor, "B d"],
        tails: Float[Tensor, "B d"],
        relations: Int64[Tensor, "B"],
        candidates: Mapping[Side, Float[Tensor, "... d"]],
        last: Float[Tensor, "B"] | None = None,
        *,
        loops: bool = False,
    ) -> Float[Tensor, "B K_1"]:
        """See :meth:`Decoder.scores`."""
        if len(candidates) != 1:
            return super().scores(heads, tails, relations, candidates, last, loops=loops)
        ((side, rows),) = candidates.items()
        ends = (heads, tails) if side == "tail" else (tails, heads)
        return self.inner.scores(*ends, self._of(side, relations), {"tail": rows}, last, loops=loops)

    def scorer(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Scorer:
        """See :meth:`Decoder.scorer`."""
        return self.inner.scorer("tail", given, self._of(side, relations))

    def penalty(
        self, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """The mean of those of both questions."""
        for_tails = self.inner.penalty(heads, tails, self._of("tail", relations))
        return (for_tails + self.inner.penalty(heads, tails, self._of("head", relations))) / 2

    def initialize(self, key: int) -> None:
        """As the decoder does."""
        self.inner.initialize(key)

    def arguments(self) -> dict[str, Any]:
        """See :meth:`Decoder.arguments`."""
        return {**self.inner.arguments(), "num_relations": self.num_relations, "reciprocal": True}

    def _of(self, side: Side, relations: Int64[Tensor, "B"]) -> Int64[Tensor, "B"]:
        return relations if side == "tail" else relations + self.num_relations
