"""Loops over the rows of a cache: which are kept, and how they get there.

They are compiled where numba is at hand, run without the GIL, and allocate nothing.
"""

from __future__ import annotations

from partita.kernels.compile import compiled

NEVER = 2**31 - 1
"""In place of a step: no use is known, and the row has never been used."""
CLASSES = 16
"""Places below :data:`NEVER`, one each, of rows without a known use: the more often a row was used, the lower."""
_LAST_STEP = NEVER - CLASSES
MOST_USES = 255
"""A row's count goes no further. It is halved before it would: see :class:`~partita.features.look_ahead.LookAhead`."""


def _class_loop(uses):
    """In place of a step, for a row that was used so often: two classes for each power of two."""
    found = 0
    while uses > 3:
        uses >>= 1
        found += 2
    return NEVER - (found + uses)


unknown = compiled(_class_loop)


def _place_loop(step, slots, buckets):
    """Where the list of a step begins."""
    return slots + (buckets + (NEVER - step) if step > _LAST_STEP else step % buckets)


place_of = compiled(_place_loop)


def _unlink_loop(slot, before, after):
    after[before[slot]] = after[slot]
    before[after[slot]] = before[slot]


unlink = compiled(_unlink_loop)


def _link_loop(slot, step, use, before, after, slots, buckets):
    """Put a slot at the end of the list of a step."""
    place = place_of(step, slots, buckets)
    last = before[place]
    after[last] = slot
    before[slot] = last
    after[slot] = place
    before[place] = slot
    use[slot] = step


link = compiled(_link_loop)


def _announce_loop(
    batch, step, rows, uses, begin, end, last, slot_of, use, before, after, slots, buckets
):  # fmt: skip
    size = len(rows)
    for i in range(len(batch)):
        row = batch[i]
        place = last[row]
        if (place - begin) % size < end - begin and rows[place] == row:
            uses[place] = step
        elif slot_of[row] >= 0:
            unlink(slot_of[row], before, after)
            link(slot_of[row], step, use, before, after, slots, buckets)
        place = (end + i) % size
        rows[place] = row
        uses[place] = NEVER
        last[row] = place


announce = compiled(_announce_loop)


def _find_loop(
    rows, uses, begin, found, found_uses, counts, slot_of, use, before, after, slots, buckets
):  # fmt: skip
    """Of each row of a batch where it is kept, and its next use. Returns whether a count is at its end."""
    full = False
    for i in range(len(found)):
        place = (begin + i) % len(rows)
        row, step = rows[place], uses[place]
        if counts[row] < MOST_USES:
            counts[row] += 1
        full |= counts[row] == MOST_USES
        if step == NEVER:
            step = unknown(int(counts[row]))
        slot = slot_of[row]
        found[i] = slot
        found_uses[i] = step
        if slot >= 0:
            unlink(slot, before, after)
            link(slot, step, use, before, after, slots, buckets)
    return full


find = compiled(_find_loop)


def _keep_loop(
    rows, begin, missing, uses, into, slot_of, row_of, filled, step, use, before, after, slots, buckets
):  # fmt: skip
    """How many of the missing rows, which are ordered by their next use, are kept; and how many slots are taken."""
    last = NEVER  # the latest use of a row that is kept, at most
    for k in range(len(missing)):
        row, wanted = rows[(begin + missing[k]) % len(rows)], uses[missing[k]]
        if filled < slots:
            slot = filled
            filled += 1
        else:
            place = place_of(last, slots, buckets)
            while last > wanted and after[place] == place:
                last = step + buckets - 1 if last == _LAST_STEP + 1 else last - 1
                place = place_of(last, slots, buckets)
            if last <= wanted or slots == 0:
                return k, filled
            slot = after[place]
            unlink(slot, before, after)
            slot_of[row_of[slot]] = -1
        row_of[slot] = row
        slot_of[row] = slot
        into[k] = slot
        link(slot, wanted, use, before, after, slots, buckets)
    return len(missing), filled


keep = compiled(_keep_loop)


def _forget_loop(filled, counts, row_of, use, before, after, slots, buckets):
    """No use is known of any row that is kept."""
    for slot in range(filled):
        step = unknown(int(counts[row_of[slot]]))
        if use[slot] != step:
            unlink(slot, before, after)
            link(slot, step, use, before, after, slots, buckets)


forget = compiled(_forget_loop)


def _sort_again_loop(filled, counts, row_of, use, before, after, slots, buckets):
    """Counts have changed: rows without a known use go to where they belong."""
    for slot in range(filled):
        if use[slot] > _LAST_STEP:
            unlink(slot, before, after)
            link(slot, unknown(int(counts[row_of[slot]])), use, before, after, slots, buckets)


sort_again = compiled(_sort_again_loop)


def _copy_kept_loop(kept, slots, out):
    for i in range(len(slots)):
        slot = slots[i]
        if slot >= 0:
            for j in range(out.shape[1]):
                out[i, j] = kept[slot, j]


copy_kept = compiled(_copy_kept_loop)


def _copy_into_loop(kept, into, places, out):
    for k in range(len(into)):
        slot, place = into[k], places[k]
        for j in range(out.shape[1]):
            kept[slot, j] = out[place, j]


copy_into = compiled(_copy_into_loop)
