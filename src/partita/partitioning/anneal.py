"""Simulated annealing by restreaming: nodes follow random neighbors, at first also at a loss, later only for a gain."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from partita.core import keys
from partita.core.partitioning import PartitionTask
from partita.kernels.compile import compiled
from partita.partitioning.edge_streams import not_grouped
from partita.partitioning.loads import class_caps, class_loads, spread_rest
from partita.partitioning.near import count, counters, move, replicas, saved
from partita.partitioning.random import hashed, hashed_part, partition_key

_TEMPERATURE = 4.0  # at the start, in replicas or edges
_COUNT_EVERY = 20  # passes


def anneal(task: PartitionTask, parts: Int32[np.ndarray, "N"], passes: int) -> int:
    """Make a partition cheaper by moves that may be for the worse, in place.

    In every pass each node is offered, in order, the part of one of its in-neighbors, drawn at random. It moves with
    probability ``min(1, exp(saved / T))``, if the part has room (Kirkpatrick, Gelatt and Vecchi, "Optimization by
    simulated annealing", Science 1983, with the acceptance of Metropolis et al., 1953). The temperature T falls
    linearly from 4 to 0. So nodes leave places from which greedy moves see no way out, and whole clusters can change
    parts. A pass is cheap: a node whose drawn neighbor is in the same part costs one look.

    - What is saved are replicas, as :func:`.refine` counts them; or, where :func:`.near.counters` are empty, cut
      in-edges of the node, by their weight over the mean weight.
    - A part has room up to ``1 + task.epsilon`` times the mean load, of each class where ``task`` has classes. A node
      of a part beyond that takes any offer, and is offered any part where the neighbor's has no room.
    - A part gives nothing away below ``1 - task.epsilon`` times the mean load of nodes with edges, and a part below
      that is offered to nodes at random, which take it: else some parts would run empty, which saves replicas. (A
      part that nodes without edges have filled may stay below.)
    - Nodes without edges make room, and fill up what is left at the end (unless there are classes).
    - Draws are hashes of the seed, the pass and the node.

    Args:
        task: with a survey; its stream must be grouped by destination.
        parts: of every node, in [0, P). They stay as they are where the passes did not make them better, by
            :func:`cost`.
        passes: over the rows; as many temperatures.

    Returns:
        What was saved: replicas, or weight of cut edges. May be negative where loads had to be made even.

    Raises:
        InputError: the stream has no rows.
    """
    if passes <= 0 or task.num_parts == 1:
        return 0
    if not task.stream.grouped:
        raise not_grouped()
    weights, classes = task.weights(), task.class_of()
    near = counters(task)
    start, before = parts.copy(), cost(task, parts, near)
    whole = class_loads(parts, task.num_parts, weights, classes)
    caps = class_caps(whole, task.epsilon)
    if task.classes is None:  # nodes without edges make room for others, and fill up what is left
        parts[np.equal(task.surveyed().degree, 0)] = -1
    loads = class_loads(parts, task.num_parts, weights, classes)
    floors = np.repeat(_floors(loads, task.epsilon), task.num_parts).reshape(loads.shape)
    enough = whole >= _floors(whole, task.epsilon)[:, None]
    floors[enough] = np.minimum(floors, loads)[enough]  # METIS may have filled a part with nodes without edges
    unit = _mean_weight(task)
    key = int(partition_key(task.seed))
    for number in range(passes):
        # Afresh: counters that stand at their most cannot be counted down.
        if number and number % _COUNT_EVERY == 0 and len(near) > 0:
            count(task, parts, near, f"count neighbors for pass {number + 1}")
        temperature, lacking = _TEMPERATURE * (1 - number / passes), (loads < floors).any(axis=1)
        for rows in task.stream.rows(f"anneal, pass {number + 1} of {passes}"):
            _anneal_rows(
                rows.first, rows.indptr, rows.src, rows.weight, parts, loads, weights, classes, caps, floors,
                lacking, near, temperature, unit, np.uint64(keys.fold(key, number)),
            )  # fmt: skip
    spread_rest(parts, task.num_parts, weights)
    after = cost(task, parts, near)
    if after > before:
        parts[:] = start
        return 0
    return before[1] - after[1]


def cost(task: PartitionTask, parts: Int32[np.ndarray, "N"], near: UInt8[np.ndarray, "n W"]) -> tuple[int, int]:
    """By what two partitions are compared, the first number first.

    Args:
        task: its stream must be grouped by destination.
        parts: of every node, in [0, P).
        near: :func:`.near.counters`; receives the counts.

    Returns:
        The load that parts have beyond ``1 + task.epsilon`` times the mean, over all classes; and the replicas, or
        where ``near`` is empty the weight of cut edges.
    """
    loads = class_loads(parts, task.num_parts, task.weights(), task.class_of())
    beyond = int(np.maximum(loads - class_caps(loads, task.epsilon)[:, None], 0).sum())
    if len(near) > 0:
        count(task, parts, near, "count replicas")
        return beyond, int(replicas(parts, near))
    return beyond, sum(
        int(_cut_rows(rows.first, rows.indptr, rows.src, rows.weight, parts)) for rows in task.stream.rows("count cuts")
    )


def _floors(loads: Int64[np.ndarray, "K P"], epsilon: float) -> Int64[np.ndarray, "K"]:
    """The least of each class that a part is to have."""
    return np.floor(max(0.0, 1 - epsilon) * loads.sum(axis=1) / loads.shape[1]).astype(np.int64)


def _mean_weight(task: PartitionTask) -> float:
    """Of an edge; 1 where edges have no weights, or no edge has one."""
    survey = task.surveyed()
    if not task.stream.weighted or survey.volume == 0:
        return 1.0
    return survey.volume / 2 / max(survey.num_edges - survey.num_loops, 1)


@compiled
def _cut_rows(first, indptr, src, weight, parts):
    cut = np.int64(0)
    base = indptr[0]
    for r in range(len(indptr) - 1):
        own = parts[first + r]
        for e in range(indptr[r] - base, indptr[r + 1] - base):
            if parts[src[e]] != own:
                cut += np.int64(weight[e]) if len(weight) > 0 else np.int64(1)
    return cut


@compiled
def _cut_saved(src, weight, begin, end, v, own, to, parts):
    total = np.int64(0)
    for e in range(begin, end):
        if src[e] != v:
            w = np.int64(weight[e]) if len(weight) > 0 else np.int64(1)
            total += w * (np.int64(parts[src[e]] == to) - np.int64(parts[src[e]] == own))
    return total


@compiled
def _anneal_rows(
    first, indptr, src, weight, parts, all_loads, weights, classes, caps, floors, lacking, near, temperature, unit, key
):  # fmt: skip
    base = indptr[0]
    for r in range(len(indptr) - 1):
        v = first + r
        begin, end = indptr[r] - base, indptr[r + 1] - base
        if begin == end:
            continue
        draw = hashed(v, key)
        own, to = parts[v], parts[src[begin + np.int64(draw % np.uint64(end - begin))]]
        if own < 0 or to < 0:
            continue
        its_class = np.int64(classes[v]) if len(classes) > 0 else np.int64(0)
        loads, cap = all_loads[its_class], caps[its_class]
        load = weights[v] if len(weights) > 0 else 1
        forced = loads[own] > cap
        if (forced and (to == own or loads[to] + load > cap)) or lacking[its_class]:
            anyone = hashed_part(v, draw, len(loads))  # a part without nodes has none that could be followed
            if forced or loads[anyone] < floors[its_class, anyone]:
                to, forced = anyone, True
        if to == own or loads[to] + load > cap or loads[own] - load < floors[its_class, own]:
            continue
        if len(near) > 0:
            gain = np.float64(saved(src, begin, end, v, own, to, parts, near))
        else:
            gain = _cut_saved(src, weight, begin, end, v, own, to, parts) / unit
        if gain < 0 and not forced:
            chance = np.float64(hashed(v, draw) >> np.uint64(11)) * 2.0**-53
            if chance >= np.exp(gain / temperature):
                continue
        if len(near) > 0:
            move(src, begin, end, v, own, to, near)
        parts[v] = to
        loads[own] -= load
        loads[to] += load
