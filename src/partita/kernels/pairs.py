"""The edges of a block by destination and relation: arguments checked, implementation called."""

from __future__ import annotations

from jaxtyping import Int, Int32, Int64
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation


def pair_edges(
    indptr: Int[Tensor, "D_1"], edge_type: Int[Tensor, "E"], num_relations: int
) -> tuple[
    Int64[Tensor, "P"], Int64[Tensor, "P_1"], Int64[Tensor, "E"], Int64[Tensor, "R"], Int64[Tensor, "D_1"],
    Int32[Tensor, "P"],
]:  # fmt: skip
    """Find the *pairs* of a block: a destination, and a relation that it has edges of.

    Pairs are numbered relation by relation, those of a relation by destination.

    Args:
        indptr: rows of the block.
        edge_type: number of the relation of every edge, ascending within a destination.
        num_relations: R.

    Returns:
        the destination of each pair; where the edges of each pair begin among the edges sorted by pair; these edges, as
        positions in the block, in whose order those of a pair are; the number of pairs of each relation; where the
        pairs of each destination begin among the pairs sorted by destination; and these pairs, those of a destination
        in the order of its edges.

    Raises:
        ValueError: lengths do not fit.
        IndexError: a relation is not below ``num_relations``.
    """
    checks.edges_match(indptr, edge_type)
    checks.within("edge_type", edge_type, num_relations)
    return implementation(indptr).pair_edges(checks.as_int64(indptr), edge_type.contiguous(), num_relations)
