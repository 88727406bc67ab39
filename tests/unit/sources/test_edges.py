"""Text dialects, chunked reading, arrays in npy and npz files, columns by name."""

from __future__ import annotations

import gzip
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.core.errors import InputError
from partita.sources.arrays import open_npy, open_npz
from partita.sources.dialect import guess
from partita.sources.edges import EdgeTable, ParquetTable, detect_format, find_column, open_table
from partita.sources.text import TextTable


def look(text, **options):
    return guess(text, where="t", **{"delimiter": None, "header": None, "comment": "#", **options})


@pytest.mark.parametrize(
    ("text", "delimiter", "header", "names"),
    [
        (b"1,2\n3,4\n", b",", False, ("0", "1")),
        (b"source,target\n1,2\n", b",", True, ("source", "target")),
        (b"a;b;c\n1;2;3\n", b";", True, ("a", "b", "c")),
        (b"1\t2\n3\t4\n", b"\t", False, ("0", "1")),
        (b"1 2\n3   4\n", b" ", False, ("0", "1")),
        (b"# FromNodeId\tToNodeId\n1\t2\n", b"\t", False, ("0", "1")),
        (b"alice,bob\nbob,carol\n", b",", False, ("0", "1")),
        (b"from,to\nalice,bob\n", b",", True, ("from", "to")),
        (b'x,y z\n"a,c",1\n"a,b",2\n', b",", True, ("x", "y z")),
        (b"src,dst\n", b",", True, ("src", "dst")),
        (b"who,whom,w\nalice,bob,1.5\n", b",", True, ("who", "whom", "w")),
        (b"1|2\n", b"|", False, ("0", "1")),
    ],
)
def test_guess(text, delimiter, header, names):
    found = look(text)
    assert (found.delimiter, found.header_line > 0, found.names) == (delimiter, header, names)


def test_what_the_user_says_wins():
    assert look(b"a,b\n1,2\n", header=False).header_line == 0
    assert look(b"1,2\n3,4\n", header=True).names == ("1", "2")
    assert look(b"1 2,3\n", delimiter=",").names == ("0", "1")
    assert look(b"p,q\nr,s\n", wanted=["q"]).header_line == 1
    with pytest.raises(InputError, match="cannot separate"):
        look(b"1,2\n", delimiter="ab")
    with pytest.raises(InputError, match="no data"):
        look(b"# only\n\n# comments\n")


def test_a_single_column_of_words_with_blanks():
    """Under a name that is looked for, or in quotes; otherwise blanks separate."""
    text = b"node\nsku 03\nsku 05\n"
    assert look(text, wanted=["node", "id"]).delimiter == b","
    assert look(b'"sku 03"\n "sku 05" \n').names == ("0",)
    for other in (text, b"sku 03\nsku 05\n", b'"sku" "03"\n"sku" "05"\n'):
        assert look(other).delimiter == b" "
    assert look(b"node other\nu1 u2\n", wanted=["node"]).names == ("node", "other")


def rows(path, kinds=("str", "str"), **options):
    table = TextTable(path, **options)
    found = []
    for batch in table.batches(range(len(kinds)), kinds, doing="read"):
        columns = [array.to_pylist() for array in batch.columns]
        found += [(*cells, int(batch.where(row).rsplit(" ", 1)[1])) for row, cells in enumerate(zip(*columns))]
    return found


@pytest.mark.parametrize("chunk_bytes", [7, 64, 8 << 20])
def test_every_chunk_size_reads_the_same_rows_and_lines(tmp_path, chunk_bytes):
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbf# c\r\nsource,target\r\n\r\na,b\r\n#x,y\r\n c , d e \r\n"f,g","h""i"\r\nNA,nan')
    expected = [("a", "b", 4), ("c", "d e", 6), ("f,g", 'h"i', 7), ("NA", "nan", 8)]
    assert rows(path, chunk_bytes=chunk_bytes) == expected


@pytest.mark.parametrize("chunk_bytes", [5, 8 << 20])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("delimiter", [b",", b"\t", b";", b" "])
def test_blank_lines_are_skipped_like_empty_ones(tmp_path, delimiter, ending, chunk_bytes):
    """And counted. A line of tabs is a row where tabs separate, and so is one of commas where these do."""
    lines = [b"  ", b"a-b", b"", b"   ", b" c-d ", b" " if delimiter == b"\t" else b" \t ", b"e-f", b"   "]
    path = tmp_path / "t"
    path.write_bytes(ending.join(lines).replace(b"-", delimiter))
    assert rows(path, chunk_bytes=chunk_bytes) == [("a", "b", 2), ("c", "d", 5), ("e", "f", 7)]
    if delimiter != b" ":
        path.write_bytes(ending.join([b"a-b", b"-", b"c-d"]).replace(b"-", delimiter))
        assert rows(path, chunk_bytes=chunk_bytes) == [("a", "b", 1), ("", "", 2), ("c", "d", 3)]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_line_endings_blanks_and_gzip(tmp_path, ending):
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress(ending.join([b"# n", b" 1   2 ", b"", b"3\t4", b"5 6"])))
    assert rows(path, ("int", "int")) == [(1, 2, 2), (3, 4, 4), (5, 6, 5)]


def test_gzip_of_several_members_and_without_the_suffix(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(gzip.compress(b"1,2\n") + gzip.compress(b"3,4\n"))
    assert rows(path, ("int", "int")) == [(1, 2, 1), (3, 4, 2)]


@pytest.mark.parametrize("chunk_bytes", [9, 1 << 20])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"# c\n1,2\n3,4\n5\n6,7\n", r"line 4: the line has 1 cell, but the table has 2 columns"),
        (b"1,2\n3,4,5\n", r"line 2: the line has 3 cells"),
        (b"s,t\n1,2\n\n3,x\ny,5\n", r"line 4, column t: 'x' is not an integer"),
        (b"1,2\n3,4.5\n", r"line 2, column 1: '4.5' is not an integer"),
        (b"1,2\n3,99999999999999999999\n", r"line 2, column 1"),
        (b'1,2\n3,"4\n5,6"\n', r"line 2: a quoted cell is not closed"),
        (b'1,2\n"3"",4\n5,"6"\n', r"line 2: a quoted cell is not closed"),
        (b'1,"2"\n3,"",4"\n"5",6\n', r"line 2: the line has 3 cells"),
    ],
)
def test_bad_text_is_named_by_line_and_column(tmp_path, text, message, chunk_bytes):
    path = tmp_path / "t.csv"
    path.write_bytes(text)
    with pytest.raises(InputError, match=message):
        rows(path, ("int", "int"), chunk_bytes=chunk_bytes)


def test_invalid_utf8_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\nc,d\ne,\xff\n")
    with pytest.raises(InputError, match=r"line 3, column 1: .* is not UTF-8"):
        rows(path)


@pytest.mark.parametrize("damage", ["cut", "name", "binary"])
def test_not_text(tmp_path, damage):
    path = tmp_path / "t.csv.gz"
    whole = gzip.compress(b"1,2\n" * 10000)
    path.write_bytes({"cut": whole[:-20], "name": b"1,2\n", "binary": gzip.compress(bytes(1000))}[damage])
    with pytest.raises(InputError, match=r"t\.csv\.gz: (the gzip file is damaged|is named \.gz|is not a text file)"):
        rows(path, ("int", "int"))


def test_a_quote_inside_a_name_is_no_quoted_cell(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_bytes(b'5" pipe\t"a"\nb\tc"d"\n')
    assert [row[:2] for row in rows(path)] == [('5" pipe', "a"), ("b", 'c"d"')]


def test_columns_by_name_and_position(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("source,target,weight\n1,2,3\n")
    table = open_table(path)
    assert [find_column(table, name, "x") for name in ("weight", 2, "1")] == [2, 2, 1]
    with pytest.raises(InputError, match=r"no column 'wieght' .*Did you mean 'weight'"):
        find_column(table, "wieght", "weight")
    with pytest.raises(InputError, match=r"no column 3 .*0\.\.2"):
        find_column(table, 3, "weight")
    with pytest.raises(InputError, match="both column target"):
        EdgeTable(table, "target", 1, None)
    path.write_text("1,2\n")
    with pytest.raises(InputError, match="has no header"):
        EdgeTable(open_table(path), "source", None, None)


def test_format(tmp_path):
    for name, content, expected in [
        ("a.csv.gz", b"", "text"),
        ("b.PARQUET", b"", "parquet"),
        ("c", b"PAR1", "parquet"),
        ("d", b"PK\x03\x04", "npz"),
        ("e", b"1 2\n", "text"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert detect_format(tmp_path / name) == expected
    assert detect_format(tmp_path) == "parquet"
    assert detect_format(tmp_path / "e", "snap") == "text"
    with pytest.raises(InputError, match=r"no format 'parket'.*'parquet'"):
        detect_format(tmp_path / "e", "parket")
    with pytest.raises(InputError, match="no such file"):
        detect_format(tmp_path / "z")


def test_a_directory_of_parquet_files_in_order(tmp_path):
    for number in (2, 1):
        pq.write_table(pa.table({"s": [number], "t": [number * 10]}), tmp_path / f"{number}.parquet")
    table = ParquetTable(tmp_path)
    batches = list(table.batches([1, 0], ["int", "int"], doing="read"))
    assert [batch.columns[0].to_pylist() for batch in batches] == [[10], [20]]
    assert batches[1].where(0).endswith("2.parquet, row 0 (from 0)")
    pq.write_table(pa.table({"s": [1]}), tmp_path / "3.parquet")
    with pytest.raises(InputError, match=r"3\.parquet: the columns"):
        ParquetTable(tmp_path)
    (tmp_path / "3.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match=r"3\.parquet: is damaged or not a Parquet file"):
        ParquetTable(tmp_path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(0,), (7,), (5, 3), (300_000, 5), (2, 600_000)])
def test_arrays_come_in_blocks(tmp_path, shape, order):
    array = np.asarray(np.random.default_rng(0).integers(0, 99, shape), dtype=">i4", order=order)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", a=array)
    for found in (open_npy(tmp_path / "a.npy"), open_npz(tmp_path / "a.npz")["a"]):
        np.testing.assert_array_equal(found.load(), array)
        blocks = list(found.blocks())
        assert [start for start, _ in blocks] == list(np.cumsum([0, *(len(block) for _, block in blocks)])[:-1])
        if array.size:
            np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), array)


def test_objects_are_refused_and_damage_is_named(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"o\.npy: holds pickled objects"):
        open_npy(tmp_path / "o.npy")
    np.savez(tmp_path / "o.npz", edges=np.arange(9), y=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"o\.npz, array 'y': holds pickled objects"):
        open_npz(tmp_path / "o.npz")
    np.save(tmp_path / "a.npy", np.arange(100))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(InputError, match="damaged: int64 of shape"):
        open_npy(tmp_path / "a.npy")
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(InputError, match=r"b\.npz: the file is damaged"):
        open_npz(tmp_path / "b.npz")


def test_a_flipped_bit_in_an_npz_is_found(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(1000))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        offset = archive.getinfo("a.npy").header_offset
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[offset + 1000] ^= 4
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InputError, match=r"array 'a': the file is damaged .*CRC"):
        list(open_npz(tmp_path / "a.npz")["a"].blocks())
