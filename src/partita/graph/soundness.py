"""Whether the columns of a store are those that were written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int64

from partita.core import progress
from partita.core.errors import StoreError
from partita.graph.columns import file_checksum
from partita.graph.metadata import FILE_NAME, StoreMetadata, how_to_mend

_CHUNK = 1 << 20

WRONG = "the content does not match its checksum"


def changed_columns(directory: Path, metadata: StoreMetadata) -> list[str]:
    """The columns whose files were written after the metadata, which is written last: by whom is not known.

    A copy of a store may be such a one, too.
    """
    try:
        written = (directory / FILE_NAME).stat().st_mtime_ns
        return [name for name in metadata.columns if (directory / f"{name}.npy").stat().st_mtime_ns > written]
    except OSError:
        return list(metadata.columns)


def wrong_columns(directory: Path, metadata: StoreMetadata, names: Iterable[str]) -> dict[str, str]:
    """Which of some columns have other content than was written, and that in words. Reads them."""
    records = {name: metadata.columns[name] for name in names}
    found = {}
    with progress.task("checksums", total=sum(record.bytes for record in records.values()), unit="bytes") as task:
        for name, record in records.items():
            try:
                if file_checksum(directory / f"{name}.npy", task) != record.checksum:
                    found[name] = WRONG
            except OSError as error:
                found[name] = f"cannot be read: {error.strerror}"
    return found


def require_sound(directory: Path, metadata: StoreMetadata, names: Iterable[str]) -> None:
    """See that columns are what was written.

    Raises:
        StoreError: some are not; names all of them.
    """
    wrong = wrong_columns(directory, metadata, names)
    if wrong:
        raise StoreError(
            "the store is damaged: " + "; ".join(f"column '{name}': {what}" for name, what in wrong.items()),
            where=str(directory),
            fix=how_to_mend(metadata.shard),
        )


def rows_of(indptr: Int64[np.ndarray, "N_1"], first: int, stop: int) -> Int64[np.ndarray, "n"]:
    """The destination of every edge in ``first:stop``."""
    low, high = np.searchsorted(indptr, [first, stop - 1], side="right") - 1
    bounds = np.clip(indptr[low : high + 2], first, stop)
    return np.repeat(np.arange(low, high + 1), np.diff(bounds))


def first_fall(column: Int64[np.ndarray, "n"]) -> int | None:
    """Position of the first entry that is smaller than the one before it."""
    for start in range(0, len(column), _CHUNK):
        falls = np.diff(column[start : start + _CHUNK + 1]) < 0
        if falls.any():
            return start + 1 + int(np.argmax(falls))
    return None


def first_stray(ids: Int[np.ndarray, "n"], number: int, least: int = 0) -> tuple[int, int] | None:
    """Position and value of the first id, of a node or a class, that is not in ``least:number``."""
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        if part.min() < least or part.max() >= number:
            position = start + int(np.argmax((part < least) | (part >= number)))
            return position, int(ids[position])
    return None


def require_unchanged(directory: Path, metadata: StoreMetadata) -> None:
    """See that no column was written to after the store was finished; those that may have been are read once.

    What was found sound is not read again when the store is next opened, as far as the directory can be written.

    Raises:
        StoreError: a column is not what was written.
    """
    changed = changed_columns(directory, metadata)
    if changed:
        require_sound(directory, metadata, changed)
        with suppress(OSError):
            os.utime(directory / FILE_NAME)
