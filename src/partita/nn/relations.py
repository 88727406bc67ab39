"""What layers of typed graphs are made of: edges by relation, and products with a weight for every group of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from partita import kernels
from partita.core.records import Block
from partita.nn import ops
from partita.nn.encoder import EncodedRows
from partita.nn.grouped import grouped_linear, linears
from partita.nn.matmul import linear

_DENSE = 16
"""Sources are numbered by a table with a place for every source and relation where that has so many times the edges."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows sorted by the group that they belong to.

    Attributes:
        order: int64 (n) position of each sorted row among the rows as they were; rows of a group keep their order.
        place: int64 (n) the inverse of it.
        sizes: rows of each group.
    """

    order: Int64[Tensor, "n"]
    place: Int64[Tensor, "n"]
    sizes: list[int]

    @classmethod
    def of(cls, group: Int[Tensor, "n"], count: int) -> Groups:
        """Sort by counting.

        Args:
            group: number of the group of each row.
            count: how many groups there are.
        """
        each = torch.arange(group.shape[0] + 1, device=group.device)
        sorted_ = kernels.transpose(each, group, count)
        place = torch.empty_like(sorted_.edge)
        place[sorted_.edge] = each[:-1]
        return cls(sorted_.edge, place, sorted_.indptr.diff().tolist())


def typed_linear(
    x: Float[Tensor, "n in"],
    kinds: Int64[Tensor, "n"],
    weight: Float[Tensor, "T out in"],
    bias: Float[Tensor, "T out"] | None = None,
) -> Float[Tensor, "n out"]:
    """``x W_t^T + b_t``, where t is the type of each row.

    Args:
        x: rows in any order.
        kinds: the type of each.
        weight, bias: of each type.
    """
    if weight.shape[0] == 1:
        return linear(x, weight[0], None if bias is None else bias[0])
    groups = Groups.of(kinds, weight.shape[0])
    rows = ops.permute_rows(x, groups.order, groups.place)
    return ops.permute_rows(grouped_linear(rows, weight, groups.sizes, bias), groups.place, groups.order)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The edges of a block by destination and relation. A *pair* is a destination and a relation that it has edges of.

    Attributes:
        block: the same edges, whose destinations are the pairs, sorted by relation, then by destination.
        edges: int64 (E) position in the block of each of its edges.
        sizes: pairs of each relation.
        dst: int64 (P) destination of each pair, as a position in the block.
        by_dst: a block that leads from the pairs to the destinations: its sources are the pairs.
    """

    block: Block
    edges: Int64[Tensor, "E"]
    sizes: list[int]
    dst: Int64[Tensor, "P"]
    by_dst: Block

    @classmethod
    def of(cls, block: Block, num_relations: int) -> Pairs:
        """Of a block whose edges are sorted by relation within every destination; without relations all have number 0.

        Args:
            block: its edges.
            num_relations: R.
        """
        dst, indptr, edges, sizes, of_dst, place = kernels.pair_edges(block.indptr, relations_of(block), num_relations)
        return cls(
            block=Block(
                dst=block.dst[dst],
                src=block.src,
                indptr=indptr,
                indices=block.indices.index_select(0, edges),
                dst_original=block.dst_original[dst],
                node_types=block.node_types,
                **block.of_edges(edges),
            ),
            edges=edges,
            sizes=sizes.tolist(),
            dst=dst,
            by_dst=Block(block.dst, dst, of_dst, place, block.dst_original),
        )


@dataclass(frozen=True, slots=True)
class Messengers:
    """The edges of a block by source and relation: what a source sends along a relation is made once.

    Attributes:
        block: the same edges in the same order, whose sources are the distinct sources of every relation, sorted by
            relation.
        src: int64 (M) source of each of these, as a position in the block.
        sizes: how many there are of each relation.
    """

    block: Block
    src: Int64[Tensor, "M"]
    sizes: list[int]

    @classmethod
    def of(cls, block: Block, num_relations: int) -> Messengers:
        """Of a block whose sources are de-duplicated.

        Args:
            block: its edges.
            num_relations: R.
        """
        num_src, kinds = block.num_src, relations_of(block).long()
        code = kinds * num_src + block.indices
        if num_relations * num_src <= _DENSE * max(1, code.shape[0]):
            there = torch.zeros(num_relations * num_src, dtype=torch.bool, device=code.device)
            there[code] = True
            (found,) = torch.nonzero(there, as_tuple=True)
            number = torch.empty(there.shape, dtype=torch.int32, device=code.device)
            number[found] = torch.arange(found.shape[0], dtype=torch.int32, device=code.device)
            indices = number[code]
        else:
            found, indices = torch.unique(code, return_inverse=True)
        bounds = torch.arange(num_relations + 1, device=code.device) * num_src
        sizes = torch.searchsorted(found, bounds).diff().tolist()
        src = found % max(1, num_src)
        return cls(block.with_(src=src, src_original=None, indices=indices.int(), transposed=None), src, sizes)


def relations_of(block: Block) -> Int[Tensor, "E"]:
    """Number of the relation of every edge; 0 where the block does not say."""
    if block.edge_type is None:
        return torch.zeros(block.num_edges, dtype=torch.int32, device=block.indices.device)
    return block.edge_type


def sum_by_relation(
    block: Block,
    h: Float[Tensor, "S in"] | EncodedRows,
    weight: Float[Tensor, "R out in"],
    source: Sequence[int],
    *,
    mean: bool,
) -> Float[Tensor, "D out"]:
    """The sum over relations r of ``W_r`` times the sum, or mean, of the neighbors' rows along r.

    Rows are summed first, so that there is a product for each destination and relation, not for each edge; and raw
    rows are summed where that saves encoding them, as the encoder is linear.

    Args:
        block: its ``weight``, where present, makes the mean a weighted sum.
        h: rows of the sources.
        weight: of each relation.
        source: the type that each relation comes from.
        mean: of each relation; otherwise a sum.
    """
    pairs = Pairs.of(block, weight.shape[0])
    if isinstance(h, EncodedRows) and h.composing_pays(source, pairs.sizes, weight.shape[1]):
        return ops.aggregate(pairs.by_dst, _sums_of_raw(pairs, h, weight, source, mean=mean), "sum")
    rows = ops.aggregate(pairs.block, ops.all_rows(h), "mean" if mean else "sum")
    return ops.aggregate(pairs.by_dst, grouped_linear(rows, weight, pairs.sizes), "sum")


def _sums_of_raw(
    pairs: Pairs, h: EncodedRows, weight: Float[Tensor, "R out in"], source: Sequence[int], *, mean: bool
) -> Float[Tensor, "P out"]:
    """The rows of the pairs: their raw rows are summed, then multiplied by the weight and the encoder's as one."""
    block, begin, sums, counts = pairs.block, 0, list[Tensor](), list[Tensor]()
    mean = mean and block.weight is None
    local = h.local().index_select(0, block.indices)
    there = [relation for relation, size in enumerate(pairs.sizes) if size]
    for relation in there:
        size, kind = pairs.sizes[relation], source[relation]
        of_relation, indptr = slice(begin, begin + size), block.indptr[begin : begin + size + 1]
        edges = slice(int(indptr[0]), int(indptr[-1]))
        begin += size
        part = Block(
            dst=block.dst[of_relation],
            src=h.inputs.at[kind],
            indptr=indptr - indptr[0],
            indices=local[edges],
            dst_original=block.dst_original[of_relation],
            weight=None if block.weight is None else block.weight[edges],
        )
        sums.append(ops.aggregate_inputs(part, h.raw(kind), "mean" if mean else "sum", h.dtype))
        if not mean:  # the bias is added once for each edge
            counts.append(ops.aggregate(part, sums[-1].new_ones(len(h.inputs.at[kind]), 1), "sum"))
    weights, biases = h.composed(_of(weight, there), [source[relation] for relation in there])
    if mean:
        return linears(sums, weights, biases)
    rows = linears(sums, weights, [None] * len(there))
    shifts = [
        rows.new_zeros(len(each), rows.shape[1]) if bias is None else each.to(rows.dtype) * bias
        for each, bias in zip(counts, biases, strict=True)
    ]
    return rows + torch.cat(shifts)


def message_linear(
    messengers: Messengers,
    h: Float[Tensor, "S in"] | EncodedRows,
    maps: Sequence[tuple[Float[Tensor, "R _ in"], Float[Tensor, "R _"] | None]],
    source: Sequence[int],
) -> list[Float[Tensor, "M _"]]:
    """``W_r x_u + b_r`` of every messenger, for several maps of each relation.

    Args:
        messengers: of a block.
        h: rows of the block's sources.
        maps: weights and biases of each relation, several times.
        source: the type that each relation comes from.
    """
    sizes = messengers.sizes
    width = sum(weight.shape[1] for weight, _ in maps)
    if not isinstance(h, EncodedRows) or not h.composing_pays(source, sizes, width):
        rows = ops.pick_rows(ops.all_rows(h), messengers.src)
        return [grouped_linear(rows, weight, sizes, bias) for weight, bias in maps]
    there = [relation for relation, size in enumerate(sizes) if size]
    kinds, local = [source[relation] for relation in there], h.local().index_select(0, messengers.src).split(sizes)
    raw = [ops.pick_inputs(h.raw(kind), local[relation], h.dtype) for kind, relation in zip(kinds, there)]
    return [
        linears(raw, *h.composed(_of(weight, there), kinds, None if bias is None else _of(bias, there)))
        for weight, bias in maps
    ]


def _of(values: Float[Tensor, "R ..."], relations: list[int]) -> Float[Tensor, "r ..."]:
    """Those of some relations."""
    return values.index_select(0, torch.tensor(relations, device=values.device))
