"""The kernels on the CPU: arrays to the compiled loops, ranges of rows to the threads."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt32
from torch import Tensor

from partita.kernels import cpu_draws, cpu_norm, cpu_rows, cpu_sample, cpu_walks, reference, threads
from partita.kernels.cpu_race import arrival_times as arrival_times
from partita.kernels.cpu_race import pick_arrivals as pick_arrivals
from partita.kernels.relabeller import Relabeller

_WORDS_PER_PICK = 64  # a pick costs about as much as this many streamed elements; for cutting work into ranges


def sample_neighbors(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanout: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    relabeller: Relabeller | None,
    first_edge: int,
) -> tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "S"] | None, Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.sample_neighbors`."""
    store_rows, store, nodes, original = indptr.numpy(), indices.numpy(), dst.numpy(), dst_original.numpy()
    num_dst, seed = nodes.shape[0], np.uint64(key)
    begins, degrees = np.empty(num_dst, np.int64), np.empty(num_dst, np.int64)
    rows = np.zeros(num_dst + 1, np.int64)
    counts = rows[1:]
    even = threads.even_bounds(num_dst, num_dst * _WORDS_PER_PICK)
    if weights is None:
        threads.run(
            lambda low, high: cpu_sample.count_uniform(
                store_rows, first_edge, nodes, fanout, replace, begins, degrees, counts, low, high
            ),
            even,
        )
    else:
        weight, table = weights.numpy(), reference.log_table()
        threads.run(
            lambda low, high: cpu_sample.count_weighted(
                store_rows, first_edge, weight, nodes, fanout, replace, begins, degrees, counts, low, high
            ),
            even,
        )
    np.cumsum(counts, out=counts)
    positions = np.empty(int(rows[-1]), np.int64)
    ids = np.empty(int(rows[-1]), store.dtype)
    if weights is None:
        seen_size = 0 if fanout <= cpu_sample.SCAN or replace else 1 << (2 * fanout - 1).bit_length()
        threads.run(
            lambda low, high: cpu_sample.pick_uniform(
                store, original, seed, fanout, replace, begins, degrees, rows, seen_size, positions, ids, low, high
            ),
            threads.balanced_bounds(rows, _WORDS_PER_PICK),
        )
    else:
        touched = np.concatenate([[0], np.cumsum(degrees)])
        threads.run(
            lambda low, high: cpu_sample.pick_weighted(
                store, weight, table, original, seed, fanout, replace,
                begins, degrees, rows, positions, ids, low, high,
            ),
            threads.balanced_bounds(touched, 4),
        )  # fmt: skip
    found, at = torch.from_numpy(ids), torch.from_numpy(positions)
    if relabeller is None:
        return torch.from_numpy(rows), found, None, at
    src, local = relabel(dst, found, relabeller)
    return torch.from_numpy(rows), local, src, at


def relabel(
    dst: Int[Tensor, "D"], ids: Int[Tensor, "E"], relabeller: Relabeller
) -> tuple[Int[Tensor, "S"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.relabel`."""
    num_dst, num_edges = dst.shape[0], ids.shape[0]
    entries, base = relabeller.entries(num_dst + num_edges)
    nodes, sources = dst.numpy(), ids.numpy()
    src, local = np.empty(num_dst + num_edges, sources.dtype), np.empty(num_edges, np.int32)
    number = cpu_sample.relabel_table if relabeller.mode == "table" else cpu_sample.relabel_hash
    num_src = number(entries, base, nodes, sources, src, local)
    if num_src < 0:
        relabeller.used(num_dst)
        raise ValueError("a node is twice among the destinations")
    relabeller.used(num_src)
    return torch.from_numpy(src[:num_src].copy()), torch.from_numpy(local)


def gcn_coefficients(
    store_indptr: Int[Tensor, "N_1"],
    self_loops: Int[Tensor, "N"] | None,
    dst: Int[Tensor, "D"],
    src: Int[Tensor, "S"] | None,
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    weight: Float[Tensor, "E"],
    self_weight: Float[Tensor, "D"],
) -> None:
    """See :func:`partita.kernels.reference.gcn_coefficients`."""
    store_rows, loops = store_indptr.numpy(), _or_empty(self_loops, (0,), np.dtype(np.int32))
    nodes, begins, at = dst.numpy(), indptr.numpy(), indices.numpy()

    def inverse_roots(ids: np.ndarray) -> np.ndarray:
        found = np.empty(ids.shape[0])
        threads.run(
            lambda low, high: cpu_sample.inverse_root_norms(store_rows, loops, ids, found, low, high),
            threads.even_bounds(ids.shape[0], ids.shape[0] * 4),
        )
        return found

    # Destinations are the first sources of a de-duplicated block.
    of_src = inverse_roots(at if src is None else src.numpy())
    of_dst = inverse_roots(nodes) if src is None else of_src
    result, own = weight.numpy(), self_weight.numpy()
    threads.run(
        lambda low, high: cpu_sample.gcn_coefficients(
            store_rows, nodes, begins, at, src is not None, of_src, of_dst, result, own, low, high
        ),
        threads.balanced_bounds(begins, 4),
    )


def random_walks(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    start: Int[Tensor, "n"],
    start_original: Int[Tensor, "n"],
    key: int,
    walks: int,
    length: int,
    threshold: int,
    weights: UInt32[Tensor, "M"] | None,
    out: Int[Tensor, "nR columns"],
) -> None:
    """See :func:`partita.kernels.reference_walks.random_walks`."""
    rows, store, first, original = indptr.numpy(), indices.numpy(), start.numpy(), start_original.numpy()
    weight, result = _or_empty(weights, (0,), np.dtype(np.uint32)), out.numpy()
    seed, limit, weighted = np.uint64(key), np.uint64(threshold), weights is not None
    threads.run(
        lambda low, high: cpu_walks.walk(
            rows, store, weight, weighted, first, original, seed, walks, length, limit, result, low, high
        ),
        threads.even_bounds(first.shape[0], result.size * _WORDS_PER_PICK),
    )


def walk_step(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    ids: Int[Tensor, "n"],
    draws: Int[Tensor, "n"],
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    out: Int[Tensor, "n"],
) -> None:
    """See :func:`partita.kernels.reference_walks.walk_step`."""
    rows, store, nodes, drawn, result = indptr.numpy(), indices.numpy(), ids.numpy(), draws.numpy(), out.numpy()
    weight, weighted = _or_empty(weights, (0,), np.dtype(np.uint32)), weights is not None
    threads.run(
        lambda low, high: cpu_walks.steps(
            rows, store, first_edge, weight, weighted, nodes, drawn, result, low, high
        ),
        threads.even_bounds(nodes.shape[0], nodes.shape[0] * _WORDS_PER_PICK),
    )  # fmt: skip


def walk_draws(
    start_original: Int[Tensor, "n"],
    key: int,
    walks: int,
    step: int,
    threshold: int,
    draws: Int[Tensor, "nR"],
    restarts: Bool[Tensor, "nR"],
) -> None:
    """See :func:`partita.kernels.reference_walks.walk_draws`."""
    original, moves, back = start_original.numpy(), draws.numpy(), restarts.numpy()
    seed, limit = np.uint64(key), np.uint64(threshold)
    threads.run(
        lambda low, high: cpu_walks.draws(original, seed, walks, step, limit, moves, back, low, high),
        threads.even_bounds(original.shape[0], moves.size * 4),
    )


def top_visits(
    nodes: Int[Tensor, "nR columns"], start: Int[Tensor, "n"], walks: int, k: int
) -> tuple[Int[Tensor, "n_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference_walks.top_visits`."""
    steps, first = nodes.numpy(), start.numpy()
    ids, counts = np.empty((first.shape[0], k), steps.dtype), np.empty((first.shape[0], k), np.int32)
    rows = np.zeros(first.shape[0] + 1, np.int64)
    threads.run(
        lambda low, high: cpu_walks.top_visits(steps, first, walks, k, ids, counts, rows[1:], low, high),
        threads.even_bounds(first.shape[0], steps.size * 8),
    )
    there = np.arange(k) < rows[1:, None]
    np.cumsum(rows, out=rows)
    return torch.from_numpy(rows), torch.from_numpy(ids[there]), torch.from_numpy(counts[there])


def gather_rows(
    x: Float[Tensor, "N F"], ids: Int[Tensor, "n"], scale: Float[Tensor, "N"] | None, out: Float[Tensor, "n F"]
) -> None:
    """See :func:`partita.kernels.reference.gather_rows`."""
    rows, at, result = _bits(x), ids.numpy(), out.numpy()
    factor = _or_empty(scale, (0,), result.dtype)
    threads.run(
        lambda low, high: cpu_rows.gather(rows, at, factor, result, low, high),
        threads.even_bounds(result.shape[0], result.size),
    )


def aggregate(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    edge: Int[Tensor, "E"] | None,
    weight: Float[Tensor, "E H"] | None,
    scale: Float[Tensor, "S"] | None,
    reduce: str,
    out: Float[Tensor, "D F"],
) -> None:
    """See :func:`partita.kernels.reference.aggregate`."""
    rows, begins, at, result = _bits(x), indptr.numpy(), indices.numpy(), _bits(out)
    edges = _or_empty(edge, (0,), np.dtype(np.int64))
    exact = np.dtype(np.float64 if out.dtype == torch.float64 else np.float32)
    weights, scales = _or_empty(weight, (0, 1), exact), _or_empty(scale, (0,), exact)
    threads.run(
        lambda low, high: cpu_rows.aggregate(
            rows, begins, at, edges, weights, scales, reduce == "mean", result, low, high
        ),
        threads.balanced_bounds(begins, x.shape[1]),
    )


def aggregate_weight_grad(
    grad: Float[Tensor, "D F"],
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    reduce: str,
    out: Float[Tensor, "E H"],
) -> None:
    """See :func:`partita.kernels.reference.aggregate_weight_grad`."""
    grads, rows, begins, at, result = grad.numpy(), x.numpy(), indptr.numpy(), indices.numpy(), out.numpy()
    threads.run(
        lambda low, high: cpu_rows.weight_grad(grads, rows, begins, at, reduce == "mean", result, low, high),
        threads.balanced_bounds(begins, x.shape[1]),
    )


def segment_max(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    values: Float[Tensor, "D F"],
    argmax: Int[Tensor, "D F"],
) -> None:
    """See :func:`partita.kernels.reference.segment_max`."""
    rows, begins, at, best, edge = x.numpy(), indptr.numpy(), indices.numpy(), values.numpy(), argmax.numpy()
    threads.run(
        lambda low, high: cpu_rows.segment_max(rows, begins, at, best, edge, low, high),
        threads.balanced_bounds(begins, x.shape[1]),
    )


def segment_max_backward(
    grad: Float[Tensor, "D F"], argmax: Int[Tensor, "D F"], indices: Int[Tensor, "E"], out: Float[Tensor, "S F"]
) -> None:
    """See :func:`partita.kernels.reference.segment_max_backward`."""
    grads, edge, at, result = grad.numpy(), argmax.numpy(), indices.numpy(), out.numpy()
    threads.run(
        lambda low, high: cpu_rows.segment_max_backward(grads, edge, at, result, low, high),
        threads.even_bounds(grads.shape[1], grads.size),
    )


def transpose(
    indptr: Int[Tensor, "D_1"], indices: Int[Tensor, "E"], num_src: int
) -> tuple[Int[Tensor, "S_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.transpose`."""
    begins = np.zeros(num_src + 1, np.int64)
    dst, edge = np.empty(indices.shape[0], np.int32), np.empty(indices.shape[0], np.int64)
    cpu_sample.transpose(indptr.numpy(), indices.numpy(), begins, dst, edge)
    return torch.from_numpy(begins), torch.from_numpy(dst), torch.from_numpy(edge)


def dropout(
    x: Float[Tensor, "n F"],
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    relu: bool,
    out: Float[Tensor, "n F"],
) -> None:
    """See :func:`partita.kernels.reference.dropout`."""
    rows, original, result = x.numpy(), rows_original.numpy(), out.numpy()
    seed, limit, scale = np.uint64(key), np.uint64(threshold), result.dtype.type(factor)
    threads.run(
        lambda low, high: cpu_draws.drop_rows(rows, original, seed, limit, scale, relu, result, low, high),
        threads.even_bounds(rows.shape[0], rows.size),
    )


def norm_relu_dropout(
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    bias: Float[Tensor, "F"],
    eps: float,
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "n F"],
    moments: Float[Tensor, "n 2"],
) -> None:
    """See :func:`partita.kernels.reference.norm_relu_dropout`."""
    rows, scale, shift, original = _bits(x), weight.numpy(), bias.numpy(), rows_original.numpy()
    result, found = _bits(out), moments.numpy()
    real = found.dtype.type
    seed, limit = np.uint64(key), np.uint64(threshold)
    threads.run(
        lambda low, high: cpu_norm.forward(
            rows,
            scale,
            shift,
            real(eps),
            original,
            seed,
            limit,
            real(factor),
            result,
            found,
            np.empty(rows.shape[1], real),
            low,
            high,
        ),
        threads.even_bounds(rows.shape[0], rows.size),
    )


def norm_relu_dropout_backward(
    grad: Float[Tensor, "n F"],
    out: Float[Tensor, "n F"],
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    moments: Float[Tensor, "n 2"],
    factor: float,
    grad_x: Float[Tensor, "n F"],
) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """See :func:`partita.kernels.reference.norm_relu_dropout_backward`."""
    grads, passed, rows, scale, found = _bits(grad), _bits(out), _bits(x), weight.numpy(), moments.numpy()
    result, real = _bits(grad_x), found.dtype.type
    chunks = -(-rows.shape[0] // cpu_norm.CHUNK)
    parts = np.empty((2, chunks, rows.shape[1]), found.dtype)
    threads.run(
        lambda low, high: cpu_norm.backward(
            grads,
            passed,
            rows,
            scale,
            found,
            real(factor),
            result,
            parts[0],
            parts[1],
            np.empty(rows.shape[1], real),
            low,
            high,
        ),
        threads.even_bounds(chunks, rows.size),
    )
    of_weight, of_bias = torch.from_numpy(parts.sum(1))
    return of_weight, of_bias


def edge_dropout(
    indptr: Int[Tensor, "D_1"],
    dst_original: Int[Tensor, "D"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "E H"],
) -> None:
    """See :func:`partita.kernels.reference.edge_dropout`."""
    begins, original, result = indptr.numpy(), dst_original.numpy(), out.numpy()
    seed, limit, scale = np.uint64(key), np.uint64(threshold), result.dtype.type(factor)
    threads.run(
        lambda low, high: cpu_draws.drop_edges(begins, original, seed, limit, scale, result, low, high),
        threads.balanced_bounds(begins, result.shape[1]),
    )


def count_distinct(ids: Int[Tensor, "n"], scratch: Int[Tensor, "words"]) -> int:
    """See :func:`partita.kernels.reference.count_distinct`."""
    return int(cpu_sample.count_distinct(ids.numpy(), scratch.numpy()))


def keyed_permutation(start: int, n: int, key: int, out: Int[Tensor, "m"]) -> None:
    """See :func:`partita.kernels.reference.keyed_permutation`."""
    cpu_draws.permute(start, n, np.uint64(key), out.numpy())


def _bits(x: Tensor) -> np.ndarray:
    """float16 as uint16 and bfloat16 as int16, which numba does not have on the CPU; anything else as it is."""
    if x.dtype == torch.float16:
        return x.view(torch.int16).numpy().view(np.uint16)
    return x.view(torch.int16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def _or_empty(values: Tensor | None, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array, or an empty one of the same type: one compiled version serves both."""
    return np.empty(shape, dtype) if values is None else values.numpy()
