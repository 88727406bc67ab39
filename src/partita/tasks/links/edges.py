"""The edges that a run learns to predict, and those that it is judged by."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64, UInt64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.keys import MIX_1, MIX_2
from partita.graph.schema import REVERSE_PREFIX, Schema
from partita.graph.store import GraphStore
from partita.nn.decoders import Side
from partita.sample.targets import TargetSide

SOURCE, TARGET, RELATION, TIME = 0, 1, 2, 3
"""Columns of an edge; an untyped graph's have no third, unless edges are asked about at times: then it is 0."""

COLUMN: dict[Side, int] = {"head": SOURCE, "tail": TARGET}
"""Of the ends of an edge."""


def target_relations(schema: Schema, names: str) -> list[int]:
    """Numbers of the relations whose edges are learned: those named, or all but reverse ones.

    Raises:
        ConfigError: there is no such relation.
    """
    if not names.strip():
        return [
            at
            for at, (each, other) in enumerate(zip(schema.relations, schema.reverses.tolist(), strict=True))
            if other < 0 or not each.name.startswith(REVERSE_PREFIX)
        ]
    return sorted({at for name in names.split() for at in schema.relation_numbers(name, "target_relations")})


def ends_of(store: GraphStore) -> tuple[Int64[np.ndarray, "E"], Int64[np.ndarray, "E"]]:
    """Original indices of the sources and the destinations of all edges, in the order of the store."""
    destinations = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    return store.to_original(store.indices.astype(np.int64)), store.to_original(destinations)


def message_edges(
    store: GraphStore, relations: list[int] | None, *, undirected: bool = False, times: bool = False
) -> Int64[Tensor, "S columns"]:
    """The edges of a store that a run learns from.

    They are in an order that does not depend on how the store is partitioned: by original index of the destination,
    and in its row. Loops are left out.

    Args:
        store: the whole graph.
        relations: numbers of those that are taken, in a typed graph.
        undirected: every edge has its reverse; each is taken in one direction, from the lower original index to the
            higher one.
        times: the edges have times, which are wanted, too.

    Returns:
        int64 (S, 2) sources and destinations; in a typed graph (S, 3), with numbers of relations. With ``times``
        (S, 4): relations, 0 in an untyped graph, and times of the edges.
    """
    store.require_whole("link prediction")
    destinations = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    sources, ends = store.indices.astype(np.int64), ends_of(store)
    keep = sources != destinations
    columns = [sources, destinations]
    if store.schema is None:
        if undirected:
            keep &= ends[0] < ends[1]
    else:
        kinds = np.asarray(store.edge_type).astype(np.int64)
        columns.append(kinds)
        keep &= np.isin(kinds, relations or [])
    if times:
        columns += [np.zeros_like(sources)] if store.schema is None else []
        columns.append(store.column("edge_time"))
    found = np.stack([column[keep] for column in columns], axis=1)
    if store.original_index is not None:
        found = found[np.argsort(ends[1][keep], kind="stable")]
    return torch.from_numpy(np.ascontiguousarray(found))


def is_symmetric(sources: Int64[np.ndarray, "E"], destinations: Int64[np.ndarray, "E"], num_nodes: int) -> bool:
    """Whether every edge is there in both directions, equally often: sums of hashes of both are compared."""
    forward, backward = (
        int(_mixed(a.astype(np.uint64) * np.uint64(num_nodes) + b.astype(np.uint64)).sum(dtype=np.uint64))
        for a, b in ((sources, destinations), (destinations, sources))
    )
    return forward == backward


def _mixed(z: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """:func:`partita.core.keys.mix64` of each."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return z ^ (z >> np.uint64(31))


def held_out_edges(store: GraphStore, split: str, relations: list[int] | None) -> Int64[Tensor, "S columns"]:
    """The edges of a split that are held out, of the relations that are learned; see :func:`message_edges`.

    Raises:
        StoreError: the store has no such split.
    """
    ends, kinds = store.held_out_edges(split)
    columns = [*ends.astype(np.int64)]
    if store.schema is None:
        return torch.from_numpy(np.stack(columns, axis=1))
    if kinds is None:
        raise ConfigError("held-out edges have no relations", where=str(store.path), fix="Make the store anew")
    kept = np.isin(kinds, relations or [])
    return torch.from_numpy(np.stack([*columns, kinds.astype(np.int64)], axis=1)[kept])


def target_sides(schema: Schema | None) -> list[TargetSide]:
    """What carries no messages while some edges are learned: these, and their reverses.

    In a typed graph the reverse of an edge is that of the reverse relation, where there is one; and of the relation
    itself, where both ends have the same type.
    """
    if schema is None:
        return [TargetSide(backward=False), TargetSide(backward=True)]
    own, one_type = torch.arange(len(schema.relations)), torch.from_numpy(schema.ends[:, 0] == schema.ends[:, 1])
    sides = [(False, own), (True, torch.from_numpy(schema.reverses)), (True, torch.where(one_type, own, -1))]
    return [TargetSide(backward, relations) for backward, relations in sides if bool((relations >= 0).any())]
