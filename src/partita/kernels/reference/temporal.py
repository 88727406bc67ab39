"""Edges that are there at a time."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.kernels.reference.draws import fold_all


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


def rows_until(
    indptr: Int64[Tensor, "N_1"],
    times: Int64[Tensor, "M"],
    requests: Int64[Tensor, "n"],
    until: Int64[Tensor, "T"],
    slots: int,
    first_edge: int,
    rows: Int64[Tensor, "_"],
) -> None:
    """Fill ``rows``."""
    nodes, ends = requests // slots, torch.empty_like(requests)
    bounds = torch.stack([indptr[nodes], indptr[nodes + 1]], 1)
    edges_until(times, bounds, until[requests % slots], first_edge, ends)
    rows[:-1:2], rows[1::2] = bounds[:, 0], ends


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
    out: Int64[Tensor, "E"],
) -> None:
    """Fill ``out``."""
    out.copy_(indices.long() * slots + (requests % slots).repeat_interleave(indptr.diff()))
