"""Sampling and relabeling, compiled. The draws are those of :mod:`partita.kernels.reference`, bit for bit.

Random access waits for memory. So a row's bounds are read first for all destinations; then the picks of a group of
destinations are drawn and their cache lines asked for, before the ids are read; and the relabeller asks for the
entries of ids that come a few places later.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt32
from numba import njit
from torch import Tensor

from partita.core.keys import GOLDEN
from partita.kernels import threads
from partita.kernels.cpu.arrays import or_empty, run
from partita.kernels.cpu.draws import ONE, WORDS_PER_PICK, U, arrival_time, below, fold
from partita.kernels.cpu.excluded import (
    FEW_EXCLUDED,
    RowsFound,
    directory,
    known,
    known_rows,
    leave_out,
    marked,
    remaining_weights,
    rows_found,
    step_all,
)
from partita.kernels.intrinsics import prefetch
from partita.kernels.reference.draws import FEISTEL_ROUNDS, log_table
from partita.kernels.reference.relations import Runs
from partita.kernels.relabeller import Relabeller

GROUP = 16  # destinations whose picks are under way together
FAR_AHEAD = 64  # places ahead where nothing is done with them but to look
AHEAD = 24  # places ahead that the relabeller asks for
_SPARE = 4  # a copy is made where more than this part of the memory would be held for nothing
WALK = 8  # edges of one relation that are compared one by one before the end of their run is searched
SPREAD = U(GOLDEN)
ROWS_AT_ONCE = 256  # that are looked through for those that may have excluded edges, before these are looked at
AtTimes = tuple[np.ndarray, int, int, np.ndarray]
"""Nodes at times that picks are for, how many bits say which time, number of nodes; set where a pick is no node."""
OF_NODES: AtTimes = np.empty(0, np.int64), 0, 0, np.zeros(1, np.bool_)
"""They are for nodes."""
SCAN = 32  # up to this fanout, picks are compared one by one; beyond, they are put into a small hash set


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
    skips, found = directory(excluded), rows_found(excluded, indptr)
    begins, degrees, rows = row_bounds(indptr, dst, fanout, replace, weights, first_edge, skips, found)
    alike = np.array([fanout], np.int64), np.empty(0, np.int32)
    ids, positions, _ = picked(
        indices, dst_original, key, *alike, replace, weights, begins, degrees, rows, skips[0], found.skipped
    )
    return torch.from_numpy(rows), ids, positions


def sample_relations(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanouts: Sequence[int],
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.sample_relations`. A *run* is the edges of one relation in a row."""
    wanted = np.array(fanouts, np.int64)
    skips = directory(excluded)
    skipped = np.empty((len(skips[0]), 2), np.int64)
    begins, degrees, originals, kinds, counts, rows = read_runs(
        indptr, edge_type, dst, dst_original, wanted, replace, weights, first_edge, skips, skipped
    )
    counts = np.concatenate([[0], np.cumsum(counts)])
    given = (indices, originals, key, wanted, kinds, replace, weights, begins, degrees, counts)
    drawn = picked(*given, skips[0], skipped)
    return torch.from_numpy(counts[rows]), *drawn


def relation_runs(
    indptr: Int[Tensor, "N_1"],
    edge_type: Shaped[Tensor, "M"],
    dst: Int[Tensor, "D"],
    chosen: Sequence[bool],
    first_edge: int,
) -> Runs:
    """See :func:`partita.kernels.reference.relation_runs`."""
    wanted = -np.array(chosen, np.int64)  # all edges, or none
    none = np.empty(0, np.int64)
    begins, degrees, _, kinds, _, rows = read_runs(
        indptr, edge_type, dst, dst, wanted, False, None, first_edge, (none, none), none.reshape(0, 2)
    )
    begins += first_edge
    row = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    bounds = np.stack([begins, begins + degrees], axis=1)
    return Runs(torch.from_numpy(bounds), torch.from_numpy(row), torch.from_numpy(kinds.astype(np.int64)))


def row_bounds(
    indptr: Int[Tensor, "N_1"],
    dst: Int[Tensor, "D"],
    fanout: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    skips: tuple[np.ndarray, np.ndarray],
    found: RowsFound,
) -> tuple[Shaped[np.ndarray, "D"], Shaped[np.ndarray, "D"], Shaped[np.ndarray, "D_1"]]:
    """First edges and degrees of rows, see :func:`count_picks`, and where the picks of each begin."""
    num_dst = dst.shape[0]
    begins, degrees = np.empty(num_dst, np.int64), np.empty(num_dst, np.int64)
    rows = np.zeros(num_dst + 1, np.int64)
    counts, weight = rows[1:], or_empty(weights, (0,), np.dtype(np.uint32))
    run(
        count_picks, threads.even_bounds(num_dst, num_dst * WORDS_PER_PICK),
        indptr, first_edge, weight, weights is not None, dst, fanout, replace, *skips, *found.of_first(dst.numpy()),
        begins, degrees, counts, found.skipped,
    )  # fmt: skip
    found.note(dst.numpy(), begins, degrees)
    np.cumsum(counts, out=counts)
    return begins, degrees, rows


def read_runs(
    indptr: Int[Tensor, "N_1"],
    edge_type: Shaped[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    wanted: Shaped[np.ndarray, "R"],
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    skips: tuple[np.ndarray, np.ndarray],
    skipped: Shaped[np.ndarray, "k 2"],
) -> list[Shaped[np.ndarray, "_ ..."]]:
    """Columns of the runs from which so many edges are wanted, see :func:`find_runs`; and rows of destinations."""
    num_dst = dst.shape[0]
    room, rows = np.zeros(num_dst + 1, np.int64), np.zeros(num_dst + 1, np.int64)
    weight = or_empty(weights, (0,), np.dtype(np.uint32))
    bounds = threads.even_bounds(num_dst, num_dst * WORDS_PER_PICK)
    starts, stops = np.empty(num_dst, np.int64), np.empty(num_dst, np.int64)
    run(read_rows, bounds, indptr, first_edge, dst, len(wanted), starts, stops, room[1:])
    np.cumsum(room, out=room)
    begins, degrees, originals, counts = (np.empty(int(room[-1]), np.int64) for _ in range(4))
    kinds = np.empty(int(room[-1]), np.int32)
    run(
        find_runs, bounds,
        starts, stops, edge_type, weight, weights is not None, dst_original, wanted, replace, *skips, room,
        begins, degrees, originals, kinds, counts, skipped, rows[1:],
    )  # fmt: skip
    np.cumsum(rows, out=rows)
    columns = (begins, degrees, originals, kinds, counts)
    return [*(_joined(column, bounds, room, rows) for column in columns), rows]


def _joined(
    column: Shaped[np.ndarray, "_ ..."],
    bounds: list[int],
    room: Shaped[np.ndarray, "D_1"],
    rows: Shaped[np.ndarray, "D_1"],
) -> Shaped[np.ndarray, "_ ..."]:
    """The values of all ranges of rows, each of which wrote its own to the front of its room."""
    parts = [column[room[low] : room[low] + rows[high] - rows[low]] for low, high in pairwise(bounds)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def picked(
    indices: Int[Tensor, "M"],
    originals: Shaped[Tensor, "n"] | Shaped[np.ndarray, "n"],
    key: int,
    fanouts: Shaped[np.ndarray, "_"],
    kinds: Shaped[np.ndarray, "_"],
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    begins: Shaped[np.ndarray, "n"],
    degrees: Shaped[np.ndarray, "n"],
    rows: Shaped[np.ndarray, "n_1"],
    excluded: Shaped[np.ndarray, "k"],
    skipped: Shaped[np.ndarray, "k 2"],
    at_times: AtTimes = OF_NODES,
) -> tuple[Int[Tensor, "E"], Int[Tensor, "E"], Int[Tensor, "_"]]:
    """Ids, positions and kinds (none where the rows have none) of the picks of rows, whose numbers are known.

    Of rows with excluded edges ``begins`` and ``skipped`` tell as :func:`~partita.kernels.cpu.excluded.leave_out` says.
    """
    store, seed, size = indices.numpy(), np.uint64(key), int(rows[-1])
    positions, ids = np.empty(size, np.int64), np.empty(size, np.int64 if len(at_times[0]) else store.dtype)
    types = np.empty(size if len(kinds) else 0, np.int32)
    if weights is None:
        most = int(fanouts.max(initial=0))
        seen_size = 0 if most <= SCAN or replace else 1 << (2 * most - 1).bit_length()
        run(
            pick_uniform, threads.balanced_bounds(rows, WORDS_PER_PICK),
            store, originals, seed, fanouts, kinds, replace, begins, degrees, rows, excluded, skipped, seen_size,
            at_times, positions, ids, types,
        )  # fmt: skip
    else:
        touched = np.concatenate([[0], np.cumsum(degrees)])
        run(
            pick_weighted, threads.balanced_bounds(touched, 4),
            store, weights, log_table(), originals, seed, fanouts, kinds, replace, begins, degrees, rows,
            excluded, skipped, at_times, positions, ids, types,
        )  # fmt: skip
    return torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(types)


def relabel(
    dst: Int[Tensor, "D"], ids: Int[Tensor, "E"], relabeller: Relabeller
) -> tuple[Int[Tensor, "S"], Int[Tensor, "E"]]:
    """See :func:`partita.kernels.reference.relabel`."""
    num_dst, num_edges = dst.shape[0], ids.shape[0]
    entries, base = relabeller.entries(num_dst + num_edges)
    nodes, sources = dst.numpy(), ids.numpy()
    src, local = np.empty(num_dst + num_edges, sources.dtype), np.empty(num_edges, np.int32)
    number = relabel_table if relabeller.mode == "table" else relabel_hash
    num_src = number(entries, base, nodes, sources, src, local)
    if num_src < 0:
        relabeller.used(num_dst)
        raise ValueError("a node is twice among the destinations")
    relabeller.used(num_src)
    src = src[:num_src] if len(src) - num_src <= len(src) // _SPARE else src[:num_src].copy()
    return torch.from_numpy(src), torch.from_numpy(local)


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
    loops = or_empty(self_loops, (0,), np.dtype(np.int32))

    def inverse_roots(ids: Tensor) -> np.ndarray:
        found = np.empty(ids.shape[0])
        run(inverse_root_norms, threads.even_bounds(len(found), len(found) * 4), store_indptr, loops, ids, found)
        return found

    # Destinations are the first sources of a de-duplicated block.
    of_src = inverse_roots(indices if src is None else src)
    of_dst = inverse_roots(dst) if src is None else of_src
    run(
        gcn_loop, threads.balanced_bounds(indptr.numpy(), 4),
        store_indptr, dst, indptr, indices, src is not None, of_src, of_dst, weight, self_weight,
    )  # fmt: skip


def count_distinct(ids: Int[Tensor, "n"], num_nodes: int) -> int:
    """See :func:`partita.kernels.reference.count_distinct`."""
    return int(count_distinct_loop(ids.numpy(), np.zeros((num_nodes + 63) // 64, np.int64)))


def keyed_permutation(start: int, n: int, key: int, out: Int[Tensor, "m"]) -> None:
    """See :func:`partita.kernels.reference.keyed_permutation`."""
    permute_loop(start, n, np.uint64(key), out.numpy())


@njit
def _run_end(kinds, low, high, kind):
    """Where the run that ``low`` - 1 is of ends: short ones are walked through, others searched. Kinds ascend."""
    for _ in range(WALK):
        if low == high or np.int64(kinds[low]) != kind:
            return low
        low += 1
    while low < high:
        middle = (low + high) // 2
        if np.int64(kinds[middle]) == kind:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def able(weights, begin, degree, excluded, skipped):
    """Edges of positive weight in a row, without those that are excluded; as :func:`leave_out` tells of it."""
    count, first, last = np.int64(0), 0, 0
    if begin < 0:
        first = -1 - begin
        begin, last = skipped[first, 0], skipped[first, 1]
    for position in range(begin, begin + degree + last - first):
        count += weights[position] > 0
    for k in range(first, last):
        count -= weights[excluded[k]] > 0
    return count


@njit
def number_of_picks(candidates, fanout, replace):
    """How many are drawn of so many edges."""
    return candidates if fanout < 0 or candidates == 0 or (candidates <= fanout and not replace) else fanout


@njit(nogil=True, cache=True)
def read_rows(indptr, first, dst, relations, starts, stops, most, low, high):
    """Rows of destinations ``low`` to ``high``, counted from ``first`` on, and how many runs they have at most."""
    for i in range(low, high):
        prefetch(indptr, dst[min(i + FAR_AHEAD, high - 1)])
        starts[i], stops[i] = indptr[dst[i]] - first, indptr[dst[i] + 1] - first
        most[i] = min(stops[i] - starts[i], relations)


@njit(nogil=True, cache=True)
def find_runs(
    starts, stops, kinds, weights, weighted, original, fanouts, replace, excluded, marks, room,
    begins, degrees, originals, kind_of_run, counts, skipped, found, low, high,
):  # fmt: skip
    """First edge, degree, key, relation and number of picks of the runs of whose relations anything is drawn.

    Of runs with excluded edges they are as :func:`~partita.kernels.cpu.excluded.leave_out` says.

    Those of all destinations ``low`` to ``high`` follow one another from ``room[low]`` on; ``found`` says how many each
    one has.
    """
    relations = fanouts.shape[0]
    place = room[low]
    for i in range(low, high):
        prefetch(kinds, starts[min(i + AHEAD, high - 1)])
        at, end, before = starts[i], stops[i], place
        while at < end:
            kind = np.int64(kinds[at])
            stop, fanout = _run_end(kinds, at + 1, end, kind), fanouts[kind] if kind < relations else 0
            if fanout != 0 and place < room[high]:  # of a damaged column there may be more runs than relations
                begins[place], degrees[place], kind_of_run[place] = at, stop - at, kind
                originals[place] = original[i] * relations + kind
                place += 1
            at = stop
        found[i] = place - before
    if excluded.shape[0]:
        first, last, shift = excluded[0], excluded[excluded.shape[0] - 1], U(marks[0])
        some = np.empty(ROWS_AT_ONCE, np.int64)
        for start in range(room[low], place, ROWS_AT_ONCE):
            count = 0
            for at in range(start, min(start + ROWS_AT_ONCE, place)):
                some[count] = at
                count += marked(first, last, shift, marks, begins[at], degrees[at])
            leave_out(excluded, marks, begins, degrees, skipped, some[:count])
    for at in range(room[low], place):
        candidates = degrees[at]
        if weighted:
            candidates = able(weights, begins[at], candidates, excluded, skipped)
        counts[at] = number_of_picks(candidates, fanouts[kind_of_run[at]], replace)


@njit(nogil=True, cache=True)
def count_picks(
    indptr, first, weights, weighted, dst, fanout, replace, excluded, marks, known_dst, known_begins, known_degrees,
    begins, degrees, counts, skipped, low, high,
):  # fmt: skip
    """First edge, degree and number of picks of destinations ``low`` to ``high``; edges count from ``first`` on.

    Of rows with excluded edges they are as :func:`~partita.kernels.cpu.excluded.leave_out` says, of those that were
    found before as they are ``known``.
    """
    if excluded.shape[0]:
        begun, same = low, min(high, known_dst.shape[0])
        while begun < same and dst[begun] == known_dst[begun]:
            begins[begun], degrees[begun] = known_begins[begun], known_degrees[begun]
            begun += 1
        first_excluded, last_excluded, shift = excluded[0], excluded[excluded.shape[0] - 1], U(marks[0])
        some, rows = np.empty(ROWS_AT_ONCE, np.int64), known_rows(skipped)
        all_known = rows.shape[0] > 0
        for start in range(begun, high, ROWS_AT_ONCE):
            count = 0
            for i in range(start, min(start + ROWS_AT_ONCE, high)):
                prefetch(indptr, dst[min(i + FAR_AHEAD, high - 1)])
                node = dst[i]
                begin, degree = indptr[node] - first, indptr[node + 1] - indptr[node]
                begins[i], degrees[i] = begin, degree
                some[count] = i
                if all_known:
                    count += known(rows, begin)
                else:
                    count += marked(first_excluded, last_excluded, shift, marks, begin, degree)
            leave_out(excluded, marks, begins, degrees, skipped, some[:count])
    else:
        for i in range(low, high):
            prefetch(indptr, dst[min(i + FAR_AHEAD, high - 1)])
            node = dst[i]
            begins[i], degrees[i] = indptr[node] - first, indptr[node + 1] - indptr[node]
    for i in range(low, high):
        candidates = degrees[i]
        if weighted:
            candidates = able(weights, begins[i], candidates, excluded, skipped)
        counts[i] = number_of_picks(candidates, fanout, replace)


@njit
def _floyd(node_key, begin, degree, fanout, seen, positions, at):
    """``fanout`` of ``degree`` > ``fanout`` slots without replacement, into ``positions[at:]``."""
    if fanout <= SCAN:
        for s in range(fanout):
            bound = degree - fanout + s
            pick = begin + below(fold(node_key, U(s)), bound + 1)
            for previous in range(at, at + s):
                if positions[previous] == pick:
                    pick = begin + bound
                    break
            positions[at + s] = pick
        return
    mask = seen.shape[0] - 1  # at most half full
    seen[:] = -1
    for s in range(fanout):
        bound = degree - fanout + s
        slot = below(fold(node_key, U(s)), bound + 1)
        place = slot & mask
        while seen[place] >= 0 and seen[place] != slot:
            place = (place + 1) & mask
        if seen[place] == slot:
            slot = bound  # larger than every earlier pick, so not in the set
            place = slot & mask
            while seen[place] >= 0:
                place = (place + 1) & mask
        seen[place] = slot
        positions[at + s] = begin + slot


@njit(nogil=True, cache=True)
def pick_uniform(
    indices, original, key, fanouts, kinds, replace, begins, degrees, indptr, excluded, skipped, seen_size,
    at_times, positions, ids, types, low, high,
):  # fmt: skip
    """Picks of destinations ``low`` to ``high``: positions in the store, the ids that stand there, and their kinds.

    The fanout is that of each one's kind; of those that have no kind, all alike. Without ``indices``, no ids.
    """
    seen = np.empty(seen_size, np.int64)
    for group in range(low, high, GROUP):
        stop = min(group + GROUP, high)
        for i in range(group, stop):
            begin, degree, at = begins[i], degrees[i], indptr[i]
            count, kind = indptr[i + 1] - at, kinds[i] if kinds.shape[0] else 0
            fanout = fanouts[kind]
            if kinds.shape[0]:
                types[at : at + count] = kind
            skips, first, last = begin < 0, 0, 0
            if skips:
                first = -1 - begin
                begin, last = skipped[first, 0], skipped[first, 1]
            if count == degree and not (replace and fanout >= 0):
                place = begin
                for slot in range(degree):
                    while first < last and excluded[first] == place:
                        first += 1
                        place += 1
                    positions[at + slot] = place
                    place += 1
                prefetch(indices, begin)
                continue
            node_key = fold(key, U(original[i]))
            if replace:
                for s in range(count):
                    positions[at + s] = begin + below(fold(node_key, U(s)), degree)
            else:
                _floyd(node_key, begin, degree, fanout, seen, positions, at)
            if last - first > FEW_EXCLUDED:
                step_all(excluded, first, last, positions, at, at + count)
            elif skips:
                for k in range(first, last):
                    lost = excluded[k]
                    for e in range(at, at + count):
                        positions[e] += positions[e] >= lost
            for e in range(at, at + count):
                prefetch(indices, positions[e])
        read_ids(indices, indptr, group, stop, at_times, positions, ids)


@njit
def read_ids(indices, indptr, low, high, at_times, positions, ids):
    """What stands at the picks of some rows, if that is at hand: nodes, or these at the times of the rows."""
    requests, bits, num_nodes, wrong = at_times
    if not indices.shape[0]:
        return
    if not requests.shape[0]:
        for e in range(indptr[low], indptr[high]):
            ids[e] = indices[positions[e]]
        return
    largest, mask = U(0), (np.int64(1) << bits) - 1
    for i in range(low, high):
        slot = requests[i] & mask
        for e in range(indptr[i], indptr[i + 1]):
            node = np.int64(indices[positions[e]])
            largest = max(largest, U(node))  # what is below 0 becomes large
            ids[e] = (node << bits) | slot
    if largest >= U(num_nodes):
        wrong[0] = True


@njit
def sift(times, slots, root, size):
    """Restore a heap, largest (time, slot) on top, whose ``root`` may be too small."""
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        right = child + 1
        if right < size and (
            times[right] > times[child] or (times[right] == times[child] and slots[right] > slots[child])
        ):
            child = right
        if times[root] > times[child] or (times[root] == times[child] and slots[root] > slots[child]):
            return
        times[root], times[child] = times[child], times[root]
        slots[root], slots[child] = slots[child], slots[root]
        root = child


@njit
def sort_pairs(times, slots, size):
    """Sort by (time, slot), ascending, in place."""
    for root in range(size // 2 - 1, -1, -1):
        sift(times, slots, root, size)
    for last in range(size - 1, 0, -1):
        times[0], times[last] = times[last], times[0]
        slots[0], slots[last] = slots[last], slots[0]
        sift(times, slots, 0, last)


@njit(nogil=True, cache=True)
def pick_weighted(
    indices, weights, table, original, key, fanouts, kinds, replace, begins, degrees, indptr, excluded, skipped,
    at_times, positions, ids, types, low, high,
):  # fmt: skip
    """Like :func:`pick_uniform`, in proportion to ``weights``. One pass over each row; O(fanout) memory."""
    most = max(fanouts.max(), 0)
    times = np.empty(most, np.uint64)
    slots = np.empty(most, np.int64)
    for i in range(low, high):
        begin, degree, at = begins[i], degrees[i], indptr[i]
        count, kind = indptr[i + 1] - at, kinds[i] if kinds.shape[0] else 0
        fanout = fanouts[kind]
        if kinds.shape[0]:
            types[at : at + count] = kind
        if count == 0:
            continue
        node_key = fold(key, U(original[i]))
        row, first, before, after = weights, begin, 0, 0
        if begin < 0:
            before = -1 - begin
            begin, after = skipped[before, 0], skipped[before, 1]
            row, first = remaining_weights(weights, begin, degree, excluded, before, after), 0
        if replace and fanout >= 0:
            total = U(0)
            for slot in range(degree):
                total += U(row[first + slot])
            for s in range(count):  # here a "time" is a goal for the running total
                times[s] = U(below(fold(node_key, U(s)), total))
                slots[s] = s
            sort_pairs(times, slots, count)
            running, slot = U(0), -1
            for s in range(count):
                while running <= times[s]:
                    slot += 1
                    running += U(row[first + slot])
                positions[at + slots[s]] = begin + slot
        else:
            held, listed = 0, 0
            drawn = fanout >= 0 and count == fanout  # if exactly that many are positive, all of them are picked
            for slot in range(degree):
                weight = U(row[first + slot])
                if weight == U(0):
                    continue
                if not drawn:
                    positions[at + listed] = begin + slot
                    listed += 1
                    continue
                time = arrival_time(fold(node_key, U(slot)), weight, table)
                if held < fanout:
                    times[held], slots[held] = time, slot
                    held += 1
                    if held == fanout:
                        for root in range(fanout // 2 - 1, -1, -1):
                            sift(times, slots, root, fanout)
                elif time < times[0]:  # an equal time loses: its slot is larger
                    times[0], slots[0] = time, slot
                    sift(times, slots, 0, fanout)
            if drawn:
                for s in range(fanout):
                    times[s] = U(slots[s])
                sort_pairs(times, slots, fanout)
                for s in range(fanout):
                    positions[at + s] = begin + slots[s]
        if before < after:
            step_all(excluded, before, after, positions, at, at + count)
        read_ids(indices, indptr, i, i + 1, at_times, positions, ids)


@njit(nogil=True, cache=True)
def relabel_table(entries, base, dst, ids, src, local):
    """Number the sources by first appearance, destinations first.

    ``entries[id] - base`` is the number of ``id`` if not negative. Returns S, or -1 if a destination occurs twice.
    """
    count = np.int64(0)
    for i in range(dst.shape[0]):
        node = dst[i]
        if entries[node] >= base:
            return -1
        entries[node] = base + count
        src[count] = node
        count += 1
    edges = ids.shape[0]
    for e in range(edges):
        prefetch(entries, ids[min(e + AHEAD, edges - 1)])
        node = ids[e]
        number = entries[node] - base
        if number < 0:
            number = count
            entries[node] = base + count
            src[count] = node
            count += 1
        local[e] = number
    return count


@njit(nogil=True, cache=True)
def relabel_hash(entries, base, dst, ids, src, local):
    """Like :func:`relabel_table`, with an open-addressing table whose entries point into ``src``.

    A place is the upper bits of a product (Knuth, "Sorting and searching", 1973, section 6.4): ids are small numbers in
    a row or at equal distances, which that spreads evenly, and it takes a fifth of the time of a full hash.
    """
    mask, shift = U(entries.shape[0] - 1), U(64)
    size = entries.shape[0]
    while size > 1:
        size >>= 1
        shift -= ONE
    count = np.int64(0)
    edges = ids.shape[0]
    for e in range(-dst.shape[0], edges):
        node = ids[e] if e >= 0 else dst[e + dst.shape[0]]
        if e >= 0:
            prefetch(entries, (U(ids[min(e + AHEAD, edges - 1)]) * SPREAD) >> shift)
        place = (U(node) * SPREAD) >> shift
        while True:
            number = np.int64(entries[place]) - base
            if number < 0:
                number = count
                entries[place] = base + count
                src[count] = node
                count += 1
                break
            if src[number] == node:
                if e < 0:
                    return -1
                break
            place = (place + ONE) & mask
        if e >= 0:
            local[e] = number
    return count


@njit(nogil=True, cache=True)
def inverse_root_norms(indptr, loops, ids, out, low, high):
    """``1 / sqrt(in-degree without self loops + 1)`` of nodes; empty ``loops`` means none."""
    for i in range(low, high):
        ahead = ids[min(i + AHEAD, high - 1)]
        prefetch(indptr, ahead)
        node = ids[i]
        norm = indptr[node + 1] - indptr[node] + 1
        if loops.shape[0] > 0:
            prefetch(loops, ahead)
            norm -= loops[node]
        out[i] = 1.0 / np.sqrt(norm)


@njit(nogil=True, cache=True)
def gcn_loop(store, dst, indptr, indices, local, of_src, of_dst, weight, own, low, high):
    """Edge and own coefficients of destinations ``low`` to ``high``; ``local`` says what ``indices`` are."""
    for i in range(low, high):
        node, begin, end = dst[i], indptr[i], indptr[i + 1]
        own[i] = of_dst[i] * of_dst[i]
        if end == begin:
            continue
        factor = (store[node + 1] - store[node]) / (end - begin) * of_dst[i]
        myself = i if local else np.int64(node)
        for e in range(begin, end):
            source = np.int64(indices[e])
            weight[e] = 0.0 if source == myself else factor * of_src[source if local else e]


@njit(nogil=True, cache=True)
def count_distinct_loop(ids, words):
    """Number of distinct ids, by a bitmap that is zero before."""
    count = np.int64(0)
    n = ids.shape[0]
    for i in range(n):
        prefetch(words, ids[min(i + AHEAD, n - 1)] >> 6)
        word, bit = ids[i] >> 6, np.int64(1) << np.int64(ids[i] & 63)
        count += (words[word] & bit) == 0
        words[word] |= bit
    return count


@njit(nogil=True, cache=True)
def permute_loop(start, n, key, out):
    """Fill ``out`` with places ``start``... of the keyed permutation of 0..n-1."""
    bits = ONE
    while U(2) * bits < U(64) and (U(n - 1) >> (U(2) * bits)) > U(0):
        bits += ONE
    mask = (ONE << bits) - ONE
    rounds = np.empty(FEISTEL_ROUNDS, np.uint64)
    for r in range(FEISTEL_ROUNDS):
        rounds[r] = fold(key, U(r))
    for i in range(out.shape[0]):
        value = U(start + i)
        while True:
            left, right = value >> bits, value & mask
            for r in range(FEISTEL_ROUNDS):
                left, right = right, left ^ (fold(rounds[r], right) & mask)
            value = (left << bits) | right
            if value < U(n):
                break
        out[i] = np.int64(value)
