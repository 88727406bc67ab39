"""Learnt rows in a checkpoint: ``learnt.safetensors``, in the order of the store, whoever owned them.

A table may be larger than memory, so the file is written and read in blocks: owners send theirs in turn to the first
worker, which alone sees the run folder. It is written beside the checkpoint, which takes it in when that is written.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from jaxtyping import Float, Int64
from torch import Tensor

from partita.comm.context import Context
from partita.core.errors import RunError
from partita.features.learnt import BLOCK_BYTES, LearntRows
from partita.runs.checkpoint_files import damaged, digests_of, form
from partita.sample.topology import as_tensor

LEARNT = "learnt.safetensors"
_STEPS = "steps"
_DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_HEADER = 2**24


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a checkpoint that is complete already, under another name.

    Attributes:
        path: where it is; it is moved from there.
        digests: of its tensors by name.
    """

    path: Path
    digests: Mapping[str, str]


def forms_of(learnt: LearntRows) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Dtype and shape of every array of all workers together, by name, in the order of the file."""
    found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {_STEPS: (torch.int64, (1,))}
    for kind, table in learnt.tables.items():
        for name, width in table.held.widths.items():
            found[f"{name}/{table.name}"] = table.held.dtype, (learnt.size_of(kind), width)
    return found


def write_learnt(learnt: LearntRows, path: Path | None) -> WrittenFile | None:
    """Write all tables. All workers call this.

    Args:
        learnt: the tables.
        path: of the file, on the first worker.

    Raises:
        OSError: it cannot be written; then there is none.
    """
    if path is None:
        for _ in _pieces(learnt):
            pass
        return None
    forms = forms_of(learnt)
    digests = {name: xxhash.xxh3_128(form(*each).encode()) for name, each in forms.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.write(header := _header(forms))
            places = {name: len(header) + begin for name, begin, _ in _offsets(forms)}
            for name, piece in _pieces(learnt):  # of every array its rows in order, the arrays beside one another
                content = piece.contiguous().view(-1).view(torch.uint8).numpy().data
                digests[name].update(content)
                file.seek(places[name])
                places[name] += file.write(content)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return WrittenFile(path, {name: digest.hexdigest() for name, digest in digests.items()})


def _pieces(learnt: LearntRows) -> Iterator[tuple[str, Tensor]]:
    """On the first worker, all that the file holds, with the names of the arrays; nothing on others, who send it."""
    group = learnt.group
    if group.rank == 0:
        yield _STEPS, torch.tensor([learnt.steps])
    for kind, owner, start, stop in learnt.blocks():
        table, rows = learnt.tables[kind], stop - start
        mine = learnt.piece(kind, start, stop) if owner == group.rank else learnt.nothing(kind)
        for name, array in mine.items():
            if group.size > 1:
                send = [rows * (owner == group.rank), *[0] * (group.size - 1)]
                receive = [rows * (rank == owner and group.rank == 0) for rank in range(group.size)]
                array = group.exchange(array, send, receive, "metadata")
            if group.rank == 0:
                yield f"{name}/{table.name}", array


def restore_learnt(context: Context, checkpoint: Path, learnt: LearntRows) -> None:
    """Put what a checkpoint holds into the tables. All workers call this; the first one reads.

    Raises:
        RunError: on all workers: the file is missing or damaged, or of other rows.
    """
    opened: list[LearntFile] = []

    def read() -> int:
        opened.append(LearntFile.open(checkpoint, forms_of(learnt), verify=True))
        return int(opened[0].arrays[_STEPS][0])

    learnt.steps = context.agree(read)
    group = learnt.group
    for kind, owner, start, stop in learnt.blocks():
        table, rows = learnt.tables[kind], stop - start
        found = dict[str, Tensor]()
        for name, nothing in learnt.nothing(kind).items():
            array = opened[0].arrays[f"{name}/{table.name}"][start:stop] if opened else nothing
            if group.size > 1:
                send = [rows * (rank == owner and group.rank == 0) for rank in range(group.size)]
                receive = [rows * (owner == group.rank), *[0] * (group.size - 1)]
                array = group.exchange(array, send, receive, "metadata")
            found[name] = array
        if owner == group.rank:
            learnt.put(kind, start, found)


@dataclass(frozen=True, slots=True)
class LearntFile:
    """The learnt rows of a checkpoint, memory-mapped.

    Attributes:
        path: of the file.
        arrays: by name.
    """

    path: Path
    arrays: Mapping[str, Tensor]

    @classmethod
    def open(
        cls, checkpoint: Path, forms: Mapping[str, tuple[torch.dtype, tuple[int, ...]]] | None, *, verify: bool
    ) -> LearntFile:
        """Map the file of a checkpoint.

        Args:
            checkpoint: its folder.
            forms: what it must hold; ``None``: anything.
            verify: read all of it, and compare it with its digests.

        Raises:
            RunError: it is missing or damaged, or holds something else.
        """
        path = checkpoint / LEARNT
        try:
            with path.open("rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                if size > _MOST_HEADER:
                    raise ValueError(f"its header is {size:,} bytes long")
                header = json.loads(file.read(size))
            found = {name: _array(path, 8 + size, entry) for name, entry in header.items()}
        except FileNotFoundError:
            raise RunError(
                "has no learnt rows on this host", where=str(checkpoint), fix="Use a folder that all hosts see"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise damaged(path, error) from None
        if forms is not None:
            there = {name: (array.dtype, tuple(array.shape)) for name, array in found.items()}
            for name in sorted(set(forms) | set(there)):
                if forms.get(name) != there.get(name):
                    wanted, held = (form(*each) if each else "none" for each in (forms.get(name), there.get(name)))
                    raise RunError(
                        f"holds other learnt rows: of '{name}' {held}, and the run has {wanted}",
                        where=str(path),
                        fix="Use the store, and the settings embed and embed_optimizer, that the run was started with",
                    )
        opened = cls(path, found)
        if verify:
            opened.check()
        return opened

    def check(self) -> None:
        """Read all, and compare it with the digests of the checkpoint.

        Raises:
            RunError: an array is not the one that was written; the message names it.
        """
        expected = digests_of(self.path.parent, LEARNT)
        if not isinstance(expected, dict) or expected.keys() != self.arrays.keys():
            raise damaged(self.path, "its tensors are not those that its digests name")
        for name, array in self.arrays.items():
            digest = xxhash.xxh3_128(form(array.dtype, tuple(array.shape)).encode())
            for part in array.split(max(1, BLOCK_BYTES // max(1, array[:1].nbytes))):
                digest.update(part.contiguous().view(-1).view(torch.uint8).numpy().data)
            if digest.hexdigest() != expected[name]:
                raise damaged(self.path, f"tensor '{name}' does not match its digest")

    def source(self, names: tuple[str, ...]) -> LearntSource:
        """Gives rows of the types of these names; see :class:`partita.nn.encoder.LearntSource`."""
        return LearntSource(tuple(self.arrays.get(f"rows/{name}") for name in names))


@dataclass(frozen=True, slots=True)
class LearntSource:
    """Rows of each type as a checkpoint holds them."""

    rows: tuple[Tensor | None, ...]

    def read(self, kind: int, numbers: Int64[Tensor, "n"], pull: object = None) -> Float[Tensor, "n w"]:
        """Some rows of a type."""
        rows = self.rows[kind]
        assert rows is not None
        return rows.index_select(0, numbers)

    def __deepcopy__(self, memo: object) -> LearntSource:
        """Itself."""
        return self


def _header(forms: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> bytes:
    """As safetensors begin: its length, and where each tensor is."""
    entries = {}
    for name, begin, end in _offsets(forms):
        dtype, shape = forms[name]
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _offsets(forms: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> Iterator[tuple[str, int, int]]:
    """Where each tensor begins and ends, behind the header."""
    at = 0
    for name, (dtype, shape) in forms.items():
        end = at + math.prod(shape) * dtype.itemsize
        yield name, at, end
        at = end


def _array(path: Path, begin: int, entry: Mapping[str, Any]) -> Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
    start, stop = map(int, entry["data_offsets"])
    if stop - start != math.prod(shape) * dtype.itemsize or begin + stop > path.stat().st_size:
        raise ValueError("a tensor does not lie within the file")
    if start == stop:
        return torch.empty(shape, dtype=dtype)
    mapped = np.memmap(path, np.uint8, "r", begin + start, (stop - start,))
    return as_tensor(mapped).view(dtype).view(shape)
