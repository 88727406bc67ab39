"""Sampling of typed graphs by relation: for every destination, or for all destinations of a layer together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replaced

import torch
from jaxtyping import Int, Int64, UInt8, UInt16, UInt32
from torch import Tensor

from partita.core.records import Sampled
from partita.kernels import checks
from partita.kernels.dispatch import implementation
from partita.kernels.excluded import left_out, numbers
from partita.kernels.layer_sampling import arrival_times, pick_arrivals
from partita.kernels.reference.relations import DrawnRuns, Runs
from partita.kernels.walks import moved


def sample_relations(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"] | None,
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanouts: Sequence[int],
    *,
    replace: bool = False,
    weights: UInt32[Tensor, "M"] | None = None,
    positions: bool = False,
    first_edge: int = 0,
    excluded: Int64[Tensor, "k"] | None = None,
) -> Sampled:
    """Draw in-neighbors of every destination, relation by relation: a function of ``key`` and ``dst_original``.

    The edges of a relation in a row are drawn as :func:`~partita.kernels.sample_neighbors` draws the row of a node of
    its own, whose original index is ``original * R + relation``. Rows are sorted by relation, so those edges are found
    by search.

    Args:
        indptr, indices, dst, dst_original, key, replace, weights, positions, first_edge, excluded: as of
            :func:`~partita.kernels.sample_neighbors`.
        edge_type: number of the relation of every edge of ``indices``, ascending in every row.
        fanouts: edges of each of the R relations per destination; -1 for all, 0 for none.

    Returns:
        the sample, with ``edge_type``; a destination's edges are in order of their relations.

    Raises:
        ValueError: a fanout is below -1; lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not among ``indices``.
    """
    if min(fanouts, default=0) < -1:
        raise ValueError(f"fanout {min(fanouts)}: must be -1 (all neighbors) or at least 0")
    column, num_edges = checks.column_or_none(indices, edge_type, indptr, first_edge, dst)
    _types_match(edge_type, num_edges)
    weights = checks.weights_match(weights, num_edges)
    checks.destinations(indptr, dst, dst_original, first_edge, first_edge + num_edges)
    if not any(fanouts):  # for layers that read no neighbors, where to look for relations would be all the work
        none = torch.empty(0, dtype=torch.int64, device=dst.device)
        rows = torch.zeros(len(dst) + 1, dtype=torch.int64, device=dst.device)
        return Sampled(rows, none.to(column.dtype), none if positions else None, edge_type=none.int())
    rows, found, at, kinds = implementation(dst).sample_relations(
        checks.as_int64(indptr),
        column,
        edge_type.contiguous(),
        checks.as_int64(dst),
        checks.as_int64(dst_original),
        key,
        tuple(fanouts),
        replace,
        weights,
        first_edge,
        numbers(excluded, first_edge, dst),
    )
    at = at + first_edge if first_edge else at
    return Sampled(rows, at if indices is None else found, at if positions else None, edge_type=kinds)


def relation_arrival_times(
    indptr: Int[Tensor, "N_1"],
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    wanted: Sequence[int],
    *,
    replace: bool = False,
    weights: UInt32[Tensor, "M"] | None = None,
    first_edge: int = 0,
    excluded: Int64[Tensor, "k"] | None = None,
) -> Int[Tensor, "wanted"]:
    """The smallest distinct times at which in-edges of some nodes arrive, for each relation by itself.

    Args:
        indptr, dst, dst_original, key, replace, weights, excluded: see :func:`~partita.kernels.arrival_times`.
        edge_type: number of the relation of every edge that is there, ascending in every row.
        wanted: how many times of each of the R relations; 0 for none.
        first_edge: position in the store of the first of ``edge_type`` and ``weights``.

    Returns:
        int64 (sum of ``wanted``), the times of one relation after those of the other, each as
        :func:`~partita.kernels.arrival_times` gives them.

    Raises:
        ValueError: a number is out of range; lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not there.
    """
    runs = relation_runs(indptr, edge_type, dst, dst_original, [number != 0 for number in wanted], first_edge)
    keys, last_edge, times = runs.keys(dst_original, len(wanted)), first_edge + edge_type.shape[0], list[Tensor]()
    for number, of_relation in zip(wanted, runs.by_relation(len(wanted)), strict=True):
        if number:
            rows, which = runs.store(of_relation)
            times.append(
                arrival_times(
                    rows, which, keys[of_relation], key, number,
                    replace=replace, weights=weights, first_edge=first_edge, last_edge=last_edge, excluded=excluded,
                )
            )  # fmt: skip
    return torch.cat(times) if times else dst.new_empty(0, dtype=torch.int64)


def pick_relation_arrivals(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    before: Sequence[int],
    *,
    replace: bool = False,
    weights: UInt32[Tensor, "M"] | None = None,
    positions: bool = False,
    degrees: bool = False,
    first_edge: int = 0,
    excluded: Int64[Tensor, "k"] | None = None,
) -> Sampled:
    """Take all in-edges of some nodes that arrive before a time, which each relation has for itself.

    Args:
        indptr, indices, dst, dst_original, key, replace, weights, positions, first_edge, excluded: see
            :func:`~partita.kernels.pick_arrivals`.
        edge_type: relation of every edge in ``indices``, ascending in every row.
        before: the time of each of the R relations; before 0 nothing arrives.
        degrees: return how many edges a picked edge's destination has along its relation.

    Returns:
        The picks, with ``edge_type``, and with their ``weights`` where there are some; a destination's edges are in
        order of their relations.

    Raises:
        ValueError: lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not among ``indices``.
    """
    _types_match(edge_type, indices.shape[0])
    weights, indices = checks.weights_match(weights, indices.shape[0]), checks.as_ids(indices)
    runs = relation_runs(indptr, edge_type, dst, dst_original, [time != 0 for time in before], first_edge)
    keys, drawn = runs.keys(dst_original, len(before)), list[DrawnRuns]()
    for time, of_relation in zip(before, runs.by_relation(len(before)), strict=True):
        rows, which = runs.store(of_relation)
        picks = pick_arrivals(
            rows, indices, which, keys[of_relation], key, time,
            replace=replace, weights=weights, positions=True, first_edge=first_edge, excluded=excluded,
        )  # fmt: skip
        assert picks.positions is not None
        drawn.append((of_relation, picks.indptr, picks.indices, picks.positions))
    rows, ids, at, kinds = runs.in_order(dst.shape[0], drawn, indices.dtype)
    # Through int32: PyTorch 2.6 cannot index uint32 on the CPU.
    picked = None if weights is None else weights.view(torch.int32)[at - first_edge].view(torch.uint32)
    found = Sampled(rows, ids, at if positions else None, weights=picked, edge_type=kinds)
    if not degrees:
        return found
    along = runs.bounds.diff(dim=1).flatten()
    if excluded is not None:
        along -= left_out(excluded, *(side.contiguous() for side in runs.bounds.unbind(1)))[1]
    along = torch.repeat_interleave(along, runs.counts(drawn))
    return replaced(found, relation_degree=along.int())


def relation_step(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"],
    ids: Int[Tensor, "n"],
    draws: Int64[Tensor, "n"],
    relation: int,
    *,
    num_relations: int,
    weights: UInt32[Tensor, "M"] | None = None,
    first_edge: int = 0,
    excluded: Int64[Tensor, "k"] | None = None,
    num_nodes: int | None = None,
) -> Int[Tensor, "n"]:
    """Where walks that stand at some nodes go next along a relation.

    A step along it is one in a graph that has the edges of the relation only.

    Args:
        indptr, indices, ids, draws, weights, first_edge, excluded, num_nodes: see :func:`~partita.kernels.walk_step`.
        edge_type: relation of every edge in ``indices``, ascending in every row.
        relation: its number.
        num_relations: R.

    Returns:
        (n) store ids in the dtype of ``indices``; -1 where a node has no in-neighbor along the relation, or only edges
        of weight 0.

    Raises:
        ValueError: lengths do not fit.
        IndexError: an id is no node of the store, or its edges are not among ``indices``; :class:`EdgesError`: a walk
            came to an id that is no node.
    """
    _types_match(edge_type, indices.shape[0])
    indices = checks.as_ids(indices)
    runs = relation_runs(
        indptr, edge_type, ids, ids, [number == relation for number in range(num_relations)], first_edge
    )
    rows, which = runs.store(torch.arange(runs.row.shape[0], device=ids.device))
    out = torch.full(ids.shape, -1, dtype=indices.dtype, device=ids.device)
    if which.shape[0]:
        out[runs.row] = moved(rows, indices, which, draws[runs.row], weights, first_edge, excluded)
    checks.walked(out, indptr.shape[0] - 1 if num_nodes is None else num_nodes)
    return out


def relation_runs(
    indptr: Int[Tensor, "N_1"],
    edge_type: UInt8[Tensor, "M"] | UInt16[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    chosen: Sequence[bool],
    first_edge: int,
) -> Runs:
    """The edges of the chosen relations in the rows of destinations: those relations that a row has edges of.

    Args:
        indptr: rows of the store, int64.
        edge_type: number of the relation of every edge that is here, ascending in every row.
        dst: store ids.
        dst_original: their original indices.
        chosen: says of each of the R relations whether it is meant.
        first_edge: position in the store of the first of ``edge_type``.

    Raises:
        ValueError: lengths do not fit.
        IndexError: a destination is no node of the store, or its edges are not here.
    """
    checks.destinations(indptr, dst, dst_original, first_edge, first_edge + edge_type.shape[0])
    found: Runs = implementation(dst).relation_runs(
        checks.as_int64(indptr), edge_type.contiguous(), checks.as_int64(dst), tuple(chosen), first_edge
    )
    return found


def _types_match(edge_type: Tensor, num_edges: int) -> None:
    if edge_type.shape[0] != num_edges:
        raise ValueError(f"{edge_type.shape[0]} types for {num_edges} edges")
