"""Edges that are there at a time: arguments checked, implementation called."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int64, UInt32
from torch import Tensor

from partita.core.records import Sampled
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


def sample_until(
    original: Int64[Tensor, "N"] | None,
    indptr: Int64[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    times: Int64[Tensor, "M"],
    requests: Int64[Tensor, "D"],
    until: Int64[Tensor, "T"],
    slots: int,
    key: int,
    fanout: int,
    *,
    since: Int64[Tensor, "T"] | None = None,
    last: bool = False,
    replace: bool = False,
    weights: UInt32[Tensor, "M"] | None = None,
    first_edge: int = 0,
) -> tuple[Int64[Tensor, "D"], Sampled]:
    """Draw in-neighbors of nodes at times, of the edges that are there then; the picks are nodes at the same times.

    A row is in order of time, so those edges are found by binary search, and drawn as if there were no others.

    Args:
        original: original index of every node; ``None``: its id.
        indptr: rows of the store.
        indices: in-neighbors, of the edges that are here.
        times: of the same edges, ascending in every row.
        requests: ``node * slots + slot``, repeated or not.
        until: the last time that counts, of each slot that is asked for.
        slots: a power of two.
        key: 64-bit key of the step and layer.
        fanout: neighbors for each request; -1 for all.
        since: the last time that does not count because it is too long ago, of each slot, not after ``until``.
        last: take the last edges in place of random ones.
        replace: draw exactly ``fanout`` times, with replacement, where there is an edge.
        weights: uint32 weight of every edge that is here: draw in proportion; those of weight 0 are never taken.
        first_edge: position in the store of the first of the edges that are here.

    Returns:
        what :func:`request_keys` says, with which the draws are keyed; and the sample, with positions.

    Raises:
        ValueError: ``slots`` is no power of two; lengths do not fit; fanout below -1.
        IndexError: a node is none, a slot has no time, or edges are not here.
        EdgesError: one of ``indices`` that was drawn is no node.
    """
    _check_slots(slots)
    if fanout < -1:
        raise ValueError(f"fanout {fanout}: must be -1 (all neighbors) or at least 0")
    if indices.shape[0] != times.shape[0]:
        raise ValueError(f"{times.shape[0]} times for {indices.shape[0]} edges")
    weights = checks.weights_match(weights, times.shape[0])
    if first_edge or times.shape[0] < int(indptr.numpy()[-1]):
        _check_requests(requests, indptr.shape[0] - 1, until.shape[0], slots)
        checks.rows_within("nodes", indptr, requests // slots, first_edge, first_edge + times.shape[0])
    requests = requests.contiguous()
    drawn = implementation(requests).sample_until(
        original, checks.as_int64(indptr), checks.as_ids(indices), times, requests, until.contiguous(),
        None if since is None else since.contiguous(), slots, key, fanout, last, replace, weights, first_edge,
    )  # fmt: skip
    if drawn is None:
        _check_requests(requests, indptr.shape[0] - 1, until.shape[0], slots)
        checks.sources(indices, indptr.shape[0] - 1)
    keys, rows, ids, positions = drawn
    return keys, Sampled(rows, ids, positions + first_edge if first_edge else positions)


def distinct_times(times: Int64[Tensor, "N"], ids: Int64[Tensor, "n"]) -> tuple[Int64[Tensor, "T"], Int64[Tensor, "n"]]:
    """The times of some ids.

    Args:
        times: of all ids.
        ids: which of them.

    Returns:
        the distinct times, ascending; and of each id, the place of its own among them.

    Raises:
        IndexError: an id has no time.
    """
    found = implementation(ids).distinct_times(times.contiguous(), ids.contiguous())
    if found is None:
        checks.within("ids", ids, times.shape[0])
    return found


def request_keys(
    original: Int64[Tensor, "N"] | None, requests: Int64[Tensor, "n"], until: Int64[Tensor, "T"], slots: int
) -> Int64[Tensor, "n"]:
    """What the draws of nodes at times are keyed by: ``fold(original index, time)``, as 64 bits with a sign.

    Args:
        original: original index of every node; ``None``: its id.
        requests, until, slots: see :func:`sample_until`.

    Raises:
        ValueError: ``slots`` is no power of two.
        IndexError: a node is none, or a slot has no time.
    """
    _check_requests(requests, 2**62 // slots if original is None else original.shape[0], until.shape[0], slots)
    keys = torch.empty_like(requests)
    implementation(requests).request_keys(original, requests.contiguous(), until.contiguous(), slots, keys)
    return keys


def _check_slots(slots: int) -> None:
    if slots < 1 or slots & (slots - 1):
        raise ValueError(f"{slots} slots: must be a power of two")


def _check_requests(requests: Int64[Tensor, "n"], nodes: int, times: int, slots: int) -> None:
    _check_slots(slots)
    checks.within("requests", requests, slots * nodes)
    if times < slots:
        checks.within("slots", requests & (slots - 1), times)


def to_requests(
    indptr: Int64[Tensor, "D_1"], indices: Int[Tensor, "E"], requests: Int64[Tensor, "D"], slots: int, num_nodes: int
) -> Int64[Tensor, "E"]:
    """Nodes that were drawn for requests, at the times of these: ``node * slots + slot``.

    Args:
        indptr: which of them were drawn for each request.
        indices: the nodes.
        requests: ``node * slots + slot``.
        slots: a power of two.
        num_nodes: of the store.

    Raises:
        ValueError: lengths do not fit.
        EdgesError: one of ``indices`` is no node.
    """
    checks.edges_match(indptr, indices)
    if indptr.shape[0] != requests.shape[0] + 1:
        raise ValueError(f"{indptr.shape[0] - 1} rows for {requests.shape[0]} requests")
    out, indices = torch.empty(indices.shape, dtype=torch.int64), checks.as_ids(indices)
    fill = implementation(requests).to_requests
    if not fill(indptr.contiguous(), indices, requests.contiguous(), slots, num_nodes, out):
        checks.sources(indices, num_nodes)
    return out
