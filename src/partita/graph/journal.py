"""What an interrupted writer of a graph store had finished, remembered in its working directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from partita.core import progress
from partita.core.errors import StoreError
from partita.core.files import map_array, parse_json, read_file
from partita.graph.columns import ColumnStream, file_checksum, record_of
from partita.graph.files import fsync_path, take_lock
from partita.graph.metadata import ColumnRecord

FILE_NAME = "journal.json"
LOCK_NAME = ".lock"
KEPT = "kept"
_VERSION = 1


class Journal:
    """The finished columns of a working directory, and private files beside them.

    An entry is made only after its file is on the disk for good and its checksum is known; the journal itself is
    replaced as a whole. So whatever the journal names is complete, wherever the process was killed.

    Opening keeps the files that the journal names and that still have the size it says; anything else in the
    directory is removed.

    Args:
        directory: of the writer, locked by it.

    Attributes:
        columns: finished columns by name.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        content = _read(directory / FILE_NAME)
        self.columns = _still_there(directory, content, "columns")
        self._kept = _still_there(directory / KEPT, content, "kept")
        for path in directory.iterdir():
            if path.name in (LOCK_NAME, FILE_NAME, KEPT) or (path.suffix == ".npy" and path.stem in self.columns):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (directory / KEPT).mkdir(exist_ok=True)
        for path in (directory / KEPT).iterdir():
            if path.stem not in self._kept:
                path.unlink()
        self._save()

    def enter(self, path: Path) -> None:
        """A column's file is complete: make it durable, compute its checksum, remember both."""
        with progress.task(f"checksum of {path.stem}", total=path.stat().st_size, unit="bytes") as task:
            record = record_of(path, task)
        fsync_path(path)
        self.columns[path.stem] = record
        self._save()

    def keep(self, name: str, array: Shaped[np.ndarray, "..."]) -> None:
        """Remember an array beside the columns, in place of an earlier one of that name."""
        path = self._directory / KEPT / f"{name}.npy"
        if self._kept.pop(name, None) is not None:
            self._save()
        path.unlink(missing_ok=True)
        stream = ColumnStream(path, array.dtype, array.shape[1:])
        try:
            stream.append(array)
            stream.close()
        finally:
            stream.abandon()
        fsync_path(path)
        fsync_path(path.parent)
        self._kept[name] = record_of(path)
        self._save()

    def kept(self, name: str) -> Shaped[np.ndarray, "..."] | None:
        """An array that was kept, mapped read-only; ``None`` where there is none or it is damaged."""
        record = self._kept.get(name)
        path = self._directory / KEPT / f"{name}.npy"
        if record is None or file_checksum(path) != record.checksum:
            return None
        return map_array(path).view(np.ndarray)

    @staticmethod
    def remove(directory: Path) -> None:
        """Leave nothing of a journal in a directory that is complete."""
        shutil.rmtree(directory / KEPT, ignore_errors=True)  # some file systems hold on to what is mapped
        (directory / FILE_NAME).unlink()

    def _save(self) -> None:
        content = {
            "version": _VERSION,
            "columns": {name: asdict(record) for name, record in self.columns.items()},
            "kept": {name: asdict(record) for name, record in self._kept.items()},
        }
        new = self._directory / f"{FILE_NAME}.new"
        new.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fsync_path(new)
        os.replace(new, self._directory / FILE_NAME)
        fsync_path(self._directory)


def _read(path: Path) -> dict[str, Any]:
    """The content of a journal; empty where there is none that can be used, so that all is done anew."""
    try:
        content = parse_json(read_file(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("version") == _VERSION else {}


def _still_there(directory: Path, content: dict[str, Any], section: str) -> dict[str, ColumnRecord]:
    found = {}
    for name, fields in content.get(section, {}).items():
        record = ColumnRecord(**{**fields, "shape": tuple(fields["shape"])})
        path = directory / f"{name}.npy"
        if path.is_file() and path.stat().st_size == record.bytes:
            found[name] = record
    return found


def lock_directory(directory: Path) -> int | None:
    """Make a directory where there is none, and lock it for this process.

    Returns:
        A descriptor that holds the lock until it is closed; ``None`` where there are no locks.

    Raises:
        StoreError: another process holds the lock.
    """
    path = directory / LOCK_NAME
    while True:
        directory.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = take_lock(path, os.O_CREAT | os.O_RDWR)
        except FileNotFoundError:  # the directory was removed meanwhile
            continue
        except BlockingIOError:
            raise StoreError(
                "another process is writing the same store just now",
                where=str(directory),
                fix="Wait until it has ended, or choose another path",
            ) from None
        if lock is None:
            return None
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                return lock
        os.close(lock)  # who held the lock before took the directory away
