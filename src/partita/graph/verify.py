"""Reads a whole graph store and checks that it is what its metadata promises and that its columns fit each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from jaxtyping import Shaped

from partita.core import progress
from partita.core.errors import StoreError
from partita.graph.column_specs import ColumnSpec, hot_columns, known, levels_column, type_of_column
from partita.graph.metadata import HELD_TYPE_SUFFIX, SPLIT_PREFIX, how_to_mend
from partita.graph.small import BITS
from partita.graph.soundness import first_fall, rows_of, wrong_columns
from partita.graph.store import GraphStore

_CHUNK = 1 << 20

_Checks = list[tuple[tuple[str, ...], Callable[[GraphStore, progress.Bar], str | None]]]


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Check every checksum and every rule of the format. Memory: O(nodes).

    Args:
        path: a graph store, whole or a shard.

    Returns:
        One line for each column that was checked; before them, one that says what a shard holds.

    Raises:
        StoreError: something is wrong; the message names every damaged column.
    """
    store = GraphStore.open_unchecked(path)
    problems = wrong_columns(store.path, store.metadata, store.metadata.columns)
    columns = known(store.columns)
    finite: _Checks = [((name,), partial(_check_finite, name, spec)) for name, spec in columns.items() if spec.finite]
    hot: _Checks = [(hot_columns(name), partial(_check_hot, name)) for name in store.features]
    levels: _Checks = [((levels_column(name),), partial(_check_levels, name)) for name in store.features]
    for names, check in [*_CHECKS, *hot, *finite, *levels]:
        present = [name for name in names if store.has(name)]
        # What a column with wrong bytes holds is not worth a second complaint, and other checks may lean on it.
        if present and not any(name in problems for name in (*present, "indptr")):
            with progress.task(f"check {present[0]}") as task:
                if wrong := check(store, task):
                    problems[present[0]] = wrong
    for name, spec in columns.items():
        judged = name in problems or "original_index" in problems
        if spec.of == "list" and not judged and (wrong := _check_split(store, name)):
            problems[name] = wrong
        if spec.of == "held" and spec.reorder == "map" and name not in problems and (wrong := _check_held(store, name)):
            problems[name] = wrong
    if not any(name.startswith(SPLIT_PREFIX) for name in problems):
        _check_disjoint(store, problems)
    if problems:
        raise StoreError(
            "the store is damaged: " + "; ".join(f"column '{name}': {what}" for name, what in problems.items()),
            where=str(store.path),
            fix=how_to_mend(store.shard),
        )
    lines = [
        f"{name}: {c.dtype} {c.shape}, {c.bytes:,} bytes, matches metadata"
        for name, c in store.metadata.columns.items()
    ]
    if store.shard is not None:
        nodes = f"nodes {store.shard.first_node:,}:{store.shard.last_node:,} of {store.num_nodes:,}"
        lines.insert(0, f"{store.shard}: {nodes}, {', '.join(sorted(store.shard.cut))} cut")
    return lines


def _chunks(column: Shaped[np.ndarray, "n ..."], task: progress.Bar, overlap: int = 0) -> Iterator[tuple[int, slice]]:
    """Slices over the rows of a column, each with ``overlap`` rows of the next one."""
    for start in range(0, len(column), _CHUNK):
        yield start, slice(start, start + _CHUNK + overlap)
        task.advance(min(_CHUNK, len(column) - start))


def _check_offsets(name: str, store: GraphStore, task: progress.Bar) -> str | None:
    position = first_fall(store.column(name))
    return None if position is None else f"the offsets fall at entry {position:,}"


def _check_indices(store: GraphStore, task: progress.Bar) -> str | None:
    """Every source is a node, and the number of self loops of every node is as recorded."""
    (indices, first), indptr = store.held("indices"), store.indptr
    loops = np.zeros(store.num_nodes, dtype=np.int32)
    for start, part in _chunks(indices, task):
        src = indices[part]
        wrong = (src < 0) | (src >= store.num_nodes)
        if wrong.any():
            position = start + int(np.argmax(wrong))
            return f"entry {position:,} is {int(indices[position])}, not the id of one of {store.num_nodes:,} nodes"
        rows = rows_of(indptr, first + start, first + start + len(src))
        np.add.at(loops, rows[rows == src], 1)
    if store.self_loops is None:
        differs, wrong_loops = loops > 0, "a self loop, but there is no column self_loops"
    else:
        differs, wrong_loops = loops != store.self_loops, "another number of self loops than self_loops says"
    here = store.nodes_with_edges
    differs[: here.start] = differs[here.stop :] = False
    return f"node {int(np.argmax(differs))} has {wrong_loops}" if differs.any() else None


def _check_types(store: GraphStore, task: progress.Bar) -> str | None:
    """Every edge is of a relation between the types of its ends, rows are sorted by relation, the counts are right."""
    schema = store.schema
    assert schema is not None
    (kinds, first), indices, indptr = store.held("edge_type"), store.held("indices")[0], store.indptr
    counts, last_row, last_kind = np.zeros(len(schema.relations), np.int64), -1, 0
    for start, part in _chunks(kinds, task):
        kind = kinds[part].astype(np.int64)
        if len(kind) and kind.max() >= len(schema.relations):
            at = int(np.argmax(kind >= len(schema.relations)))
            return f"edge {start + at:,} is of relation {kind[at]}, of {len(schema.relations)}"
        rows = rows_of(indptr, first + start, first + start + len(kind))
        ends = np.stack([store.types(np.asarray(indices[part], np.int64)), store.types(rows)], axis=1)
        strange = (ends != schema.ends[kind]).any(axis=1)
        if strange.any():
            at = int(np.argmax(strange))
            return f"edge {start + at:,} is of relation {schema.relations[kind[at]]}, but its ends are of other types"
        falls = (np.diff(kind, prepend=last_kind) < 0) & (np.diff(rows, prepend=last_row) == 0)
        if falls.any():
            return f"the row of node {int(rows[np.argmax(falls)]):,} is not sorted by relation"
        last_row, last_kind = int(rows[-1]), int(kind[-1])
        counts += np.bincount(kind, minlength=len(counts))
    known_counts = np.array(schema.num_edges)  # a shard may have some of the edges
    wrong = counts > known_counts if store.edges_are_cut else counts != known_counts
    return f"relation {schema.relations[int(np.argmax(wrong))]} has another number of edges" if wrong.any() else None


def _check_weights(store: GraphStore, task: progress.Bar) -> str | None:
    """Weights are usable, and their quantized form belongs to them."""
    if not store.has("edge_weight"):
        return "quantized weights without weights"
    weight = store.held("edge_weight")[0]
    quantized = store.held("edge_weight_quantised")[0] if store.has("edge_weight_quantised") else None
    for start, part in _chunks(weight, task):
        wrong = ~((weight[part] >= 0) & (weight[part] < np.inf))
        if wrong.any():
            return f"edge {start + int(np.argmax(wrong)):,} has a weight that is not a finite number >= 0"
        if quantized is not None:
            differs = (weight[part] > 0) != (quantized[part] > 0)
            if differs.any():
                return f"edge {start + int(np.argmax(differs)):,} is zero only in one of weight and quantized weight"
    return None


def _check_times(store: GraphStore, task: progress.Bar) -> str | None:
    """The edges of a relation are in order of time in every row: neighbors until a time are found by search."""
    if not store.has("edge_time"):
        return None
    (times, first), indptr = store.held("edge_time"), store.indptr
    kinds = store.held("edge_type")[0] if store.has("edge_type") else None
    for start, part in _chunks(times, task, overlap=1):
        time = times[part]
        rows = rows_of(indptr, first + start, first + start + len(time))
        wrong = (time[1:] < time[:-1]) & (rows[1:] == rows[:-1])
        if kinds is not None:
            kind = kinds[part]
            wrong &= kind[1:] == kind[:-1]
        if wrong.any():
            return f"the row of node {int(rows[np.argmax(wrong)]):,} is not in order of time"
    return None


def _check_finite(name: str, spec: ColumnSpec, store: GraphStore, task: progress.Bar) -> str | None:
    rows, first = store.held(name)
    position = _not_finite(store, rows, task)
    if position is None:
        return None
    of, number = "edge" if spec.of == "edges" else "node", first + position
    if spec.of == "type":
        number = int(store.node_types.ids(type_of_column(name) or 0, np.array([number]))[0])
    return f"the row of {of} {number:,} holds a number that is not finite"


def _check_levels(features: str, store: GraphStore, task: progress.Bar) -> str | None:
    """Small integers stand for finite numbers."""
    levels = store.levels_of(features)
    if levels is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        largest = levels.offset + levels.scale * np.float32(2 ** BITS[levels.dtype] - 1)
    wrong = ~(np.isfinite(levels.offset) & (levels.scale >= 0) & np.isfinite(largest))
    return f"feature {int(np.argmax(wrong)):,} has a scale or an offset that is none" if wrong.any() else None


def _check_hot(features: str, store: GraphStore, task: progress.Bar) -> str | None:
    """Hot rows are usable, and of other hosts' nodes."""
    hot = store.hot_of(features)
    if hot is None or store.shard is None:
        return None
    ids, x = hot
    own = (ids >= store.shard.first_node) & (ids < store.shard.last_node)
    if (np.diff(ids) <= 0).any() or own.any() or (len(ids) and (ids[0] < 0 or ids[-1] >= store.num_nodes)):
        return "not ascending ids of other hosts' nodes"
    position = _not_finite(store, x, task)
    return None if position is None else f"the row of node {int(ids[position]):,} holds a number that is not finite"


def _not_finite(store: GraphStore, x: Shaped[np.ndarray, "n ..."], task: progress.Bar) -> int | None:
    """The first row that holds a number that is not finite, unless the store allows that."""
    if store.metadata.notes.get("allow_nan") or x.dtype.kind in "iu":
        return None
    width = int(np.prod(x.shape[1:]))
    rows = max(1, _CHUNK // max(1, width))
    for start in range(0, len(x), rows):
        wrong = ~np.isfinite(x[start : start + rows]).reshape(-1, width).all(axis=1)
        if wrong.any():
            return start + int(np.argmax(wrong))
        task.advance(rows)
    return None


def _check_labels(store: GraphStore, task: progress.Bar) -> str | None:
    y = store.held("y")[0]
    low, high = {"classes": (-1, store.num_classes - 1), "multilabel": (0, 1)}.get(store.task or "", (-np.inf, np.inf))
    for start, part in _chunks(y, task):
        wrong = (y[part] < low) | (y[part] > high)
        if wrong.any():
            return f"the label of node {start + int(np.argwhere(wrong)[0][0]):,} is outside [{low}, {high}]"
    return None


def _check_permutation(store: GraphStore, task: progress.Bar) -> str | None:
    order = store.original_index
    assert order is not None
    seen = np.zeros(store.num_nodes, dtype=bool)
    for start, part in _chunks(order, task):
        wrong = (order[part] < 0) | (order[part] >= store.num_nodes)
        if wrong.any():
            return f"entry {start + int(np.argmax(wrong)):,} is not the index of a node"
        seen[order[part]] = True
    return None if seen.all() else f"not a permutation: index {int(np.argmin(seen)):,} is missing"


def _check_name_numbers(store: GraphStore, task: progress.Bar) -> str | None:
    names = np.sort(store.column("name"))
    same = names[1:] == names[:-1]
    return f"two nodes have the name {int(names[int(np.argmax(same))])}" if same.any() else None


def _check_name_text(store: GraphStore, task: progress.Bar) -> str | None:
    """Offsets ascend, every name is UTF-8 by itself."""
    offsets, text = store.column("name_offsets"), store.column("name_bytes")
    if falls := _check_offsets("name_offsets", store, task):
        return falls
    for start in range(0, store.num_nodes, _CHUNK):
        bounds = offsets[start : start + _CHUNK + 1]
        piece = text[bounds[0] : bounds[-1]]
        begins = bounds[:-1][np.diff(bounds) > 0] - bounds[0]
        try:
            piece.tobytes().decode("utf-8")
        except UnicodeDecodeError:
            return f"a name among the nodes {start:,} to {start + len(bounds) - 2:,} is not UTF-8"
        if ((piece[begins] & 0xC0) == 0x80).any():  # a continuation byte: a name begins inside a character
            return f"a name among the nodes {start:,} to {start + len(bounds) - 2:,} begins inside a character"
    return None


def _check_presampled(store: GraphStore, task: progress.Bar) -> str | None:
    """Every node weighs at least 1, and an edge was drawn only where its row was."""
    node, indptr = store.presample_node, store.indptr
    if node is None:
        return "edges were counted but no nodes"
    for start in range(0, store.num_nodes, _CHUNK):
        wrong = node[start : start + _CHUNK] < 1
        if wrong.any():
            return f"node {start + int(np.argmax(wrong)):,} weighs less than 1"
    if not store.has("presample_edge"):
        return None
    edge, first = store.held("presample_edge")
    for start, part in _chunks(edge, task):
        drawn = edge[part] > 0
        rows = rows_of(indptr, first + start, first + start + len(drawn))[drawn]
        wrong = node[rows] < 2
        if wrong.any():
            return f"node {int(rows[np.argmax(wrong)]):,} was never a destination, but has sampled edges"
    return None


def _check_split(store: GraphStore, name: str) -> str | None:
    ids = store.held(name)[0]
    if len(ids) and (ids.min() < 0 or ids.max() >= store.num_nodes):
        return "holds an id that is not a node"
    return None if (np.diff(store.to_original(ids)) > 0).all() else "is not in ascending original index, or has repeats"


def _check_held(store: GraphStore, name: str) -> str | None:
    """Held-out edges lead from nodes to nodes, and are of relations between the types of these."""
    pairs, kinds, schema = store.held(name)[0], name + HELD_TYPE_SUFFIX, store.schema
    for start in range(0, len(pairs), _CHUNK):
        part = pairs[start : start + _CHUNK]
        wrong = ((part < 0) | (part >= store.num_nodes)).any(axis=1)
        if wrong.any():
            row = int(np.argmax(wrong))
            return f"edge {start + row:,} is {part[row].tolist()}, not the ids of two of {store.num_nodes:,} nodes"
        if schema is None:
            continue
        kind = store.held(kinds)[0][start : start + _CHUNK].astype(np.int64)
        wrong = kind >= len(schema.relations)
        if not wrong.any():
            ends = np.stack([store.types(part[:, 0]), store.types(part[:, 1])], axis=1)
            wrong = (ends != schema.ends[kind]).any(axis=1)
        if wrong.any():
            row = int(np.argmax(wrong))
            return f"edge {start + row:,} is of relation {kind[row]} of '{kinds}', but its ends are of other types"
    return None


def _check_disjoint(store: GraphStore, problems: dict[str, str]) -> None:
    owner = np.zeros(store.num_nodes, dtype=np.uint8)
    for number, (name, ids) in enumerate(store.splits.items(), start=1):
        taken = owner[ids] > 0
        if taken.any():
            node, other = int(ids[np.argmax(taken)]), list(store.splits)[owner[ids[np.argmax(taken)]] - 1]
            problems[SPLIT_PREFIX + name] = f"node {node} is in the split '{other}' as well"
        owner[ids] = number


_CHECKS: _Checks = [
    (("indptr",), partial(_check_offsets, "indptr")),
    (("part_offsets",), partial(_check_offsets, "part_offsets")),
    (("indices", "self_loops"), _check_indices),
    (("edge_type",), _check_types),
    (("edge_weight", "edge_weight_quantised"), _check_weights),
    (("edge_time",), _check_times),
    (("y",), _check_labels),
    (("original_index",), _check_permutation),
    (("name",), _check_name_numbers),
    (("name_offsets", "name_bytes"), _check_name_text),
    (("presample_node", "presample_edge"), _check_presampled),
]
