"""Where in the store the edges between pairs of nodes are; those of many links are found once, not in every step."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int32, Int64, UInt8, UInt16
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation
from partita.kernels.excluded import sorted_once

Located = tuple[Int32[Tensor, "S"] | Int64[Tensor, "S"], Int64[Tensor, "C_1"], Int64[Tensor, "P"]]
"""Codes of links, and positions of groups of parallel edges, see :func:`locate_edges`."""


def find_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"] | None,
    dst: Int[Tensor, "t"],
    src: Int[Tensor, "t"],
    kinds: Int[Tensor, "t"] | None = None,
    *,
    first_edge: int = 0,
    num_nodes: int | None = None,
) -> Int64[Tensor, "k"]:
    """Positions in the store of all edges between some pairs of nodes, ascending.

    It reads the rows of the destinations once, of each no more than the edges of the relations that are asked for.

    Args:
        indptr: rows of the store, int64.
        indices: in-neighbors of the store, int32 or int64; all of them, or a range that has all those of ``dst``.
        edge_type: relation of every edge in ``indices``, ascending in every row; ``None`` where all have the same.
        dst: store ids of destinations, in any order. Pairs may be repeated, or have no edge.
        src: store ids of their sources.
        kinds: number of the relation whose edges are meant, of every pair; ``None``: those of all relations.
        first_edge: position in the store of the first of ``indices``.
        num_nodes: of the graph, where ``indptr`` has rows of only some of its nodes.

    Raises:
        ValueError: lengths do not fit.
        IndexError: an id is no node of the store, or its edges are not among ``indices``.
    """
    if dst.shape != src.shape or (kinds is not None and kinds.shape != dst.shape):
        raise ValueError(f"{dst.shape[0]} destinations with {src.shape[0]} sources")
    num_nodes = indptr.shape[0] - 1 if num_nodes is None else num_nodes
    checks.within("src", src, num_nodes)
    checks.rows_within("dst", indptr, dst, first_edge, first_edge + indices.shape[0])
    kinds = None if edge_type is None else kinds
    dst, src, kinds = _distinct(dst.long(), src.long(), None if kinds is None else kinds.long(), num_nodes)
    found: Tensor = implementation(dst).find_edges(
        checks.as_int64(indptr),
        checks.as_ids(indices),
        None if kinds is None or edge_type is None else edge_type.contiguous(),
        dst,
        src,
        kinds,
        first_edge,
    )
    return found + first_edge if first_edge else found


def _distinct(dst: Tensor, src: Tensor, kinds: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Every pair once, by destination, relation and source."""
    if not dst.numel():
        return dst, src, kinds
    relations = 1 if kinds is None else int(kinds.max()) + 1
    if kinds is not None and int(kinds.min()) < 0:
        raise ValueError(f"relation {int(kinds.min())}")
    if num_nodes * relations * num_nodes >= 2**63:
        columns = [dst, src] if kinds is None else [dst, kinds, src]
        dst, *between, src = torch.stack(columns).unique(dim=1).unbind(0)
        return dst.contiguous(), src.contiguous(), between[0].contiguous() if between else None
    rows = dst if kinds is None else dst * relations + kinds
    both = rows * num_nodes + src
    both = both.unique() if both.is_cuda else torch.from_numpy(sorted_once(both.numpy()))
    rows = both // num_nodes
    src = both - rows * num_nodes
    if kinds is None:
        return rows, src, None
    dst = rows // relations
    return dst, src, rows - dst * relations


def locate_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"] | None,
    links: Int64[Tensor, "S columns"],
    relations: Int64[Tensor, "R"] | None = None,
    *,
    backward: bool = False,
) -> Located:
    """Positions in the store of the edges of every link, or of its reverse.

    Rows of destinations are read once. A link with one edge costs no more memory than its position; the positions of
    parallel edges are kept once for all links between the same nodes. Beside that and what is returned, memory is
    needed for a number for each link and each node, and for one row of each thread.

    Args:
        indptr: rows of the store, int64.
        indices: in-neighbors of all nodes, int32 or int64.
        edge_type: relation of every edge, ascending in every row; ``None`` in untyped graphs.
        links: store ids of sources and destinations, and numbers of relations where they have a third column.
        relations: which relation is meant by each of the links' relations, -1 for none; the first one where links have
            no relations. ``None``: edges of all relations.
        backward: the reverses are meant: edges from the destination of the link to its source.

    Returns:
        ``codes`` (S), int32 where all positions fit: the position of the only edge, -1 where there is none, and -2 - g
        where there are several; and the positions of group g, ascending: ``positions[offsets[g]:offsets[g + 1]]``.
        Groups are ordered by destination, relation and source.

    Raises:
        ValueError: ``indices`` are not those of all nodes; or numbers of nodes, relations and edges of a row are so
            large that their product is no int64.
        IndexError: a link's end is no node, or its relation is none of ``relations``.
    """
    num_nodes, num_edges = indptr.shape[0] - 1, indices.shape[0]
    checks.edges_match(indptr, indices)
    checks.within("links", links[:, :2], num_nodes)
    kinds = None if edge_type is None or relations is None else edge_type.contiguous()
    if relations is not None and links.shape[1] > 2:
        checks.within("relations of links", links[:, 2], relations.shape[0])
    num_kinds = 1 if kinds is None or relations is None or not relations.numel() else max(int(relations.max()), 0) + 1
    longest = int(indptr.diff().max()) if num_nodes else 0
    if num_nodes * num_kinds * max(1, longest) >= 2**62:
        raise ValueError(f"{num_nodes} nodes, {num_kinds} relations and rows of {longest} edges")
    codes = torch.empty(links.shape[0], dtype=torch.int32 if num_edges < 2**31 - 1 else torch.int64)
    found: Located = implementation(links).locate_edges(
        checks.as_int64(indptr), checks.as_ids(indices), kinds, links.contiguous(), relations, backward, codes
    )
    return found


def gather_positions(
    codes: Int[Tensor, "S sides"],
    offsets: Int64[Tensor, "C_1"],
    positions: Int64[Tensor, "P"],
    links: Int64[Tensor, "n"],
) -> Int64[Tensor, "k"]:
    """Positions of all edges of some links, ascending, each once.

    Args:
        codes: of all links as of :func:`locate_edges`, several for each: of its own edges, and of its reverses.
        offsets, positions: of all groups.
        links: which links are meant, repeated or not.

    Raises:
        IndexError: one of ``links`` is none.
    """
    found: Tensor = implementation(links).gather_positions(codes, offsets, positions, checks.as_int64(links))
    return found
