"""Gzipped files of formats that are read in any order: unpacked beside the store for as long as they are needed."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from partita.core import progress
from partita.core.asides import private_folder
from partita.core.errors import InputError, PartitaError, ResourceError, is_disk_full

_ANY_ORDER = {".npz", ".npy", ".parquet"}
_CHUNK = 1 << 20


@contextmanager
def unpacked(paths: Sequence[Path], beside: Path) -> Iterator[list[Path]]:
    """The same paths, those of gzipped ``.npz``, ``.npy`` and Parquet files replaced by unpacked copies.

    Gzipped text is left alone, because it is read from beginning to end. An error that names a copy is made to
    name the file that the user gave.

    Args:
        paths: files.
        beside: the copies are made in a temporary directory next to this path.

    Raises:
        InputError: a file is not gzipped or is damaged.
        ResourceError: no space for the copies.
    """
    packed = [path for path in paths if _needs_unpacking(path)]
    if not packed:
        yield list(paths)
        return
    beside = beside.absolute()
    with private_folder(f".{beside.name}.unpacked-", beside.parent) as folder:
        copies = {path: folder / f"{number}-{path.stem}" for number, path in enumerate(packed)}
        for path, copy in copies.items():
            _unpack(path, copy)
        try:
            yield [copies.get(path, path) for path in paths]
        except PartitaError as error:
            for path, copy in copies.items():
                error.rename(str(copy), str(path))
            raise


def _needs_unpacking(path: Path) -> bool:
    return path.suffix.lower() == ".gz" and Path(path.stem).suffix.lower() in _ANY_ORDER and path.is_file()


def _unpack(path: Path, copy: Path) -> None:
    with progress.task("unpack", unit="bytes") as task:
        try:
            with gzip.open(path, "rb") as source, copy.open("wb") as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
                    task.advance(len(chunk))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"is not a valid gzip file ({error})", where=str(path), fix="Fetch it again") from None
        except OSError as error:
            if is_disk_full(error):
                free = shutil.disk_usage(copy.parent).free
                what = f"no space to unpack it: {copy.stat().st_size:,} bytes were not enough, {free:,} are left"
                raise ResourceError(what, where=str(path), fix="Free space there, or unpack it elsewhere") from None
            raise
