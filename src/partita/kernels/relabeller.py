"""Scratch for giving the sources of a block local numbers, reused from call to call."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Int, Int32
from torch import Tensor

# Numbering 400,000 skewed ids, millions a second, table against hash (one core, 32 MiB of cache): 181:64 at 2^19 nodes,
# 142:68 at 2^22, 105:77 at 2^24, 93:80 at 2^26, 86:81 at 2^28. The table is found with one access but costs 4 bytes a
# node for every thread that samples: 64 MiB at the limit below, beyond which the gain is no longer worth it.
TABLE_LIMIT = 1 << 24
# Ids that are all different take, by how full the table is at the end, 7.0 ns (a half), 4.7 (a quarter) or 4.0 (an
# eighth): after a place that is taken, the processor has guessed wrong. That is as long as its cache has the table.
SPARSE_LIMIT = 1 << 19
"""Places of a hash table that may be mostly empty: 2 MiB."""
NOWHERE = np.iinfo(np.int32).max
"""In the table of a device: the node is not in the list."""


class Relabeller:
    """Gives distinct store ids the local numbers 0, 1, 2... by first appearance.

    The state is scratch only: a call's result never depends on earlier calls. One object serves one thread.

    Two modes. ``"table"`` holds 4 bytes per node of the store. ``"hash"`` is an open-addressing table of at most
    48 bytes per sampled edge of the largest batch seen, and 12 beyond 2 MiB, whatever the size of the graph. Neither
    is cleared between calls: entries hold ``base + local`` and ``base`` grows by the number of sources with every call,
    so that whatever an earlier call left is below ``base``. Ids on a device have a table there, see :meth:`places`.

    Args:
        num_nodes: number of nodes of the store.
        mode: ``"auto"`` takes the table for up to 2^24 nodes.

    Raises:
        ValueError: ``mode`` is unknown.
    """

    def __init__(self, num_nodes: int, mode: Literal["auto", "table", "hash"] = "auto") -> None:
        if mode not in ("auto", "table", "hash"):
            raise ValueError(f"mode {mode!r} is none of 'auto', 'table', 'hash'")
        self.num_nodes = num_nodes
        self.mode: Literal["table", "hash"]
        if mode == "auto":
            self.mode = "table" if num_nodes <= TABLE_LIMIT else "hash"
        else:
            self.mode = mode
        self._entries: Int[np.ndarray, "n"] = np.zeros(0, np.int32)
        self._base = 1
        self._places: Int32[Tensor, "n"] | None = None

    @property
    def num_bytes(self) -> int:
        """Memory held by the scratch now, bytes."""
        return self._entries.nbytes

    def entries(self, bound: int) -> tuple[Int[np.ndarray, "n"], int]:
        """The entries and the base for one call that numbers at most ``bound`` ids.

        Returns:
            int32 entries (``num_nodes`` long, or a power of two), all of them below the base; the base.
        """
        bound = min(bound, self.num_nodes)
        needed = self.num_nodes
        if self.mode == "hash":  # at most two thirds full, a sixth of small ones
            least = 1 << (bound + bound // 2).bit_length()
            needed = max(least, min(4 * least, SPARSE_LIMIT))
        size = self._entries.shape[0]
        if size < needed or self._base > np.iinfo(np.int32).max - bound:
            self._entries = np.zeros(max(size, needed), np.int32)  # the kernel's zero pages until touched
            self._base = 1
        return self._entries, self._base

    def places(self, device: torch.device) -> Int32[Tensor, "n"]:
        """The table of a device: where in a list each node stands first, :data:`NOWHERE` but during a call.

        Whoever writes to it puts that back.
        """
        if self._places is None or self._places.device != device:
            self._places = torch.full((self.num_nodes,), NOWHERE, dtype=torch.int32, device=device)
        return self._places

    def used(self, count: int) -> None:
        """Say that the call has numbered ``count`` ids from the base on."""
        self._base += count
