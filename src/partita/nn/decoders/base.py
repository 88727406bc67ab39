"""Decoders: what gives a pair of nodes, or a triple, a score from the rows of its two ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from partita.core.errors import ConfigError
from partita.nn import initialize
from partita.nn.decoders.cubes import cubes
from partita.nn.decoders.side_by_side import side_by_side
from partita.nn.layers.base import global_key
from partita.nn.matmul import linear

Side = Literal["tail", "head"]
"""The end of a triple that candidates stand for; the other one is given."""

Scorer = Callable[[Int64[Tensor, "k"], Float[Tensor, "K d"]], Float[Tensor, "k K"]]

BLOCK_VALUES = 1 << 20
"""Values (rows x candidates x columns) that a decoder which is no product computes at once."""


class Decoder(nn.Module):
    """Base of all decoders. A score is a logit: the higher, the more likely is the link head -> tail.

    A decoder becomes the part ``decoder`` of a model, so its parameters are trained and kept like all others. Whatever
    it has of a relation is a row of a dense parameter.

    Attributes:
        name: by which the decoder is found again: that of its table, or ``package.module:Name``.
        options: names of the keyword arguments of the constructor besides the sizes.
        reads_relations: a score depends on the relation. Other decoders may be used on typed graphs as well: all
            relations then have the same scores.
        one_score: a triple has the same score beside other tails as beside other heads; see :meth:`toward`.

    Args:
        width: d, columns of a node's row.
        num_relations: R, 1 in an untyped graph.
    """

    name: str = ""
    options: ClassVar[frozenset[str]] = frozenset()
    reads_relations: ClassVar[bool] = True
    one_score: ClassVar[bool] = True

    def __init__(self, width: int, num_relations: int = 1) -> None:
        super().__init__()
        for what, number in (("width", width), ("number of relations", num_relations)):
            if number < 1:
                raise ConfigError(f"a decoder's {what} must be at least 1, not {number}", where=type(self).__name__)
        self.width = width
        self.num_relations = num_relations

    def forward(
        self, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """The score of every triple."""
        raise NotImplementedError

    def toward(
        self, side: Side, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """The score of every triple, to be compared with those of other candidates for one end."""
        score: Float[Tensor, "B"] = self(heads, tails, relations)
        return score

    def against(
        self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"], candidates: Float[Tensor, "... d"]
    ) -> Float[Tensor, "B K"]:
        """The score of every candidate in the place of one end.

        Args:
            side: which end the candidates stand for.
            given: rows of the other ends.
            relations: number of the relation of each row.
            candidates: (K, d), the same for all rows, or (B, K, d), those of each row.
        """
        raise NotImplementedError

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
        """The score of every triple, and then those of all candidates in the place of its ends.

        Args:
            heads, tails, relations: of the triples.
            candidates: by the end that they stand for, as for :meth:`against`, in the order of the scores.
            last: one more column.
            loops: behind the candidates for an end comes the other end in its place.

        The score of a triple is that toward the first of these ends.
        """
        found = [self.toward(next(iter(candidates), "tail"), heads, tails, relations).unsqueeze(1)]
        for side, rows in candidates.items():
            given = heads if side == "tail" else tails
            found.append(self.against(side, given, relations, rows))
            if loops:
                found.append(self.toward(side, given, given, relations).unsqueeze(1))
        return torch.cat(found if last is None else [*found, last.unsqueeze(1)], dim=1)

    def cubes(self, rows: Float[Tensor, "B d"]) -> Float[Tensor, "B"]:
        """The sum of the cubes of the sizes of the numbers that rows of nodes, or of relations, are made of."""
        return cubes(rows)

    def factors(self, relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"] | None:
        """Rows of relations that are multiplied with those of nodes; ``None``: there are none."""
        return None

    def penalty(
        self, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """The sum of the cubes of the sizes of all numbers of a triple.

        N3 of Lacroix, Usunier and Obozinski, "Canonical tensor decomposition for knowledge base completion", ICML 2018,
        eq. 4.
        """
        rows = [heads, tails] if (factors := self.factors(relations)) is None else [heads, factors, tails]
        return torch.stack([self.cubes(each) for each in rows]).sum(0)

    def scorer(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Scorer:
        """What :meth:`against` gives some of the rows, for who asks for the same rows many times.

        Args:
            side, given, relations: as of :meth:`against`.

        Returns:
            takes places of rows (k) and candidates (K, d), and gives scores (k, K).
        """
        return lambda some, candidates: self.against(side, given[some], relations[some], candidates)

    def initialize(self, key: int) -> None:
        """Fill the parameters from a key."""
        initialize.glorot(self, key)

    def reset(self, key: int | None = None) -> None:
        """Initialize every parameter from a 64-bit key; without one, it is drawn from torch's global generator."""
        self.initialize(global_key() if key is None else key)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        own = {name: getattr(self, name) for name in sorted(self.options)}
        return {"width": self.width, "num_relations": self.num_relations, **own}

    def describe(self) -> dict[str, Any]:
        """The decoder as JSON-able values, without its parameters: :func:`from_description` makes it anew."""
        return {"name": self.name, **self.arguments()}

    def extra_repr(self) -> str:
        """The constructor's arguments, for ``print``."""
        return ", ".join(f"{name}={value}" for name, value in self.arguments().items())


class ProductDecoder(Decoder):
    """A decoder whose score is a scalar product of a candidate's row with a *query*, made of all the rest.

    So the scores of shared candidates are one matrix product.
    """

    def query(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """What the candidates for one end are multiplied with."""
        raise NotImplementedError

    def prepared(self, candidates: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """The candidates' rows, as they are multiplied."""
        return candidates

    def forward(
        self, heads: Float[Tensor, "B d"], tails: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """See :meth:`Decoder.forward`."""
        return (self.query("tail", heads, relations) * self.prepared(tails)).sum(1)

    def against(
        self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"], candidates: Float[Tensor, "... d"]
    ) -> Float[Tensor, "B K"]:
        """See :meth:`Decoder.against`."""
        query, rows = self.query(side, given, relations), self.prepared(candidates)
        if rows.ndim == 2:
            return linear(query, rows)
        return torch.matmul(rows, query.unsqueeze(2)).squeeze(2)

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
        """See :meth:`Decoder.scores`; without copies where candidates are shared."""
        kind, ends = type(self), {"head": heads, "tail": tails}
        own = kind.forward is not ProductDecoder.forward or kind.against is not ProductDecoder.against
        if own or not candidates or any(rows.ndim != 2 for rows in candidates.values()):
            return super().scores(heads, tails, relations, candidates, last, loops=loops)
        given = [heads if side == "tail" else tails for side in candidates]
        queries = [self.query(side, rows, relations) for side, rows in zip(candidates, given, strict=True)]
        true, others = self.prepared(ends[next(iter(candidates))]), map(self.prepared, given if loops else ())
        return side_by_side(true, queries, [self.prepared(rows) for rows in candidates.values()], list(others), last)

    def scorer(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Scorer:
        """See :meth:`Decoder.scorer`; the queries are made once."""
        query = self.query(side, given, relations)
        return lambda some, candidates: linear(query[some], self.prepared(candidates))


def in_blocks(
    function: Callable[..., Float[Tensor, "B K"]], rows: Float[Tensor, "B c"], candidates: Float[Tensor, "... c"],
    *others: Tensor,
) -> Float[Tensor, "B K"]:  # fmt: skip
    """Scores of rows against candidates that need a row for every pair, in bounded memory.

    Those rows are made anew for the gradient, block by block, and kept nowhere.

    Args:
        function: of some rows, their candidates, and the others.
        rows: of the queries.
        candidates: (K, c), or (B, K, c).
        others: parameters.
    """
    shared = candidates.ndim == 2
    per_block = max(1, BLOCK_VALUES // max(1, candidates.shape[-2] * candidates.shape[-1]))
    found = []
    for begin in range(0, max(1, len(rows)), per_block):
        block = slice(begin, begin + per_block)
        found.append(_Recomputed.apply(function, rows[block], candidates if shared else candidates[block], *others))
    return found[0] if len(found) == 1 else torch.cat(found)


class _Recomputed(Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            saved = zip(ctx.saved_tensors, needed, strict=True)
            tensors = [each.detach().requires_grad_(wanted) for each, wanted in saved]
            out = ctx.function(*tensors)
        wanted = [each for each, wants in zip(tensors, needed, strict=True) if wants]
        found = iter(torch.autograd.grad(out, wanted, grad))
        return (None, *(next(found) if wants else None for wants in needed))


def halves_of(width: int, decoder: str) -> int:
    """Half the width, of real and of imaginary parts.

    Raises:
        ConfigError: it is odd.
    """
    if width % 2:
        raise ConfigError(
            f"'{decoder}' takes rows of real and imaginary parts, so their width must be even, not {width}",
            where="hidden",
            fix=f"Use a width of {width + 1}",
        )
    return width // 2


def as_decoder_type(name: str, found: Any) -> type[Decoder]:
    """The decoder that a name imports.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(found, type) and issubclass(found, Decoder):
        return found
    raise ConfigError(f"'{name}' is no decoder", where="decoder", fix="Name a subclass of partita.nn.decoders.Decoder")


def arguments_of(description: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of what :meth:`Decoder.describe` described."""
    arguments = dict(description)
    return arguments.pop("name"), arguments
