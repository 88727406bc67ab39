"""Edges of a source that are held out, for validation and tests of link prediction: they are no edges of the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer, Shaped

from partita.core.files import map_array
from partita.graph.column_specs import HELD
from partita.graph.leaks import found_among
from partita.graph.metadata import HELD_PREFIX, HELD_TYPE_SUFFIX
from partita.graph.writer import StoreWriter

SPLITS = tuple(HELD)
"""Names of the splits, in the order of their numbers in ``edge_split``, from 1 on; 0 are edges of the graph."""
_ROWS = 1 << 18


class HeldOut:
    """Held-out edges in files, until it is known what numbers their nodes have.

    Args:
        folder: for the files.
        dtype: of the numbers of relations; ``None``: the graph has none.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any] | None) -> None:
        self._folder, self._dtype = folder, dtype
        self._counts = dict[str, int]()

    def put(
        self,
        split: str,
        src: Integer[np.ndarray, "n"],
        dst: Integer[np.ndarray, "n"],
        kind: Integer[np.ndarray, "n"] | None,
    ) -> None:
        """The next edges of a split, by provisional ids, and their relations."""
        with (self._folder / f"held-{split}").open("ab") as file:
            np.stack([src, dst], axis=1).astype(np.int64).tofile(file)
        if kind is not None and self._dtype is not None:
            with (self._folder / f"held-{split}-types").open("ab") as file:
                kind.astype(self._dtype).tofile(file)
        self._counts[split] = self._counts.get(split, 0) + len(src)

    def write(self, writer: StoreWriter, rank: Int64[np.ndarray, "N"] | None) -> dict[str, int]:
        """Write the columns of all splits that have edges.

        Args:
            writer: of the store, with the columns of the graph's edges.
            rank: final id of every provisional one, -1 for nodes that were left out; ``None``: they are the same.

        Returns:
            How many edges each split has.
        """
        found = {}
        for split in (split for split in SPLITS if self._counts.get(split)):
            count, name = self._counts[split], HELD_PREFIX + split
            pairs = np.memmap(self._folder / f"held-{split}", np.int64, "r", shape=(count, 2))
            kinds = self._kinds(split, count)
            ends = writer.append(name, np.int64, (2,))
            types = None if kinds is None else writer.append(name + HELD_TYPE_SUFFIX, kinds.dtype)
            for start in range(0, count, _ROWS):
                rows = np.array(pairs[start : start + _ROWS])
                rows = rows if rank is None else np.asarray(rank[rows], np.int64)
                there = (rows >= 0).all(axis=1)
                ends.append(rows[there])
                if kinds is not None and types is not None:
                    types.append(kinds[start : start + _ROWS][there])
            ends.close()
            if types is not None:
                types.close()
            found[split] = ends.rows
        return found

    def _kinds(self, split: str, count: int) -> Shaped[np.ndarray, "n"] | None:
        if self._dtype is None:
            return None
        return np.memmap(self._folder / f"held-{split}-types", self._dtype, "r", shape=(count,))


def repeated(writer: StoreWriter, split: str, memory_limit: int) -> int:
    """How many held-out edges of a split are edges of the graph as well, with the same relation.

    Args:
        writer: of the store, with its columns of edges.
        split: that has held-out edges.
        memory_limit: bytes.
    """
    name = HELD_PREFIX + split
    indptr, indices, pairs = (_written(writer, column) for column in ("indptr", "indices", name))
    kinds, of_edges = (_written(writer, column) for column in (name + HELD_TYPE_SUFFIX, "edge_type"))
    kind = None if kinds is None else np.asarray(kinds, np.int64)
    src, dst = (np.asarray(pairs[:, side]) for side in (0, 1))
    return int(found_among(src, dst, kind, indptr, indices, of_edges, memory_limit).sum())


def _written(writer: StoreWriter, name: str) -> Any:
    path = writer.directory / f"{name}.npy"
    return map_array(path) if path.exists() else None
