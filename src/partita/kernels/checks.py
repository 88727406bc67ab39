"""Checks and normalization of the kernels' arguments: as few dtypes as possible, so that little is compiled.

Values are looked at on the host only. To look at those on a device, the host would wait for all that the device still
has to do, several times a layer. What is there was looked at on the host before it went there: edges, by
:func:`partita.sample.device.on_device`, and seeds, by who sends them; all other ids are made of these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from partita.core.errors import EdgesError


def as_int64(ids: Tensor) -> Tensor:
    """Contiguous int64."""
    return ids.to(torch.int64).contiguous()


def as_ids(ids: Tensor) -> Tensor:
    """Contiguous; int32 and int64 pass, anything else becomes int64."""
    return (ids if ids.dtype in (torch.int32, torch.int64) else ids.to(torch.int64)).contiguous()


def edge_weight(weight: Tensor | None, num_edges: int, columns: int, dtype: torch.dtype) -> Tensor | None:
    """``weight`` as (E, H) of ``dtype``."""
    if weight is None:
        return None
    if weight.shape[0] != num_edges:
        raise ValueError(f"{weight.shape[0]} weights for {num_edges} edges")
    weight = weight.reshape(num_edges, -1 if num_edges else max(weight.shape[1:].numel(), 1))
    heads_divide(weight.shape[1], columns)
    return weight.to(dtype).contiguous()


def dropout_rule(p: float) -> tuple[int, float]:
    """Threshold of the 16-bit lane, and the factor of what is kept."""
    if not 0 <= p <= 1:
        raise ValueError(f"probability {p}: must be between 0 and 1")
    threshold = int(p * 65536 + 0.5)
    return threshold, 65536 / (65536 - threshold) if threshold < 65536 else 0.0


def restart_rule(p: float) -> int:
    """Threshold of the 16-bit lane below which a walk goes back to its start; never all of them."""
    if not 0 <= p < 1:
        raise ValueError(f"restart probability {p}: must be at least 0 and below 1")
    return min(int(p * 65536 + 0.5), 65535)


def output_dtype(dtype: torch.dtype) -> None:
    """Results are float32 or float64."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype {dtype} of the result: must be float32 or float64")


def known_reduce(reduce: str) -> None:
    """``reduce`` is one of the two known."""
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce {reduce!r} is none of 'sum', 'mean'")


def heads_divide(heads: int, columns: int) -> None:
    """Heads divide the columns."""
    if heads < 1 or columns % heads:
        raise ValueError(f"{heads} heads do not divide {columns} columns")


def edges_match(indptr: Tensor, indices: Tensor) -> None:
    """``indptr`` ends at the number of edges."""
    if indptr.shape[0] < 1 or (not indptr.is_cuda and int(indptr[-1]) != indices.shape[0]):
        raise ValueError(f"indptr does not end at the number of edges, {indices.shape[0]}")


def rows_match(x: Tensor, rows_original: Tensor) -> None:
    """Every row has an original index."""
    if rows_original.shape[0] != x.shape[0]:
        raise ValueError(f"{x.shape[0]} rows with {rows_original.shape[0]} original indices")


def within(name: str, ids: Tensor, bound: int) -> None:
    """The compiled kernels read without bounds checks, so that one cheap pass over the ids stands here."""
    if ids.numel() == 0 or ids.is_cuda:
        return
    values = ids.numpy()
    # Of unsigned numbers one pass tells: negative ones become the largest. Unlike torch's, it wakes no other threads.
    if int(values.view(f"u{values.itemsize}").max()) >= min(bound, 1 << 8 * values.itemsize - 1):
        raise IndexError(f"{name}: {values.min()} to {values.max()}, but there are {bound} rows")


def sources(indices: Tensor, num_nodes: int) -> None:
    """Ids that were read from the column ``indices`` of a store are nodes.

    Raises:
        EdgesError: one is none.
    """
    try:
        within("indices", indices, num_nodes)
    except IndexError:
        wrong = indices[(indices < 0) | (indices >= num_nodes)][0]
        raise EdgesError(
            f"column 'indices' is damaged: it holds the id {int(wrong)}, but there are {num_nodes:,} nodes",
            fix="See with partita verify STORE what else is damaged, and restore the store from a copy",
        ) from None


def walked(nodes: Tensor, num_nodes: int) -> None:
    """Where walks came to are nodes, or -1 for nowhere; a walk stops where it comes to another id.

    Raises:
        EdgesError: an id is none.
    """
    if nodes.numel():
        sources(nodes + 1, num_nodes + 1)


def weights_match(weights: Tensor | None, num_edges: int) -> Tensor | None:
    """Contiguous; one for each edge of the store."""
    if weights is None:
        return None
    if weights.shape != (num_edges,):
        raise ValueError(f"{weights.shape[0]} weights for {num_edges} edges")
    return weights.contiguous()


def column_or_none(
    indices: Tensor | None, other: Tensor | None, indptr: Tensor, first_edge: int, dst: Tensor
) -> tuple[Tensor, int]:
    """Ids as kernels take them, empty where they are not at hand; and how many edges are there.

    Args:
        indices: in-neighbors, if they are at hand.
        other: another column of the edges; without one, all of the store's are meant.
        indptr, first_edge, dst: see :func:`partita.kernels.sample_neighbors`.
    """
    if indices is not None:
        return as_ids(indices), indices.shape[0]
    if dst.is_cuda:
        raise ValueError("a device draws from in-neighbors only")
    none = torch.empty(0, dtype=dst.dtype if dst.dtype == torch.int32 else torch.int64)
    return none, int(indptr[-1]) - first_edge if other is None else other.shape[0]


def destinations(indptr: Tensor, dst: Tensor, dst_original: Tensor, first_edge: int, last_edge: int) -> None:
    """Nodes of the store, with an original index each, whose edges are all there."""
    if dst.shape != dst_original.shape:
        raise ValueError(f"{dst.shape[0]} destinations with {dst_original.shape[0]} original indices")
    rows_within("dst", indptr, dst, first_edge, last_edge)


def rows_within(name: str, indptr: Tensor, ids: Tensor, first_edge: int, last_edge: int) -> None:
    """Ids are nodes of the store, all of whose edges lie in ``first_edge:last_edge``."""
    within(name, ids, indptr.shape[0] - 1)
    if ids.numel() == 0 or ids.is_cuda or (first_edge == 0 and last_edge == int(indptr[-1])):
        return
    ids = ids.to(torch.int64)
    low, high = int(indptr[ids].min()), int(indptr[ids + 1].max())
    if low < first_edge or high > last_edge:
        raise IndexError(f"{name}: edges {low} to {high}, but only {first_edge} to {last_edge} are there")
