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
        int64 (2 n + 1): of each request where in the store the edges of its node begin, and where those end that are
        not later; then where all edges end that are here. To whoever draws these are rows of edges, of which every
        second one is meant.

    Raises:
        ValueError: ``slots`` is no power of two.
        IndexError: a node is none, a slot has no time, or edges are not here.
    """
    _check_requests(requests, indptr.shape[0] - 1, until.shape[0], slots)
    if first_edge or times.shape[0] < int(indptr[-1]):
        checks.rows_within("nodes", indptr, requests // slots, first_edge, first_edge + times.shape[0])
    rows = requests.new_empty(2 * requests.shape[0] + 1)
    rows[-1] = first_edge + times.shape[0]
    implementation(requests).rows_until(
        checks.as_int64(indptr), times, requests.contiguous(), until.contiguous(), slots, first_edge, rows
    )
    return rows


def request_keys(
    original: Int64[Tensor, "N"] | None, requests: Int64[Tensor, "n"], until: Int64[Tensor, "T"], slots: int
) -> Int64[Tensor, "n"]:
    """What the draws of nodes at times are keyed by: ``fold(original index, time)``, as 64 bits with a sign.

    Args:
        original: original index of every node; ``None``: its id.
        requests, until, slots: see :func:`rows_until`.

    Raises:
        ValueError: ``slots`` is no power of two.
        IndexError: a node is none, or a slot has no time.
    """
    _check_requests(requests, 2**62 // slots if original is None else original.shape[0], until.shape[0], slots)
    keys = torch.empty_like(requests)
    implementation(requests).request_keys(original, requests.contiguous(), until.contiguous(), slots, keys)
    return keys


def _check_requests(requests: Int64[Tensor, "n"], nodes: int, times: int, slots: int) -> None:
    if slots < 1 or slots & (slots - 1):
        raise ValueError(f"{slots} slots: must be a power of two")
    checks.within("requests", requests, slots * nodes)
    if times < slots:
        checks.within("slots", requests & (slots - 1), times)


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
