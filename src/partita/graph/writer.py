"""Writes a graph store: into a temporary sibling directory, renamed into place when it is complete."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import DTypeLike

from partita.core import progress
from partita.core.asides import left_behind, remove_left_behind
from partita.core.errors import StoreError, is_disk_full
from partita.graph.column_specs import levels_column
from partita.graph.columns import (
    CHUNK_BYTES,
    ColumnStream,
    NewColumnFile,
    PlacedColumn,
    column_bytes,
    little_endian,
    map_new_column,
    record_of,
)
from partita.graph.files import fcntl, fsync_path, no_room, take_lock
from partita.graph.journal import FILE_NAME as JOURNAL
from partita.graph.journal import LOCK_NAME, Journal, lock_directory
from partita.graph.metadata import FILE_NAME, LEVELS_PREFIX, ColumnRecord, StoreMetadata, is_store
from partita.graph.schema import Schema
from partita.graph.shard import Shard
from partita.graph.store import GraphStore


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column to be written.

    Attributes:
        shape: of the whole column.
        dtype: of its elements.
        unit: what progress counts.
        fill: writes it; the task advances by ``unit``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    unit: str
    fill: Callable[[PlacedColumn, progress.Bar], None]


class StoreWriter:
    """Makes a graph store, or nothing at all: a context manager.

    The columns go to a hidden sibling directory of ``path``. :meth:`finish` completes it and renames it into
    place; leaving the ``with`` block in any other way removes it. What a killed process left behind is removed
    by the next writer of the same path.

    With a ``resume_key`` the work can be continued: when the process is killed or interrupted (Ctrl-C), the
    directory stays, and the next writer of the same path and key finds the columns that were finished
    (:meth:`is_done`) and the arrays that were kept (:meth:`kept`). A column is finished when its stream was closed.
    Any other error removes the directory.

    Args:
        path: the directory to be made.
        overwrite: replace a store that is already there, once the new one is complete.
        resume_key: letters, digits, ``-`` and ``_``. Equal keys must mean equal columns: a hash of all that goes
            into them.

    Attributes:
        directory: where the columns are being written.
        interrupted: the ``with`` block was left by Ctrl-C, and what was finished is kept.

    Raises:
        StoreError: something is there already that may not be replaced, or another process writes with this key.
        ResourceError: (from the ``with`` block) the disk is full, or a quota or file size limit was met.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, resume_key: str | None = None) -> None:
        if resume_key is not None and not re.fullmatch(r"[\w-]{1,64}", resume_key, re.ASCII):
            raise ValueError(f"'{resume_key}' cannot be part of a file name")
        self.path = Path(os.path.abspath(path))
        self.overwrite = overwrite
        self.directory: Path
        self.interrupted = False
        self._resume_key = resume_key
        self._journal: Journal | None = None
        self._lock: int | None = None
        self._finished = False
        self._prefix = _prefix(self.path)
        self._streams: list[NewColumnFile] = []
        self._maps: list[np.memmap[Any, Any]] = []

    def __enter__(self) -> StoreWriter:
        check_target(self.path, self.overwrite)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.path, keep=self._resume_key)
        if self._resume_key is not None:
            self.directory = self.path.parent / f"{self._prefix}resume-{self._resume_key}"
            self._lock = lock_directory(self.directory)
            try:
                self._journal = Journal(self.directory)
            except BaseException:
                if not (self.directory / JOURNAL).exists():  # nothing is kept here
                    shutil.rmtree(self.directory, ignore_errors=True)
                self._unlock()
                raise
            return self
        # The name is known before the directory is there, as a signal can come at any moment. It must be none of
        # `core.asides`: who holds this one has a lock on a file in it.
        self.directory = self.path.parent / f"{self._prefix}{os.getpid()}-store-{secrets.token_hex(4)}"
        try:
            self.directory.mkdir(mode=0o700)
            with contextlib.suppress(BlockingIOError):  # held by a writer that just looks whether it is abandoned
                self._lock = take_lock(self.directory / LOCK_NAME, os.O_CREAT | os.O_RDWR)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            self._unlock()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        free = shutil.disk_usage(self.path.parent).free
        self.interrupted = self._journal is not None and isinstance(error, KeyboardInterrupt) and not self._finished
        written = self._release()
        if self.interrupted and error is not None:
            error.add_note("What was finished is kept: the same command continues there")
        if isinstance(error, OSError) and is_disk_full(error):
            what = (
                f"the disk is full, or a file size limit was met: {written:,} bytes of the store were written "
                f"and more are needed, {free:,} bytes are free"
            )
            raise no_room(what, self.path.parent) from error
        if error is None and not self._finished:
            raise RuntimeError("StoreWriter.finish() was not called")

    @property
    def scratch(self) -> Path:
        """A directory for temporary files on the same disk; removed before the store is complete."""
        scratch = self.directory / "scratch"
        scratch.mkdir(exist_ok=True)
        return scratch

    @property
    def continued(self) -> bool:
        """Whether some columns are finished already, by this writer or an earlier one with its key."""
        return self._journal is not None and bool(self._journal.columns)

    def is_done(self, name: str) -> bool:
        """Whether a column is finished, by this writer or an earlier one with its key; ``False`` without a key.

        A finished column must not be written again.
        """
        return self._journal is not None and name in self._journal.columns

    def keep(self, name: str, array: Shaped[np.ndarray, "..."]) -> None:
        """Put an array aside for the next writer with this key; it never becomes a column. Nothing without a key."""
        if self._journal is not None:
            self._journal.keep(name, array)

    def kept(self, name: str) -> Shaped[np.ndarray, "..."] | None:
        """What :meth:`keep` put aside, mapped read-only; ``None`` where there is nothing whole."""
        return None if self._journal is None else self._journal.kept(name)

    def write(self, name: str, array: Shaped[np.ndarray, "..."]) -> None:
        """Write a whole column, of any shape; a memory map is streamed."""
        array = np.asarray(array)
        stream = self.append(name, array.dtype, array.shape[1:])
        rows = max(1, CHUNK_BYTES // max(1, array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))))
        for start in range(0, len(array), rows):
            stream.append(array[start : start + rows])
        stream.close()

    def append(self, name: str, dtype: DTypeLike, trailing_shape: Sequence[int] = ()) -> ColumnStream:
        """Begin a column whose length is not known yet.

        Args:
            name: of the column.
            dtype: of the elements.
            trailing_shape: shape of one row, ``()`` for a one-dimensional column.
        """
        stream = ColumnStream(self._file(name), dtype, tuple(trailing_shape), self._completed)
        self._streams.append(stream)
        return stream

    def place(self, name: str, shape: Sequence[int], dtype: DTypeLike) -> PlacedColumn:
        """Begin a column of known size that is written in pieces; its space on disk is really taken.

        Raises:
            ResourceError: the disk has no room for the column.
        """
        column = PlacedColumn(self._file(name), tuple(map(int, shape)), dtype, self._completed)
        self._streams.append(column)
        return column

    def allocate(self, name: str, shape: Sequence[int], dtype: DTypeLike) -> Shaped[np.ndarray, "..."]:
        """A writable map of a new column, zeros at first, whose space on disk is really taken.

        The column is finished when the store is, so it is never found by a later writer with the same key.

        Raises:
            ResourceError: the disk has no room for the column.
        """
        mapped = map_new_column(self._file(name), tuple(map(int, shape)), little_endian(dtype))
        self._maps.append(mapped)
        return mapped.view(np.ndarray)

    def fill(self, columns: Mapping[str, NewColumn]) -> None:
        """Write columns of known sizes, one after the other, but those that are finished.

        Raises:
            ResourceError: the disk has no room for all of them; nothing was written then.
        """
        missing = {name: column for name, column in columns.items() if not self.is_done(name)}
        need = sum(column_bytes(column.shape, column.dtype) for column in missing.values())
        free = shutil.disk_usage(self.path.parent).free
        if need > free:
            raise no_room(f"the store needs {need:,} bytes, {free:,} bytes are free", self.path.parent)
        for name, column in missing.items():
            placed = self.place(name, column.shape, column.dtype)
            with progress.task(f"write {name}", total=column.shape[0], unit=column.unit) as task:
                column.fill(placed, task)
            placed.close()

    def finish_like(self, other: StoreMetadata, notes: Mapping[str, Any], shard: Shard | None = None) -> Path:
        """Complete a store of the same graph as another one; see :meth:`finish`."""
        same = ("num_nodes", "num_edges", "task", "num_classes", "class_names", "source", "split_rule", "schema")
        return self.finish(shard=shard, **{name: getattr(other, name) for name in same}, **notes)

    def finish(
        self,
        *,
        num_nodes: int,
        num_edges: int,
        task: str | None = None,
        num_classes: int = 0,
        class_names: Sequence[str] | None = None,
        source: str = "",
        split_rule: str = "",
        shard: Shard | None = None,
        schema: Schema | None = None,
        **notes: Any,
    ) -> Path:
        """Complete the store and rename it into place.

        Writes ``part_offsets``, and ``type_offsets`` of a typed graph, for one part if none was written. The fields are
        those of :class:`~partita.graph.metadata.StoreMetadata`; any further keyword is kept in its ``notes``.

        Returns:
            The path of the store.

        Raises:
            StoreError: the columns do not fit each other, or a store appeared at the path meanwhile.
        """
        if not self._file("part_offsets").exists():
            self.write("part_offsets", np.array([0, num_nodes], dtype=np.int64))
        if schema is not None and not self._file("type_offsets").exists():
            self.write("type_offsets", np.array(schema.first_nodes, dtype=np.int64))
        self._close_columns()
        shutil.rmtree(self.directory / "scratch", ignore_errors=True)
        columns = self._record_columns()
        x = columns.get(levels_column("x"), columns.get("x"))
        metadata = StoreMetadata(
            num_nodes=int(num_nodes),
            num_edges=int(num_edges),
            num_features=x.shape[1] if x is not None and len(x.shape) == 2 else 0,
            task=task,
            num_classes=int(num_classes),
            class_names=None if class_names is None else tuple(str(name) for name in class_names),
            source=source,
            split_rule=split_rule,
            notes=notes,
            columns=columns,
            version=2 if any(name.startswith(LEVELS_PREFIX) for name in columns) else 1,
            shard=shard,
            schema=schema,
        )
        (self.directory / FILE_NAME).write_text(metadata.to_json(), encoding="utf-8")
        GraphStore.open(self.directory)  # what does not open is not put into place
        for path in self.directory.glob("*"):
            fsync_path(path)
        fsync_path(self.directory)
        self._install()
        return self.path

    def _record_columns(self) -> Mapping[str, ColumnRecord]:
        """Read every column once more for its checksum, but those whose checksum is known."""
        columns = dict(self._journal.columns) if self._journal is not None else {}
        paths = [path for path in sorted(self.directory.glob("*.npy")) if path.stem not in columns]
        with progress.task("checksums", total=sum(path.stat().st_size for path in paths), unit="bytes") as task:
            for path in paths:
                columns[path.stem] = record_of(path, task)
        return columns

    def _install(self) -> None:
        """Put the finished directory where it belongs."""
        check_target(self.path, self.overwrite)
        if self._journal is not None:  # out of the way of a writer with the same key, before the lock goes
            private = f"{self._prefix}{os.getpid()}-{secrets.token_hex(4)}"
            self.directory = self.directory.rename(self.path.parent / private)
            self._journal = None
            Journal.remove(self.directory)
        (self.directory / LOCK_NAME).unlink(missing_ok=True)
        self.directory.chmod(0o777 & ~_umask())  # a temporary directory is private, a store is not
        install(self.directory, self.path, overwrite=self.overwrite)
        self._finished = True

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.npy"

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _completed(self, path: Path) -> None:
        if self._journal is not None:
            self._journal.enter(path)

    def _close_columns(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        for mapped in self._maps:
            mapped.flush()
        self._maps.clear()

    def _release(self) -> int:
        """Let go of all files and remove what is not to be continued; returns the bytes that had been written."""
        written = 0
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.abandon()
        self._streams.clear()
        self._maps.clear()
        if not self._finished:
            for path in self.directory.rglob("*"):
                with contextlib.suppress(OSError):
                    written += path.stat().st_size
            if not self.interrupted:
                shutil.rmtree(self.directory, ignore_errors=True)
        self._unlock()
        return written


def remove_abandoned(path: Path, keep: str | None = None) -> list[Path]:
    """Remove directories of writers of a path that were killed: nobody holds their lock.

    Args:
        path: of the store.
        keep: the key with which work is continued; what was finished with it stays. ``None``: nothing is.

    Returns:
        Those that were removed.
    """
    removed = [left for left in left_behind(path.parent, f".{path.name}.") if remove_left_behind(left)]
    prefix = _prefix(path)
    for directory in () if fcntl is None else path.parent.glob(f"{glob.escape(prefix)}*"):
        if keep is not None and directory.name == f"{prefix}resume-{keep}":
            continue
        with contextlib.suppress(OSError):
            lock = os.open(directory / LOCK_NAME, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
                removed.append(directory)
            finally:
                os.close(lock)
    return removed


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse before the work what could not be written after it.

    Raises:
        StoreError: something is there that may not be replaced.
    """
    if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        fix = "Choose another path, or allow overwriting (--overwrite)"
        raise StoreError("already exists", where=str(path), fix=fix)
    if not is_store(path):
        fix = "Choose another path, or remove it yourself"
        raise StoreError("what is here is not a graph store, so it is not replaced", where=str(path), fix=fix)


def install(directory: Path, path: Path, *, overwrite: bool) -> None:
    """Rename a complete store to where it belongs; a store that is there goes only then.

    Raises:
        StoreError: something is there that may not be replaced.
    """
    check_target(path, overwrite)
    if not path.exists():
        os.rename(directory, path)
    else:
        retired = Path(tempfile.mkdtemp(prefix=f"{_prefix(path)}old-", dir=path.parent))
        os.rename(path, retired / "store")
        try:
            os.rename(directory, path)
        except OSError:
            os.rename(retired / "store", path)
            raise
        finally:
            shutil.rmtree(retired, ignore_errors=True)
    fsync_path(path.parent)


def _prefix(path: Path) -> str:
    """How the names of hidden directories begin that belong to writers of a store."""
    return f".{path.name}.partial-"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
