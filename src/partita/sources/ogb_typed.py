"""OGB's node-property datasets with several types of nodes, as they lie in a directory, for instance ``ogbn_mag``.

``raw/`` has ``triplet-type-list.csv.gz`` with a relation in each line, ``num-node-dict.csv.gz`` with the nodes of each
type, a directory ``relations/<source>___<name>___<target>`` with ``edge.csv.gz`` for each relation, and, as far as
there are any, ``node-feat/<type>/node-feat.csv.gz`` and ``node-label/<type>/node-label.csv.gz``. ``split/`` has a
directory named after the rule of the split, with one for each type that is split.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partita.core.errors import InputError
from partita.sources.arrays import ArrayFile, damage_of
from partita.sources.objects import OGB_SPLITS
from partita.sources.typed_pieces import Piece, TypedPieces

RELATIONS = "triplet-type-list.csv.gz"
_ROWS = 1 << 18

ReadTable = Callable[[Path, Path, type], Any]
"""Numbers in a gzipped table without a header: its path, a directory to map them from, and their type."""


def is_typed_ogb(folder: Path) -> bool:
    """Whether a directory of OGB has several types of nodes."""
    return (folder / "raw" / RELATIONS).exists()


def typed_ogb_arrays(folder: Path, scratch: Path, table: ReadTable) -> dict[str, ArrayFile]:
    """The graph in a directory, by the names of :mod:`partita.sources.typed_arrays`.

    Args:
        folder: the directory.
        scratch: an empty directory, where text becomes arrays that are read from disk.
        table: reads a table.

    Raises:
        InputError: a file is missing or cannot be used.
    """
    raw, found = folder / "raw", TypedPieces(folder, scratch)

    def read(path: Path, dtype: type) -> Any:
        private = scratch / "-".join(path.relative_to(folder).parts)
        private.mkdir()
        return table(path, private, dtype)

    lines = _lines(raw / "num-node-dict.csv.gz")
    names, counts = lines if len(lines) == 2 else ([], [])
    if len(names) != len(counts) or not all(count.isdecimal() for count in counts) or not names:
        where = str(raw / "num-node-dict.csv.gz")
        raise InputError("is not one number of nodes for each type", where=where, fix="Fetch the dataset again")
    found.sizes = dict(zip(names, map(int, counts)))
    for triple in _lines(raw / RELATIONS):
        relation = found.relation(":".join(triple), str(raw / RELATIONS))
        path = raw / "relations" / "___".join(triple) / "edge.csv.gz"
        found.add_edges(relation, _pieces(path, read(path, np.int64)))
    for kind in names:
        features, labels = (raw / f"node-{what}" / kind / f"node-{what}.csv.gz" for what in ("feat", "label"))
        if features.exists():
            found.features[kind] = {"feat": [ArrayFile.held(str(features), read(features, np.float32))]}
        if labels.exists():
            y = np.asarray(read(labels, np.float64))
            there = ~np.isnan(y)
            if (y[there] == np.floor(y[there])).all() and np.isfinite(y[there]).all():
                y = np.where(there, y, -1).astype(np.int64)
            found.add_labels(kind, slice(None), y, str(labels))
    _add_splits(folder, found, read)
    return found.arrays()


def _add_splits(folder: Path, found: TypedPieces, read: Callable[[Path, type], Any]) -> None:
    split = folder / "split"
    rules = sorted(path for path in split.iterdir() if path.is_dir()) if split.is_dir() else []
    if len(rules) != 1:
        what = f"must have the directory of one split, it has {', '.join(path.name for path in rules) or 'none'}"
        raise InputError(what, where=str(split), fix="Fetch the dataset again")
    masks = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}
    for kind in found.sizes:
        if (rules[0] / kind).is_dir():
            for name, mask in OGB_SPLITS.items():
                path = rules[0] / kind / f"{name}.csv.gz"
                found.add_split(masks[mask], kind, read(path, np.int64).reshape(-1), str(path))


def _pieces(path: Path, edges: Any) -> Iterator[Piece]:
    if edges.shape[1] != 2:
        raise InputError(f"has {edges.shape[1]} columns, not 2", where=str(path), fix="Fetch the dataset again")
    for start in range(0, len(edges), _ROWS):
        yield str(path), start, np.asarray(edges[start : start + _ROWS])


def _lines(path: Path) -> list[list[str]]:
    """The cells of a small table."""
    if not path.exists():
        what = "is missing, so the directory is not whole"
        raise InputError(what, where=str(path), fix="Fetch the dataset again")
    with damage_of(str(path)), gzip.open(path, "rt", encoding="utf-8") as text:
        return [[cell.strip() for cell in line.split(",")] for line in text if line.strip()]
