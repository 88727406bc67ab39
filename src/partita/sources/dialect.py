"""How a text table is written: comment lines, separator, header. Guessed from its first lines unless said."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from partita.core.errors import InputError

BLANKS = b" "
"""The separator that stands for any run of blanks and tabs."""

_SAMPLE_LINES = 200
_SHOWN_CELLS = 4
_COLUMN_WORDS = frozenset(
    (
        *("source", "src", "from", "head", "start", "left", "parent", "citing", "cites", "follower", "sourceid"),
        *(
            "target",
            "tgt",
            "dst",
            "to",
            "tail",
            "end",
            "right",
            "child",
            "cited",
            "followee",
            "targetid",
            "fromnodeid",
            "tonodeid",
        ),
        *("node", "vertex", "id", "ids", "name", "key", "index", "uid", "gid", "nid", "nodeid"),
        *("paper", "author", "user", "friend", "item", "userid", "itemid", "weight", "value", "score", "count"),
        *("time", "timestamp", "date", "type", "relation", "rel", "edge", "label", "labels", "class", "classes"),
        *(
            "category",
            "topic",
            "group",
            "predicate",
            "subject",
            "object",
            "segment",
            "cluster",
            "community",
            "task",
            "split",
            "fold",
            "feature",
            "feat",
        ),
    )
)
"""Words that names of columns are made of."""

_KNOWN_WORD = 0.1
"""How much less likely a cell of words for columns is in a row of data than in a header."""

_LIKELY_HEADER = 0.02
"""A first line that is as unlikely as this to be data is a header."""

_OTHER_MARKERS = (b"%", b"//")
"""How comments begin in files of KONECT and others."""

_QUOTED = re.compile(rb'\s*"[^"]*"\s*')

_WITH_COMMA = re.compile(r"[+-]?\d*,\d+")
"""A number with a decimal comma."""

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
        decimal: what separates the decimals of numbers: a point, or a comma.
        note: what a user should know of how the header was found; empty where it was said, or numbers below show it.
    """

    delimiter: bytes
    comment: bytes
    header_line: int
    names: tuple[str, ...]
    sample: tuple[tuple[str, ...], ...]
    note: str = ""
    decimal: str = "."

    def clean(self, text: bytes) -> bytes:
        """The same lines with those that are comments or blank emptied, which are then skipped; no line is lost.

        Where blanks separate, runs of them are made one.
        """
        if self.delimiter == BLANKS and (b"  " in text or b"\t" in text or b" \n" in text or b"\n " in text):
            text = re.sub(rb"[ \t]+", b" ", text).replace(b" \n", b"\n").replace(b"\n ", b"\n")
        if self.delimiter == BLANKS:
            text = text.strip(b" \t")
        elif text.startswith((b" ", b"\t")) or b"\n " in text or b"\n\t" in text:
            text = re.sub(rb"(?m)^ +$" if self.delimiter == b"\t" else rb"(?m)^[ \t]+$", b"", text)
        if self.comment and (text.startswith(self.comment) or b"\n" + self.comment in text):
            text = re.sub(rb"(?m)^" + re.escape(self.comment) + rb"[^\n]*", b"", text)
        return text

    def count_comments(self, text: bytes, *, skip_first: bool) -> int:
        """How many lines are comments; ``skip_first``: but those before all other lines, which stand above a table."""
        if not self.comment or self.comment not in text:
            return 0
        blanks = b" \t" if self.delimiter == BLANKS else b""
        lines = [line.lstrip(blanks).startswith(self.comment) for line in text.split(b"\n") if line.strip()]
        above = next((at for at, is_comment in enumerate(lines) if not is_comment), len(lines))
        return sum(lines[above:] if skip_first else lines)

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
    marker = _comment_marker(text, comment)
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
        separator = _guess_separator([line for _, line in rows], wanted)
    cells = [tuple(cell.strip() for cell in split_cells(line, separator)) for _, line in rows]
    decimal = _guess_decimal(cells, separator)
    if decimal == ",":
        cells = [tuple(_with_point(cell) for cell in row) for row in cells]
    note = ""
    if header is None:
        header, sure = _guess_header(cells, wanted)
        shown = ", ".join(cells[0][:_SHOWN_CELLS]) + (", ..." if len(cells[0]) > _SHOWN_CELLS else "")
        if not sure:
            taken = "as the names of columns (--no-header: it is data)" if header else "as data (--header: it is names)"
            note = f"{where}: the first line, {shown}, is taken {taken}"
    names = cells[0] if header else tuple(str(position) for position in range(len(cells[0])))
    sample = tuple(cells[1:] if header else cells)
    return Dialect(separator, marker, rows[0][0] if header else 0, names, sample, note, decimal)


def is_int(cell: str) -> bool:
    """Whether a cell is an integer in decimal digits."""
    return re.fullmatch(r"-?[0-9]+", cell.strip()) is not None


def is_canonical_int(cell: str) -> bool:
    """Whether a cell is an integer as programs write one: without zeros before it, so that reading loses nothing."""
    return re.fullmatch(r"-?(0|[1-9][0-9]*)", cell.strip()) is not None


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


def _comment_marker(text: bytes, comment: str | None) -> bytes:
    """How comment lines begin: as the user says; where that is #, as the first line has it, % or // too."""
    said = (comment or "").encode()
    others = [marker for marker in _OTHER_MARKERS if said == b"#" and text.lstrip().startswith(marker)]
    return others[0] if others else said


def _guess_decimal(cells: Sequence[tuple[str, ...]], separator: bytes) -> str:
    """A comma, where numbers have one and none has a point."""
    if separator == b",":
        return "."
    numbers = [cell for row in cells for cell in row if re.fullmatch(r"[+-]?\d*[.,]\d+", cell)]
    return "," if numbers and all("," in cell for cell in numbers) else "."


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if _WITH_COMMA.fullmatch(cell) else cell


def _guess_separator(lines: Sequence[bytes], wanted: Collection[str]) -> bytes:
    if lines[0].strip().decode("utf-8", "replace") in wanted or all(map(_QUOTED.fullmatch, lines)):
        return (
            b","  # a single column, under the name that is looked for or in quotes: its words may have blanks in them
        )
    # The header may be longer or shorter than the rows (trailing separators), so that most lines must agree, not all.
    cells = [split_cells(line, b";") for line in lines]
    decimals = any(_WITH_COMMA.fullmatch(cell.strip()) for row in cells for cell in row)
    uneven = len({len(split_cells(line, b",")) for line in lines}) > 1
    if len(cells[0]) > 1 and all(len(row) == len(cells[0]) for row in cells) and (decimals or uneven):
        return b";"  # the commas are in numbers or in words
    for candidate in (b"\t", b",", b";", b"|"):
        counts = [len(split_cells(line, candidate)) for line in lines]
        if counts[-1] > 1 and sum(count == counts[-1] for count in counts) * 2 > len(counts):
            return candidate
    return BLANKS if any(len(line.split()) > 1 for line in lines) else b","


def _guess_header(cells: Sequence[tuple[str, ...]], wanted: Collection[str]) -> tuple[bool, bool]:
    """Whether the first line names the columns, and whether that is beyond doubt.

    A name asked for by the user, and a word above numbers, are. Otherwise it is weighed how likely the line is as a row
    of data: the words that it has, and whether its cells occur again below, as those of the other rows do. A line with
    a cell that occurs again is data.
    """
    first, rest = cells[0], cells[1:]
    if any(name in first for name in wanted):
        return True, True
    if any(is_number(cell) for cell in first):
        return False, True
    for position, cell in enumerate(first):
        below = [row[position] for row in rest if position < len(row) and row[position]]
        if cell and 2 * sum(map(is_number, below)) > len(below):
            return True, True
    if len(set(first)) < len(first):
        return False, False
    counts = Counter(cell for row in rest for cell in row)
    if any(counts[cell] for cell in first):
        return False, False
    likelihood = 1.0
    for position, cell in enumerate(first):
        column = [row[position] for row in rest if position < len(row)]
        alone = sum(counts[value] == 1 for value in column)
        likelihood *= (1 + alone) / (2 + len(column)) * (_KNOWN_WORD if _names_a_column(cell) else 1)
    return likelihood <= _LIKELY_HEADER, False


def _names_a_column(cell: str) -> bool:
    """Whether all words of a cell are such as columns are named with: ``user_a``, ``FromNodeId``, ``id2``."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", cell)]
    known = [word in _COLUMN_WORDS for word in words]
    return any(known) and all(is_known or len(word) == 1 for is_known, word in zip(known, words))
