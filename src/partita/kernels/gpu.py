"""The kernels on a CUDA device: Triton for the draws, reads and sums, PyTorch's sorts and scans for the rest.

Sums and maxima over edges go in the order of the edges and nothing is added atomically, so that results do not depend
on how a device schedules its work. Columns of the store (``indptr``, ``indices``, ``weights``, ``self_loops``, ``x``,
``scale``) may lie in pinned host memory, which a device reads in place; everything else lies on the device.

Without a device, the same code runs in Triton's interpreter; see :mod:`partita.kernels.gpu_launch`.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
from jaxtyping import Float, Int, UInt32
from torch import Tensor

from partita.kernels import gpu_draws, gpu_rows, gpu_sample, reference
from partita.kernels.gpu_keyed import dropout as dropout
from partita.kernels.gpu_keyed import edge_dropout as edge_dropout
from partita.kernels.gpu_keyed import keyed_permutation as keyed_permutation
from partita.kernels.gpu_keyed import norm_relu_dropout as norm_relu_dropout
from partita.kernels.gpu_keyed import norm_relu_dropout_backward as norm_relu_dropout_backward
from partita.kernels.gpu_launch import BLOCK, blocks, launch, signed
from partita.kernels.gpu_launch import INTERPRETED as INTERPRETED
from partita.kernels.relabeller import Relabeller

IN_REGISTERS = 128  # largest fanout whose picks one program holds in registers
EDGES_AT_ONCE = 1 << 27  # edges that weighted sampling looks at together: some 6 GB of scratch


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
    num_dst = dst.shape[0]
    begins, degrees = dst.new_empty(num_dst, dtype=torch.int64), dst.new_empty(num_dst, dtype=torch.int64)
    launch(
        gpu_sample.row_bounds, (blocks(num_dst, BLOCK),), dst,
        indptr, dst, begins, degrees, first_edge, num_dst, BLOCK=BLOCK,
    )  # fmt: skip
    if weights is None:
        rows, positions = _pick_uniform(begins, degrees, dst_original, signed(key), fanout, replace)
    else:
        rows, positions = _pick_weighted(weights, begins, degrees, dst_original, signed(key), fanout, replace)
    found = _take(indices, positions, indices.dtype)
    if relabeller is None:
        return rows, found, None, positions
    src, local = relabel(dst, found, relabeller)
    return rows, local, src, positions


def _pick_uniform(
    begins: Tensor, degrees: Tensor, original: Tensor, key: int, fanout: int, replace: bool
) -> tuple[Tensor, Tensor]:
    """Rows of the sample, and the positions of its edges."""
    num_dst = begins.shape[0]
    if fanout < 0:
        rows = _rows(degrees)
        return rows, _all_edges(begins, degrees, rows)[1]
    rows = _rows((degrees > 0) * fanout if replace else degrees.clamp(max=fanout))
    positions = torch.empty(int(rows[-1]), dtype=torch.int64, device=rows.device)
    if positions.shape[0] == 0:
        return rows, positions
    if replace:
        _pick_with(begins, degrees, rows, original, positions, key, fanout)
    elif fanout <= IN_REGISTERS:
        width = _power_of_two(fanout)
        at_once = min(512 // width, 128)
        launch(
            gpu_sample.pick_few, (blocks(num_dst, at_once),), begins,
            begins, degrees, rows, original, positions, key, fanout, num_dst, ROWS=at_once, WIDTH=width,
        )  # fmt: skip
    else:
        launch(
            gpu_sample.pick_many, (num_dst,), begins,
            begins, degrees, rows, original, positions, key, BLOCK=128, num_warps=1,
        )  # fmt: skip
    return rows, positions


def _pick_with(
    begins: Tensor, ranges: Tensor, rows: Tensor, original: Tensor, positions: Tensor, key: int, fanout: int
) -> None:
    num_dst = begins.shape[0]
    launch(
        gpu_sample.pick_with, (blocks(num_dst, BLOCK),), begins,
        begins, ranges, rows, original, positions, key, fanout, num_dst, BLOCK=BLOCK,
    )  # fmt: skip


def _pick_weighted(
    weights: Tensor, begins: Tensor, degrees: Tensor, original: Tensor, key: int, fanout: int, replace: bool
) -> tuple[Tensor, Tensor]:
    """As :func:`_pick_uniform`, in proportion to ``weights``, by passes over all edges of the destinations."""
    num_dst, touched = begins.shape[0], _rows(degrees)
    if int(touched[-1]) > EDGES_AT_ONCE and num_dst > 1:
        half = num_dst // 2
        parts = [
            _pick_weighted(weights, begins[part], degrees[part], original[part], key, fanout, replace)
            for part in (slice(half), slice(half, None))
        ]
        (rows, positions), (more, others) = parts
        return torch.cat([rows, more[1:] + rows[-1]]), torch.cat([positions, others])
    row, at = _all_edges(begins, degrees, touched)
    weight = _take(weights.view(torch.int32), at, torch.int64) & 0xFFFFFFFF
    if replace and fanout >= 0:
        running = weight.cumsum(0)
        before = torch.cat([running.new_zeros(1), running])[touched]
        rows = _rows((before.diff() > 0) * fanout)
        goals = torch.empty(int(rows[-1]), dtype=torch.int64, device=rows.device)
        _pick_with(before[:-1].contiguous(), before.diff(), rows, original, goals, key, fanout)
        return rows, at[torch.searchsorted(running, goals, right=True)]
    able = weight > 0
    row, at, weight = row[able], at[able], weight[able]
    counts = torch.cat([touched.new_zeros(1), able.cumsum(0)])[touched].diff()
    if fanout < 0:
        return _rows(counts), at
    chosen = _first(row, at - begins[row], weight, counts, original, key, fanout)
    return _rows(counts.clamp(max=fanout)), at[chosen]


def _first(
    row: Tensor, slot: Tensor, weight: Tensor, counts: Tensor, original: Tensor, key: int, fanout: int
) -> Tensor:  # fmt: skip
    """Which edges are among the ``fanout`` first to arrive of their row, bool; all in a short row.

    Args:
        row: destination of every edge, ascending.
        slot: place of every edge in its row, ascending within a row.
        weight: positive weight of every edge.
        counts: edges of every destination.
        original: original indices of the destinations.
        key: of the draws, signed.
        fanout: how many of a row.
    """
    num = row.shape[0]
    times = torch.empty_like(row)
    launch(
        gpu_draws.arrival_times, (blocks(num, BLOCK),), row,
        row, slot, weight, original, _log_table(row.device), times, key, num, BLOCK=BLOCK,
    )  # fmt: skip
    order = torch.argsort(times, stable=True)  # equal times stay in the order of their slots
    order = order[torch.argsort(row[order], stable=True)]
    place = torch.arange(num, device=row.device) - _rows(counts)[row]
    chosen = torch.empty(num, dtype=torch.bool, device=row.device)
    chosen[order] = place < fanout
    return chosen


def relabel(
    dst: Int[Tensor, "D"], ids: Int[Tensor, "E"], relabeller: Relabeller
) -> tuple[Int[Tensor, "S"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.relabel`; the scratch is not used.

    A stable sort brings equal ids together, the first to appear in front. Who is in front is a source; counting them
    in the order of appearance numbers them.
    """
    num_dst = dst.shape[0]
    both = torch.cat([dst, ids])
    ordered, order = torch.sort(both, stable=True)
    front = torch.ones_like(ordered, dtype=torch.bool)
    front[1:] = ordered[1:] != ordered[:-1]
    first = order[front]
    new = torch.zeros_like(front)
    new[first] = True
    if not bool(new[:num_dst].all()):
        raise ValueError("a node is twice among the destinations")
    number = (new.cumsum(0) - 1)[first]
    local = torch.empty(both.shape, dtype=torch.int32, device=both.device)
    local[order] = number[front.cumsum(0) - 1].int()
    return both[new], local[num_dst:]


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

    def degrees_and_norms(ids: Tensor) -> tuple[Tensor, Tensor]:
        num = ids.shape[0]
        degrees, norms = ids.new_empty(num, dtype=torch.int64), ids.new_empty(num, dtype=torch.int64)
        launch(
            gpu_sample.degrees_and_norms, (blocks(num, BLOCK),), ids,
            store_indptr, self_loops, ids, degrees, norms, num, BLOCK=BLOCK,
        )  # fmt: skip
        return degrees.double(), norms.double()

    degree, norm = degrees_and_norms(dst)
    self_weight.copy_(1 / norm)
    counts = indptr.diff()
    row = torch.repeat_interleave(counts, output_size=indices.shape[0])
    if src is None:
        source_norm, sources = degrees_and_norms(indices)[1], indices
    else:
        source_norm, sources = degrees_and_norms(src)[1][indices], src[indices]
    scaled = (degree / counts)[row] / (source_norm * norm[row]).sqrt()
    weight.copy_(scaled.masked_fill(sources == dst[row], 0.0))


def gather_rows(
    x: Float[Tensor, "N F"], ids: Int[Tensor, "n"], scale: Float[Tensor, "N"] | None, out: Float[Tensor, "n F"]
) -> None:
    """See :func:`partita.kernels.reference.gather_rows`."""
    num, columns = out.shape
    grid, tile = _tile(num, columns)
    launch(gpu_rows.gather, grid, out, x, ids, scale, out, num, columns, **tile)


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
    num, columns = out.shape
    heads = 1 if weight is None else weight.shape[1]
    grid, tile = _tile(num, columns)
    total = out.float() if out.dtype == torch.bfloat16 else out
    launch(
        gpu_rows.aggregate, grid, total,
        x, indptr, indices, edge, weight, scale, total, num, columns, heads, max(columns // heads, 1),
        HEADED=heads > 1, MEAN=reduce == "mean", **tile,
    )  # fmt: skip
    if total is not out:
        out.copy_(total)


def aggregate_weight_grad(
    grad: Float[Tensor, "D F"],
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    reduce: str,
    out: Float[Tensor, "E H"],
) -> None:
    """See :func:`partita.kernels.reference.aggregate_weight_grad`."""
    (num, heads), columns = out.shape, x.shape[1]
    row = torch.repeat_interleave(indptr.diff(), output_size=num)
    width = columns // heads
    at_once = min(_power_of_two(width), 128)
    edges = max(256 // at_once, 4)
    launch(
        gpu_rows.weight_grad, (blocks(num, edges), heads), out,
        grad, x, indptr, indices, row, out, num, columns, heads, width,
        MEAN=reduce == "mean", EDGES=edges, COLUMNS=at_once, num_warps=2,
    )  # fmt: skip


def segment_max(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    values: Float[Tensor, "D F"],
    argmax: Int[Tensor, "D F"],
) -> None:
    """See :func:`partita.kernels.reference.segment_max`."""
    num, columns = values.shape
    grid, tile = _tile(num, columns)
    launch(gpu_rows.segment_max, grid, values, x, indptr, indices, values, argmax, num, columns, **tile)


def segment_max_backward(
    grad: Float[Tensor, "D F"], argmax: Int[Tensor, "D F"], indices: Int[Tensor, "E"], out: Float[Tensor, "S F"]
) -> None:
    """See :func:`partita.kernels.reference.segment_max_backward`; per source, in the order of its edges."""
    num, columns = out.shape
    if argmax.numel() == 0:
        return
    ordered, edge = torch.sort(indices, stable=True)
    # An edge that wins anywhere wins in the first row whose winners, or those before it, go as far as the edge.
    farthest = argmax.amax(1).cummax(0).values
    row = torch.searchsorted(farthest, edge).clamp_(max=grad.shape[0] - 1)
    grid, tile = _tile(num, columns)
    launch(
        gpu_rows.segment_max_backward, grid, out,
        grad, argmax, _begins(ordered, num), edge, row, out, num, columns, **tile,
    )  # fmt: skip


def transpose(
    indptr: Int[Tensor, "D_1"], indices: Int[Tensor, "E"], num_src: int
) -> tuple[Int[Tensor, "S_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.transpose`."""
    ordered, edge = torch.sort(indices, stable=True)
    row = torch.repeat_interleave(indptr.diff(), output_size=indices.shape[0])
    return _begins(ordered, num_src), row[edge].int(), edge


def count_distinct(ids: Int[Tensor, "n"], scratch: Int[Tensor, "words"]) -> int:
    """Number of distinct ids; the scratch is not used."""
    return torch.unique(ids).shape[0]


def __getattr__(name: str) -> None:
    raise AttributeError(f"'{name}' has no kernel for a CUDA device yet")


def _rows(counts: Tensor) -> Int[Tensor, "D_1"]:
    """Where rows of these lengths begin, and where the last ends."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _begins(ordered: Tensor, num: int) -> Int[Tensor, "n_1"]:
    """Where the runs of 0..num-1 begin in a sorted list of them, and where the last ends."""
    return torch.searchsorted(ordered, torch.arange(num + 1, dtype=ordered.dtype, device=ordered.device))


def _all_edges(begins: Tensor, degrees: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Destination and position of every edge of the destinations."""
    total = int(rows[-1])
    row = torch.repeat_interleave(degrees, output_size=total)
    return row, torch.arange(total, device=rows.device) + (begins - rows[:-1])[row]


def _take(values: Tensor, at: Tensor, dtype: torch.dtype) -> Tensor:
    """``values[at]``, where ``values`` may lie in pinned host memory."""
    num = at.shape[0]
    out = torch.empty(num, dtype=dtype, device=at.device)
    launch(gpu_sample.take, (blocks(num, BLOCK),), at, values, at, out, num, BLOCK=BLOCK)
    return out


def _tile(num: int, columns: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and shape of the programs that share ``num`` rows of ``columns`` columns; four elements a thread."""
    wide = min(_power_of_two(columns), 256)
    rows = min(max(128 // wide, 1), 32)
    warps = max(rows * wide // 128, 1)
    return (blocks(num, rows), blocks(columns, wide)), {"ROWS": rows, "COLUMNS": wide, "num_warps": warps}


def _power_of_two(n: int) -> int:
    """The smallest that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


_log_tables: dict[torch.device, Tensor] = {}


def _log_table(device: torch.device) -> Int[Tensor, "4097"]:
    if device not in _log_tables:  # threads that come at once keep the first: others may read it on their streams
        _log_tables.setdefault(device, torch.from_numpy(reference.log_table().astype("int64")).to(device))
    return _log_tables[device]
