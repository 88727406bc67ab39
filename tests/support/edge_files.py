"""Topologies that draw from files of a temporary folder what others draw from memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
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


N = 200
"""Nodes of the graph below."""


def topology(*, weighted: bool = False, replace: bool = False, typed: bool = False, attributes: bool = False):
    """A graph of rows of 0 to 40 edges, whose nodes have moved since ingest."""
    random = np.random.default_rng(5)
    lengths = random.integers(0, 41, N)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    edges, owner = int(indptr[-1]), np.repeat(np.arange(N), lengths)
    kinds = np.sort(3 * owner + random.integers(0, 3, edges)) % 3
    weights = torch.from_numpy(random.integers(0, 9, edges).astype(np.uint32))
    rows = {}
    if attributes:
        rows = {
            "edge_weight": torch.rand(edges, generator=torch.Generator().manual_seed(1)),
            "edge_attr": torch.rand((edges, 3), generator=torch.Generator().manual_seed(2)).half(),
        }
    return ArrayTopology(
        indptr, torch.from_numpy(random.integers(0, N, edges).astype(np.int32)),
        original=torch.from_numpy(random.permutation(N)), weights=weights if weighted else None, weighted=weighted,
        replace=replace, edge_type=torch.from_numpy(kinds.astype(np.uint8)) if typed else None,
        num_relations=3 if typed else 1, edge_rows=rows,
    )  # fmt: skip
