"""Edges that are there at a time: arguments checked, implementation called."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.kernels import checks
from partita.kernels.dispatch import implementation


def edges_until(
    times: Int64[Tensor, "M"],
    bounds: Int64[Tensor, "n 2"],
    until: Int64[Tensor, "n"],
    *,
    first_edge: int = 0,
) -> Int64[Tensor, "n"]:
    """Where the edges of runs end that are not later than a time: found by binary search, as runs are in order of time.

    Args:
        times: of the edges that are here, ascending within every run.
        bounds: where in the store each run begins and ends.
        until: the last time that counts, of each run.
        first_edge: position in the store of the first of ``times``.

    Returns:
        int64 (n), positions in the store, between the bounds of each run.

    Raises:
        ValueError: there are not as many times as runs.
        IndexError: a run is not among the edges that are here.
    """
    if until.shape[0] != bounds.shape[0]:
        raise ValueError(f"{until.shape[0]} times for {bounds.shape[0]} runs of edges")
    checks.within("bounds", bounds.flatten() - first_edge, times.shape[0] + 1)
    ends = torch.empty_like(until)
    implementation(until).edges_until(times, bounds.contiguous(), until.contiguous(), first_edge, ends)
    return ends


def rows_until(
    indptr: Int64[Tensor, "N_1"],
    times: Int64[Tensor, "M"],
    requests: Int64[Tensor, "n"],
    until: Int64[Tensor, "T"],
    slots: int,
    *,
    first_edge: int = 0,
) -> Int64[Tensor, "_"]:
    """The same of the whole rows of nodes at times.

    Args:
        indptr: rows of the store.
        times: of the edges that are here, ascending in every row.
        requests: ``node * slots + slot``, repeated or not.
        until: the last time that counts, of each slot that is asked for.
        slots: a power of two.
        first_edge: position in the store of the first of ``times``.

    Returns:
        int64 (2 n): of each request where in the store the edges of its node begin, and where those end that are not
        later.

    Raises:
        ValueError: ``slots`` is no power of two, or a slot has no time.
        IndexError: a node is none, or its edges are not here.
    """
    if slots < 1 or slots & (slots - 1):
        raise ValueError(f"{slots} slots: must be a power of two")
    checks.rows_within("requests", indptr, requests // slots, first_edge, first_edge + times.shape[0])
    if requests.numel() and int((requests & (slots - 1)).max()) >= until.shape[0]:
        raise ValueError(f"a slot of {slots}, but there are {until.shape[0]} times")
    rows = requests.new_empty(2 * requests.shape[0])
    implementation(requests).rows_until(
        checks.as_int64(indptr), times, requests.contiguous(), until.contiguous(), slots, first_edge, rows
    )
    return rows


def to_requests(
    indptr: Int64[Tensor, "D_1"], indices: Int[Tensor, "E"], requests: Int64[Tensor, "D"], slots: int
) -> Int64[Tensor, "E"]:
    """Nodes that were drawn for requests, at the times of these: ``node * slots + slot``.

    Args:
        indptr: which of them were drawn for each request.
        indices: the nodes.
        requests: ``node * slots + slot``.
        slots: a power of two.

    Raises:
        ValueError: lengths do not fit.
    """
    checks.edges_match(indptr, indices)
    if indptr.shape[0] != requests.shape[0] + 1:
        raise ValueError(f"{indptr.shape[0] - 1} rows for {requests.shape[0]} requests")
    out = torch.empty(indices.shape, dtype=torch.int64)
    implementation(requests).to_requests(indptr.contiguous(), checks.as_ids(indices), requests.contiguous(), slots, out)
    return out
