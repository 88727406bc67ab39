# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The hash table that numbers integer ids by first appearance.

``slots`` is an open-addressing table (a power of two long, at most half full) that holds number + 1, 0 where it
is empty; ``keys[number]`` is the id of that number. The slot of an id is a hash of ``id // 16`` followed by the
last four bits of the id, so that ids which are near each other share cache lines (real edge lists are sorted by
one endpoint) while no regular spacing of ids can pile up: at most 16 spaced ids start at one slot. Where ids are
not much larger than there are nodes, the id itself is the slot, which saves the second of two cache misses.

Without numba :class:`partita.sources.ids.IntIds` uses a dictionary instead.
"""

from __future__ import annotations

import numpy as np

from partita.kernels.compile import compiled


@compiled
def slot_of(key, mask):
    """First slot to probe for an id, int64; ``mask`` is the number of slots - 1."""
    z = np.uint64(key) >> np.uint64(4)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(((z << np.uint64(4)) | (np.uint64(key) & np.uint64(15))) & np.uint64(mask))


@compiled
def insert(values, start, slots, keys, count, out):
    """Number ``values[start:]`` until they are all done, or the table is half full, or ``keys`` is full.

    Args:
        values: int64 (n) ids >= 0, any order, repeated or not.
        start: where to begin.
        slots: int32 or int64 hash table, updated.
        keys: int64, the id of every number, updated from ``count`` on.
        count: how many ids are numbered already.
        out: int32 or int64 (n), receives the number of every value.

    Returns:
        how many values are done (n, or fewer where the table must grow first), and the new count.
    """
    mask = len(slots) - 1
    limit = min(len(slots) // 2, len(keys))
    for i in range(start, len(values)):
        value = values[i]
        slot = slot_of(value, mask)
        while True:
            number = slots[slot] - 1
            if number < 0:
                if count >= limit:
                    return i, count
                keys[count] = value
                slots[slot] = count + 1
                out[i] = count
                count += 1
                break
            if keys[number] == value:
                out[i] = number
                break
            slot = (slot + 1) & mask
    return len(values), count


@compiled
def refill(slots, keys, count):
    """Enter the first ``count`` keys into an empty hash table."""
    mask = len(slots) - 1
    for number in range(count):
        slot = slot_of(keys[number], mask)
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = number + 1


@compiled
def insert_direct(values, start, slots, keys, count, out):
    """As :func:`insert`, for ids that are small enough to be slots themselves; stops at one that is not."""
    for i in range(start, len(values)):
        value = values[i]
        if value >= len(slots):
            return i, count
        number = slots[value] - 1
        if number < 0:
            if count >= len(keys):
                return i, count
            number = count
            keys[count] = value
            slots[value] = count + 1
            count += 1
        out[i] = number
    return len(values), count
