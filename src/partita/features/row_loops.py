"""Loops over the rows of a cache: which are kept, and how they get there.

They are compiled where numba is at hand, run without the GIL, and allocate nothing.
"""

from __future__ import annotations

from partita.kernels.compile import compiled

NEVER = 2**31 - 1
"""In place of a step: no use is known."""


def _unlink_loop(slot, before, after):
    after[before[slot]] = after[slot]
    before[after[slot]] = before[slot]


unlink = compiled(_unlink_loop)


def _link_loop(slot, step, use, before, after, slots, buckets):
    """Put a slot at the end of the list of a step."""
    place = slots + (buckets if step == NEVER else step % buckets)
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


def _find_loop(rows, uses, begin, found, found_uses, slot_of, use, before, after, slots, buckets):
    for i in range(len(found)):
        place = (begin + i) % len(rows)
        slot = slot_of[rows[place]]
        found[i] = slot
        found_uses[i] = uses[place]
        if slot >= 0:
            unlink(slot, before, after)
            link(slot, uses[place], use, before, after, slots, buckets)


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
            if last == NEVER and after[slots + buckets] == slots + buckets:
                last = step + buckets - 1
            while last > wanted and last != NEVER and after[slots + last % buckets] == slots + last % buckets:
                last -= 1
            if last <= wanted or slots == 0:
                return k, filled
            slot = after[slots + (buckets if last == NEVER else last % buckets)]
            unlink(slot, before, after)
            slot_of[row_of[slot]] = -1
        row_of[slot] = row
        slot_of[row] = slot
        into[k] = slot
        link(slot, wanted, use, before, after, slots, buckets)
    return len(missing), filled


keep = compiled(_keep_loop)


def _forget_loop(filled, use, before, after, slots, buckets):
    for slot in range(filled):
        if use[slot] != NEVER:
            unlink(slot, before, after)
            link(slot, NEVER, use, before, after, slots, buckets)


forget = compiled(_forget_loop)


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
