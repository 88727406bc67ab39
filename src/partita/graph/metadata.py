"""What ``metadata.json`` of a graph store says, and how it is protected against damage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from partita.core.errors import StoreError
from partita.core.files import parse_json, read_file
from partita.core.typed import fitting, typed
from partita.graph.schema import Schema
from partita.graph.shard import Shard

STORE_FORMAT = "partita-graph-store"
VERSION = 2
"""The newest that is read. Features of small integers take version 2; any other store is written as version 1."""
FILE_NAME = "metadata.json"
CLASSES, MULTILABEL, REGRESSION = TASKS = ("classes", "multilabel", "regression")
"""What labels may be for: a class of every node, several labels, or a number."""
_HOW_TO_MAKE = "Make a store with: partita ingest SOURCE STORE"
LEVELS_PREFIX = "levels_"
"""Columns whose names begin so, and end with that of a column of features, say what its small integers stand for."""
TYPE_PREFIX = "x_"
"""Columns whose names begin so, and end with the number of a node type, are features of nodes of that type."""
LARGEST_INT32_GRAPH = 2**31 - 1
SPLIT_PREFIX = "split_"
"""Columns whose names begin so are lists of the nodes of a split."""
HELD_PREFIX = "held_"
"""Columns whose names begin so are the held-out edges of a split: pairs of nodes, which are no edges of the graph."""
HELD_TYPE_SUFFIX = "_type"
"""Ends the names of those that hold their relations."""
DERIVED_PREFIX = "presample_"
"""Columns whose names begin so are statistics of a store: checksummed, but no part of its identity."""


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """Dtype of node ids in the ``indices`` column: int32 while every id fits, else int64."""
    return np.dtype(np.int32 if num_nodes <= LARGEST_INT32_GRAPH else np.int64)


@dataclass(frozen=True, slots=True)
class ColumnRecord:
    """What the metadata promises about one column file.

    Attributes:
        dtype: numpy's little-endian spelling, for instance ``"<i8"``.
        shape: of the array.
        bytes: size of the whole ``.npy`` file.
        checksum: xxh3_64 of the whole ``.npy`` file, 16 hexadecimal digits.
    """

    dtype: str
    shape: tuple[int, ...]
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """The content of ``metadata.json``.

    Attributes:
        num_nodes: N.
        num_edges: E, directed edges as stored (self loops included).
        num_features: F, 0 without an ``x`` column, as in typed graphs, which have columns of their own.
        task: ``"classes"``, ``"multilabel"``, ``"regression"`` or ``None`` (no labels).
        num_classes: number of classes, label columns of a multi-label task, 1 for a regression, 0 without labels.
        class_names: the user's names of the classes, in order of their numbers.
        source: what the graph was made from, free text.
        split_rule: how the splits were made, free text.
        notes: anything else that the maker recorded, JSON values by name.
        columns: column name -> record.
        version: of the format.
        shard: which share of a graph the store holds; ``None`` for a whole one. The sizes above are of the whole graph.
        schema: types and relations; ``None``: the graph is untyped.
    """

    num_nodes: int
    num_edges: int
    num_features: int = 0
    task: str | None = None
    num_classes: int = 0
    class_names: tuple[str, ...] | None = None
    source: str = ""
    split_rule: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, ColumnRecord] = field(default_factory=dict)
    version: int = 1
    shard: Shard | None = None
    schema: Schema | None = None

    @property
    def fingerprint(self) -> str:
        """xxh3_64 over the checksums of all columns, 16 hexadecimal digits: equal only for equal data.

        Derived columns are left out: a run belongs to a graph, not to what was counted on it. A shard has the
        fingerprint of the whole store.
        """
        if self.shard is not None:
            return self.shard.fingerprint
        names = sorted(name for name in self.columns if not name.startswith(DERIVED_PREFIX))
        lines = [f"{name}={self.columns[name].checksum}\n" for name in names]
        if self.schema is not None:
            lines.append(f"schema={json.dumps(self.schema.to_json(), sort_keys=True)}\n")
        return xxhash.xxh3_64_hexdigest("".join(lines).encode())

    def to_json(self) -> str:
        """The text of ``metadata.json``, its own checksum included."""
        content: dict[str, Any] = {"format": STORE_FORMAT, **asdict(self)}
        for name in ("shard", "schema"):
            if content[name] is None:
                del content[name]
        return json.dumps({**content, "checksum": _checksum(content)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, directory: Path) -> StoreMetadata:
        """Read and check ``metadata.json`` of a store.

        Raises:
            StoreError: not a graph store, a newer format, or damaged metadata.
        """
        path = directory / FILE_NAME
        content = _read_json(path)
        if content.get("format") != STORE_FORMAT:
            raise StoreError("this is not the metadata of a Partita graph store", where=str(path), fix=_HOW_TO_MAKE)
        version = content.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise StoreError(
                f"the store has format version {version}, this Partita reads up to version {VERSION}",
                where=str(directory),
                fix="Upgrade with: pip install --upgrade partita",
            )
        promised = content.pop("checksum", None)
        if promised != _checksum(content):
            raise StoreError("the content does not match its own checksum", where=str(path), fix=how_to_mend())
        del content["format"]
        with fitting(str(path), StoreError, how_to_mend()):
            columns = {
                name: typed(ColumnRecord, {**record, "shape": tuple(record["shape"])})
                for name, record in content.pop("columns").items()
            }
            if not all(name.isidentifier() for name in columns):
                raise ValueError("a column's name is not an identifier")
            names, shard = content.pop("class_names"), content.pop("shard", None)
            schema = content.pop("schema", None)
            made = {
                "columns": columns,
                "class_names": None if names is None else tuple(names),
                "shard": None if shard is None else typed(Shard, shard),
                "schema": None if schema is None else Schema.of_json(schema, str(path), StoreError),
            }
            return typed(cls, {**content, **made})


def is_store(directory: Path) -> bool:
    """Whether a directory holds something that calls itself a graph store, whole or damaged."""
    try:
        return f'"{STORE_FORMAT}"' in (directory / FILE_NAME).read_text(errors="replace")
    except OSError:
        return False


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        what = "there is no graph store here" if path.parent.exists() else "no such directory"
        raise StoreError(what, where=str(path.parent), fix=_HOW_TO_MAKE) from None
    except OSError as error:
        raise StoreError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except ValueError:  # not UTF-8, or not JSON
        raise StoreError("the file is damaged: it is not JSON", where=str(path), fix=how_to_mend()) from None
    if not isinstance(content, dict):
        raise StoreError("the file is damaged: it is not a JSON object", where=str(path), fix=how_to_mend())
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return xxhash.xxh3_64_hexdigest(canonical.encode("ascii"))


def how_to_mend(shard: Shard | None = None) -> str:
    """Advice for a store, or a shard, that is damaged."""
    again = "ingest SOURCE STORE" if shard is None else f"shard STORE OUT --host {shard.host} --hosts {shard.hosts}"
    return f"Restore the directory from a copy, or make it anew with: partita {again}"
