"""Writes a graph store: into a temporary sibling directory, renamed into place when it is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Shaped
from numpy.typing import DTypeLike

from partita.core import progress
from partita.core.errors import ResourceError, StoreError
from partita.graph.files import allocate_file, fsync_path, write_all
from partita.graph.metadata import FILE_NAME, ColumnRecord, StoreMetadata, is_store
from partita.graph.store import GraphStore

try:
    import fcntl
except ImportError:  # not a POSIX system: directories that a killed process left are not removed
    fcntl = None  # type: ignore[assignment]

HEADER_BYTES = 128
"""Size of the ``.npy`` header of every column; the data begin there, aligned to 64 bytes as the format asks."""

_CHUNK_BYTES = 8 << 20
_LOCK_NAME = ".lock"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreWriter:
    """Makes a graph store, or nothing at all: a context manager.

    The columns go to a hidden sibling directory of ``path``. :meth:`finish` completes it and renames it into
    place; leaving the ``with`` block in any other way removes it. What a killed process left behind is removed
    by the next writer of the same path.

    Args:
        path: the directory to be made.
        overwrite: replace a store that is already there, once the new one is complete.

    Attributes:
        directory: where the columns are being written.

    Raises:
        StoreError: something is there already that may not be replaced.
        ResourceError: (from the ``with`` block) the disk is full, or a quota or file size limit was met.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.path = Path(os.path.abspath(path))
        self.overwrite = overwrite
        self.directory: Path
        self._lock: int | None = None
        self._finished = False
        self._streams: list[ColumnStream] = []
        self._maps: list[np.memmap[Any, Any]] = []

    def __enter__(self) -> StoreWriter:
        self._check_target()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._remove_abandoned()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self._prefix}{os.getpid()}-", dir=self.path.parent))
        if fcntl is not None:
            self._lock = os.open(self.directory / _LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
            with contextlib.suppress(OSError):  # a file system without locks: nothing is cleaned up there
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        free = shutil.disk_usage(self.path.parent).free
        written = self._release()
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise ResourceError(
                f"the disk is full, or a file size limit was met: {written:,} bytes of the store were written "
                f"and more are needed, {free:,} bytes are free",
                where=str(self.path.parent),
                fix="Free space there, or write the store to another disk",
            ) from error
        if error is None and not self._finished:
            raise RuntimeError("StoreWriter.finish() was not called")

    @property
    def scratch(self) -> Path:
        """A directory for temporary files on the same disk; removed before the store is complete."""
        scratch = self.directory / "scratch"
        scratch.mkdir(exist_ok=True)
        return scratch

    def write(self, name: str, array: Shaped[np.ndarray, "..."]) -> None:
        """Write a whole column.

        Args:
            name: of the column.
            array: any shape; a memory map is streamed.
        """
        array = np.asarray(array)
        stream = self.append(name, array.dtype, array.shape[1:])
        rows = max(1, _CHUNK_BYTES // max(1, array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))))
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
        stream = ColumnStream(self.directory / f"{name}.npy", dtype, tuple(trailing_shape))
        self._streams.append(stream)
        return stream

    def allocate(self, name: str, shape: Sequence[int], dtype: DTypeLike) -> Shaped[np.ndarray, "..."]:
        """A writable map of a new column, zeros at first, whose space on disk is really taken.

        Args:
            name: of the column.
            shape: of the whole column.
            dtype: of the elements.

        Raises:
            ResourceError: the disk has no room for the column.
        """
        shape, dtype = tuple(int(length) for length in shape), _little_endian(dtype)
        path = self.directory / f"{name}.npy"
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        allocate_file(path, HEADER_BYTES + nbytes)
        with open(path, "r+b", buffering=0) as file:
            write_all(file.fileno(), _header(dtype, shape))
        mapped = np.memmap(path, dtype=dtype, mode="r+", offset=HEADER_BYTES, shape=shape)
        self._maps.append(mapped)
        return mapped.view(np.ndarray)

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
        **notes: Any,
    ) -> Path:
        """Complete the store and rename it into place.

        Writes ``part_offsets`` for one part if none was written. The fields are those of
        :class:`~partita.graph.metadata.StoreMetadata`; any further keyword is kept in its ``notes``.

        Returns:
            The path of the store.

        Raises:
            StoreError: the columns do not fit each other, or a store appeared at the path meanwhile.
        """
        if not (self.directory / "part_offsets.npy").exists():
            self.write("part_offsets", np.array([0, num_nodes], dtype=np.int64))
        self._close_columns()
        shutil.rmtree(self.directory / "scratch", ignore_errors=True)
        columns = self._record_columns()
        x = columns.get("x")
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
        )
        (self.directory / FILE_NAME).write_text(metadata.to_json(), encoding="utf-8")
        GraphStore.open(self.directory)  # what does not open is not put into place
        for path in self.directory.glob("*"):
            fsync_path(path)
        fsync_path(self.directory)
        self._install()
        return self.path

    def _record_columns(self) -> Mapping[str, ColumnRecord]:
        """Read every column once more for its checksum."""
        columns = {}
        paths = sorted(self.directory.glob("*.npy"))
        with progress.task("checksums", total=sum(path.stat().st_size for path in paths), unit="bytes") as task:
            for path in paths:
                header = np.load(path, mmap_mode="r", allow_pickle=False)
                columns[path.stem] = ColumnRecord(
                    dtype=header.dtype.str,
                    shape=tuple(header.shape),
                    bytes=path.stat().st_size,
                    checksum=file_checksum(path, task),
                )
        return columns

    def _install(self) -> None:
        """Put the finished directory where it belongs; an old store goes only then."""
        self._check_target()
        (self.directory / _LOCK_NAME).unlink(missing_ok=True)
        self.directory.chmod(0o777 & ~_umask())  # a temporary directory is private, a store is not
        if not self.path.exists():
            os.rename(self.directory, self.path)
        else:
            retired = Path(tempfile.mkdtemp(prefix=f"{self._prefix}old-", dir=self.path.parent))
            os.rename(self.path, retired / "store")
            try:
                os.rename(self.directory, self.path)
            except OSError:
                os.rename(retired / "store", self.path)
                raise
            finally:
                shutil.rmtree(retired, ignore_errors=True)
        self._finished = True
        fsync_path(self.path.parent)

    def _check_target(self) -> None:
        path = self.path
        if path.is_dir() and not any(path.iterdir()):
            return
        if not os.path.lexists(path):
            return
        if not self.overwrite:
            fix = "Choose another path, or allow overwriting (--overwrite)"
            raise StoreError("already exists", where=str(path), fix=fix)
        if not is_store(path):
            fix = "Choose another path, or remove it yourself"
            raise StoreError("what is here is not a graph store, so it is not replaced", where=str(path), fix=fix)

    @property
    def _prefix(self) -> str:
        return f".{self.path.name}.partial-"

    def _remove_abandoned(self) -> None:
        """Remove directories of writers of this path that were killed: nobody holds their lock."""
        if fcntl is None:
            return
        for directory in self.path.parent.glob(f"{_escaped(self._prefix)}*"):
            with contextlib.suppress(OSError):
                lock = os.open(directory / _LOCK_NAME, os.O_RDWR)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)
                finally:
                    os.close(lock)

    def _close_columns(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        for mapped in self._maps:
            mapped.flush()
        self._maps.clear()

    def _release(self) -> int:
        """Let go of all files and remove what is not finished; returns the bytes that had been written."""
        written = 0
        with contextlib.suppress(OSError):
            self._close_columns()
        if not self._finished:
            for path in self.directory.rglob("*"):
                with contextlib.suppress(OSError):
                    written += path.stat().st_size
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        return written


class ColumnStream:
    """A column written front to back; see :meth:`StoreWriter.append`.

    Attributes:
        rows: number of rows appended so far.
    """

    def __init__(self, path: Path, dtype: DTypeLike, trailing_shape: tuple[int, ...]) -> None:
        self.rows = 0
        self._dtype = _little_endian(dtype)
        self._trailing_shape = trailing_shape
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 (closed by close)
        write_all(self._file.fileno(), _header(self._dtype, (0, *trailing_shape)))

    def append(self, array: Shaped[np.ndarray, "rows ..."]) -> None:
        """Write more rows.

        Raises:
            ValueError: the rows have another shape or dtype than the column.
        """
        if array.shape[1:] != self._trailing_shape or array.dtype != self._dtype:
            raise ValueError(
                f"{Path(self._file.name).stem}: {array.dtype} rows of shape {array.shape[1:]} do not fit "
                f"{self._dtype} rows of shape {self._trailing_shape}"
            )
        write_all(self._file.fileno(), np.ascontiguousarray(array, dtype=self._dtype).reshape(-1).view(np.uint8).data)
        self.rows += len(array)

    def close(self) -> None:
        """Write the final length into the header. Closing twice does no harm."""
        if self._file.closed:
            return
        try:
            self._file.seek(0)
            write_all(self._file.fileno(), _header(self._dtype, (self.rows, *self._trailing_shape)))
        finally:
            self._file.close()


def file_checksum(path: Path, task: progress.Task | None = None) -> str:
    """xxh3_64 of a whole file, 16 hexadecimal digits, read in chunks; ``task`` advances by bytes."""
    digest = xxhash.xxh3_64()
    buffer = bytearray(_CHUNK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            if task is not None:
                task.advance(count)
    return digest.hexdigest()


def _little_endian(dtype: DTypeLike) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A version 1.0 ``.npy`` header of fixed size, so that it can be rewritten when the length is known."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    room = HEADER_BYTES - 10 - 1
    if len(text) > room:
        raise ValueError(f"a column of shape {shape} has too long a header")
    return b"\x93NUMPY\x01\x00" + (room + 1).to_bytes(2, "little") + text.ljust(room) + b"\n"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _escaped(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
