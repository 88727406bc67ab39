"""Loops over rows of tables: where they are kept, and how they get there.

They are compiled where numba is at hand, run without the GIL, and allocate nothing.
"""

from __future__ import annotations

import ctypes
import os

from partita.kernels.compile import COMPILES, compiled

NEVER = 2**31 - 1
"""In place of a step: no use is known."""

if COMPILES:
    from partita.kernels.intrinsics import read_at, write_at
else:

    def read_at(descriptor: int, address: int, count: int, place: int) -> int:
        """As POSIX's ``pread``."""
        data = os.pread(descriptor, count, place)
        ctypes.memmove(address, data, len(data))
        return len(data)

    def write_at(descriptor: int, address: int, count: int, place: int) -> int:
        """As POSIX's ``pwrite``."""
        return os.pwrite(descriptor, ctypes.string_at(address, count), place)


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


def _read_whole_loop(descriptor, address, begin, wanted, whole):
    """Reads that it takes to read ``wanted`` bytes, in multiples of a block; below 0 where the file does not have them.

    A file may end within a block.
    """
    done = reads = 0
    while done < wanted:
        got = read_at(descriptor, address + done, whole - done, begin + done)
        if got <= 0:
            return -1
        done += got
        reads += 1
    return reads


read_whole = compiled(_read_whole_loop)


def _span_loop(first, row_bytes, width, rows, i, most, block, gap):
    """Where a read begins and ends that starts with a row, and the first row behind it."""
    low = first + rows[i] * row_bytes
    begin = low - low % block
    end = low + width
    last = i + 1
    while last < len(rows):
        start = first + rows[last] * row_bytes
        if start - end > gap or start + width + block - begin > most:
            break
        end = max(end, start + width)
        last += 1
    return begin, end, last


span = compiled(_span_loop)


def _read_rows_loop(descriptor, first, row_bytes, rows, places, out, buffer, block, gap):
    """Reads, bytes, and a place in the file that could not be read, or -1."""
    reads, count, width, i = 0, 0, out.shape[1], 0
    address = buffer.ctypes.data
    while i < len(rows):
        begin, end, last = span(first, row_bytes, width, rows, i, len(buffer), block, gap)
        whole = (end - begin + block - 1) // block * block
        made = read_whole(descriptor, address, begin, end - begin, whole)
        if made < 0:
            return reads, count, begin
        reads += made
        count += whole
        for k in range(i, last):
            start, place = first + rows[k] * row_bytes - begin, places[k]
            for j in range(width):  # ten times as fast as assigning a slice
                out[place, j] = buffer[start + j]
        i = last
    return reads, count, -1


read_rows = compiled(_read_rows_loop)


def _transfer_loop(descriptor, row_bytes, rows, records, writes):
    """Read or write rows, those that lie behind one another together: how often; below 0 where that failed."""
    address, i, times = records.ctypes.data, 0, 0
    while i < len(rows):
        last = i + 1
        while last < len(rows) and rows[last] == rows[last - 1] + 1:
            last += 1
        done, wanted = 0, (last - i) * row_bytes
        while done < wanted:
            at, place = address + i * row_bytes + done, rows[i] * row_bytes + done
            if writes:
                made = write_at(descriptor, at, wanted - done, place)
            else:
                made = read_at(descriptor, at, wanted - done, place)
            if made <= 0:
                return -1
            done += made
            times += 1
        i = last
    return times


transfer = compiled(_transfer_loop)


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


def _spans_loop(row_bytes, width, rows, most, block, gap):
    """How many reads some rows take, and how many bytes."""
    reads, count, i = 0, 0, 0
    while i < len(rows):
        begin, end, i = span(0, row_bytes, width, rows, i, most, block, gap)
        reads += 1
        count += end - begin
    return reads, count


spans = compiled(_spans_loop)


def _pack_loop(descriptor, first, row_bytes, width, rows, owners, buffer, block, gap, target, regions, room, fills):
    """Copy rows behind one another into the regions of their owners: reads, bytes, and what failed.

    ``room`` (owners, bytes) holds what is not yet written, ``fills`` how much of that; regions advance as they are
    written. What failed is 0 for nothing, 1 for a read, 2 for a write.
    """
    reads, count, i, size = 0, 0, 0, room.shape[1]
    address, own = buffer.ctypes.data, room.ctypes.data
    while i < len(rows):
        begin, end, last = span(first, row_bytes, width, rows, i, len(buffer), block, gap)
        whole = (end - begin + block - 1) // block * block
        made = read_whole(descriptor, address, begin, end - begin, whole)
        if made < 0:
            return reads, count, 1
        reads += made
        count += whole
        for k in range(i, last):
            start, owner = first + rows[k] * row_bytes - begin, owners[k]
            done = 0
            while done < width:
                fill = fills[owner]
                some = min(width - done, size - fill)
                for j in range(some):
                    room[owner, fill + j] = buffer[start + done + j]
                done += some
                fills[owner] = fill + some
                if fill + some == size:
                    if write_at(target, own + owner * size, size, regions[owner]) != size:
                        return reads, count, 2
                    regions[owner] += size
                    fills[owner] = 0
        i = last
    for owner in range(len(fills)):
        if fills[owner] > 0:
            some = (fills[owner] + block - 1) // block * block
            if write_at(target, own + owner * size, some, regions[owner]) != some:
                return reads, count, 2
    return reads, count, 0


pack = compiled(_pack_loop)


def _unpack_loop(descriptor, begin, width, places, out, buffer, block):
    """Rows that lie behind one another, from a block on: reads, below 0 where that failed."""
    address, size, reads = buffer.ctypes.data, len(buffer) // block * block, 0
    total, done, at, column = len(places) * width, 0, 0, 0
    while done < total:
        some = min(size, total - done)
        whole = (some + block - 1) // block * block
        made = read_whole(descriptor, address, begin + done, some, whole)
        if made < 0:
            return -1
        reads += made
        taken = 0
        while taken < some:
            part = min(width - column, some - taken)
            place = places[at]
            for j in range(part):
                out[place, column + j] = buffer[taken + j]
            taken += part
            column += part
            if column == width:
                column = 0
                at += 1
        done += some
    return reads


unpack = compiled(_unpack_loop)
