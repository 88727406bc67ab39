"""Topologies that draw from files of a temporary folder what others draw from memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from partita.sample.disk import DiskTopology, edges_on_disk
from partita.sample.hot_rows import edge_columns
from partita.sample.topology import ArrayTopology, as_tensor

FIRST_BYTE = 64
"""Where columns begin in their files."""


def in_files(
    local: ArrayTopology, budget: int, *, edge_rows: Mapping[str, Tensor] = {}, asked: int = 100, picks: int = 2
) -> ArrayTopology:
    """The same edges in files; themselves where there are none, as there are no empty maps.

    The files are gone from their folder when this returns; who has opened them can read on.
    """
    columns = {**edge_columns(local), **edge_rows}
    if not len(columns["indices"]):
        return local
    with tempfile.TemporaryDirectory(prefix="partita-edges-") as folder:
        mapped = {name: _mapped(Path(folder, name), column.numpy()) for name, column in columns.items()}
        arrays = {**local.arrays(), **{name: as_tensor(mapped[name]) for name in edge_columns(local)}}
        rows = {name: as_tensor(mapped[name]) for name in edge_rows}
        found = edges_on_disk(ArrayTopology(**{**arrays, "edge_rows": rows}), mapped, budget, asked=asked, picks=picks)
    assert isinstance(found, DiskTopology)
    return found


def _mapped(path: Path, column: np.ndarray) -> np.ndarray:
    path.write_bytes(bytes(FIRST_BYTE) + column.tobytes())
    return np.memmap(path, column.dtype, "r", FIRST_BYTE, column.shape)
