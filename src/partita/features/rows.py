"""The input placement of a batch: rows of a feature column, read as far as the first layer needs them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from partita import kernels
from partita.core.keys import Purpose, StepKey
from partita.core.records import Block, Reduce
from partita.features.levels import Levels
from partita.kernels.memory import readable_on

_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """A column of rows that this process can address, usually the memory-mapped features of a store.

    Attributes:
        x: (N, F) float16, float32 or float64, row v belongs to store id v; or small integers, int8 (N, F) or uint8
            (N, F / 2), see :mod:`partita.graph.small`.
        dtype: float32 or float64: what is computed in.
        scale: float32 (N), a factor for every row; ``None`` for none. See :func:`l1_scale`.
        dropout: probability of dropping an input element in training.
        levels: what small integers stand for; ``None``: the rows are numbers.
    """

    x: Shaped[Tensor, "N B"]
    dtype: torch.dtype = torch.float32
    scale: Float[Tensor, "N"] | None = None
    dropout: float = 0.0
    levels: Levels | None = None

    @property
    def width(self) -> int:
        """F, the number of columns."""
        return self.x.shape[1] if self.levels is None else self.levels.width

    def readable_on(self, device: torch.device) -> bool:
        """Whether kernels of a device read the rows in place."""
        return readable_on(device, self.x, self.scale)

    def read(self, ids: Int[Tensor, "n"]) -> Float[Tensor, "n F"]:
        """Rows of the given store ids, as evaluation sees them."""
        if self.levels is not None:
            return self.levels.expand(self.x, ids, slice(0, self.width), 0, self.scale, self.dtype)
        return kernels.gather_rows(self.x, ids, scale=self.scale, dtype=self.dtype)

    @property
    def stored_dtype(self) -> torch.dtype:
        """Of a row as :meth:`read_stored` gives it."""
        return self.x.dtype if self.scale is None else self.dtype

    def read_stored(self, ids: Int[Tensor, "n"]) -> Shaped[Tensor, "n B"]:
        """Rows of the given store ids as they are stored (float16 stays float16), unless they are scaled.

        Small integers stay so, too; :meth:`values` gives what they stand for.
        """
        if self.levels is not None and self.scale is not None:
            return self.read(ids)
        return kernels.gather_rows(self.x, ids, scale=self.scale, dtype=self.stored_dtype)

    def stored_columns(self, columns: slice) -> slice:
        """Where some columns are in rows as :meth:`read_stored` gives them; small integers may have a neighbor."""
        return columns if self.levels is None or self.scale is not None else self.levels.stored(columns)

    def values(self, rows: Shaped[Tensor, "n B"], columns: slice) -> Float[Tensor, "n f"]:
        """Numbers of rows as they are stored; of any but small integers they are the same.

        Args:
            rows: the :meth:`stored_columns` of rows as :meth:`read_stored` gives them.
            columns: those that are wanted, of a whole row.
        """
        if self.levels is None or self.scale is not None:
            return rows
        at = torch.arange(rows.shape[0], device=rows.device)
        return self.levels.expand(rows, at, columns, self.levels.stored(columns).start, None, self.dtype)

    def rows(self, block: Block, step_key: StepKey | None) -> BlockRows:
        """The rows of a block's sources, not yet read. ``step_key`` is ``None`` in evaluation."""
        return BlockRows(self, block, step_key if self.dropout > 0 else None)

    def sums_by_id(self, training: bool) -> bool:
        """Whether sums over neighbors may be taken straight from the column, by store id.

        Not so of small integers: a row that many nodes draw is expanded once for all of them.
        """
        return self.levels is None and not (training and self.dropout > 0)


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Input rows of one block; implements :class:`partita.core.records.LazyRows`."""

    column: FeatureColumn
    block: Block
    step_key: StepKey | None

    @property
    def width(self) -> int:
        """F, the number of columns."""
        return self.column.width

    def all(self) -> Float[Tensor, "S F"]:
        """Rows of every source, the destinations' first."""
        if self.block.src is None:
            raise ValueError("all rows are only known for a block whose sources were de-duplicated")
        return self._read(self.block.src)

    def of_destinations(self) -> Float[Tensor, "D F"]:
        """Rows of the destinations."""
        return self._read(self.block.dst)

    def aggregate(self, reduce: Reduce) -> Float[Tensor, "D F"]:
        """Sum or mean over the sampled edges without copying the rows first (input-layer fusion)."""
        block, column = self.block, self.column
        # Dropout acts on rows, and small integers are no numbers: they have to be made before they are summed.
        if self.step_key is not None or column.levels is not None:
            rows, ids, scale = self.all(), block.indices, None
        else:
            ids = block.indices if block.src is None else block.src[block.indices]
            rows, scale = column.x, column.scale
        return kernels.aggregate(rows, block.indptr, ids, block.weight, reduce=reduce, scale=scale, dtype=column.dtype)

    def _read(self, ids: Tensor) -> Tensor:
        rows = self.column.read(ids)
        if self.step_key is None:
            return rows
        original = self.block.src_original
        if original is None or original.shape[0] < ids.shape[0]:
            raise ValueError("input dropout needs the original indices of the sources")
        key = self.step_key.at(Purpose.INPUT_DROPOUT, 0)
        return kernels.dropout(rows, original[: ids.shape[0]], key, self.column.dropout)


def l1_scale(x: Shaped[Tensor, "N B"], levels: Levels | None = None) -> Float[Tensor, "N"]:
    """Factor that brings the absolute values of each row to a sum of 1; rows of zeros keep factor 1.

    Reads the column once, in chunks.

    Args:
        x: rows.
        levels: what they stand for, if they are small integers.
    """
    scale = torch.ones(x.shape[0], dtype=torch.float32)
    column = FeatureColumn(x, levels=levels)
    step = max(1, _CHUNK_BYTES // (8 * max(1, column.width)))
    for start in range(0, x.shape[0], step):
        rows = x[start : start + step]
        total = column.values(rows, slice(0, column.width)).double().abs().sum(dim=1)
        scale[start : start + step] = torch.where(total > 0, 1 / total, 1.0).float()
    return scale
