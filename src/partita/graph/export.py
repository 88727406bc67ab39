"""A graph store as an ``.npz`` file, which any NumPy reads."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from partita.core import progress
from partita.core.asides import written_aside
from partita.core.errors import ConfigError
from partita.core.files import require_parent
from partita.graph.column_specs import known
from partita.graph.schema import Schema
from partita.graph.small import SmallRows
from partita.graph.store import GraphStore

_BLOCK_BYTES = 8 << 20
_BLOCK_EDGES = 1 << 20


def export(store: GraphStore | str | os.PathLike[str], out: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the graph of a store into an ``.npz`` file, with little memory whatever the number of edges.

    Nodes are in the order in which they were ingested, however the store is partitioned, edges by destination. The
    file has ``edge_index`` (2, E) int64, ``num_nodes``, and, as far as the store has them, ``x``, ``y``,
    ``edge_weight``, ``train_mask``, ``val_mask``, ``test_mask``, ``class_names``, and ``name``, the user's ids. PyG's
    ``Data`` takes these names; :func:`partita.ingest` makes the same store of the file again. ``held_val`` and
    ``held_test`` (n, 2) are the held-out edges, which are not in ``edge_index``, with ``held_val_type`` and
    ``held_test_type``, their relations.
    Other columns are added where :mod:`partita.graph.column_specs` names arrays for them.

    Args:
        store: a graph store, or its path.
        out: the ``.npz`` file.
        overwrite: replace a file that is there.

    Returns:
        ``out``.

    Raises:
        ConfigError: another suffix, no such directory, or a file that is there already.
        StoreError: there is no such store, or it is the shard of a host.
    """
    store, out = store if isinstance(store, GraphStore) else GraphStore.open(store), Path(out)
    store.require_whole("export")
    if out.suffix != ".npz":
        raise ConfigError(f"cannot export to '{out.suffix}' files", where=str(out), fix="Name a file that ends in .npz")
    require_parent(out)
    if out.exists() and not overwrite:
        raise ConfigError("is there already", where=str(out), fix="Choose another file, or overwrite it")
    store.require_sound()
    with written_aside(out) as aside, zipfile.ZipFile(aside, "w", allowZip64=True) as archive:
        _Export(store, archive).write()
    return out


class _Export:
    def __init__(self, store: GraphStore, archive: zipfile.ZipFile) -> None:
        self._store, self._archive = store, archive
        original = store.original_index
        self._order = np.arange(store.num_nodes) if original is None else np.argsort(original)

    def write(self) -> None:
        store, order = self._store, self._order
        n, e = store.num_nodes, store.num_edges
        columns = {name: spec for name, spec in known(store.columns).items() if spec.export}
        of_edges = sum(spec.of == "edges" for spec in columns.values())
        with progress.task("export", total=(2 + of_edges) * e + n, unit="rows") as self._task:
            self._put("edge_index", np.dtype(np.int64), (2, e), self._ends())
            self._whole("num_nodes", np.array(n))
            if store.schema is not None:
                self._types(store.schema)
            for name, spec in columns.items():
                column = store.column(name)
                if spec.of == "list":
                    mask = np.zeros(n, dtype=bool)
                    mask[column] = True
                    self._whole(f"{spec.export}", mask[order])
                elif spec.of == "held":
                    ids = column if spec.reorder == "keep" else store.to_original(column)
                    self._whole(f"{spec.export}", ids)
                elif name == "x" and store.x is not None:
                    self._put(name, store.x.dtype, store.x.shape, (store.x[at] for at in self._nodes(store.x)))
                else:
                    at = (at for at, _ in self._rows()) if spec.of == "edges" else self._nodes(column)
                    self._put(f"{spec.export}", column.dtype, column.shape, (column[rows] for rows in at))
            if store.class_names is not None:
                self._whole("class_names", np.array(store.class_names))
            if store.has("name") or store.has("name_offsets"):
                names = store.names(order)
                self._whole("name", names.astype(str) if names.dtype.hasobject else names)

    def _types(self, schema: Schema) -> None:
        """Types of nodes and names of relations, and features by type; see :mod:`partita.sources.typed_arrays`."""
        store = self._store
        dtype = np.dtype(np.uint8 if len(schema.node_types) <= 256 else np.uint16)
        blocks = (store.types(self._order[at : at + _BLOCK_EDGES]) for at in range(0, len(self._order), _BLOCK_EDGES))
        self._put("node_type", dtype, (store.num_nodes,), blocks)
        self._whole("node_type_names", np.array(schema.node_types, dtype=str))
        self._whole("edge_type_names", np.array([relation.name for relation in schema.relations], dtype=str))
        for number, (name, size) in enumerate(zip(schema.node_types, schema.num_nodes)):
            if (x := store.x_of(name)) is not None:
                first = schema.first_nodes[number]
                rows = store.type_rows(self._order[first : first + size])
                at_once = max(1, _BLOCK_BYTES // max(1, x.itemsize * x.shape[1]))
                pieces = (x[rows[at : at + at_once]] for at in range(0, size, at_once))
                self._put(f"x_{name}", x.dtype, x.shape, pieces)

    def _nodes(self, column: Shaped[np.ndarray, "N ..."] | SmallRows) -> Iterator[Int64[np.ndarray, "n"]]:
        """Nodes in the order of ingest, in pieces of which rows of a column take little memory."""
        at_once = max(1, _BLOCK_BYTES // max(1, column.itemsize * int(np.prod(column.shape[1:]))))
        return (self._order[at : at + at_once] for at in range(0, len(self._order), at_once))

    def _ends(self) -> Iterator[Int64[np.ndarray, "n"]]:
        """The sources of all edges, then their destinations."""
        for at, _ in self._rows():
            yield np.asarray(self._store.to_original(self._store.indices[at]), np.int64)
        for _, destinations in self._rows():
            yield destinations

    def _rows(self) -> Iterator[tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]]:
        """Runs of edges by destination in the order of ingest: where they are, and their destinations there."""
        begins, degrees = self._store.indptr[self._order], self._store.in_degree(self._order)
        ends = np.cumsum(degrees)
        node = 0
        while node < len(degrees):
            before = ends[node] - degrees[node]
            stop = max(node + 1, int(np.searchsorted(ends, before + _BLOCK_EDGES, side="right")))
            counts = degrees[node:stop]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            yield np.repeat(begins[node:stop], counts) + within, np.repeat(np.arange(node, stop), counts)
            self._task.advance(int(counts.sum()))
            node = stop

    def _whole(self, name: str, array: Shaped[np.ndarray, "..."]) -> None:
        self._put(name, array.dtype, array.shape, iter([array]))

    def _put(self, name: str, dtype: Any, shape: tuple[int, ...], blocks: Iterator[Shaped[np.ndarray, "..."]]) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_2_0(file, header)
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype).tobytes())
