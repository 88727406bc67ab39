"""Loops that read rows of files, and write them.

They are compiled where numba is at hand, run without the GIL, and allocate nothing.
"""

from __future__ import annotations

import ctypes
import os

from partita.kernels.compile import COMPILES, compiled

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
