"""Sampling in Triton: bounds of rows, picks, look-ups in columns of the store, and permutations."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, Shaped, UInt32
from torch import Tensor

from partita.kernels.excluded import by_row, left_out, stepped
from partita.kernels.gpu.draws import arrival_time, below, fold, unsigned
from partita.kernels.gpu.launch import LARGEST, blocks, launch, launch_each, power_of_two, signed
from partita.kernels.reference.draws import FEISTEL_ROUNDS, log_table
from partita.kernels.reference.relations import Drawn, drawn_by_run
from partita.kernels.relabeller import NOWHERE as _NOWHERE
from partita.kernels.relabeller import Relabeller

IN_REGISTERS = 128  # largest fanout whose picks one program holds in registers
EDGES_AT_ONCE = 1 << 27  # edges that weighted sampling looks at together: some 6 GB of scratch
ROUNDS = tl.constexpr(FEISTEL_ROUNDS)
NOWHERE = tl.constexpr(_NOWHERE)
_log_tables: dict[torch.device, Tensor] = {}


def sample_neighbors(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanout: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.sample_neighbors`."""
    num_dst = dst.shape[0]
    begins, degrees = dst.new_empty(num_dst, dtype=torch.int64), dst.new_empty(num_dst, dtype=torch.int64)
    launch_each(row_bounds_kernel, num_dst, dst, indptr, dst, begins, degrees, first_edge)
    before = begins.new_zeros(1).expand_as(begins)
    if excluded.shape[0]:
        before, fewer = left_out(excluded, begins, begins + degrees)
        degrees -= fewer
    if weights is None:
        rows, positions = _pick_uniform(begins, degrees, dst_original, signed(key), fanout, replace)
        if excluded.shape[0]:
            positions = stepped(excluded, positions, by_row(before, rows, positions.shape[0]))
    else:
        given = (begins, degrees, dst_original, before)
        rows, positions = _pick_weighted(weights, excluded, *given, signed(key), fanout, replace)
    return rows, _take(indices, positions, indices.dtype), positions


def find_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    dst: Int[Tensor, "t"],
    src: Int[Tensor, "t"],
    kinds: Int[Tensor, "t"] | None,
    first_edge: int,
) -> Int[Tensor, "k"]:
    """See :func:`partita.kernels.reference.find_edges`; by passes over all edges of the destinations."""
    nodes, of_pair = dst.unique(return_inverse=True)
    num_nodes = indptr.shape[0] - 1
    begins, degrees = nodes.new_empty(nodes.shape[0]), nodes.new_empty(nodes.shape[0])
    launch_each(row_bounds_kernel, nodes.shape[0], nodes, indptr, nodes, begins, degrees, first_edge)
    row, at = _all_edges(begins, degrees, _rows(degrees))
    edges, pairs = [row, _take(indices, at, torch.int64)], [of_pair, src]
    if kinds is not None and edge_type is not None:
        narrow = edge_type if edge_type.dtype == torch.uint8 else edge_type.view(torch.int16)
        edges.insert(1, _take(narrow, at, torch.int64) & (0xFF if edge_type.dtype == torch.uint8 else 0xFFFF))
        pairs.insert(1, kinds)
    if len(edges) == 2:
        return at[torch.isin(edges[0] * num_nodes + edges[1], pairs[0] * num_nodes + pairs[1])]
    found = torch.zeros_like(at, dtype=torch.bool)
    for kind in pairs[1].unique():  # few relations have targets
        edge, pair = edges[1] == kind, pairs[1] == kind
        found[edge] = torch.isin(
            edges[0][edge] * num_nodes + edges[2][edge], pairs[0][pair] * num_nodes + pairs[2][pair]
        )
    return at[found]


def relation_bounds(
    indptr: Int[Tensor, "N_1"],
    edge_type: Shaped[Tensor, "M"],
    dst: Int[Tensor, "D"],
    relations: Int[Tensor, "C"],
    first_edge: int,
) -> Int[Tensor, "DC 2"]:
    """See :func:`partita.kernels.reference.relation_bounds`."""
    num, kinds = relations.shape[0], edge_type if edge_type.dtype == torch.uint8 else edge_type.view(torch.int16)
    found = dst.new_empty((dst.shape[0] * num, 2), dtype=torch.int64)
    mask = 0xFF if edge_type.dtype == torch.uint8 else 0xFFFF
    launch_each(
        bounds_kernel, found.numel(), dst, indptr, kinds, dst, relations, found, first_edge, max(1, num), mask
    )  # fmt: skip
    return found


def sample_relations(*given: Any) -> Drawn:
    """See :func:`partita.kernels.reference.sample_relations`."""
    return drawn_by_run(relation_bounds, sample_neighbors, *given)


def relabel(
    dst: Int[Tensor, "D"], ids: Int[Tensor, "E"], relabeller: Relabeller
) -> tuple[Int[Tensor, "S"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.relabel`.

    Who stands first in the list of its node is a source; counting them in the order of the list numbers them. The host
    waits for the device once, to learn how many there are.
    """
    num_dst, both = dst.shape[0], torch.cat([dst, ids])
    num, places = both.shape[0], relabeller.places(dst.device)
    if num == 0:
        return both, torch.empty(0, dtype=torch.int32, device=dst.device)
    launch_each(first_place_kernel, num, both, both, places)
    first = torch.empty(num, dtype=torch.int32, device=both.device)
    launch_each(is_first_kernel, num, both, both, places, first)
    number = first.cumsum(0)
    found = number[max(num_dst - 1, 0) :: max(num - num_dst, 1)].tolist() if num_dst else [0, int(number[-1])]
    src = torch.empty(found[-1], dtype=both.dtype, device=both.device)
    local = torch.empty(num - num_dst, dtype=torch.int32, device=both.device)
    launch_each(number_kernel, num, both, both, places, number, src, local, num_dst)
    launch_each(forget_places_kernel, num, both, both, places)
    if found[0] != num_dst:
        raise ValueError("a node is twice among the destinations")
    return src, local


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
        launch_each(degrees_and_norms_kernel, num, ids, store_indptr, self_loops, ids, degrees, norms)
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


def keyed_permutation(start: int, n: int, key: int, out: Int[Tensor, "m"]) -> None:
    """See :func:`partita.kernels.reference.keyed_permutation`."""
    num, bits = out.shape[0], max(1, ((n - 1).bit_length() + 1) // 2)
    launch_each(permute_kernel, num, out, out, signed(key), start, n, bits)


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
        launch_each(pick_with_kernel, num_dst, begins, begins, degrees, rows, original, positions, key, fanout)
    elif fanout <= IN_REGISTERS:
        width = power_of_two(fanout)
        at_once = min(512 // width, 128)
        launch(
            pick_few_kernel, (blocks(num_dst, at_once),), begins,
            begins, degrees, rows, original, positions, key, fanout, num_dst, ROWS=at_once, WIDTH=width,
        )  # fmt: skip
    else:
        launch(
            pick_many_kernel, (num_dst,), begins,
            begins, degrees, rows, original, positions, key, BLOCK=128, num_warps=1,
        )  # fmt: skip
    return rows, positions


def _pick_weighted(
    weights: Tensor, excluded: Tensor, begins: Tensor, degrees: Tensor, original: Tensor, before: Tensor, key: int,
    fanout: int, replace: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`_pick_uniform`, in proportion to ``weights``, by passes over all edges of the destinations.

    Degrees are without excluded edges, of which there are so many ``before`` each row; positions are with them.
    """
    num_dst, touched = begins.shape[0], _rows(degrees)
    if int(touched[-1]) > EDGES_AT_ONCE and num_dst > 1:
        half = num_dst // 2
        parts = [
            _pick_weighted(
                weights, excluded, begins[part], degrees[part], original[part], before[part], key, fanout, replace
            )
            for part in (slice(half), slice(half, None))
        ]
        (rows, positions), (more, others) = parts
        return torch.cat([rows, more[1:] + rows[-1]]), torch.cat([positions, others])
    row, at = _all_edges(begins, degrees, touched)
    slot = at - begins[row]
    at = stepped(excluded, at, before[row])
    weight = _take(weights.view(torch.int32), at, torch.int64) & 0xFFFFFFFF
    if replace and fanout >= 0:
        running = weight.cumsum(0)
        sums = torch.cat([running.new_zeros(1), running])[touched]
        rows = _rows((sums.diff() > 0) * fanout)
        goals = torch.empty(int(rows[-1]), dtype=torch.int64, device=rows.device)
        first = sums[:-1].contiguous()
        launch_each(pick_with_kernel, num_dst, first, first, sums.diff(), rows, original, goals, key, fanout)
        return rows, at[torch.searchsorted(running, goals, right=True)]
    able = weight > 0
    row, at, slot, weight = row[able], at[able], slot[able], weight[able]
    counts = torch.cat([touched.new_zeros(1), able.cumsum(0)])[touched].diff()
    if fanout < 0:
        return _rows(counts), at
    chosen = _first(row, slot, weight, counts, original, key, fanout)
    return _rows(counts.clamp(max=fanout)), at[chosen]


def _first(
    row: Tensor, slot: Tensor, weight: Tensor, counts: Tensor, original: Tensor, key: int, fanout: int
) -> Tensor:  # fmt: skip
    """Which edges, ascending by row and slot, are among the ``fanout`` first to arrive of their row, bool."""
    num = row.shape[0]
    times = torch.empty_like(row)
    launch_each(arrival_times_kernel, num, row, row, slot, weight, original, _log_table(row.device), times, key)
    order = torch.argsort(times, stable=True)  # equal times stay in the order of their slots
    order = order[torch.argsort(row[order], stable=True)]
    place = torch.arange(num, device=row.device) - _rows(counts)[row]
    chosen = torch.empty(num, dtype=torch.bool, device=row.device)
    chosen[order] = place < fanout
    return chosen


def _rows(counts: Tensor) -> Int[Tensor, "D_1"]:
    """Where rows of these lengths begin, and where the last ends."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _all_edges(begins: Tensor, degrees: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Destination and position of every edge of the destinations."""
    total = int(rows[-1])
    row = torch.repeat_interleave(degrees, output_size=total)
    return row, torch.arange(total, device=rows.device) + (begins - rows[:-1])[row]


def _take(values: Tensor, at: Tensor, dtype: torch.dtype) -> Tensor:
    """``values[at]``, where ``values`` may lie in pinned host memory."""
    out = torch.empty(at.shape[0], dtype=dtype, device=at.device)
    launch_each(take_kernel, at.shape[0], at, values, at, out)
    return out


def _log_table(device: torch.device) -> Int[Tensor, "4097"]:
    if device not in _log_tables:  # threads that come at once keep the first: others may read it on their streams
        _log_tables.setdefault(device, torch.from_numpy(log_table().astype("int64")).to(device))
    return _log_tables[device]


@triton.jit(do_not_specialize=["first", "num"])
def row_bounds_kernel(indptr, dst, begins, degrees, first, num, BLOCK: tl.constexpr):
    """First edge, counted from ``first`` on, and degree of ``num`` nodes, int64."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    node = tl.load(dst + i, mask=inside, other=0).to(tl.int64)
    begin = tl.load(indptr + node, mask=inside, other=0)
    tl.store(begins + i, begin - first, mask=inside)
    tl.store(degrees + i, tl.load(indptr + node + 1, mask=inside, other=0) - begin, mask=inside)


@triton.jit(do_not_specialize=["first", "columns", "mask", "num"])
def bounds_kernel(indptr, kinds, dst, relations, found, first, columns, mask, num, BLOCK: tl.constexpr):
    """Where the edges of relation ``e // 2 mod columns`` of a destination begin (even e) and end (odd e), by search."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = e < num
    run = e // 2
    node = tl.load(dst + run // columns, mask=inside, other=0).to(tl.int64)
    kind = tl.load(relations + run % columns, mask=inside, other=0) + e % 2
    low = tl.load(indptr + node, mask=inside, other=0) - first
    high = tl.load(indptr + node + 1, mask=inside, other=0) - first
    high = tl.where(inside, high, low)
    while tl.reduce((low < high).to(tl.int32), 0, LARGEST) > 0:
        searching = low < high
        middle = (low + high) // 2
        there = tl.load(kinds + middle, mask=searching, other=0).to(tl.int64) & mask
        below_kind = searching & (there < kind)
        high = tl.where(searching & (there >= kind), middle, high)
        low = tl.where(below_kind, middle + 1, low)
    tl.store(found + e, low + first, mask=inside)


@triton.jit(do_not_specialize=["num"])
def take_kernel(values, at, out, num, BLOCK: tl.constexpr):
    """``out[e] = values[at[e]]``, in the dtype of ``out``."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = e < num
    place = tl.load(at + e, mask=inside, other=0).to(tl.int64)
    tl.store(out + e, tl.load(values + place, mask=inside, other=0).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num"])
def first_place_kernel(ids, places, num, BLOCK: tl.constexpr):
    """Where each of ``num`` nodes stands first: ``places[ids[i]]`` is the least of its ``i``, and of what it was."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    node = tl.load(ids + i, mask=inside, other=0).to(tl.int64)
    tl.atomic_min(places + node, i.to(tl.int32), mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["num"])
def is_first_kernel(ids, places, first, num, BLOCK: tl.constexpr):
    """1 where a node stands first, else 0."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    place = tl.load(places + tl.load(ids + i, mask=inside, other=0).to(tl.int64), mask=inside, other=0)
    tl.store(first + i, (place == i).to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["num_dst", "num"])
def number_kernel(ids, places, number, src, local, num_dst, num, BLOCK: tl.constexpr):
    """The sources, and the number of the source of each edge; ``number`` counts sources up to each place."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    id = tl.load(ids + i, mask=inside, other=0)
    place = tl.load(places + id.to(tl.int64), mask=inside, other=0)
    new = tl.load(number + place, mask=inside, other=1) - 1
    tl.store(local + i - num_dst, new.to(tl.int32), mask=inside & (i >= num_dst))
    tl.store(src + new, id, mask=inside & (place == i))


@triton.jit(do_not_specialize=["num"])
def forget_places_kernel(ids, places, num, BLOCK: tl.constexpr):
    """Put back what :func:`first_place_kernel` found."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    node = tl.load(ids + i, mask=inside, other=0).to(tl.int64)
    tl.store(places + node, tl.full([BLOCK], NOWHERE, tl.int32), mask=inside)


@triton.jit(do_not_specialize=["num"])
def degrees_and_norms_kernel(indptr, loops, ids, degrees, norms, num, BLOCK: tl.constexpr):
    """In-degree, and in-degree without self loops + 1, of ``num`` nodes, int64; ``loops`` may be ``None``."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    node = tl.load(ids + i, mask=inside, other=0).to(tl.int64)
    degree = tl.load(indptr + node + 1, mask=inside, other=0) - tl.load(indptr + node, mask=inside, other=0)
    norm = degree + 1
    if loops is not None:
        norm -= tl.load(loops + node, mask=inside, other=0).to(tl.int64)
    tl.store(degrees + i, degree, mask=inside)
    tl.store(norms + i, norm, mask=inside)


@triton.jit(do_not_specialize=["key", "fanout", "num"])
def pick_with_kernel(begins, ranges, rows, original, positions, key, fanout, num, BLOCK: tl.constexpr):
    """With replacement: ``positions[rows[i] + s] = begins[i] + below(draw s of i, ranges[i])`` for all s of row i."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    begin, bound = tl.load(begins + i, mask=inside, other=0), tl.load(ranges + i, mask=inside, other=0)
    at = tl.load(rows + i, mask=inside, other=0)
    drawn = tl.load(rows + i + 1, mask=inside, other=0) > at
    node_key = fold(unsigned(key), tl.load(original + i, mask=inside, other=0))
    for s in range(fanout):
        tl.store(positions + at + s, begin + below(fold(node_key, s), bound), mask=drawn)


@triton.jit(do_not_specialize=["key", "fanout", "num"])
def pick_few_kernel(
    begins, degrees, rows, original, positions, key, fanout, num, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Floyd's algorithm for ``ROWS`` destinations at a time, their picks so far in registers, ``WIDTH`` at most."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = i < num
    begin, degree = tl.load(begins + i, mask=inside, other=0), tl.load(degrees + i, mask=inside, other=0)
    at = tl.load(rows + i, mask=inside, other=0)
    count = tl.load(rows + i + 1, mask=inside, other=0) - at
    node_key = fold(unsigned(key), tl.load(original + i, mask=inside, other=0))
    column = tl.arange(0, WIDTH)
    picks = tl.full([ROWS, WIDTH], -1, tl.int64)
    for s in range(fanout):
        bound = degree - fanout + s
        slot = below(fold(node_key, s), tl.maximum(bound + 1, 0))
        before = tl.reduce((picks == slot[:, None]).to(tl.int32), 1, LARGEST) > 0
        slot = tl.where(before, bound, slot)
        picks = tl.where(column[None, :] == s, slot[:, None], picks)
        slot = tl.where(count == degree, s, slot)  # all of a short row, in its order
        tl.store(positions + at + s, begin + slot, mask=s < count)


@triton.jit(do_not_specialize=["key"])
def pick_many_kernel(begins, degrees, rows, original, positions, key, BLOCK: tl.constexpr):
    """As :func:`pick_few` for any fanout: one destination per program, its picks so far read back from memory."""
    i = tl.program_id(0).to(tl.int64)
    begin, degree = tl.load(begins + i), tl.load(degrees + i)
    at = tl.load(rows + i)
    count = tl.load(rows + i + 1) - at
    place = tl.arange(0, BLOCK)
    if count == degree:
        for start in range(0, count, BLOCK):
            tl.store(positions + at + start + place, begin + start + place, mask=start + place < count)
    else:
        node_key = fold(unsigned(key), tl.load(original + i))
        for s in range(count):
            last = degree - count + s
            pick = begin + below(fold(node_key, s), last + 1)
            same = tl.full([BLOCK], 0, tl.int32)
            for start in range(0, s, BLOCK):
                earlier = tl.load(positions + at + start + place, mask=start + place < s, other=-1)
                same = same | (earlier == pick).to(tl.int32)
            pick = tl.where(tl.reduce(same, 0, LARGEST) > 0, begin + last, pick)
            tl.store(positions + at + s, pick)
            tl.debug_barrier()  # the next round reads it, maybe in another thread


@triton.jit(do_not_specialize=["key", "num"])
def arrival_times_kernel(row, slot, weight, original, table, times, key, num, BLOCK: tl.constexpr):
    """Times of ``num`` edges, each the ``slot``-th of destination ``row`` and of positive ``weight`` (int64 all)."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = e < num
    node = tl.load(original + tl.load(row + e, mask=inside, other=0), mask=inside, other=0)
    draw = fold(fold(unsigned(key), node), tl.load(slot + e, mask=inside, other=0))
    time = arrival_time(draw, tl.load(weight + e, mask=inside, other=1).to(tl.uint64), table)
    tl.store(times + e, time, mask=inside)


@triton.jit(do_not_specialize=["key", "start", "n", "bits", "num"])
def permute_kernel(out, key, start, n, bits, num, BLOCK: tl.constexpr):
    """Places ``start``... of the keyed permutation of 0..n-1, whose halves have ``bits`` bits."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num
    seed, half = unsigned(key), tl.cast(bits, tl.uint64)
    mask = (tl.cast(1, tl.uint64) << half) - 1
    limit = tl.cast(n, tl.uint64)
    value = tl.where(inside, place + start, 0).to(tl.uint64)
    walking = inside
    while tl.reduce(walking.to(tl.int32), 0, LARGEST) > 0:
        left, right = value >> half, value & mask
        for r in range(ROUNDS):
            mixed = left ^ (fold(fold(seed, r), right) & mask)
            left = right
            right = mixed
        value = tl.where(walking, (left << half) | right, value)
        walking = inside & (value >= limit)
    tl.store(out + place, value.to(tl.int64), mask=inside)
