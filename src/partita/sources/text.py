"""Text tables (CSV, TSV, blank-separated, SNAP edge lists), gzipped or not, read in chunks of whole lines.

The file is cut at line ends and every chunk is parsed by pyarrow on a thread of its own, in order. Chunks are what
keeps memory bounded and what makes errors exact: where pyarrow refuses a chunk, halving it finds the very line
with pyarrow's own rules, and a line is counted as an editor counts it, comments and header included.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from partita.core import progress
from partita.core.errors import InputError
from partita.sources.arrays import Stream
from partita.sources.batch import GAPS, Cells, Kind
from partita.sources.dialect import BLANKS, guess, is_canonical_int, is_int, is_number

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_BYTES = 1 << 18
_LONGEST_LINE = 1 << 26
_PADDED = re.compile(r"^-?0[0-9xX]")
_HEXADECIMAL = re.compile(r"^0[xX]")
_KINDS = {"int": "an integer", "float": "a number", "str": "UTF-8 text"}
_MISSING = {"int": [""], "str": [], "float": list(GAPS)}


class NotOfKindError(InputError):
    """A cell cannot be read as what its column should hold.

    Attributes:
        kind: what the cell should have been.
    """

    def __init__(self, what: str, kind: Kind, *, where: str, fix: str) -> None:
        self.kind = kind
        super().__init__(what, where=where, fix=fix)


class TextTable:
    """A table in a text file.

    Attributes:
        dialect: how it is written.
        path, names, has_header, note: see :class:`partita.sources.edges.TableReader`.
    """

    def __init__(
        self,
        path: Path,
        *,
        delimiter: str | None = None,
        header: bool | None = None,
        comment: str | None = "#",
        wanted: Collection[str] = (),
        exact_ids: bool = False,
        chunk_bytes: int = 8 << 20,
    ) -> None:
        """Open the file and look at its first lines; see :func:`partita.sources.dialect.guess`.

        Raises:
            InputError: the file cannot be read, is empty, or is not text.
        """
        self.path = path
        self._exact_ids = exact_ids
        self._comments = dict[int, int]()  # by the first line of what was read at once; a table may be read twice
        self._chunk_bytes = chunk_bytes
        first, _ = next(self._chunks(_SAMPLE_BYTES), (b"", 1))
        if first.count(b"\0") * 8 > len(first):
            raise InputError("is not a text file in UTF-8", where=str(path), fix="Save it as UTF-8, or name its format")
        self.dialect = guess(first, where=str(path), delimiter=delimiter, header=header, comment=comment, wanted=wanted)
        self.names, self.has_header = self.dialect.names, self.dialect.header_line > 0
        self.note = self.dialect.note

    def column_kind(self, column: int) -> Kind | None:
        """What the first rows of a column look like; ``None`` if they are all empty."""
        cells = [row[column] for row in self.dialect.sample if column < len(row) and row[column]]
        if not cells:
            return None
        if all(map(is_canonical_int if self._exact_ids else is_int, cells)):
            return "int"
        return "float" if all(map(is_number, cells)) else "str"

    def holds_words(self, column: int) -> bool:
        """See :class:`partita.sources.edges.TableReader`."""
        cells = [row[column] for row in self.dialect.sample if column < len(row) and row[column] not in GAPS]
        return bool(cells) and not any(map(is_number, cells)) and not self._says_yes_or_no(column)

    def left_out(self) -> str:
        """Says which lines of what was read were taken for comments, other than those above the table; or is empty."""
        number = sum(self._comments.values())
        if not number:
            return ""
        marker = self.dialect.comment.decode()
        lines = "1 line among the rows begins" if number == 1 else f"{number:,} lines among the rows begin"
        return f"{self.path}: {lines} with {marker}, left out as comments"

    def _says_yes_or_no(self, column: int) -> bool:
        """Whether the first cells of a column are True and False, as data frames write them."""
        cells = {row[column].lower() for row in self.dialect.sample if column < len(row) and row[column] not in GAPS}
        return bool(cells) and cells <= {"true", "false"}

    def batches(self, columns: Sequence[int], kinds: Sequence[Kind], *, doing: str) -> Generator[Cells, None, None]:
        """See :class:`partita.sources.edges.TableReader`.

        Raises:
            InputError: a row has more or fewer cells than the others, or a cell is not of its kind.
        """
        workers = min(4, os.cpu_count() or 1)
        pool = ThreadPoolExecutor(workers, thread_name_prefix="partita-parse")
        pending: deque[Future[Cells | None]] = deque()
        try:
            with progress.task(doing, total=self.path.stat().st_size, unit="bytes") as task:
                for text, line in self._chunks(self._chunk_bytes, task):
                    pending.append(pool.submit(self._parse, text, line, columns, kinds))
                    if len(pending) > workers and (batch := pending.popleft().result()) is not None:
                        yield batch
                yield from (batch for each in pending if (batch := each.result()) is not None)
        finally:
            pool.shutdown(cancel_futures=True)

    # Lines

    def _chunks(self, size: int, task: progress.Bar | None = None) -> Iterator[tuple[bytes, int]]:
        """Runs of whole lines, ``\\n`` between them, and the number of the first line of each."""
        line, held, held_bytes, done = 1, list[bytes](), 0, 0
        with self._open() as raw:
            stream = self._decompressed(raw)
            while data := self._read(stream, size):
                if task is not None:
                    task.advance(raw.tell() - done)
                    done = raw.tell()
                if line == 1 and not held:
                    data = data.removeprefix(b"\xef\xbb\xbf")
                if b"\r" in data:
                    if data.endswith(b"\r"):
                        data += self._read(stream, 1)
                    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
                end = data.rfind(b"\n") + 1
                if end == 0:
                    held.append(data)
                    held_bytes += len(data)
                    if held_bytes > _LONGEST_LINE:
                        raise InputError(
                            f"a line is longer than {_LONGEST_LINE >> 20} MiB",
                            where=f"{self.path}, line {line}",
                            fix="Is this a text table? Name the format, or break the line",
                        )
                    continue
                text = b"".join([*held, data[:end]])
                held, held_bytes = [data[end:]], len(data) - end
                yield text, line
                line += text.count(b"\n")
        if text := b"".join(held):
            yield text, line

    def _open(self) -> Stream:
        try:
            return self.path.open("rb", buffering=0)
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=str(self.path)) from error

    def _decompressed(self, raw: Stream) -> Stream:
        gzipped = self._read(raw, 2) == b"\x1f\x8b"
        raw.seek(0)
        if self.path.suffix == ".gz" and not gzipped and self.path.stat().st_size:
            raise InputError("is named .gz but is not gzipped", where=str(self.path), fix="Rename it, or gzip it")
        return gzip.GzipFile(fileobj=raw) if gzipped else raw  # type: ignore[arg-type]

    def _read(self, stream: Stream, size: int) -> bytes:
        try:
            return stream.read(size) or b""
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(
                f"the gzip file is damaged or cut short ({error})", where=str(self.path), fix="Fetch it again"
            ) from error
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})", where=str(self.path)) from error

    # Cells

    def _parse(self, text: bytes, line: int, columns: Sequence[int], kinds: Sequence[Kind]) -> Cells | None:
        import pyarrow as pa

        self._comments[line] = self.dialect.count_comments(text, skip_first=line == 1)
        header = self.dialect.header_line - line
        if 0 <= header < text.count(b"\n") + 1:
            lines = text.split(b"\n")
            lines[header] = b""
            text = b"\n".join(lines)
        text = self.dialect.clean(text)
        if not text.strip(b"\n"):
            return None
        if (bad := self.dialect.unclosed_quote(text)) is not None:
            raise InputError(
                "a quoted cell is not closed in this line",
                where=f"{self.path}, line {line + bad}",
                fix='Close the quote; write a quote inside a quoted cell as ""',
            )
        try:
            arrays = self._convert(text, columns, kinds)
        except pa.ArrowInvalid as error:
            raise self._explain(text, line, columns, kinds, error) from None
        if len(arrays[0]) == 0:
            return None

        def where(row: int) -> str:
            numbers = [number for number, content in enumerate(text.split(b"\n"), start=line) if content]
            return f"{self.path}, line {numbers[row]}"

        return Cells(arrays, [self.names[column] for column in columns], where)

    def _convert(self, text: bytes, columns: Sequence[int], kinds: Sequence[Kind]) -> list[pa.Array]:
        import pyarrow as pa
        from pyarrow import compute, csv

        types = {"int": pa.int64(), "float": pa.float32(), "str": pa.large_string()}
        names = [str(position) for position in range(len(self.names))]
        wanted = [names[column] for column in columns]
        blanks = b" " in text or b"\t" in text  # numbers are trimmed by pyarrow, names are trimmed here
        # Strings keep "NA" and "" as they are, integers have no word for missing: so kinds decide the null words,
        # which pyarrow only takes for the whole table; columns of one kind are read together.
        arrays: dict[str, pa.Array] = {}
        for kind in dict.fromkeys(kinds):
            mine = [name for name, its in zip(wanted, kinds) if its == kind]
            read_as = dict.fromkeys(mine, types[kind])
            if kind == "float":
                read_as |= {name: pa.bool_() for name in mine if self._says_yes_or_no(int(name))}
            table = csv.read_csv(
                pa.BufferReader(text),
                read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
                parse_options=csv.ParseOptions(
                    delimiter=self.dialect.delimiter.decode(), quote_char=self.dialect.delimiter != BLANKS and '"'
                ),
                convert_options=csv.ConvertOptions(
                    include_columns=mine,
                    column_types=read_as,
                    decimal_point=self.dialect.decimal,
                    null_values=_MISSING[kind],
                    strings_can_be_null=False,
                ),
            )
            for name in mine:
                parts = table.column(name).chunks
                array = parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [pa.array([], read_as[name])])
                array = array.cast(types[kind]) if pa.types.is_boolean(array.type) else array
                if kind == "int" and self._odd_integers(text, column=int(name)):
                    raise pa.ArrowInvalid("zeros before an integer, or a hexadecimal one")
                arrays[name] = compute.utf8_trim(array, " \t") if kind == "str" and blanks else array
        return [arrays[name] for name in wanted]

    def _odd_integers(self, text: bytes, column: int) -> bool:
        """Whether a column has integers like 0x1F, which pyarrow reads, or like 007, whose zeros would be lost."""
        from pyarrow import compute

        separator = b" " if self.dialect.delimiter == BLANKS else re.escape(self.dialect.delimiter)
        odd = _PADDED if self._exact_ids else _HEXADECIMAL
        if re.search(rb'(?:^|[\n" \t]|' + separator + rb")" + odd.pattern[1:].encode(), text) is None:
            return False
        (cells,) = self._convert(text, [column], ["str"])
        return bool(compute.any(compute.match_substring_regex(cells, odd.pattern)).as_py())

    def _explain(
        self, text: bytes, line: int, columns: Sequence[int], kinds: Sequence[Kind], error: Exception
    ) -> InputError:
        """Find the first line that pyarrow refuses, and what it refuses there."""
        lines = text.split(b"\n")
        low, high = 0, len(lines)  # lines[low:high] holds the first bad line, everything before low is good
        while high - low > 1:
            middle = (low + high) // 2
            if self._refuses(b"\n".join(lines[low:middle]), columns, kinds):
                high = middle
            else:
                low = middle
        where, bad = f"{self.path}, line {line + low}", lines[low]
        cells = self.dialect.cells(bad)
        if len(cells) != len(self.names):
            return InputError(
                f"the line has {_count(len(cells), 'cell')}, but the table has {_count(len(self.names), 'column')}",
                where=where,
                fix="Correct the line, or name the separator and whether there is a header",
            )
        for column, kind in zip(columns, kinds):
            if self._refuses(bad, [column], [kind]):
                zeros = kind == "int" and re.match("-?0[0-9]", cells[column].strip())
                return NotOfKindError(
                    f"{_shown(cells[column])} " + ("has zeros before it" if zeros else f"is not {_KINDS[kind]}"),
                    kind,
                    where=f"{where}, column {self.names[column]}",
                    fix="Correct the cell, or choose another column",
                )
        return InputError(str(error).splitlines()[0], where=where)

    def _refuses(self, text: bytes, columns: Sequence[int], kinds: Sequence[Kind]) -> bool:
        import pyarrow as pa

        if not text.strip(b"\n"):
            return False
        try:
            self._convert(text, columns, kinds)
        except pa.ArrowInvalid:
            return True
        return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shown(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")
