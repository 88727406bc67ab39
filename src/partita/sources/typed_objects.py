"""Typed graphs that are objects of other libraries, as the arrays of :mod:`partita.sources.typed_arrays`.

- PyG's ``HeteroData``: ``num_nodes``, ``x``, ``y``, ``time``, ``seed_time`` and the masks of each node type,
  ``edge_index``, ``edge_weight`` and ``time`` of each edge type. Features of edges are left out.
- A DGL graph of several types: its edges, and ``feat``, ``label`` and the masks of its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from partita.core.errors import InputError
from partita.graph.times import ALWAYS

_Triple = tuple[str, str, str]


@dataclass(frozen=True)
class TypedObject:
    """What a library's graph holds, as arrays.

    Attributes:
        where: what to call it in messages.
        num_nodes: of each type.
        edges: (2, E) integers of each relation, numbered within the types of its ends.
        x, y: features and labels of node types, as far as there are some.
        masks: by name of the array, then by node type.
        weights: of relations.
        features: of the edges of relations, all of one width, or of none.
        held: held-out edges (n, 2) of relations, by name of the array.
        unused: arrays that are not used, by what to call them.
        times: integers from which on nodes of types, and edges of relations, are there; as far as there are some.
        seed_times: integers at which nodes of types are asked about as seeds.
    """

    where: str
    num_nodes: Mapping[str, int]
    edges: Mapping[_Triple, Shaped[np.ndarray, "..."]]
    x: Mapping[str, Shaped[np.ndarray, "..."]]
    y: Mapping[str, Shaped[np.ndarray, "..."]]
    masks: Mapping[str, Mapping[str, Shaped[np.ndarray, "..."]]] = field(default_factory=dict)
    weights: Mapping[_Triple, Shaped[np.ndarray, "..."]] = field(default_factory=dict)
    features: Mapping[_Triple, Shaped[np.ndarray, "..."]] = field(default_factory=dict)
    unused: Mapping[str, Shaped[np.ndarray, "..."]] = field(default_factory=dict)
    held: Mapping[str, Mapping[_Triple, Shaped[np.ndarray, "..."]]] = field(default_factory=dict)
    times: Mapping[Any, Shaped[np.ndarray, "..."]] = field(default_factory=dict)
    seed_times: Mapping[str, Shaped[np.ndarray, "..."]] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        """All of it by the names of a file.

        Raises:
            InputError: there are no nodes, an array has another form or length than its nodes or edges, an end of an
                edge is no node, several types have labels, or only some relations have weights.
        """
        self._check_forms()
        if not self.num_nodes:
            raise InputError("has no nodes of any type", where=self.where, fix="Give a graph with nodes and edges")
        first, number = dict[str, int](), 0
        for name, count in self.num_nodes.items():
            first[name], number = number, number + count
        found: dict[str, Any] = {
            "node_type": np.repeat(np.arange(len(first)), list(self.num_nodes.values())),
            "node_type_names": np.array(list(first), dtype=str),
            "edge_type": np.repeat(np.arange(len(self.edges)), [ends.shape[1] for ends in self.edges.values()]),
            "edge_type_names": np.array([name for _, name, _ in self.edges], dtype=str),
        }
        shifted = [self._shifted(triple, ends, first) for triple, ends in self.edges.items()]
        found["edge_index"] = np.concatenate([np.zeros((2, 0), np.int64), *shifted], axis=1)
        if self.weights:
            if missing := [":".join(triple) for triple in self.edges if triple not in self.weights]:
                fix = "Give all relations weights, or none"
                raise InputError(f"{missing[0]} has no edge_weight, but others have", where=self.where, fix=fix)
            found["edge_weight"] = np.concatenate([self.weights[triple] for triple in self.edges])
        if self.features:
            found["edge_attr"] = np.concatenate([self.features[triple] for triple in self.edges])
        for name, of_relations in self.held.items():
            numbers = {triple: number for number, triple in enumerate(self.edges)}
            pairs = [self._shifted(triple, rows.T, first, name).T for triple, rows in of_relations.items()]
            found[name] = np.concatenate(pairs)
            kinds = [np.full(len(rows), numbers[triple]) for triple, rows in of_relations.items()]
            found[f"{name}_type"] = np.concatenate(kinds)
        found |= {f"x_{name}": x for name, x in self.x.items()}
        if self.y:
            found["y"] = self._labels(first, number)
        for name, of_types in self.masks.items():
            mask = np.zeros(number, dtype=bool)
            for kind, marks in of_types.items():
                mask[first[kind] : first[kind] + len(marks)] = marks
            found[name] = mask
        return {**found, **self._times(), **self.unused}

    def _times(self) -> dict[str, Any]:
        """Times of all nodes and of all edges; nodes and edges of types without times were always there."""
        sizes: dict[Any, int] = {name: each.shape[1] for name, each in self.edges.items()}
        sizes |= self.num_nodes
        found = dict[str, Any]()
        of_kinds: tuple[tuple[str, Mapping[Any, Any], list[Any]], ...] = (
            ("node_time", self.times, list(self.num_nodes)),
            ("edge_time", self.times, list(self.edges)),
            ("seed_time", self.seed_times, list(self.num_nodes)),
        )
        for key, given, names in of_kinds:
            there: dict[Any, Any] = {name: given[name] for name in names if name in given}
            for name, times in there.items():
                if times.shape != (sizes[name],) or times.dtype.kind not in "iu":
                    where = f"{self.where}, {key} of {name if isinstance(name, str) else ':'.join(name)}"
                    what = f"holds {times.dtype.name} of shape {times.shape}, not {sizes[name]:,} integers"
                    raise InputError(what, where=where, fix="Give one time for each")
            if there:
                parts = [there.get(name, np.full(sizes[name], ALWAYS)) for name in names]
                found[key] = np.concatenate([np.asarray(part, np.int64) for part in parts])
        return found

    def _check_forms(self) -> None:
        """See that every array has one row for each of its nodes or edges: they are put one behind the other."""
        for triple, ends in self.edges.items():
            name = ":".join(triple)
            if ends.dtype.kind not in "iu" or ends.ndim != 2 or ends.shape[0] != 2:
                what = f"edge_index holds {ends.dtype.name} of shape {ends.shape}, not two rows of integers"
                raise InputError(what, where=f"{self.where}, {name}", fix="Row 0 holds the sources, row 1 the targets")
            if triple in self.weights and self.weights[triple].shape != ends.shape[1:]:
                what = f"edge_weight has shape {self.weights[triple].shape} for {ends.shape[1]} edges"
                raise InputError(what, where=f"{self.where}, {name}", fix="Give one weight for each edge")
        for name, of_relations in self.held.items():
            for triple, pairs in of_relations.items():
                if pairs.dtype.kind not in "iu" or pairs.ndim != 2 or pairs.shape[1] != 2:
                    what = f"{name} holds {pairs.dtype.name} of shape {pairs.shape}, not two columns of integers"
                    fix = "Column 0 holds the sources, column 1 the targets"
                    raise InputError(what, where=f"{self.where}, {':'.join(triple)}", fix=fix)
        for name, of_types in {"x": self.x, "y": self.y, **self.masks}.items():
            for kind, rows in of_types.items():
                where = f"{self.where}, {name} of '{kind}'"
                if name in self.masks and (rows.ndim != 1 or rows.dtype.kind not in "bu"):
                    what = f"holds {rows.dtype.name} of shape {rows.shape}, not one mark for each node"
                    raise InputError(what, where=where, fix="Give one split, true for its nodes")
                if rows.shape[:1] != (self.num_nodes[kind],):
                    what = f"has {len(rows)} rows for {self.num_nodes[kind]} nodes"
                    raise InputError(what, where=where, fix="Give one row for every node of the type")

    def _shifted(
        self, triple: _Triple, ends: Int[np.ndarray, "2 E"], first: Mapping[str, int], name: str = ""
    ) -> Int[np.ndarray, "2 E"]:
        """The ends of edges, numbered over all types; ``name`` of the array, for messages."""
        rows = []
        for kind, row, end in zip((triple[0], triple[2]), ends, ("source", "target")):
            where = f"{self.where}, {':'.join(triple)}" + (f", {name}" if name else "")
            if kind not in first:
                raise InputError(f"there is no node type '{kind}'", where=where, fix="Add its nodes")
            wrong = np.flatnonzero((row < 0) | (row >= self.num_nodes[kind]))
            if len(wrong):
                what = f"{end} {row[wrong[0]]} of edge {wrong[0]} (from 0) is none of {self.num_nodes[kind]:,} nodes"
                raise InputError(f"{what} of type '{kind}'", where=where, fix="Correct the edge")
            rows.append(row.astype(np.int64) + first[kind])
        return np.stack(rows)

    def _labels(self, first: Mapping[str, int], number: int) -> Shaped[np.ndarray, "N"]:
        if len(self.y) > 1:
            fix = "Keep those that are to be predicted"
            raise InputError(f"labels of several types: {', '.join(self.y)}", where=self.where, fix=fix)
        ((kind, y),) = self.y.items()
        if y.ndim != 1 or y.dtype.kind not in "iubf":
            what = f"holds {y.dtype.name} of shape {y.shape}; labels of one type are one number for each node"
            raise InputError(what, where=f"{self.where}, y of '{kind}'", fix="Give one class or one value per node")
        floats = y.dtype.kind == "f"
        labels = np.full(number, np.nan if floats else -1, np.float32 if floats else np.int64)
        labels[first[kind] : first[kind] + len(y)] = y
        return labels
