"""Decoders that move one end along the relation and look how far it is from the other."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.nn.decoders.base import Decoder, Side, halves_of, in_blocks
from partita.nn.initialize import name_key, uniform_

GAMMA = 12.0
"""What distances are taken from where nothing else is said."""


class DistanceDecoder(Decoder):
    """``gamma - |moved(given) - candidate|``.

    Attributes:
        gamma: the score at distance 0; rows that are nearer to each other than gamma are more likely a link than not.
    """

    options: ClassVar[frozenset[str]] = frozenset({"gamma"})

    def __init__(self, width: int, num_relations: int = 1, *, gamma: float = GAMMA) -> None:
        super().__init__(width, num_relations)
        self.gamma = gamma

    def moved(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """Where the given end says that the other one is."""
        raise NotImplementedError

    def distances(self, rows: Float[Tensor, "B d"], candidates: Float[Tensor, "... d"]) -> Float[Tensor, "B K"]:
        """From every row to its candidates, (K, d) or (B, K, d)."""
        raise NotImplementedError

    def forward(
        self, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """See :meth:`Decoder.forward`."""
        return self.against("tail", heads, relations, tails.unsqueeze(1)).squeeze(1)

    def against(
        self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"], candidates: Float[Tensor, "... d"]
    ) -> Float[Tensor, "B K"]:
        """See :meth:`Decoder.against`."""
        return self.gamma - self.distances(self.moved(side, given, relations), candidates)


class TransE(DistanceDecoder):
    """``gamma - |h + r - t|_p``.

    Bordes et al., "Translating embeddings for modeling multi-relational data", NeurIPS 2013, eq. 1; with a gamma, as
    Sun et al. (ICLR 2019) have it, so that scores are logits.

    Args:
        width: d.
        num_relations: R.
        gamma: see :class:`DistanceDecoder`.
        p: of the norm, at least 1; 1 or 2 in the paper.

    Raises:
        ConfigError: p is below 1, so it is that of no norm.
    """

    name = "transe"
    options: ClassVar[frozenset[str]] = frozenset({"gamma", "p"})

    def __init__(self, width: int, num_relations: int = 1, *, gamma: float = GAMMA, p: float = 1.0) -> None:
        super().__init__(width, num_relations, gamma=gamma)
        if not p >= 1:
            raise ConfigError(f"there is no p-norm of p = {p}", where=self.name, fix="Use 1 or 2")
        self.p = p
        self.relation = nn.Parameter(torch.empty(num_relations, width))
        self.reset()

    def initialize(self, key: int) -> None:
        """+-6 / sqrt(d), as in the paper."""
        uniform_(self.relation, 6.0 / math.sqrt(self.width), name_key(key, "relation"))

    def moved(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """``h + r`` for tails, ``t - r`` for heads."""
        along = self.relation[relations]
        return given + along if side == "tail" else given - along

    def distances(self, rows: Float[Tensor, "B d"], candidates: Float[Tensor, "... d"]) -> Float[Tensor, "B K"]:
        """By torch's loop over pairs, which keeps no differences; not by a product, which rounds where rows are near
        each other."""
        mode = "donot_use_mm_for_euclid_dist"
        if candidates.ndim == 2:
            return torch.cdist(rows, candidates, self.p, mode)
        return torch.cdist(rows.unsqueeze(1), candidates, self.p, mode).squeeze(1)


class RotatE(DistanceDecoder):
    """``gamma - sum_k |h_k r_k - t_k|`` with complex rows and ``r_k = exp(i phase_k)``: relations are rotations.

    The first half of every row are real parts, the second half imaginary ones.

    Sun et al., "RotatE: knowledge graph embedding by relational rotation in complex space", ICLR 2019, eq. 3; the norm
    is the sum of moduli, as in the authors' code.

    Raises:
        ConfigError: the width is odd.
    """

    name = "rotate"

    def __init__(self, width: int, num_relations: int = 1, *, gamma: float = GAMMA) -> None:
        half = halves_of(width, self.name)
        super().__init__(width, num_relations, gamma=gamma)
        self.columns = half
        self.phase = nn.Parameter(torch.empty(num_relations, half))
        self.reset()

    def initialize(self, key: int) -> None:
        """All angles alike."""
        uniform_(self.phase, math.pi, name_key(key, "phase"))

    def moved(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """Turned by the relation's phases for tails, back for heads: a rotation keeps distances."""
        phase = self.phase[relations]
        (a, b), c, s = given.split(self.columns, 1), phase.cos(), phase.sin()
        if side == "head":
            s = -s
        return torch.cat([a * c - b * s, a * s + b * c], dim=1)

    def distances(self, rows: Float[Tensor, "B d"], candidates: Float[Tensor, "... d"]) -> Float[Tensor, "B K"]:
        """In blocks."""
        return in_blocks(_moduli, rows, candidates)


def _moduli(rows: Float[Tensor, "B d"], candidates: Float[Tensor, "... d"]) -> Float[Tensor, "B K"]:
    differences = rows.unsqueeze(1) - candidates
    return torch.linalg.vector_norm(differences.unflatten(2, (2, -1)), dim=2).sum(2)
