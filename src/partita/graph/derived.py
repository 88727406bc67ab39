"""Adds derived columns to a graph store that is there already: statistics of the graph, no part of its identity.

The new files are written to a hidden directory inside the store and renamed into place, then ``metadata.json`` is
replaced. A column that is replaced is first struck from the metadata, so that at no moment the metadata promise a
file that is not there: a process killed at any point leaves a store that opens, at worst without the column.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from partita.core import progress
from partita.core.errors import ResourceError, StoreError, is_disk_full, nearest
from partita.graph.column_specs import derived
from partita.graph.columns import map_new_column, record_of
from partita.graph.files import fsync_path, take_lock
from partita.graph.metadata import FILE_NAME, ColumnRecord, StoreMetadata
from partita.graph.store import GraphStore

_SCRATCH = ".columns.partial"


class DerivedColumns:
    """Adds derived columns to a store, all of them or none: a context manager.

    :meth:`finish` puts them into place; leaving the ``with`` block in any other way leaves the store as it was.
    Processes that have the store open go on with the columns they mapped.

    Args:
        path: of a graph store.

    Attributes:
        store: the store as it was, opened inside the ``with`` block.

    Raises:
        StoreError: no whole store there, it cannot be written, or another process is adding columns to it.
        ResourceError: (from the ``with`` block) the disk is full.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.store: GraphStore
        self._scratch = self.path / _SCRATCH
        self._lock: int | None = None
        self._maps: dict[str, np.memmap[Any, Any]] = {}
        self._finished = False

    def __enter__(self) -> DerivedColumns:
        self.store = GraphStore.open(self.path)
        self.store.require_whole("adding columns")
        self.store.require_sound()
        try:
            self._lock = take_lock(self.path, os.O_RDONLY)
        except BlockingIOError:
            raise StoreError(
                "another process is adding columns to this store",
                where=str(self.path),
                fix="Wait until it has finished, and run this again",
            ) from None
        try:
            shutil.rmtree(self._scratch, ignore_errors=True)  # of a process that was killed
            self._scratch.mkdir()
        except OSError as error:
            self._release()
            raise StoreError(
                f"columns cannot be added to this store ({error.strerror})",
                where=str(self.path),
                fix="Make the directory writable, or copy the store to where you may write",
            ) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._release()
        if isinstance(error, OSError) and is_disk_full(error):
            raise ResourceError(
                f"the disk is full: {shutil.disk_usage(self.path).free:,} bytes are free and more are needed",
                where=str(self.path),
                fix="Free space there, or copy the store to another disk",
            ) from error
        if error is None and not self._finished:
            raise RuntimeError("DerivedColumns.finish() was not called")

    def allocate(self, name: str) -> Integer[np.ndarray, "n"]:
        """A writable map of a new column, zeros at first: (N) or (E) of the column's dtype. It is no private memory.

        Args:
            name: of a derived column, which begins with ``presample_``; see :mod:`partita.graph.column_specs`.

        Raises:
            ValueError: no derived column has this name.
            ResourceError: the disk has no room for the column.
        """
        forms = derived(self.store.metadata)
        if name not in forms:
            raise ValueError(f"'{name}' is not a derived column. {nearest(name, forms)}")
        dtype, shape = forms[name]
        self._maps[name] = map_new_column(self._file(name), shape, dtype)
        return self._maps[name].view(np.ndarray)

    def finish(self, **notes: Any) -> StoreMetadata:
        """Put the columns into place.

        Args:
            notes: how they were made: JSON values for the metadata's ``notes``.

        Returns:
            The metadata of the store from now on.

        Raises:
            StoreError: the store was replaced by another one meanwhile.
        """
        records = self._record_columns()
        before = self.store.metadata
        kept = {name: record for name, record in before.columns.items() if name not in records}
        kept_notes = {name: note for name, note in before.notes.items() if name not in notes}
        without = dataclasses.replace(before, columns=kept, notes=kept_notes)
        after = dataclasses.replace(before, columns={**kept, **records}, notes={**kept_notes, **notes})
        # Both are on the disk before anything is renamed, so that a full disk changes nothing.
        self._write("without.json", without)
        self._write("after.json", after)
        if StoreMetadata.read(self.path) != before or not self._scratch.exists():
            raise StoreError(
                "the store was replaced while columns were being added to it",
                where=str(self.path),
                fix="Run this again, and let nothing else write the store meanwhile",
            )
        if without != before:
            self._rename("without.json", FILE_NAME)
        for name in records:
            self._rename(f"{name}.npy", f"{name}.npy")
        self._rename("after.json", FILE_NAME)
        self._finished = True
        return after

    def _record_columns(self) -> dict[str, ColumnRecord]:
        records = {}
        total = sum(self._file(name).stat().st_size for name in self._maps)
        with progress.task("checksums", total=total, unit="bytes") as task:
            for name, mapped in self._maps.items():
                mapped.flush()
                fsync_path(self._file(name))
                records[name] = record_of(self._file(name), task)
        self._maps.clear()
        return records

    def _file(self, name: str) -> Path:
        return self._scratch / f"{name}.npy"

    def _write(self, name: str, metadata: StoreMetadata) -> None:
        path = self._scratch / name
        path.write_text(metadata.to_json(), encoding="utf-8")
        fsync_path(path)

    def _rename(self, name: str, final: str) -> None:
        os.replace(self._scratch / name, self.path / final)
        fsync_path(self.path)  # before the next one, so that a power cut keeps their order as well

    def _release(self) -> None:
        self._maps.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
