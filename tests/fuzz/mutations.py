"""Ways to damage a file, by name. Every one takes bytes and a random generator, and gives other bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

ODD_TEXTS = (
    *("", " ", "nan", "NaN", "inf", "-inf", "1e999", "-1", "0x10", "1_000", "007", "1.0", "1.5", "true", "null"),
    *("99999999999999999999", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "2147483648"),
    *('"', "'", '"a', 'a"b', "a,b", "a\tb", "\\", "{x}", "%s", "[/b]", "<img src=x onerror=alert(1)>", "\x1b[31m"),
    *("\u00fc", "\u202e", "\U0001f600", "\ufeff", "\x00", "a" * 5000, "../../etc/passwd", "os:system"),
    "!!python/name:os.system",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3.5, -0.0, 1e308, 10**30, -(10**30), "", "text", "nan", [], {}, [1], {"a": 1}),
    *([[]], "os:system", "../x", "a" * 5000, float("nan"), float("inf")),
)


def flip(data: bytes, draw: random.Random) -> bytes:
    """One bit is another one."""
    if not data:
        return b"\x01"
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def flip_early(data: bytes, draw: random.Random) -> bytes:
    """A byte of the beginning, where headers are, is another one."""
    changed = bytearray(data or b"\x00")
    changed[draw.randrange(min(len(changed), 160))] = draw.randrange(256)
    return bytes(changed)


def overwrite(data: bytes, draw: random.Random) -> bytes:
    """Some bytes in a row are random, zeros or ones."""
    at, length = draw.randrange(len(data) + 1), draw.choice((1, 4, 8, 64))
    return data[:at] + draw.choice((draw.randbytes(length), bytes(length), b"\xff" * length)) + data[at + length :]


def cut(data: bytes, draw: random.Random) -> bytes:
    """The end is missing."""
    return data[: draw.randrange(len(data) + 1)]


def cut_short(data: bytes, draw: random.Random) -> bytes:
    """A few bytes of the end are missing."""
    return data[: max(0, len(data) - draw.randrange(1, 16))]


def drop(data: bytes, draw: random.Random) -> bytes:
    """Some bytes in the middle are missing."""
    at = draw.randrange(len(data) + 1)
    return data[:at] + data[at + draw.choice((1, 2, 7, 64)) :]


def insert(data: bytes, draw: random.Random) -> bytes:
    """There are some more bytes in the middle."""
    at = draw.randrange(len(data) + 1)
    return (
        data[:at] + draw.choice((draw.randbytes(draw.randrange(1, 9)), b"\xc3\x28", b"\xff\xfe", b"\x00")) + data[at:]
    )


def append(data: bytes, draw: random.Random) -> bytes:
    """There are some more bytes at the end."""
    return data + draw.choice((draw.randbytes(8), data[:64], b"\x00" * 512))


def empty(data: bytes, draw: random.Random) -> bytes:
    """Nothing is left."""
    return b""


def noise(data: bytes, draw: random.Random) -> bytes:
    """Nothing is as it was."""
    return draw.randbytes(len(data))


BYTES: tuple[Mutation, ...] = (flip, flip_early, overwrite, cut, cut_short, drop, insert, append, empty, noise)


def lines_of(change: Callable[[list[bytes], random.Random], None]) -> Mutation:
    """What changes a list of lines as a mutation of bytes."""

    def mutation(data: bytes, draw: random.Random) -> bytes:
        lines = data.split(b"\n")
        change(lines, draw)
        return b"\n".join(lines)

    mutation.__name__ = change.__name__
    return mutation


@lines_of
def repeat_line(lines: list[bytes], draw: random.Random) -> None:
    """A line stands there twice."""
    lines.insert(draw.randrange(len(lines)), draw.choice(lines))


@lines_of
def drop_line(lines: list[bytes], draw: random.Random) -> None:
    """A line is missing."""
    del lines[draw.randrange(len(lines))]


@lines_of
def swap_lines(lines: list[bytes], draw: random.Random) -> None:
    """Two lines have changed places."""
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


@lines_of
def odd_cell(lines: list[bytes], draw: random.Random) -> None:
    """A cell of a table holds something odd."""
    at = draw.randrange(len(lines))
    cells = lines[at].split(b",")
    cells[draw.randrange(len(cells))] = draw.choice(ODD_TEXTS).encode()
    lines[at] = b",".join(cells)


@lines_of
def odd_column(lines: list[bytes], draw: random.Random) -> None:
    """All cells of a column hold the same, odd or not."""
    column, text = draw.randrange(4), draw.choice(ODD_TEXTS).encode()
    for at in range(1, len(lines)):
        cells = lines[at].split(b",")
        if column < len(cells) > 1:
            cells[column] = text
            lines[at] = b",".join(cells)


@lines_of
def more_cells(lines: list[bytes], draw: random.Random) -> None:
    """A line has a cell more, or one fewer."""
    at = draw.randrange(len(lines))
    lines[at] = lines[at] + b",7" if draw.random() < 0.5 else lines[at].rpartition(b",")[0]


@lines_of
def other_ends(lines: list[bytes], draw: random.Random) -> None:
    """Lines end with carriage returns: all, or one."""
    for at in [draw.randrange(len(lines))] if draw.random() < 0.5 else range(len(lines)):
        lines[at] += b"\r"


TABLE: tuple[Mutation, ...] = (*BYTES, repeat_line, drop_line, swap_lines, odd_cell, odd_column, more_cells, other_ends)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a JSON value."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        found += _places(each, (*path, key))
    return found


def edit_value(value: Any, draw: random.Random) -> Any:
    """The same JSON value but for one place, which is missing, odd, moved, or there under another name."""
    places = _places(value)
    if not places:
        return draw.choice(ODD_VALUES)
    *way, last = draw.choice(places)
    holder = value
    for key in way:
        holder = holder[key]
    how = draw.randrange(5)
    if how == 0:
        del holder[last]
    elif how == 1 and isinstance(holder, dict):
        holder[draw.choice(("", "x", "model", "layers", last * 2))] = holder.pop(last)
    elif how == 2:
        holder[last] = [holder[last]]
    elif how == 3 and isinstance(holder[last], (int, float)) and not isinstance(holder[last], bool):
        holder[last] = holder[last] + draw.choice((1, -1, 0.5, 2**40))
    else:
        holder[last] = draw.choice(ODD_VALUES)
    return value


def edit_json(data: bytes, draw: random.Random) -> bytes:
    """One place of a JSON text is something else."""
    return json.dumps(edit_value(json.loads(data), draw)).encode()


def edit_jsonl(data: bytes, draw: random.Random) -> bytes:
    """One place of one line of JSON lines is something else."""
    lines = data.rstrip(b"\n").split(b"\n")
    at = draw.randrange(len(lines))
    lines[at] = edit_json(lines[at], draw)
    return b"\n".join(lines) + b"\n"


def deep(data: bytes, draw: random.Random) -> bytes:
    """A text that is nested without end."""
    return draw.choice((b"[", b'{"a":', b"- ")) * draw.choice((100, 5000, 200000))


def other_type(data: bytes, draw: random.Random) -> bytes:
    """The whole is a JSON value of another type."""
    return json.dumps(draw.choice(ODD_VALUES)).encode()


JSON: tuple[Mutation, ...] = (*BYTES, *[edit_json] * 10, deep, other_type)
JSONL: tuple[Mutation, ...] = (*BYTES, *[edit_jsonl] * 8, repeat_line, drop_line, swap_lines, deep, other_type)
YAML: tuple[Mutation, ...] = (*BYTES, repeat_line, drop_line, swap_lines, odd_cell, deep, other_type)
