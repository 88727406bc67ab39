"""Edges of files as streams."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.core.errors import InputError
from partita.core.partitioning import EdgeStream
from partita.partitioning.files import FileStream


def edges_of(stream):
    return [pair for e in stream.edges("read") for pair in zip(e.src.tolist(), e.dst.tolist())]


def test_csv_and_parquet_stream_the_same_edges_again_and_again(tmp_path):
    (tmp_path / "edges.csv").write_text("from,to\n0,1\n5,2\n2,2\n")
    pq.write_table(pa.table({"w": [1.0, 2, 3], "to": [1, 2, 2], "from": [0, 5, 2]}), tmp_path / "edges.parquet")
    for name in ("edges.csv", "edges.parquet"):
        stream = FileStream(tmp_path / name, source_column="from", target_column="to")
        assert isinstance(stream, EdgeStream)
        assert (stream.num_nodes, stream.num_edges) == (6, 3)
        for _ in range(2):
            assert edges_of(stream) == [(0, 1), (5, 2), (2, 2)]


def test_undirected_lines_stand_for_both_directions_and_loops_for_one(tmp_path):
    (tmp_path / "edges.txt").write_text("# a comment\n0 1\n2 2\n")
    stream = FileStream(tmp_path / "edges.txt", undirected=True)
    assert edges_of(stream) == [(0, 1), (1, 0), (2, 2)]
    assert stream.num_edges == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n0,1\n-3,1\n", "line 3, column a: the node id -3 is negative"),
        ("a,b\n0,1\nx,1\n", "line 3"),
        ("", "edges.csv"),
        ("a,b\n0,99999999\n", "far fewer"),
    ],
)
def test_files_that_cannot_be_streamed_are_refused(tmp_path, text, message):
    (tmp_path / "edges.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        FileStream(tmp_path / "edges.csv")


def test_lines_have_no_rows(tmp_path):
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n")
    with pytest.raises(InputError, match="grouped by destination"):
        FileStream(tmp_path / "edges.csv").rows("read")


def test_ids_are_64_bit(tmp_path):
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n")
    assert {e.src.dtype for e in FileStream(tmp_path / "edges.csv").edges("read")} == {np.dtype(np.int64)}
