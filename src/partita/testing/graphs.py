"""Small graphs for tests: one whose every value follows from node ids by a formula, and random ones.

All formulas speak of *original indices*, so they hold for a re-ordered store as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int, Int64
from numpy.typing import DTypeLike

from partita.core.keys import Purpose, fold
from partita.graph.build import TopologyBuilder
from partita.graph.column_specs import levels_column
from partita.graph.hashing import fold_array, normal, uniform
from partita.graph.small import BITS, Levels
from partita.graph.splits import seeded_split, write_splits
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter

_MEMORY = 1 << 22
_NAMED = 1000


def formula_neighbors(node: int, num_nodes: int) -> list[int]:
    """The in-neighbors of a node of :func:`formula_store`, in order, as original indices.

    Node v has ``v % 6`` neighbors ``(v + 1 + j * (v % 3 + 1)) % N``, so every sixth node has none; the first
    neighbor of every fifth node comes twice more at the end; every fourth node that has neighbors is its own first one.
    """
    found = [(node + 1 + j * (node % 3 + 1)) % num_nodes for j in range(node % 6)]
    found = [u for u in found if u != node]
    if found and node % 5 == 2:
        found += [found[0], found[0]]
    if found and node % 4 == 3:
        found.insert(0, node)
    return found


def formula_weight(src: Int[np.ndarray, "n"], dst: Int[np.ndarray, "n"]) -> Float32[np.ndarray, "n"]:
    """Weight of the edge src -> dst: ``((7 src + 3 dst) % 9) / 4``, float32; some are 0."""
    return (((7 * src + 3 * dst) % 9) / 4).astype(np.float32)


def formula_edge_features(
    src: Int[np.ndarray, "n"], dst: Int[np.ndarray, "n"], columns: int
) -> Float32[np.ndarray, "n A"]:
    """Features of the edges src -> dst: column a is ``((5 src + 11 dst + 3 a) % 13) / 8 - 0.7``, float32."""
    found = (5 * src[:, None] + 11 * dst[:, None] + 3 * np.arange(columns)) % 13
    return (found / 8 - 0.7).astype(np.float32)


def formula_features(ids: Int[np.ndarray, "n"], num_features: int) -> Float[np.ndarray, "n F"]:
    """Rows that name their node: column 0 is ``id // 1000``, column 1 ``id % 1000``, column f ``(id + f) % 7``.

    All are small integers, exact in float16 up to two million nodes.
    """
    x = (ids[:, None] + np.arange(num_features)) % 7
    x[:, 0] = ids // _NAMED
    if num_features > 1:
        x[:, 1] = ids % _NAMED
    return x.astype(np.float32)


def formula_store(
    path: str | os.PathLike[str],
    *,
    num_nodes: int = 60,
    num_features: int = 4,
    num_classes: int = 3,
    weighted: bool = False,
    edge_features: int = 0,
    dtype: DTypeLike = np.float32,
    names: str | None = None,
    num_parts: int = 1,
    shuffle_seed: int | None = None,
) -> GraphStore:
    """Make a small store whose content follows from original indices.

    Edges: :func:`formula_neighbors`. Features: :func:`formula_features`. Label of v: ``v % num_classes``.
    Splits: ``v % 5`` of 0, 1, 2 train, 3 validation, 4 test.

    Args:
        path: of the store.
        num_nodes: N.
        num_features: F, 0 for none.
        num_classes: 0 for no labels and no splits.
        weighted: edges weigh :func:`formula_weight`.
        edge_features: columns of :func:`formula_edge_features`, 0 for none.
        dtype: of the features, or ``"int8"`` or ``"int4"`` for small integers.
        names: ``None``, ``"numbers"`` (10 v + 7) or ``"strings"`` (``"node-v"``).
        num_parts: parts of nearly equal size.
        shuffle_seed: of a random order of the nodes; ``None`` keeps the original one.
    """
    order = np.arange(num_nodes)
    if shuffle_seed is not None:
        order = np.argsort(fold_array(fold(int(Purpose.GENERATE), shuffle_seed), order), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(num_nodes)
    rows = [formula_neighbors(v, num_nodes) for v in range(num_nodes)]
    src = np.array([u for row in rows for u in row], dtype=np.int64)
    dst = np.repeat(np.arange(num_nodes), [len(row) for row in rows])
    with StoreWriter(path) as writer:
        numbered = edge_features > 0
        builder = TopologyBuilder(writer, memory_limit=_MEMORY, weighted=weighted, numbered=numbered)
        number = np.arange(len(src)) if numbered else None
        builder.add(src, dst, formula_weight(src, dst) if weighted else None, number=number)
        features = formula_edge_features(src, dst, edge_features) if numbered else None
        summary = builder.finish(num_nodes, rank, features)
        if num_features:
            write_features(writer, "x", formula_features(order, num_features), dtype)
        if num_classes:
            writer.write("y", order % num_classes)
            picks = {"train": (0, 1, 2), "val": (3,), "test": (4,)}
            original = np.arange(num_nodes)
            write_splits(writer, {name: rank[np.isin(original % 5, rest)] for name, rest in picks.items()})
        if shuffle_seed is not None:
            writer.write("original_index", order)
        _write_names(writer, order, names)
        writer.write("part_offsets", np.arange(num_parts + 1) * num_nodes // num_parts)
        writer.finish(
            num_nodes=num_nodes,
            num_edges=summary.num_edges,
            task="classes" if num_classes else None,
            num_classes=num_classes,
            source="formula",
            split_rule="index modulo 5" if num_classes else "",
        )
    return GraphStore.open(path)


def write_features(writer: StoreWriter, name: str, x: Float[np.ndarray, "N F"], dtype: DTypeLike) -> None:
    """Write a column of features, of small integers where ``dtype`` is ``"int8"`` or ``"int4"``."""
    if isinstance(dtype, str) and dtype in BITS:
        rows = x.astype(np.float32)
        levels = Levels.of_blocks(dtype, [rows], x.shape[1])
        writer.write(levels_column(name), levels.as_column())
        writer.write(name, levels.stored(rows))
    else:
        writer.write(name, x.astype(dtype))


def _write_names(writer: StoreWriter, order: Int64[np.ndarray, "N"], names: str | None) -> None:
    if names == "numbers":
        writer.write("name", 10 * order + 7)
    elif names == "strings":
        text = [f"node-{v}".encode() for v in order]
        writer.write("name_offsets", np.cumsum([0, *map(len, text)], dtype=np.int64))
        writer.write("name_bytes", np.frombuffer(b"".join(text), dtype=np.uint8))
    elif names is not None:
        raise ValueError(f"names must be None, 'numbers' or 'strings', not '{names}'")


_LABELS: dict[str, Callable[[int, int, int], np.ndarray]] = {
    "classes": lambda key, nodes, width: (fold_array(key, np.arange(nodes)) % np.uint64(width)).astype(np.int64),
    "multilabel": lambda key, nodes, width: (
        (fold_array(key, np.arange(nodes * width)) % np.uint64(2)).astype(np.uint8).reshape(nodes, width)
    ),
    "regression": lambda key, nodes, width: normal(key, np.arange(nodes)).astype(np.float32),
}
"""Random labels by what they are for, from a key, and the numbers of nodes and classes."""


def small_random_store(
    path: str | os.PathLike[str],
    num_nodes: int,
    num_edges: int,
    seed: int = 0,
    *,
    num_features: int = 8,
    num_classes: int = 4,
    task: str = "classes",
    weighted: bool = False,
    dtype: DTypeLike = np.float32,
    **treatment: Any,
) -> GraphStore:
    """Make a store of uniformly random edges, Gaussian features, random labels and a 60/20/20 split.

    Args:
        path: of the store.
        num_nodes: N.
        num_edges: edges drawn, with repeats and self loops.
        seed: of everything.
        num_features: F, 0 for none.
        num_classes: 0 for no labels and no splits; of a regression 1.
        task: what the labels are for.
        weighted: draw weights from [0, 1).
        dtype: of the features, or ``"int8"`` or ``"int4"`` for small integers.
        treatment: of the edges; see :class:`~partita.graph.build.TopologyBuilder`.
    """
    key = fold(int(Purpose.GENERATE), seed)
    edges = np.arange(num_edges)
    src, dst = ((fold_array(fold(key, end), edges) % np.uint64(num_nodes)).astype(np.int64) for end in (0, 1))
    with StoreWriter(path) as writer:
        builder = TopologyBuilder(writer, memory_limit=_MEMORY, weighted=weighted, **treatment)
        builder.add(src, dst, uniform(fold(key, 2), edges) if weighted else None)
        summary = builder.finish(num_nodes)
        if num_features:
            x = normal(fold(key, 3), np.arange(num_nodes * num_features)).reshape(num_nodes, num_features)
            write_features(writer, "x", x, dtype)
        if num_classes:
            writer.write("y", _LABELS[task](fold(key, 4), num_nodes, num_classes))
            write_splits(writer, seeded_split(num_nodes, seed=seed))
        writer.finish(
            num_nodes=num_nodes,
            num_edges=summary.num_edges,
            task=task if num_classes else None,
            num_classes=num_classes,
            source=f"random, seed {seed}",
            split_rule="random 0.6/0.2/0.2" if num_classes else "",
        )
    return GraphStore.open(Path(path))
