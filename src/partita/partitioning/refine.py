"""Restreaming refinement: nodes move to other parts, in passes over the rows of the store."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32

from partita.core.partitioning import PartitionTask
from partita.kernels.compile import AHEAD, compiled, prefetch
from partita.partitioning.edge_streams import not_grouped
from partita.partitioning.loads import class_caps, class_loads
from partita.partitioning.near import count, counters, move, saved

_ENOUGH = 0.0005  # of the nodes moved in a pass: further passes change next to nothing
_CANDIDATES = 3  # parts that are tried for a node, those with most of its in-neighbors


def refine(task: PartitionTask, parts: Int32[np.ndarray, "N"], passes: int) -> int:
    """Move nodes one by one, in order, where that makes the partition cheaper; in place.

    A node is offered to the parts that hold most of its in-neighbors, and moves only into a part whose load stays
    within ``1 + task.epsilon`` times the mean; a node of a part beyond that moves even at a loss. Where ``task`` has
    classes, that is said of the load of each class. Passes end early when hardly a node moves. What is cheaper:

    - an unweighted stream: fewer replicas, that is pairs of a node and a foreign part with an out-neighbor of it
      (METIS calls their number the communication volume), then fewer cut in-edges of the node. For this, out-neighbors
      of every node in every part are counted (:func:`.near.counters`): ``N x parts / 2`` bytes;
    - a weighted stream, or where ``task.memory_limit`` has no room for that: less weight of cut edges
      (Nishimura and Ugander, "Restreaming graph partitioning", KDD 2013, with a hard cap instead of a penalty).

    Args:
        task: its stream must be grouped by destination.
        parts: of every node, in [0, P).
        passes: at most so many.

    Returns:
        Nodes moved, over all passes.

    Raises:
        InputError: the stream has no rows.
    """
    if passes <= 0 or task.num_parts == 1:
        return 0
    if not task.stream.grouped:
        raise not_grouped()
    weights, classes = task.weights(), task.class_of()
    loads = class_loads(parts, task.num_parts, weights, classes)
    caps = class_caps(loads, task.epsilon)
    near = counters(task)
    moved_by_all = 0
    for number in range(1, passes + 1):
        if len(near) > 0:
            count(task, parts, near, f"count neighbors for pass {number}")
        moved = 0
        for rows in task.stream.rows(f"refine, pass {number} of at most {passes}"):
            moved += refine_rows(
                rows.first, rows.indptr, rows.src, rows.weight, parts, loads, weights, classes, caps, near, False
            )
        moved_by_all += moved
        if moved <= _ENOUGH * task.num_nodes:
            break
    return moved_by_all


@compiled
def refine_rows(first, indptr, src, weight, parts, all_loads, weights, classes, caps, near, only_forced):
    """Refine the nodes of some rows; ``only_forced``: those only whose class has too much load in their part."""
    moved = 0
    base = indptr[0]
    num_parts = all_loads.shape[1]
    counts = np.zeros(num_parts, dtype=np.int64)
    touched = np.empty(num_parts, dtype=np.int64)
    for r in range(len(indptr) - 1):
        v = first + r
        begin, end = indptr[r] - base, indptr[r + 1] - base
        its_class = np.int64(classes[v]) if len(classes) > 0 else np.int64(0)
        loads, cap = all_loads[its_class], caps[its_class]
        forced = loads[parts[v]] > cap
        if only_forced and not forced:
            continue
        num_touched = 0
        for e in range(begin, end):
            if e + AHEAD < len(src):
                prefetch(parts, np.int64(src[e + AHEAD]))
                if len(near) > 0:
                    prefetch(near, np.int64(src[e + AHEAD]) * near.shape[1])
            u = src[e]
            w = np.int64(weight[e]) if len(weight) > 0 else np.int64(1)
            if u == v or w == 0:
                continue
            p = parts[u]
            if counts[p] == 0:
                touched[num_touched] = p
                num_touched += 1
            counts[p] += w
        own = parts[v]
        load = weights[v] if len(weights) > 0 else 1
        best, best_gain, best_count = own, np.int64(0), counts[own]
        own_count = counts[own]
        counts[own] = 0
        for candidate in range(min(num_touched, _CANDIDATES) if len(near) > 0 else num_touched):
            chosen = candidate  # of what is left, the part with the most in-neighbors
            for i in range(candidate + 1, num_touched):
                a, b = touched[i], touched[chosen]
                if counts[a] > counts[b] or (counts[a] == counts[b] and loads[a] < loads[b]):
                    chosen = i
            p = touched[chosen]
            touched[chosen] = touched[candidate]
            touched[candidate] = p
            if p == own or loads[p] + load > cap:
                continue
            gain = saved(src, begin, end, v, own, p, parts, near) if len(near) > 0 else np.int64(0)
            if (forced and best == own) or gain > best_gain or (gain == best_gain and counts[p] > best_count):
                best, best_gain, best_count = p, gain, counts[p]
            if len(near) == 0:  # sorted by what counts: the first that has room is the best
                break
        counts[own] = own_count
        for i in range(num_touched):
            counts[touched[i]] = 0
        if best != own:
            if len(near) > 0:
                move(src, begin, end, v, own, best, near)
            parts[v] = best
            loads[own] -= load
            loads[best] += load
            moved += 1
    return moved
