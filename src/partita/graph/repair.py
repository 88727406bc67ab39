"""Says which columns of a store are damaged, and makes those anew that follow from others.

What is computed takes the place of a column only if it has the checksum that the column had when it was written, so a
repaired store is the store that was written, byte for byte.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from partita.core import progress
from partita.core.asides import written_aside
from partita.core.errors import StoreError
from partita.core.files import map_array, write_text
from partita.graph import build_loops
from partita.graph.columns import CHUNK_BYTES, file_checksum, header
from partita.graph.files import fsync_path, take_lock, write_all
from partita.graph.metadata import FILE_NAME, StoreMetadata, how_to_mend
from partita.graph.soundness import first_fall, first_stray, rows_of, wrong_columns
from partita.graph.weight_sums import largest_weights, weight_sums
from partita.graph.writer import remove_abandoned

_CHUNK = 1 << 20

_Columns = Mapping[str, Shaped[np.ndarray, "..."]]


@dataclass(frozen=True, slots=True)
class _Follows:
    """A column that follows from others: which ones, and how."""

    of: tuple[str, ...]
    make: Callable[[StoreMetadata, _Columns], Shaped[np.ndarray, "n"]]


def repair_columns(path: str | os.PathLike[str]) -> tuple[list[str], dict[str, str]]:
    """Compute damaged columns anew from sound ones, as far as they follow from these.

    Memory: O(nodes), and the column that is made. Sound columns are not touched.

    Args:
        path: a graph store, whole or a shard.

    Returns:
        One line for everything that was done, and the columns that are still damaged, each with what is wrong.

    Raises:
        StoreError: no store, its metadata are damaged, or another process is adding columns to it.
    """
    directory = Path(path)
    metadata = StoreMetadata.read(directory)
    try:
        lock = take_lock(directory, os.O_RDONLY)
    except BlockingIOError:
        what, fix = "another process is adding columns to this store", "Wait until it has finished"
        raise StoreError(what, where=str(directory), fix=fix) from None
    try:
        done = [f"removed {path.name}, left by a killed command" for path in remove_abandoned(directory)]
        wrong = wrong_columns(directory, metadata, metadata.columns)
        for name in [name for name in wrong if name in _FOLLOWS and metadata.shard is None]:
            follows = _FOLLOWS[name]
            if not any(other in wrong for other in follows.of) and _make(directory, metadata, name, follows):
                done.append(f"column '{name}' computed anew{_from(follows.of)}: it has the checksum that it had")
                del wrong[name]
        if done and not wrong:
            os.utime(directory / FILE_NAME)  # every column was looked at
    finally:
        if lock is not None:
            os.close(lock)
    return done, wrong


def require_repaired(path: Path, wrong: Mapping[str, str]) -> None:
    """Refuse a store in which columns are still damaged.

    Raises:
        StoreError: names them.
    """
    if wrong:
        named = ", ".join(f"'{name}'" for name in wrong)
        what = f"column {named} is" if len(wrong) == 1 else f"the columns {named} are"
        raise StoreError(
            f"cannot be repaired: {what} damaged and cannot be computed from others",
            where=str(path),
            fix=how_to_mend(StoreMetadata.read(path).shard),
        )


def _from(names: tuple[str, ...]) -> str:
    return f" from {' and '.join(names)}" if names else ""


def _make(directory: Path, metadata: StoreMetadata, name: str, follows: _Follows) -> bool:
    """Write a column anew; ``False``, and nothing is changed, where it is not what it was."""
    columns = {other: map_array(directory / f"{other}.npy") for other in follows.of}
    if "indptr" in columns and (
        first_fall(columns["indptr"]) is not None or len(columns["indptr"]) != metadata.num_nodes + 1
    ):
        return False
    if "indices" in columns and first_stray(columns["indices"], metadata.num_nodes) is not None:
        return False
    target = directory / f"{name}.npy"
    made = follows.make(metadata, columns)
    try:
        with written_aside(target) as aside:
            with aside.open("r+b", buffering=0) as file:
                write_all(file.fileno(), header(made.dtype, made.shape))
                data = made.view(np.uint8).data
                for start in range(0, len(data), CHUNK_BYTES):
                    write_all(file.fileno(), data[start : start + CHUNK_BYTES])
                os.fsync(file.fileno())
            if file_checksum(aside) != metadata.columns[name].checksum:
                raise _OtherError
    except _OtherError:
        return False
    fsync_path(directory)
    return True


class _OtherError(Exception):
    """What was computed is not what the column was."""


def _self_loops(metadata: StoreMetadata, columns: _Columns) -> Shaped[np.ndarray, "N"]:
    indices, indptr = columns["indices"], columns["indptr"]
    loops = np.zeros(metadata.num_nodes, dtype="<i4")
    with progress.task("self_loops", total=len(indices), unit="edges") as task:
        for first in range(0, len(indices), _CHUNK):
            src = indices[first : first + _CHUNK]
            rows = rows_of(indptr, first, first + len(src))
            np.add.at(loops, rows[rows == src], 1)
            task.advance(len(src))
    return loops


def _quantized(metadata: StoreMetadata, columns: _Columns) -> Shaped[np.ndarray, "E"]:
    weight, indptr = columns["edge_weight"], columns["indptr"]
    largest, made = largest_weights(indptr, weight), np.empty(len(weight), dtype="<u4")
    with progress.task("edge_weight_quantised", total=len(weight), unit="edges") as task:
        for first in range(0, len(weight), _CHUNK):
            part = np.array(weight[first : first + _CHUNK])
            build_loops.quantize(part, first, np.asarray(indptr), largest, made[first : first + len(part)])
            task.advance(len(part))
    return made


def _weight_sum(metadata: StoreMetadata, columns: _Columns) -> Shaped[np.ndarray, "N"]:
    return weight_sums(columns["indptr"], columns["indices"], columns["edge_weight"])[0]


def _loop_weight(metadata: StoreMetadata, columns: _Columns) -> Shaped[np.ndarray, "N"]:
    return weight_sums(columns["indptr"], columns["indices"], columns["edge_weight"])[1]


def _one_part(metadata: StoreMetadata, columns: _Columns) -> Shaped[np.ndarray, "two"]:
    return np.array([0, metadata.num_nodes], dtype="<i8")


_FOLLOWS: dict[str, _Follows] = {
    "self_loops": _Follows(("indptr", "indices"), _self_loops),
    "edge_weight_quantised": _Follows(("indptr", "edge_weight"), _quantized),
    "weight_sum": _Follows(("indptr", "indices", "edge_weight"), _weight_sum),
    "loop_weight": _Follows(("indptr", "indices", "edge_weight"), _loop_weight),
    "part_offsets": _Follows((), _one_part),
}
"""Of a store of one part, its ranges are known; of others, the checksum says that they are not these."""


def strike(path: Path, names: Iterable[str]) -> None:
    """Take derived columns out of a store: its metadata promise them no more."""
    before = StoreMetadata.read(path)
    kept = {name: record for name, record in before.columns.items() if name not in names}
    write_text(path / FILE_NAME, dataclasses.replace(before, columns=kept).to_json())
    fsync_path(path)
