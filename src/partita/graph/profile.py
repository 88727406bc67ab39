"""What there is to know of a graph before training on it: degrees, components, labels, features, and what looks wrong.

Everything is exact unless it is said to be a hash, and read in pieces: some 30 bytes of memory a node, none an edge or
a feature.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Float, Int64, Integer

from partita.core import progress
from partita.graph.leaks import check_leaks
from partita.graph.metadata import CLASSES, MULTILABEL, REGRESSION
from partita.graph.profile_loops import roots, scan
from partita.graph.schema import Schema
from partita.graph.small import SmallRows
from partita.graph.store import GraphStore

_EDGES_AT_ONCE = 1 << 20
_BYTES_AT_ONCE = 1 << 24
MOST_NAMED = 20
"""Columns, or classes, that are listed one by one."""
IMBALANCED = 10.0
"""How many times more nodes the most frequent class has than the least frequent one before that is a warning."""


def inspect(store: GraphStore | str | os.PathLike[str]) -> dict[str, Any]:
    """Look at all of a store.

    Args:
        store: a whole one, or its path.

    Returns:
        JSON values: ``edges`` (repeats, self loops, ``symmetric``: whether every edge has its reverse, compared by a
        64-bit hash of the set of edges), ``degrees`` (``in`` and ``out``: min, median, mean, p99, max; isolated nodes),
        ``components`` (weakly connected: number, nodes of the largest), ``labels`` (balance by split; homophily of
        classes), ``features`` (missing, infinite, constant columns, zero rows; nodes of val and test with the row of a
        training node, compared by a 64-bit hash), ``types`` (of a typed graph: ``labeled`` nodes by
        type), ``splits`` (overlaps), ``held_out`` (records of :func:`partita.check_leaks`) and ``warnings``
        (sentences).

    Raises:
        StoreError: the store is a shard.
    """
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    store.require_whole("inspect")
    store.require_edges()
    found: dict[str, Any] = {}
    found |= _structure(store)
    if store.y is not None:
        found["labels"] = _labels(store)
    if store.schema is not None:
        found["types"] = _types(store, store.schema)
    if store.x is not None:
        found["features"] = _features(store, store.x)
    found["splits"] = _splits(store)
    if store.held_out:
        found["held_out"] = [asdict(leak) for leak in check_leaks(store)]
    found["warnings"] = _warnings(store, found)
    return found


# Edges


def _structure(store: GraphStore) -> dict[str, Any]:
    number = store.num_nodes
    out, parent = np.zeros(number, dtype=np.int64), np.arange(number, dtype=np.int64)
    labeled = store.y if store.task == CLASSES and store.y is not None else np.empty(0, dtype=np.int64)
    classes = store.num_classes if len(labeled) else 0
    ends = np.zeros((2, classes), dtype=np.int64)
    state = np.zeros(6, dtype=np.uint64)  # self loops, repeats, hash of edges, of reversed edges, labeled, same class
    for first, indptr, source in _rows(store, "inspect edges"):
        scan(first, indptr, source, out, parent, labeled, ends, state)
    loops, repeats, forward, backward, known, same = (int(each) for each in state)
    degree = store.in_degree()
    sizes = np.bincount(roots(parent), minlength=number)
    isolated = int(np.count_nonzero((degree == 0) & (out == 0)))
    result: dict[str, Any] = {
        "structure": {
            "symmetric": forward == backward,
            "self_loops": loops,
            "repeated_edges": repeats,
            "isolated_nodes": isolated,
            "nodes_without_in_edges": int(np.count_nonzero(degree == 0)),
        },
        "degrees": {"in": _spread(degree), "out": _spread(out)},
        "components": {
            "number": int(np.count_nonzero(sizes)), "largest": int(sizes.max()) if number else 0
        },
    }  # fmt: skip
    if known:
        # Label assortativity: homophily above what random edges between nodes of these degrees would have
        # (Newman, Mixing patterns in networks, Physical Review E 67, 2003).
        chance = float((ends[0] / known) @ (ends[1] / known))
        share = same / known
        result["homophily"] = {
            "edges": share,
            "expected_at_random": chance,
            "assortativity": (share - chance) / (1 - chance) if chance < 1 else None,
            "labeled_edges": known,
        }
    return result


def _rows(store: GraphStore, doing: str) -> Iterator[tuple[int, Int64[np.ndarray, "R_1"], Integer[np.ndarray, "e"]]]:
    """Pieces of the edges: the first node, offsets from 0, and sources; a node's edges are never divided."""
    indptr, indices, first = store.indptr, store.indices, 0
    with progress.task(doing, total=store.num_edges, unit="edges") as task:
        while first < store.num_nodes:
            last = int(np.searchsorted(indptr, indptr[first] + _EDGES_AT_ONCE, side="right")) - 1
            last = min(max(last, first + 1), store.num_nodes)
            begin, end = int(indptr[first]), int(indptr[last])
            yield first, indptr[first : last + 1] - begin, indices[begin:end]
            task.advance(end - begin)
            first = last


def _spread(values: Int64[np.ndarray, "N"]) -> dict[str, float]:
    if not len(values):
        return {}
    low, middle, high, most = (float(each) for each in np.quantile(values, (0.0, 0.5, 0.99, 1.0)))
    return {"min": low, "median": middle, "mean": float(values.mean()), "p99": high, "max": most}


# Labels


def _labels(store: GraphStore) -> dict[str, Any]:
    y = store.y
    assert y is not None
    sets = {"all": np.arange(store.num_nodes), **store.splits}
    if store.task == CLASSES:
        counts = {name: np.bincount(y[ids][y[ids] >= 0], minlength=store.num_classes) for name, ids in sets.items()}
        missing = {name: len(ids) - int(counts[name].sum()) for name, ids in sets.items()}
    elif store.task == MULTILABEL:
        counts = {name: y[ids].sum(axis=0, dtype=np.int64) for name, ids in sets.items()}
        missing = {name: int(np.count_nonzero(~y[ids].any(axis=1))) for name, ids in sets.items()}
    else:
        known = {name: y[ids][~np.isnan(y[ids])].astype(np.float64) for name, ids in sets.items()}
        return {
            "unlabeled": {name: len(ids) - len(known[name]) for name, ids in sets.items()},
            "values": {
                name: {"min": float(of.min()), "mean": float(of.mean()), "std": float(of.std()), "max": float(of.max())}
                for name, of in known.items()
                if len(of)
            },
        }
    names = store.class_names or list(map(str, range(store.num_classes)))
    return {"unlabeled": missing, "classes": names, "counts": {name: each.tolist() for name, each in counts.items()}}


# Features


def _features(store: GraphStore, x: Float[np.ndarray, "N F"] | SmallRows) -> dict[str, Any]:
    number, width = x.shape
    step = max(1, _BYTES_AT_ONCE // max(1, width * 8))
    nan, infinite, zero = np.zeros(width, dtype=np.int64), 0, 0
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    nonzero, hashes = 0, np.zeros(number, dtype=np.uint64)
    empty = np.zeros(number, dtype=bool)
    with progress.task("inspect features", total=number, unit="rows") as task:
        for start in range(0, number, step):
            rows = np.ascontiguousarray(x[start : start + step])
            missing = np.isnan(rows)
            nan += missing.sum(axis=0)
            infinite += int(np.isinf(rows).sum())
            known = rows if not missing.any() else np.where(missing, np.inf, rows)
            low = np.minimum(low, known.min(axis=0))
            known = rows if not missing.any() else np.where(missing, -np.inf, rows)
            high = np.maximum(high, known.max(axis=0))
            filled = np.count_nonzero(rows, axis=1)
            nonzero += int(filled.sum())
            empty[start : start + len(rows)] = filled == 0
            zero += int(np.count_nonzero(filled == 0))
            rows = rows + rows.dtype.type(0)  # -0 is 0
            hashes[start : start + len(rows)] = [xxhash.xxh3_64_intdigest(row) for row in rows]
            task.advance(len(rows))
    constant = np.flatnonzero(~(high > low))
    with_nan = np.flatnonzero(nan)
    return {
        "columns": width,
        "nonzero_share": nonzero / max(1, number * width),
        "min": float(low.min()) if width else None,
        "max": float(high.max()) if width else None,
        "nan": int(nan.sum()),
        "nan_columns": {"number": len(with_nan), "first": with_nan[:MOST_NAMED].tolist()},
        "infinite": infinite,
        "constant_columns": {"number": len(constant), "first": constant[:MOST_NAMED].tolist()},
        "zero_rows": zero,
        "duplicates": _duplicates(store, hashes, empty),
    }


def _duplicates(store: GraphStore, hashes: np.ndarray, empty: np.ndarray) -> dict[str, Any]:
    """Nodes of other splits with the features of a training node; rows of zeros are no evidence."""
    found: dict[str, Any] = {}
    train = store.splits.get("train")
    if train is None:
        return found
    known = np.unique(hashes[train[~empty[train]]])
    for name, ids in store.splits.items():
        if ids is not train and len(ids):
            ids = ids[~np.isin(ids, train)]  # the same node is an overlap, which is counted elsewhere
            found[name] = int(np.count_nonzero(np.isin(hashes[ids], known) & ~empty[ids]))
    return found


def _splits(store: GraphStore) -> dict[str, Any]:
    names = list(store.splits)
    overlaps = {
        f"{one} and {two}": len(np.intersect1d(store.splits[one], store.splits[two]))
        for place, one in enumerate(names)
        for two in names[place + 1 :]
    }
    return {
        "nodes": {name: len(ids) for name, ids in store.splits.items()},
        "overlaps": {name: number for name, number in overlaps.items() if number},
    }


def _warnings(store: GraphStore, found: dict[str, Any]) -> list[str]:
    """What is likely to be wrong, in sentences."""
    said = list[str]()
    structure, nodes = found["structure"], store.num_nodes
    if structure["isolated_nodes"]:
        number = structure["isolated_nodes"]
        said.append(f"isolated nodes: {number:,} of {nodes:,} (no edges except self loops)")
    if structure["repeated_edges"]:
        said.append(
            f"{structure['repeated_edges']:,} edges are repeats of other edges (ingest with --dedup drops them)"
        )
    without = structure["nodes_without_in_edges"]
    if not structure["symmetric"] and without > nodes / 4:
        said.append(
            f"edges have no reverse, and {without:,} of {nodes:,} nodes have no in-edges: they see no neighbors. If "
            "the graph is undirected, ingest with --undirected"
        )
    for name, number in found["splits"]["overlaps"].items():
        said.append(f"{number:,} nodes are in both splits {name}")
    said += _leak_warnings(found.get("held_out", []))
    if store.schema is None:
        said += _feature_warnings(found.get("features"))
    said += _label_warnings(store, found.get("labels"))
    return said


def _types(store: GraphStore, schema: Schema) -> dict[str, Any]:
    """How many nodes of each type have a label."""
    labeled = np.zeros(len(schema.node_types), np.int64)
    if store.y is not None and store.task != MULTILABEL:
        known = ~np.isnan(store.y) if store.task == REGRESSION else store.y >= 0
        labeled = np.bincount(store.types(np.flatnonzero(known)), minlength=len(labeled))
    return {"labeled": dict(zip(schema.node_types, labeled.tolist()))}


def _leak_warnings(leaks: list[dict[str, Any]]) -> list[str]:
    said = list[str]()
    for split in dict.fromkeys(leak["split"] for leak in leaks):
        held, edges, reverses = (
            sum(leak[name] for leak in leaks if leak["split"] == split) for name in ("held_out", "edges", "reverses")
        )
        for count, what in ((edges, "are edges of the graph as well"), (reverses, "have their reverse in the graph")):
            if count:
                said.append(f"{count:,} of the {held:,} edges that are held out for {split} {what}")
    return said


def _feature_warnings(features: dict[str, Any] | None) -> list[str]:
    if features is None:
        return ["the store has no features"]
    said = list[str]()
    for name, number in features["duplicates"].items():
        if number:
            said.append(f"{number:,} {name} nodes have exactly the features of a training node: possible leak")
    if features["nan"]:
        columns = features["nan_columns"]
        said.append(f"{features['nan']:,} feature values are NaN, in {columns['number']:,} columns")
    if features["infinite"]:
        said.append(f"{features['infinite']:,} feature values are infinite")
    if features["constant_columns"]["number"]:
        said.append(f"{features['constant_columns']['number']:,} feature columns are constant")
    if features["zero_rows"]:
        said.append(f"{features['zero_rows']:,} nodes have only zeros as features")
    return said


def _label_warnings(store: GraphStore, labels: dict[str, Any] | None) -> list[str]:
    if labels is None:
        return ["the store has no labels"]
    said = list[str]()
    for name, number in labels["unlabeled"].items():
        if name != "all" and number:
            what = "without any label" if store.task == MULTILABEL else "without a label"
            said.append(f"split {name} has {number:,} nodes {what}")
    if store.task != CLASSES:
        return said
    names, counts = labels["classes"], labels["counts"]
    absent = [names[place] for place, number in enumerate(counts["all"]) if not number]
    if absent:
        said.append(f"{len(absent):,} of {len(names):,} classes have no node: {_some(absent)}")
    for split in store.splits:
        missing = [name for place, name in enumerate(names) if counts["all"][place] and not counts[split][place]]
        if missing and sum(counts[split]):
            said.append(f"split {split} has no node of {len(missing):,} classes: {_some(missing)}")
    occurring = [number for number in counts.get("train", counts["all"]) if number]
    if occurring and max(occurring) > IMBALANCED * min(occurring):
        said.append(
            f"classes are imbalanced: the most frequent one has {max(occurring) / sum(occurring):.0%} of the training "
            f"nodes, the least frequent one {min(occurring) / sum(occurring):.1%}"
        )
    return said


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
