"""What a cache would have kept that gives up what was used longest ago, for comparison."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SLOTS, _MOST_BITS = 1024, 10


class LeastRecentlyUsed:
    """Follows a cache of some rows, batch after batch, without their values.

    Of large caches only rows are followed whose hash ends in zeros, in a cache that is smaller by as much: Waldspurger
    et al., "Efficient MRC construction with SHARDS", FAST 2015. Then the number of hits is an estimate.

    Args:
        slots: rows that the cache has room for.

    Attributes:
        hits: rows that were in the cache when a batch asked for them.
    """

    def __init__(self, slots: int) -> None:
        bits = min(_MOST_BITS, max(0, (slots // _SLOTS).bit_length() - 1))
        self._bits, self._slots = bits, slots >> bits
        self._rows = dict[int, None]()  # in the order of their last use
        self.hits = 0

    def use(self, rows: Int64[np.ndarray, "n"]) -> None:
        """The next batch asks for some rows, none of them twice."""
        if self._bits:
            hashed = rows.astype(np.uint64) * _GOLDEN
            rows = rows[hashed >> np.uint64(64 - self._bits) == 0]
        held, found = self._rows, 0
        asked = rows.tolist()
        for row in asked:
            found += row in held
        for row in asked:
            held.pop(row, None)
            held[row] = None
        for row in list(held)[: max(0, len(held) - self._slots)]:
            del held[row]
        self.hits += found << self._bits
