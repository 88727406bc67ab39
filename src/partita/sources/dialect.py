"""How a text table is written: comment lines, separator, header. Guessed from its first lines unless said."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from partita.core.errors import InputError

BLANKS = b" "
"""The separator that stands for any run of blanks and tabs."""

_SAMPLE_LINES = 200
_HEADER_WORDS = frozenset(
    (
        *("source", "source_id", "src", "src_id", "from", "fromnodeid", "head", "start", "u", "i", "node1"),
        *("target", "target_id", "tgt", "dst", "dst_id", "to", "tonodeid", "tail", "end", "v", "j", "node2"),
        *("node", "node_id", "nodeid", "id", "name", "weight", "w", "value", "label", "y", "class", "split"),
    )
)
_WORDS_FOR_SEPARATORS = {"tab": "\t", "\\t": "\t", "space": " ", "blank": " ", "whitespace": " ", "comma": ","}


@dataclass(frozen=True)
class Dialect:
    """How a text table is written.

    Attributes:
        delimiter: one byte; :data:`BLANKS` is any run of blanks and tabs.
        comment: lines that begin with these bytes are no data; empty: there are no comments.
        header_line: number of the line that names the columns, counted from 1; 0 without one.
        names: of the columns; their positions as text where there is no header.
        sample: cells of the first rows, for guesses about the columns.
    """

    delimiter: bytes
    comment: bytes
    header_line: int
    names: tuple[str, ...]
    sample: tuple[tuple[str, ...], ...]

    def clean(self, text: bytes) -> bytes:
        """The same lines with comments emptied and runs of blanks made one blank; no line is lost."""
        if self.delimiter == BLANKS and (b"  " in text or b"\t" in text or b" \n" in text or b"\n " in text):
            text = re.sub(rb"[ \t]+", b" ", text).replace(b" \n", b"\n").replace(b"\n ", b"\n")
        if self.delimiter == BLANKS:
            text = text.strip(b" \t")
        if self.comment and (text.startswith(self.comment) or b"\n" + self.comment in text):
            text = re.sub(rb"(?m)^" + re.escape(self.comment) + rb"[^\n]*", b"", text)
        return text

    def cells(self, line: bytes) -> list[str]:
        """The cells of one cleaned line."""
        return split_cells(line, self.delimiter)

    def unclosed_quote(self, text: bytes) -> int | None:
        """Position of the first line in which a quoted cell is not closed, 0-based; ``None`` if there is none."""
        if self.delimiter == BLANKS or b'"' not in text:
            return None
        other = rb"[^\n" + re.escape(self.delimiter) + rb"]*"
        cell = rb'(?>"(?>(?:[^"\n]+|"")*)"' + other + rb'|(?!")' + other + rb")"
        line = rb"^(?!" + cell + rb"(?>" + re.escape(self.delimiter) + cell + rb")*$)"
        found = re.compile(line, re.MULTILINE).search(text)
        return None if found is None else text.count(b"\n", 0, found.start())


def split_cells(line: bytes, delimiter: bytes) -> list[str]:
    """The cells of one line of text."""
    text = line.decode("utf-8", "replace")
    if delimiter == BLANKS:
        return [cell for cell in text.replace("\t", " ").split(" ") if cell]
    try:
        return next(csv.reader([text], delimiter=delimiter.decode()), [])
    except csv.Error:  # a cell of more than 128 KiB, or a NUL
        return text.split(delimiter.decode())


def guess(
    text: bytes,
    *,
    where: str,
    delimiter: str | None,
    header: bool | None,
    comment: str | None,
    wanted: Collection[str] = (),
) -> Dialect:
    """Find out how a table is written.

    Args:
        text: its first lines, complete, separated by ``\\n``.
        where: its name, for messages.
        delimiter: one character, or "tab" or "space" in words; ``None``: guess.
        header: whether the first line names the columns; ``None``: guess.
        comment: how comment lines begin; ``None`` or empty: there are none.
        wanted: column names that the user gave; if the first line has one of them, it is the header.

    Raises:
        InputError: there is no line of data, or the separator is not one character.
    """
    marker = (comment or "").encode()
    separator = None if delimiter is None else _separator(delimiter, where)
    rows: list[tuple[int, bytes]] = []
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip() and not (marker and line.lstrip(b" \t").startswith(marker)):
            rows.append((number, line))
            if len(rows) == _SAMPLE_LINES:
                break
    if not rows:
        raise InputError("the file holds no data", where=where, fix="Give a file with at least one row")
    if separator is None:
        separator = _guess_separator([line for _, line in rows])
    cells = [tuple(cell.strip() for cell in split_cells(line, separator)) for _, line in rows]
    if header is None:
        header = _guess_header(cells, wanted)
    names = cells[0] if header else tuple(str(position) for position in range(len(cells[0])))
    sample = tuple(cells[1:] if header else cells)
    return Dialect(separator, marker, rows[0][0] if header else 0, names, sample)


def is_int(cell: str) -> bool:
    """Whether a cell is an integer in decimal digits."""
    return re.fullmatch(r"-?[0-9]+", cell.strip()) is not None


def is_number(cell: str) -> bool:
    """Whether a cell is a number, "nan" and "inf" included."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _separator(delimiter: str, where: str) -> bytes:
    found = _WORDS_FOR_SEPARATORS.get(delimiter.lower(), delimiter).encode()
    if len(found) != 1 or found in b'\r\n"':
        raise InputError(
            f"'{delimiter}' cannot separate columns", where=where, fix="Give one character, or 'tab', or 'space'"
        )
    return found


def _guess_separator(lines: Sequence[bytes]) -> bytes:
    # The header may be longer or shorter than the rows (trailing separators), so that most lines must agree, not all.
    for candidate in (b"\t", b",", b";", b"|"):
        counts = [len(split_cells(line, candidate)) for line in lines]
        if counts[-1] > 1 and sum(count == counts[-1] for count in counts) * 2 > len(counts):
            return candidate
    return BLANKS if any(len(line.split()) > 1 for line in lines) else b","


def _guess_header(cells: Sequence[tuple[str, ...]], wanted: Collection[str]) -> bool:
    first, rest = cells[0], cells[1:]
    if any(name in first for name in wanted):
        return True
    for position, cell in enumerate(first):
        below = [row[position] for row in rest if position < len(row) and row[position]]
        if cell and not is_number(cell) and 2 * sum(map(is_number, below)) > len(below):
            return True
    words = [cell.lower().strip("#:~ ") for cell in first]
    return len(set(words)) == len(words) and sum(word in _HEADER_WORDS for word in words) * 2 >= len(words)
