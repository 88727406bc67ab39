"""Where in the store the edges of many links are: found once, instead of in every step that leaves some of them out."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int32, Int64, UInt8, UInt16
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation

Located = tuple[Int32[Tensor, "S"] | Int64[Tensor, "S"], Int64[Tensor, "C_1"], Int64[Tensor, "P"]]
"""Codes of links, and positions of groups of parallel edges, see :func:`locate_edges`."""


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
