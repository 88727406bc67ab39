"""What kind of thing a source is: a file, a directory of OGB, the name of a dataset, or an object."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.core.asides import private_folder
from partita.core.errors import InputError
from partita.sources.arrays import ArrayFile, open_npz
from partita.sources.columnar import FrameTable, is_frame
from partita.sources.databases.graph import database_graph
from partita.sources.databases.open import opened
from partita.sources.dgl_files import dgl_arrays, is_dgl_files
from partita.sources.edges import TableReader
from partita.sources.networkx import is_networkx, networkx_tables
from partita.sources.objects import array_of, arrays_of, is_sparse_file, name_of, sparse_arrays
from partita.sources.ogb import fetched, is_ogb, is_ogb_name, ogb_arrays
from partita.sources.options import IngestOptions
from partita.sources.typed_tables import is_tables, table_arrays

_TEXT = (".txt", ".tsv", ".csv")
_CHUNK_BYTES = 4 << 20
"""Of a table that a description names, to read at once."""


@dataclass(frozen=True)
class Source:
    """Where a graph is.

    Attributes:
        path: the file that the edges are in, or what stands for it in messages.
        arrays: that the graph is in.
        table: of the edges, where it is in memory.
        nodes: table of the nodes, where the source brings one.
        undirected: every edge stands for both directions, as the source says.
        held: files of held-out edges, by split.
        triples: the table of edges has a head, a relation and a tail in three columns.
        notes: what is worth saying of how it was read.
        kept: for the notes of the store.
        options: what options of the ingest mean for what follows, where that is not what the user gave.
    """

    path: Path
    arrays: dict[str, ArrayFile] | None = None
    table: TableReader | None = None
    nodes: TableReader | None = None
    undirected: bool = False
    held: Mapping[str, Path] = field(default_factory=dict)
    triples: bool = False
    notes: Sequence[str] = ()
    kept: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def source_of(source: Any, options: IngestOptions, store: Path) -> Iterator[Source]:
    """Where a graph is, whatever the user has given.

    Args:
        source: see :func:`partita.ingest`.
        options: of the ingest; they name the attributes of a networkx graph that are read.
        store: that is to be made; what has to be written meanwhile lies beside it.

    Raises:
        InputError: an object that is no graph; a directory of OGB that is not whole; a dataset that is not there.
    """
    if not isinstance(source, str | os.PathLike):
        yield _of_object(source, options)
        return
    with opened(os.fspath(source), options) as found:
        if found is not None:
            beside = store.absolute()
            with private_folder(f".{beside.name}.arrays-", beside.parent) as scratch:
                graph = database_graph(found.database, found.description, scratch, options)
                yield Source(found.path, graph.arrays, notes=graph.notes, kept=graph.kept, options=graph.options)
            return
    path = Path(source)
    if is_ogb_name(str(source)) and not path.exists():
        path = fetched(str(source))
    if is_ogb(path):
        beside = store.absolute()
        with private_folder(f".{beside.name}.arrays-", beside.parent) as scratch:
            yield Source(path, ogb_arrays(path, scratch))
        return
    if is_dgl_files(path):
        beside = store.absolute()
        with private_folder(f".{beside.name}.arrays-", beside.parent) as scratch:
            yield Source(path, dgl_arrays(path, scratch))
        return
    if is_tables(path):
        beside = store.absolute()
        with private_folder(f".{beside.name}.arrays-", beside.parent) as scratch:
            yield Source(path, table_arrays(path, scratch, chunk_bytes=_CHUNK_BYTES))
        return
    if (files := _split_files(path)) is not None:
        yield Source(files.pop("train"), held=files, triples=True)
        return
    if path.suffix.lower() == ".npz" and path.is_file() and is_sparse_file(arrays := open_npz(path)):
        yield Source(path, sparse_arrays(path, arrays))
        return
    yield Source(path)


def _split_files(path: Path) -> dict[str, Path] | None:
    """The files of a directory in which each has the edges of one split, as releases of FB15k and WN18RR have it."""
    if not path.is_dir():
        return None
    found: dict[str, Path] = {}
    for stem, split in (("train", "train"), ("valid", "val"), ("val", "val"), ("dev", "val"), ("test", "test")):
        for file in (path / f"{stem}{suffix}{packed}" for suffix in _TEXT for packed in ("", ".gz")):
            if file.is_file() and split in found:
                what = f"has both {found[split].name} and {file.name}"
                raise InputError(what, where=str(path), fix="Keep one file of each split, or name the files")
            if file.is_file():
                found[split] = file
    return found if "train" in found and len(found) > 1 else None


def _of_object(source: Any, options: IngestOptions) -> Source:
    name = name_of(source)
    if is_frame(source):
        return Source(Path(name), table=FrameTable(name, source))
    if isinstance(source, tuple | list) and len(source) == 2 and all(map(_is_array, source)):
        ends = {which: array_of(f"(src, dst), {which}", end) for which, end in zip(("source", "target"), source)}
        lengths = [end.shape for end in ends.values()]
        if lengths[0] != lengths[1] or len(lengths[0]) != 1:
            what = f"two arrays of shapes {lengths[0]} and {lengths[1]}"
            raise InputError(what, where="source", fix="Give the sources and the targets of all edges, one-dimensional")
        return Source(Path("(src, dst)"), table=FrameTable("(src, dst)", ends))
    if is_networkx(source):
        edges, nodes = networkx_tables(source, options)
        return Source(Path(name), table=edges, nodes=nodes, undirected=not source.is_directed())
    where, arrays = arrays_of(source)
    return Source(Path(where), arrays)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") or isinstance(value, list | tuple | range)
