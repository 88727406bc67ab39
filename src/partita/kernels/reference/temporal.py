"""Edges that are there at a time."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int64, UInt32
from torch import Tensor

from partita.kernels.reference.draws import fold_all
from partita.kernels.reference.sampling import sample_neighbors


def edges_until(
    times: Int64[Tensor, "M"],
    bounds: Int64[Tensor, "n 2"],
    until: Int64[Tensor, "n"],
    first_edge: int,
    ends: Int64[Tensor, "n"],
) -> None:
    """Fill ``ends``."""
    for run, (begin, end) in enumerate((bounds - first_edge).tolist()):
        found = torch.searchsorted(times[begin:end].contiguous(), until[run], right=True)
        ends[run] = begin + int(found) + first_edge


def sample_until(
    original: Int64[Tensor, "N"] | None,
    indptr: Int64[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    times: Int64[Tensor, "M"],
    requests: Int64[Tensor, "D"],
    until: Int64[Tensor, "T"],
    since: Int64[Tensor, "T"] | None,
    slots: int,
    key: int,
    fanout: int,
    last: bool,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
) -> tuple[Int64[Tensor, "D"], Int64[Tensor, "D_1"], Int64[Tensor, "E"], Int64[Tensor, "E"]] | None:
    """Keys, rows, requests and positions of the picks, which are those of runs of edges; ``None``: an id is none."""
    if (requests < 0).any() or (requests >= slots * (len(indptr) - 1)).any() or (requests % slots >= len(until)).any():
        return None
    keys, ends = torch.empty_like(requests), torch.empty_like(requests)
    request_keys(original, requests, until, slots, keys)
    nodes, slot = requests // slots, requests % slots
    runs = torch.stack([indptr[nodes], indptr[nodes + 1]], 1)
    edges_until(times, runs, until[slot], first_edge, ends)
    runs[:, 1] = ends
    if since is not None:
        edges_until(times, runs, since[slot], first_edge, ends)
        runs[:, 0] = ends
    if last and fanout >= 0:
        torch.maximum(runs[:, 0], runs[:, 1] - fanout, out=runs[:, 0])
    ends = runs.new_tensor([first_edge + len(times)])  # the last of rows of which every second one is meant
    rows, ids, positions = sample_neighbors(
        torch.cat([runs.reshape(-1), ends]), indices, 2 * torch.arange(len(keys)), keys, key, -1 if last else fanout,
        replace, weights, first_edge, ends[:0],
    )  # fmt: skip
    drawn = torch.empty_like(positions)
    fine = to_requests(rows, ids, requests, slots, len(indptr) - 1, drawn)
    return (keys, rows, drawn, positions) if fine else None


def distinct_times(
    times: Int64[Tensor, "N"], ids: Int64[Tensor, "n"]
) -> tuple[Int64[Tensor, "T"], Int64[Tensor, "n"]] | None:
    """Distinct times and places among them; ``None``: an id is none."""
    if len(ids) and (ids.min() < 0 or ids.max() >= len(times)):
        return None
    return times[ids].unique(return_inverse=True)


def request_keys(
    original: Int64[Tensor, "N"] | None,
    requests: Int64[Tensor, "n"],
    until: Int64[Tensor, "T"],
    slots: int,
    keys: Int64[Tensor, "n"],
) -> None:
    """Fill ``keys``."""
    nodes = requests // slots
    names = nodes if original is None else original[nodes]
    folded = fold_all(*(each.numpy().astype(np.uint64) for each in (names, until[requests % slots])))
    keys.copy_(torch.from_numpy(folded.view(np.int64)))


def to_requests(
    indptr: Int64[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    requests: Int64[Tensor, "D"],
    slots: int,
    num_nodes: int,
    out: Int64[Tensor, "E"],
) -> bool:
    """Fill ``out``; whether all are nodes."""
    out.copy_(indices.long() * slots + (requests % slots).repeat_interleave(indptr.diff()))
    return not bool(((indices < 0) | (indices >= num_nodes)).any())
