"""Graphs in arrays by name: ``edge_index``, and as far as they are there ``x``, ``y`` and the split masks.

Usually they are those of an ``.npz`` file; other sources are brought into this form.

The names are those of PyTorch Geometric. Features may be dense (``x``) or the parts of a sparse matrix by rows
(``x_indptr``, ``x_indices``, ``x_data``, ``x_shape``); edges may be stored once for both directions
(``is_directed = 0``, ``both_directions = 0``).

Edges and nodes may have times from which on they are there (``edge_time``, ``node_time``), and seeds one at which they
are asked about (``seed_time``), integers of one unit.

Edges may be held out: those with a 1 (validation) or a 2 (test) in ``edge_split``, or ``held_val`` and ``held_test``
(n, 2), with relations in ``held_val_type`` and ``held_test_type``. A file with ``edge_type`` and ``edge_split`` but
without ``node_type`` is a knowledge graph: all nodes are of one type.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64

from partita.core import progress
from partita.core.errors import InputError, nearest
from partita.graph.column_specs import HELD, MASKS
from partita.graph.metadata import HELD_TYPE_SUFFIX
from partita.sources.arrays import ArrayFile, Taker, open_npz
from partita.sources.batch import Cells, Kind, counted
from partita.sources.edges import check_weights
from partita.sources.feature_arrays import PARTS, FeatureArrays
from partita.sources.typed_arrays import TypedArrays

_SPARSE = tuple(f"x_{part}" for part in PARTS)
_IGNORED = {"edge_type": "relation types"}
_HELD_TYPES = {split: f"{name}{HELD_TYPE_SUFFIX}" for split, name in HELD.items()}
_TIMES = ("edge_time", "node_time", "seed_time")
_EDGES = ("edge_index", "edge_weight", "edge_attr", "edge_split", "num_nodes", "is_directed", "both_directions", "name")
_READ = frozenset((*_EDGES, *_SPARSE, *_TIMES, *MASKS.values(), *HELD.values(), "x", "y", "class_names"))


class ArrayGraph:
    """A graph in arrays.

    Attributes:
        path: of the file, or what stands for it in messages.
        weighted: whether the edges have weights (``edge_weight``).
        names: the user's ids of the nodes (``name``), integers or text; ``None``: they are their numbers.
        edge_features: of the edges (``edge_attr``), with a row for each; ``None`` without them.
        edge_times: when edges are there (``edge_time``), integers of any unit; ``None``: they have no times.
        node_times: when nodes are there (``node_time``), and when they are asked about as seeds (``seed_time``, if that
            is another time), in the same unit; as far as these arrays are there.
        mirrored: whether every edge stands for both directions.
        both_directions: whether the file says that both directions of every edge are stored.
        num_nodes: N.
        notes: what of the file is not used.
        features: of all nodes, in a graph without types; or ``None``.
        types: of nodes and edges; ``None``: there are none.
    """

    def __init__(self, path: Path, arrays: dict[str, ArrayFile] | None = None) -> None:
        """Read the headers and the small arrays.

        Args:
            path: of an ``.npz`` file, or what stands for it in messages.
            arrays: by name; ``None``: those of the file.

        Raises:
            InputError: damaged, without ``edge_index``, or arrays that do not fit each other.
            ConfigError: names of types are there twice, or cannot be such.
        """
        self.path = path
        arrays = open_npz(path) if arrays is None else arrays
        self._arrays = arrays
        if "edge_index" not in arrays:
            raise InputError("has no array 'edge_index'", where=str(path), fix=nearest("edge_index", arrays))
        edges = self._edges = arrays["edge_index"].expect("iu", 2)
        if edges.shape[0] != 2:
            fix = "Transpose it: row 0 holds the sources, row 1 the targets"
            raise edges.fail(f"has shape {edges.shape}, not (2, number of edges)", fix)
        self.weighted = "edge_weight" in arrays
        if self.weighted and arrays["edge_weight"].expect("fiu", 1).shape[0] != edges.shape[1]:
            raise arrays["edge_weight"].fail(f"has {arrays['edge_weight'].shape[0]} weights for {edges.shape[1]} edges")
        self.edge_features = arrays["edge_attr"].expect("fiub", 1, 2) if "edge_attr" in arrays else None
        if self.edge_features is not None and self.edge_features.shape[0] != edges.shape[1]:
            raise self.edge_features.fail(f"has {self.edge_features.shape[0]} rows for {edges.shape[1]} edges")
        if self.edge_features is not None and 0 in self.edge_features.shape[1:]:
            raise self.edge_features.fail("has no columns", "Leave the array out")
        self.edge_times = arrays["edge_time"].expect("iuM", 1) if "edge_time" in arrays else None
        self.node_times = {name: arrays[name].expect("iuM", 1) for name in _TIMES[1:] if name in arrays}
        if self.edge_times is not None and len(self.edge_times) != edges.shape[1]:
            raise self.edge_times.fail(f"has {len(self.edge_times):,} times for {edges.shape[1]:,} edges")
        self.names = arrays["name"].expect("iuU", 1) if "name" in arrays else None
        directed, both = self._scalar("is_directed", 1), self._scalar("both_directions", 0)
        self.mirrored = directed == 0 and both == 0
        self.both_directions = both == 1
        self.notes: list[str] = []
        self.features = FeatureArrays.find(path, arrays, "x")
        self.num_nodes, self.num_nodes_from = self._count_nodes()
        held_types = {split: arrays[name] for split, name in _HELD_TYPES.items() if name in arrays}
        self.types = TypedArrays.find(path, arrays, self.num_nodes, list(held_types.values()))
        self._read = _READ if self.types is None else _READ | self.types.used | set(_HELD_TYPES.values())
        self._held = {split: self._held_out(split) for split, name in HELD.items() if name in arrays}
        if "edge_split" in arrays and arrays["edge_split"].expect("iu", 1).shape[0] != edges.shape[1]:
            raise arrays["edge_split"].fail(
                f"has {arrays['edge_split'].shape[0]:,} entries for {edges.shape[1]:,} edges"
            )
        if lonely := [split for split in held_types if split not in self._held]:
            raise held_types[lonely[0]].fail(f"is there without '{HELD[lonely[0]]}'", "Write both, or none")
        if self.types is not None:
            self._check_types(self.types)
            if self.types.is_plain:
                self.features, self.types = next(iter(self.types.features.values()), None), None

    def unused(self) -> str:
        """Says which arrays are not read; empty: all are."""
        others = [
            f"{name} ({_IGNORED[name]})" if name in _IGNORED else name
            for name in self._arrays
            if name not in self._read
        ]
        return f"{self.path}: not used: {', '.join(others)}" if others else ""

    @property
    def num_edges(self) -> int:
        """Columns of ``edge_index``."""
        return self._edges.shape[1]

    @property
    def labels(self) -> ArrayFile | None:
        """``y``, if there."""
        return self._arrays.get("y")

    @property
    def class_names(self) -> list[str] | None:
        """``class_names``, if there."""
        names = self._arrays.get("class_names")
        return None if names is None else [str(name) for name in names.expect("U", 1).load()]

    def batches(self, kind: Kind) -> Generator[Cells, None, None]:
        """Edges in order: 0 source, 1 target, then weight, type and split if there; ``kind`` is always "int"."""
        import pyarrow as pa

        edges, count = self._edges, self.num_edges
        if edges.fortran_order:
            pairs = Taker(edges.stream(0, 2 * count), edges.dtype)
        else:
            ends = [Taker(edges.stream(row * count, (row + 1) * count), edges.dtype) for row in (0, 1)]
        weights = Taker(self._arrays["edge_weight"].stream(0, count), np.dtype(float)) if self.weighted else None
        typed = None if self.types is None else self.types.edge_type
        kinds = None if typed is None else Taker(typed.stream(0, count), typed.dtype)
        split = self._arrays.get("edge_split")
        splits = None if split is None else Taker(split.stream(0, count), split.dtype)
        names = ["source", "target", *["weight"] * self.weighted, *["type"] * (kinds is not None), "split"]
        with progress.task("read edges", total=count, unit="edges") as task:
            for start in range(0, count, 1 << 18):
                size = min(1 << 18, count - start)
                if edges.fortran_order:
                    both = pairs.take(2 * size)
                    columns = [both[0::2], both[1::2]]
                else:
                    columns = [end.take(size) for end in ends]
                if weights is not None:
                    columns.append(weights.take(size))
                if kinds is not None:
                    columns.append(kinds.take(size))
                if splits is not None:
                    columns.append(splits.take(size))
                native = [np.ascontiguousarray(part, part.dtype.newbyteorder("=")) for part in columns]
                batch = Cells([pa.array(part) for part in native], names, counted(edges.where, start, "edge"))
                if self.weighted:
                    check_weights(batch)
                yield batch
                task.advance(size)

    @property
    def kind_column(self) -> int:
        """Which column of a batch holds the numbers of the relations."""
        return 2 + self.weighted

    def split_of(self, batch: Cells) -> Int64[np.ndarray, "n"] | None:
        """Of each edge of a batch 0, or the number of the split that it is held out for; ``None``: there are none."""
        if "edge_split" not in self._arrays:
            return None
        at = len(batch.columns) - 1
        splits = batch.ints(at)
        fix = "Write 0 for edges of the graph, 1 for validation, 2 for test"
        batch.check((splits < 0) | (splits > len(HELD)), at, "{} is the number of no split", fix)
        return splits

    def held_batches(self, kind: Kind) -> Iterator[tuple[str, Cells]]:
        """Held-out edges that have arrays of their own, by split: 0 source, 1 target, 2 type, if there."""
        import pyarrow as pa

        for split, array in self._held.items():
            typed = None if self.types is None else self._arrays.get(_HELD_TYPES[split])
            kinds = None if typed is None else Taker(typed.stream(0, len(typed)), typed.dtype)
            for start, rows in array.blocks():
                columns = [rows[:, 0], rows[:, 1], *([] if kinds is None else [kinds.take(len(rows))])]
                native = [np.ascontiguousarray(part, part.dtype.newbyteorder("=")) for part in columns]
                names = ["source", "target", "type"]
                yield split, Cells([pa.array(part) for part in native], names, counted(array.where, start, "edge"))

    def num_splits(self) -> int:
        """How many splits the file has; 0 without masks."""
        shapes = {self._arrays[name].expect("bu", 1, 2).shape for name in MASKS.values() if name in self._arrays}
        return 0 if not shapes else max(shape[0] if len(shape) == 2 else 1 for shape in shapes)

    def masks(self, split: int) -> dict[str, Bool[np.ndarray, "N"]]:
        """The masks of one split: "train", "val", "test", if present.

        Raises:
            InputError: there is no split of this number.
        """
        found = {}
        for name, key in MASKS.items():
            if key not in self._arrays:
                continue
            array = self._arrays[key]
            values = array.load()
            if values.ndim == 2:
                if not 0 <= split < len(values):
                    fix = f"Choose split_index from 0 to {len(values) - 1}"
                    raise array.fail(f"has {len(values)} splits, number {split} is not among them", fix)
                values = values[split]
            found[name] = values.astype(bool)
        return found

    # Parts

    def _scalar(self, name: str, default: int) -> int:
        if name not in self._arrays:
            return default
        array = self._arrays[name]
        if int(np.prod(array.shape, dtype=object)) != 1 or array.dtype.kind not in "iub":
            raise array.fail(f"holds {array.dtype.name} of shape {array.shape}, not one integer")
        return int(array.load().reshape(-1)[0])

    def _held_out(self, split: str) -> ArrayFile:
        """The held-out edges of a split, each with its relation where the edges have some."""
        array, kinds = self._arrays[HELD[split]].expect("iu", 2), self._arrays.get(_HELD_TYPES[split])
        if array.shape[1] != 2:
            raise array.fail(
                f"has shape {array.shape}, not (number of edges, 2)", "Give source and destination of each"
            )
        typed = self.types is not None and self.types.edge_type is not None
        if typed and kinds is None:
            raise array.fail("has no relations, but the edges have some", f"Write them as '{_HELD_TYPES[split]}'")
        if kinds is not None and len(kinds.expect("iu", 1)) != len(array):
            raise kinds.fail(f"has {len(kinds):,} entries for {len(array):,} held-out edges")
        return array

    def _check_types(self, types: TypedArrays) -> None:
        """Types are of all edges and of all nodes."""
        if self.features is not None and len(types.node_types) > 1:
            fix = "Name features by the type of their nodes: " + ", ".join(f"x_{name}" for name in types.node_types[:3])
            raise self.features.first.fail("is of all nodes, which have several types", fix)
        edge_type = types.edge_type
        if edge_type is not None and edge_type.shape[0] != self.num_edges:
            raise edge_type.fail(f"has {edge_type.shape[0]:,} entries for {self.num_edges:,} edges")

    def _count_nodes(self) -> tuple[int | None, str]:
        """N and which array says so; arrays that disagree are an error."""
        counts: dict[str, int] = {}
        if "node_type" in self._arrays:
            counts["node_type"] = self._arrays["node_type"].expect("iu", 1).shape[0]
        if self.features is not None:
            counts[self.features.says] = self.features.num_rows
        if "y" in self._arrays:
            counts["y"] = self._arrays["y"].expect("fiubU", 1, 2).shape[0]
        for key in MASKS.values():
            if key in self._arrays:
                counts[key] = self._arrays[key].expect("bu", 1, 2).shape[-1]
        counts |= {name: len(times) for name, times in self.node_times.items()}
        if "name" in self._arrays:
            counts["name"] = self._arrays["name"].shape[0]
        if "num_nodes" in self._arrays:
            counts["num_nodes"] = self._scalar("num_nodes", 0)
        if not counts:
            return None, ""
        first, number = next(iter(counts.items()))
        for name, other in counts.items():
            if other != number:
                what = f"'{name}' says that there are {other} nodes, but '{first}' says {number}"
                raise InputError(what, where=str(self.path), fix="Write the arrays of one graph into the file")
        if list(counts) == ["num_nodes"] and not 0 <= number <= (1 << 20) + 64 * self.num_edges:
            what = f"'num_nodes' is {number}, which cannot be right for {self.num_edges} edges"
            raise InputError(what, where=str(self.path), fix="Write the number of nodes")
        return number, f"'{first}'"
