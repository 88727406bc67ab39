"""Graphs in arrays by name: ``edge_index``, and as far as they are there ``x``, ``y`` and the split masks.

Usually they are those of an ``.npz`` file; other sources are brought into this form.

The names are those of PyTorch Geometric. Features may be dense (``x``) or the parts of a sparse matrix by rows
(``x_indptr``, ``x_indices``, ``x_data``, ``x_shape``); edges may be stored once for both directions
(``is_directed = 0``, ``both_directions = 0``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Shaped

from partita.core import progress
from partita.core.errors import InputError, nearest
from partita.graph.column_specs import MASKS
from partita.sources.arrays import ArrayFile, Taker, open_npz
from partita.sources.batch import Cells, Kind, counted
from partita.sources.edges import check_weights

_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
_IGNORED = {"edge_type": "relation types", "edge_split": "the split of the edges", "edge_attr": "edge features"}
_EDGES = ("edge_index", "edge_weight", "num_nodes", "is_directed", "both_directions")
_READ = frozenset((*_EDGES, *_SPARSE, *MASKS.values(), "x", "y", "class_names"))
_DENSE_BYTES = 8 << 20


class ArrayGraph:
    """A graph in arrays.

    Attributes:
        path: of the file, or what stands for it in messages.
        weighted: whether the edges have weights (``edge_weight``).
        mirrored: whether every edge stands for both directions.
        both_directions: whether the file says that both directions of every edge are stored.
        num_nodes: N.
        notes: what of the file is not used.
    """

    def __init__(self, path: Path, arrays: dict[str, ArrayFile] | None = None) -> None:
        """Read the headers and the small arrays.

        Args:
            path: of an ``.npz`` file, or what stands for it in messages.
            arrays: by name; ``None``: those of the file.

        Raises:
            InputError: damaged, heterogeneous, without ``edge_index``, or arrays that do not fit each other.
        """
        self.path = path
        arrays = open_npz(path) if arrays is None else arrays
        self._arrays = arrays
        if "node_type" in arrays:
            raise InputError(
                "is a heterogeneous graph (it has 'node_type'); graphs have one type of node here",
                where=str(path),
                fix="Write a file with the nodes and edges of one type",
            )
        if "edge_index" not in arrays:
            raise InputError("has no array 'edge_index'", where=str(path), fix=nearest("edge_index", arrays))
        edges = self._edges = arrays["edge_index"].expect("iu", 2)
        if edges.shape[0] != 2:
            fix = "Transpose it: row 0 holds the sources, row 1 the targets"
            raise edges.fail(f"has shape {edges.shape}, not (2, number of edges)", fix)
        self.weighted = "edge_weight" in arrays
        if self.weighted and arrays["edge_weight"].expect("fiu", 1).shape[0] != edges.shape[1]:
            raise arrays["edge_weight"].fail(f"has {arrays['edge_weight'].shape[0]} weights for {edges.shape[1]} edges")
        directed, both = self._scalar("is_directed", 1), self._scalar("both_directions", 0)
        self.mirrored = directed == 0 and both == 0
        self.both_directions = both == 1
        self.notes: list[str] = []
        self.num_nodes, self.num_nodes_from = self._count_nodes()

    def unused(self) -> str:
        """Says which arrays are not read; empty: all are."""
        others = [
            f"{name} ({_IGNORED[name]})" if name in _IGNORED else name for name in self._arrays if name not in _READ
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
        """Edges in order: column 0 source, 1 target, 2 weight if there are weights; ``kind`` is always "int"."""
        import pyarrow as pa

        edges, count = self._edges, self.num_edges
        if edges.fortran_order:
            pairs = Taker(edges.stream(0, 2 * count), edges.dtype)
        else:
            ends = [Taker(edges.stream(row * count, (row + 1) * count), edges.dtype) for row in (0, 1)]
        weights = Taker(self._arrays["edge_weight"].stream(0, count), np.dtype(float)) if self.weighted else None
        names = ["source", "target", "weight"]
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
                native = [np.ascontiguousarray(part, part.dtype.newbyteorder("=")) for part in columns]
                batch = Cells([pa.array(part) for part in native], names, counted(edges.where, start, "edge"))
                if self.weighted:
                    check_weights(batch)
                yield batch
                task.advance(size)

    def features(self) -> tuple[ArrayFile, Iterator[tuple[int, Shaped[np.ndarray, "n F"]]]] | None:
        """Their array, and runs of rows with the number of their first; ``None`` without features."""
        if "x" in self._arrays:
            return self._arrays["x"], self._arrays["x"].blocks()
        return (self._arrays["x_data"], self._densified()) if "x_indptr" in self._arrays else None

    def num_splits(self) -> int:
        """How many splits the file has; 0 without masks."""
        shapes = {self._arrays[name].expect("bu", 1, 2).shape for name in MASKS.values() if name in self._arrays}
        return 0 if not shapes else max(shape[0] if len(shape) == 2 else 1 for shape in shapes)

    def masks(self, split: int) -> dict[str, Bool[np.ndarray, "N"]]:
        """The masks of one split: "train", "val", "test", as far as there.

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

    def _count_nodes(self) -> tuple[int | None, str]:
        """N and which array says so; arrays that disagree are an error."""
        counts: dict[str, int] = {}
        if "x" in self._arrays:
            x = self._arrays["x"].expect("fiub", 2)
            if x.shape[1] == 0:
                raise x.fail("has no columns", "Leave the array out")
            counts["x"] = x.shape[0]
        elif "x_indptr" in self._arrays:
            counts["x_shape"] = self._sparse_shape()[0]
        if "y" in self._arrays:
            counts["y"] = self._arrays["y"].expect("fiubU", 1, 2).shape[0]
        for key in MASKS.values():
            if key in self._arrays:
                counts[key] = self._arrays[key].expect("bu", 1, 2).shape[-1]
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

    def _sparse_shape(self) -> tuple[int, int]:
        for name in _SPARSE:
            if name not in self._arrays:
                what = f"has no array '{name}', but the other parts of sparse features"
                raise InputError(what, where=str(self.path), fix=f"Write {', '.join(_SPARSE)}")
        shape = self._arrays["x_shape"].expect("iu", 1)
        values = [int(value) for value in shape.load()] if shape.shape == (2,) else []
        if len(values) != 2 or values[0] < 0 or values[1] < 1:
            raise shape.fail("does not hold the numbers of nodes and of features", "Leave features out, or mend it")
        if self._arrays["x_indptr"].expect("iu", 1).shape[0] != values[0] + 1:
            have = self._arrays["x_indptr"].shape[0]
            raise self._arrays["x_indptr"].fail(f"has {have} entries, needs {values[0] + 1}")
        return values[0], values[1]

    def _densified(self) -> Iterator[tuple[int, Shaped[np.ndarray, "n F"]]]:
        num_rows, width = self._sparse_shape()
        indptr = self._arrays["x_indptr"].load().astype(np.int64)
        indices, data = self._arrays["x_indices"].expect("iu", 1), self._arrays["x_data"].expect("fiub", 1)
        if len(indices) != len(data):
            raise indices.fail(f"has {len(indices)} entries, 'x_data' has {len(data)}")
        if indptr[0] != 0 or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
            raise self._arrays["x_indptr"].fail(f"is not a list of offsets from 0 to {len(data)}, never descending")
        columns = Taker(indices.stream(0, len(data)), indices.dtype)
        values = Taker(data.stream(0, len(data)), data.dtype)
        step = max(1, _DENSE_BYTES // max(1, 4 * width))
        for row in range(0, num_rows, step):
            part = indptr[row : row + step + 1]
            size = int(part[-1] - part[0])
            column = columns.take(size).astype(np.int64)
            if size and not 0 <= column.min() <= column.max() < width:
                raise indices.fail(f"holds a column that is not in 0..{width - 1}")
            block = np.zeros((len(part) - 1, width), np.float32)
            rows = np.repeat(np.arange(len(part) - 1), np.diff(part))
            np.add.at(block, (rows, column), values.take(size).astype(np.float32))
            yield row, block
