"""Arrays in ``.npy`` and ``.npz`` files, read in blocks of rows. Pickled objects are refused, headers are data.

A member of an ``.npz`` is compressed, so it can only be read front to back; an :class:`ArrayFile` does so without
ever holding the whole of it.
"""

from __future__ import annotations

import io
import lzma
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Shaped

from partita.core.errors import InputError
from partita.core.files import ONE_HEADER, map_array

Stream = io.RawIOBase | io.BufferedIOBase
"""An open file of bytes."""

_BLOCK_BYTES = 4 << 20
# What zipfile, its decompressors, struct, ast and numpy raise when a file is not what it says.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, SyntaxError),
    *(EOFError, ValueError, LookupError, ArithmeticError, NotImplementedError, RuntimeError, AttributeError),
)


@dataclass(frozen=True)
class ArrayFile:
    """One array in a file: its header, and its content block by block.

    Attributes:
        where: the file, and the member for an ``.npz``.
        shape: of the array.
        dtype: of its elements; never objects.
        fortran_order: whether it is stored column by column.
    """

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    _open: Callable[[], Stream] | None = None
    _header_bytes: int = 0
    _path: Path | None = None
    _flat: Shaped[np.ndarray, "n"] | None = None

    @classmethod
    def held(cls, where: str, array: Shaped[np.ndarray, "..."]) -> ArrayFile:
        """An array that is in memory, or mapped into it.

        Args:
            where: what to call it in messages.
            array: of anything but objects.
        """
        by_column = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        flat = array.reshape(-1, order="F" if by_column else "C")  # a view, unless the elements are scattered
        return cls(where, array.shape, array.dtype, by_column, _flat=flat)

    def __len__(self) -> int:
        return self.shape[0]

    def fail(self, what: str, fix: str | None = None) -> InputError:
        """The error to raise about this array."""
        return InputError(what, where=self.where, fix=fix)

    def expect(self, kinds: str, *dims: int) -> ArrayFile:
        """The array itself, if its dtype is of one of these kinds (numpy's letters) and its rank one of ``dims``.

        Raises:
            InputError: otherwise.
        """
        if self.dtype.kind not in kinds or len(self.shape) not in dims:
            words = {
                "i": "integers",
                "u": "unsigned integers",
                "f": "floats",
                "b": "booleans",
                "U": "strings",
                "M": "dates",
            }
            wanted = " or ".join(words[kind] for kind in kinds)
            ranks = " or ".join(str(rank) for rank in dims)
            raise self.fail(
                f"holds {self.dtype.name} of shape {self.shape}; needed: {wanted} with {ranks} dimension(s)",
                "Convert the array",
            )
        return self

    def stream(self, start: int, stop: int) -> Iterator[Shaped[np.ndarray, "n"]]:
        """Elements ``start:stop`` in the order in which they are stored, some at a time, one-dimensional.

        Raises:
            InputError: the file is damaged or cut short.
        """
        step = max(1, _BLOCK_BYTES // max(1, self.dtype.itemsize))
        if self._flat is not None:
            yield from (self._flat[position : min(position + step, stop)] for position in range(start, stop, step))
            return
        assert self._open is not None
        with damage_of(self.where), self._open() as file:
            _skip(file, self._header_bytes + start * self.dtype.itemsize)
            for position in range(start, stop, step):
                count = min(step, stop - position)
                data = _read_exactly(file, count * self.dtype.itemsize)
                if position + count == int(np.prod(self.shape, dtype=object)):
                    file.read(1)  # reaching the end makes zipfile compare the checksum
                yield np.frombuffer(data, self.dtype)

    def blocks(self) -> Iterator[tuple[int, Shaped[np.ndarray, "n ..."]]]:
        """Runs of whole rows: the number of the first one, and the rows.

        An array stored column by column inside an ``.npz`` cannot be read in rows, and is loaded whole.

        Raises:
            InputError: the file is damaged or cut short.
        """
        width = int(np.prod(self.shape[1:], dtype=object))
        rows = max(1, _BLOCK_BYTES // max(1, self.dtype.itemsize * width))
        by_column = self.fortran_order and len(self.shape) > 1
        if by_column and self._path is None:
            yield 0, self.load()
            return
        if by_column:
            with damage_of(self.where):
                whole = map_array(self._path)  # type: ignore[arg-type]
        else:
            flat = Taker(self.stream(0, len(self) * width), self.dtype)
        for row in range(0, len(self), rows):
            count = min(rows, len(self) - row)
            yield row, whole[row : row + rows] if by_column else flat.take(count * width).reshape(-1, *self.shape[1:])

    def load(self) -> Shaped[np.ndarray, "..."]:
        """The whole array; only for what is O(nodes)."""
        size = int(np.prod(self.shape, dtype=object))
        flat = np.concatenate([np.empty(0, self.dtype), *self.stream(0, size)])
        return flat.reshape(self.shape, order="F" if self.fortran_order else "C")


class Taker:
    """Takes elements from a stream of pieces, as many at a time as one likes."""

    def __init__(self, stream: Iterator[Shaped[np.ndarray, "n"]], dtype: np.dtype[Any]) -> None:
        self._stream = stream
        self._rest = np.empty(0, dtype)

    def take(self, count: int) -> Shaped[np.ndarray, "count"]:
        """The next ``count`` elements; the caller knows that there are as many."""
        parts, have = [self._rest], len(self._rest)
        while have < count:
            parts.append(next(self._stream))
            have += len(parts[-1])
        flat = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._rest = flat[count:]
        return flat[:count]


def open_npy(path: Path) -> ArrayFile:
    """An array in a ``.npy`` file.

    Raises:
        InputError: the file cannot be read, is no ``.npy`` file, is cut short, or holds pickled objects.
    """
    with damage_of(str(path)):
        return _array(str(path), lambda: path.open("rb"), path.stat().st_size, path)


def open_npz(path: Path) -> dict[str, ArrayFile]:
    """All arrays in an ``.npz`` file by their names.

    Raises:
        InputError: as :func:`open_npy`.
    """
    with damage_of(str(path)), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    arrays = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        where = f"{path}, array '{name}'"
        with damage_of(where):
            arrays[name] = _array(where, partial(_open_member, path, member.filename), member.file_size)
    return arrays


@contextmanager
def damage_of(where: str) -> Iterator[None]:
    """Turn whatever a damaged file makes the standard readers raise into an :class:`InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=where) from error
    except _DAMAGE as error:
        raise InputError(f"the file is damaged ({error})", where=where, fix="Write or fetch it again") from error


def _open_member(path: Path, name: str) -> Stream:
    with zipfile.ZipFile(path) as archive:
        return cast(zipfile.ZipExtFile, archive.open(name))  # stays open without the archive


def _array(where: str, opener: Callable[[], Stream], file_size: int, path: Path | None = None) -> ArrayFile:
    with opener() as file:
        shape, fortran_order, dtype, header_bytes = _header(file)
    if dtype.hasobject:
        raise InputError(
            "holds pickled objects, which are never read: they can run code",
            where=where,
            fix="Save it as an array of numbers or of fixed-width strings",
        )
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if min(shape, default=0) < 0 or header_bytes + size != file_size:
        raise InputError(
            f"the file is damaged: {dtype.name} of shape {shape} needs {size:,} bytes, "
            f"the file has {file_size - header_bytes:,}",
            where=where,
            fix="Write or fetch it again",
        )
    return ArrayFile(where, shape, dtype, fortran_order, opener, header_bytes, path)


def _header(file: Stream) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order and dtype from the header of a ``.npy`` stream, and the size of the header."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format is not known")
    with ONE_HEADER, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns about headers that Python 2 wrote, and reads them
        shape, fortran_order, dtype = readers[version](file)
    return shape, fortran_order, dtype, file.tell()


def _skip(file: Stream, count: int) -> None:
    if isinstance(file, io.BufferedReader):
        file.seek(count)
        return
    while count > 0:  # a compressed member is read through, so that its checksum can be compared at the end
        count -= len(_read_exactly(file, min(count, _BLOCK_BYTES)))


def _read_exactly(file: Stream, count: int) -> bytes:
    data = file.read(count) or b""
    if len(data) < count:
        raise EOFError("it is cut short")
    return data
