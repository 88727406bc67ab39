"""What is to be even besides the load of the parts: the nodes of every type, and the training nodes among them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Int32, UInt16

from partita.core.errors import ConfigError, nearest
from partita.core.partitioning import PartitionTask
from partita.graph.store import GraphStore
from partita.kernels.compile import compiled
from partita.partitioning.loads import class_caps, class_loads
from partita.partitioning.quality import types_of
from partita.partitioning.refine import refine_rows


def node_classes(store: GraphStore, balance: str) -> UInt16[np.ndarray, "N"] | None:
    """The class of every node; the load of each class is to be spread evenly over the parts.

    ========= =========================================================
    balance   classes
    ========= =========================================================
    ``none``  all nodes are alike, and what is balanced is their load
    ``type``  node types; an untyped graph has one
    ``train`` of each node type, the training nodes and the others
    ========= =========================================================

    Raises:
        ConfigError: no such choice, or the store has no training nodes.
    """
    if balance not in BALANCES:
        raise ConfigError(f"there is no balance '{balance}'", where="balance", fix=nearest(balance, BALANCES))
    return BALANCES[balance](store)


def _by_type(store: GraphStore) -> UInt16[np.ndarray, "N"]:
    types = types_of(store)
    return np.zeros(store.num_nodes, dtype=np.uint16) if types is None else types[1]


def _by_training(store: GraphStore) -> UInt16[np.ndarray, "N"]:
    train = store.splits.get("train")
    if train is None:
        raise ConfigError(
            "the store has no training nodes to balance",
            where="balance",
            fix="Ingest again with --split, or use --balance type",
        )
    found = _by_type(store) * np.uint16(2)
    found[train] += np.uint16(1)
    return found


BALANCES: dict[str, Callable[[GraphStore], UInt16[np.ndarray, "N"] | None]] = {
    "none": lambda store: None,
    "type": _by_type,
    "train": _by_training,
}
"""Name -> classes of the nodes of a store; the only place that knows these names."""


def even_out(task: PartitionTask, parts: Int32[np.ndarray, "N"]) -> int:
    """Move nodes of classes that have too much load in their part, in place, until none has.

    One pass over the rows moves them to the parts with most of their in-neighbors where these have room; what is left
    goes where the class has the least load. Then no part has more of a class than ``1 + task.epsilon`` times the mean,
    rounded up; where nodes have weights, or than the mean and the heaviest node.

    Args:
        task: with classes; its stream is grouped by destination.
        parts: of every node, in [0, P).

    Returns:
        Nodes moved.
    """
    weights, classes = task.weights(), task.class_of()
    loads = class_loads(parts, task.num_parts, weights, classes)
    caps = class_caps(loads, task.epsilon)
    if (loads <= caps[:, None]).all():
        return 0
    nowhere, moved = np.empty((0, 0), dtype=np.uint8), 0
    for rows in task.stream.rows("balance the classes of nodes"):
        moved += refine_rows(
            rows.first, rows.indptr, rows.src, rows.weight, parts, loads, weights, classes, caps, nowhere, True
        )
    return moved + int(_move_rest(parts, loads, weights, classes, caps))


@compiled
def _move_rest(parts, loads, weights, classes, caps):
    moved = 0
    for v in range(len(parts)):
        its_class = np.int64(classes[v]) if len(classes) > 0 else np.int64(0)
        of_class, own = loads[its_class], parts[v]
        if of_class[own] <= caps[its_class]:
            continue
        load = weights[v] if len(weights) > 0 else 1
        least = np.argmin(of_class)
        if of_class[least] + load <= caps[its_class] or of_class[least] + load < of_class[own]:
            of_class[own] -= load
            of_class[least] += load
            parts[v] = least
            moved += 1
    return moved
