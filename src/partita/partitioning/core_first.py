"""Parts by degree: a start for graphs that have a core instead of communities."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32

from partita.core.partitioning import PartitionTask
from partita.kernels.compile import compiled
from partita.partitioning.loads import class_loads


def core_first(task: PartitionTask) -> Int32[np.ndarray, "N"]:
    """Divide the nodes in order of their degrees: the first part gets those with the most neighbors, and so on.

    Some graphs have no communities, but hubs with edges among themselves and to everyone, R-MAT for one. Then most
    edges lie inside the first part, and the other parts need little besides it. From all edges METIS finds nearly the
    same; from a sample it does not.

    Args:
        task: with a survey.

    Returns:
        Of every node; -1 of nodes without edges. Loads of parts, of each class, are even but for one node.
    """
    degree, weights, classes = task.surveyed().degree, task.weights(), task.class_of()
    order = np.argsort(-degree, kind="stable")
    order = order[: np.count_nonzero(degree)]
    parts = np.full(task.num_nodes, -1, dtype=np.int32)
    parts[order] = 0
    totals = class_loads(parts, 1, weights, classes)[:, 0]
    _deal_in_order(order, weights, classes, totals, np.int64(task.num_parts), parts)
    return parts


@compiled
def _deal_in_order(order, weights, classes, totals, num_parts, parts):
    dealt = np.zeros(len(totals), dtype=np.int64)
    for v in order:
        c = np.int64(classes[v]) if len(classes) > 0 else np.int64(0)
        parts[v] = dealt[c] * num_parts // totals[c]
        dealt[c] += weights[v] if len(weights) > 0 else 1
