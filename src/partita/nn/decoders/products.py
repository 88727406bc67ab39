"""Decoders that are products: the score is bilinear in the rows of both ends."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from partita import kernels
from partita.core.errors import ConfigError
from partita.nn.decoders.base import ProductDecoder, Side, halves_of
from partita.nn.decoders.cubes import cubes
from partita.nn.grouped import grouped_linear
from partita.nn.initialize import name_key, uniform_
from partita.nn.ops import pick_rows


class Dot(ProductDecoder):
    """``<h, t>``, the same for all relations.

    Symmetric: a link and its reverse have the same score.
    """

    name = "dot"
    reads_relations = False

    def query(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """The given row."""
        return given


class Cosine(ProductDecoder):
    """``s <h, t> / (|h| |t|)`` with a learnt scale s > 0, the same for all relations; rows of zeros score 0.

    The scale, an inverse temperature, makes a logit of a number between -1 and 1. It is learnt as its logarithm, as by
    Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021.

    Args:
        width: d.
        num_relations: R.
        scale: that s starts at.

    Raises:
        ConfigError: the scale is not above 0.
    """

    name = "cosine"
    options: ClassVar[frozenset[str]] = frozenset({"scale"})
    reads_relations = False

    def __init__(self, width: int, num_relations: int = 1, *, scale: float = 10.0) -> None:
        super().__init__(width, num_relations)
        if not 0 < scale < math.inf:
            raise ConfigError(f"a scale must be above 0, not {scale}", where=self.name)
        self.scale = scale
        self.log_scale = nn.Parameter(torch.empty(1))
        self.reset()

    def initialize(self, key: int) -> None:
        """The scale that was asked for."""
        nn.init.constant_(self.log_scale, math.log(self.scale))

    def query(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """The given row, of length s."""
        return functional.normalize(given, dim=1) * self.log_scale.exp()

    def prepared(self, candidates: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Rows of length 1."""
        return functional.normalize(candidates, dim=-1)


class Bilinear(ProductDecoder):
    """``h^T W_r t`` with a matrix for each relation.

    RESCAL: Nickel, Tresp and Kriegel, "A three-way model for collective learning on multi-relational data", ICML 2011.
    """

    name = "bilinear"

    def __init__(self, width: int, num_relations: int = 1) -> None:
        super().__init__(width, num_relations)
        self.weight = nn.Parameter(torch.empty(num_relations, width, width))
        self.reset()

    def query(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """``W_r^T h`` for tails, ``W_r t`` for heads."""
        weight = self.weight.transpose(1, 2) if side == "tail" else self.weight
        order = torch.argsort(relations, stable=True)
        sizes = torch.bincount(relations, minlength=self.num_relations).tolist()
        return grouped_linear(given[order], weight.contiguous(), sizes)[torch.argsort(order)]


class DistMult(ProductDecoder):
    """``sum_k h_k r_k t_k``. Symmetric.

    Yang et al., "Embedding entities and relations for learning and inference in knowledge bases", ICLR 2015.
    """

    name = "distmult"

    def __init__(self, width: int, num_relations: int = 1) -> None:
        super().__init__(width, num_relations)
        self.relation = nn.Parameter(torch.empty(num_relations, width))
        self.reset()

    def initialize(self, key: int) -> None:
        """+-sqrt(6 / (1 + d)): each relation's row is a map of d columns to one, whatever the number of relations."""
        uniform_(self.relation, math.sqrt(6.0 / (1 + self.width)), name_key(key, "relation"))

    def query(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """The given row times the relation's, column by column."""
        return given * pick_rows(self.relation, relations)

    def factors(self, relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """The relations' rows."""
        return pick_rows(self.relation, relations)


class ComplEx(DistMult):
    """``Re sum_k h_k r_k conj(t_k)``: the first half of every row are real parts, the second half imaginary ones.

    Trouillon et al., "Complex embeddings for simple link prediction", ICML 2016, eq. 9 to 11.

    Raises:
        ConfigError: the width is odd.
    """

    name = "complex"

    def __init__(self, width: int, num_relations: int = 1) -> None:
        half = halves_of(width, self.name)
        super().__init__(width, num_relations)
        self.columns = half

    def cubes(self, rows: Float[Tensor, "B d"]) -> Float[Tensor, "B"]:
        """Of complex numbers."""
        return cubes(rows, parts=2)

    def query(self, side: Side, given: Float[Tensor, "B d"], relations: Int64[Tensor, "B"]) -> Float[Tensor, "B d"]:
        """``h r`` for tails, ``t conj(r)`` for heads: the score is the real scalar product with the other end."""
        return complex_rows(given, self.relation, relations, conjugate=side == "head")


def complex_rows(
    x: Float[Tensor, "n d"], table: Float[Tensor, "R d"], index: Int64[Tensor, "n"], *, conjugate: bool
) -> Float[Tensor, "n d"]:
    """``x y`` with rows y of a table, of real parts, then imaginary ones; or ``x conj(y)``."""
    x, table = kernels.widened(x), kernels.widened(table)
    dtype = torch.promote_types(x.dtype, table.dtype)
    found: Tensor = _ComplexRows.apply(x.to(dtype), table.to(dtype), index, conjugate)
    return found


class _ComplexRows(Function):
    """In one pass each: autograd would pick the rows of the table, and keep and copy all four products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, index: Tensor, conjugate: bool) -> Tensor:
        ctx.save_for_backward(x, table, index)
        ctx.conjugate = conjugate
        return kernels.complex_rows(x, table, index, conjugate=conjugate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *kernels.complex_rows_backward(grad, *ctx.saved_tensors, conjugate=ctx.conjugate), None, None
