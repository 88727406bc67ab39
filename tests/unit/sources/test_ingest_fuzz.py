"""Damaged files: ingest says what is wrong, or reads what a naive reader reads. It never does anything else."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.core.errors import PartitaError
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.sources.ingest import ingest

EXAMPLES = settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
EDGES = np.array([[0, 1, 2, 3, 4, 5, 6, 0, 2], [1, 2, 3, 4, 5, 6, 0, 3, 2]])


@st.composite
def damage(draw):
    """One or two random changes of some bytes."""
    kinds = draw(st.lists(st.sampled_from(["flip", "cut", "line", "double", "insert"]), min_size=1, max_size=2))
    places = [draw(st.floats(0, 1)) for _ in kinds]
    values = [draw(st.integers(0, 255)) for _ in kinds]

    def apply(data: bytes) -> bytes:
        for kind, place, value in zip(kinds, places, values):
            at = min(int(place * len(data)), max(len(data) - 1, 0))
            if kind == "flip" and data:
                data = data[:at] + bytes([data[at] ^ (1 << value % 8)]) + data[at + 1 :]
            elif kind == "cut":
                data = data[:at]
            elif kind == "line":
                lines = data.split(b"\n")
                del lines[min(int(place * len(lines)), len(lines) - 1)]
                data = b"\n".join(lines)
            elif kind == "double":
                found = [match.start() for match in re.finditer(rb"[,\t\n\"]", data)]
                at = found[int(place * (len(found) - 1))] if found else 0
                data = data[:at] + data[at : at + 1] + data[at:]
            elif kind == "insert":
                data = data[:at] + bytes([value]) + data[at:]
        return data

    return apply


def ingested(tmp_path: Path, source: Path, **options: object) -> GraphStore | None:
    """The store, checked; ``None`` if the file was refused. Either way nothing else is left behind."""
    store = tmp_path / "store"
    try:
        ingest(source, store, overwrite=True, **options)
    except PartitaError:
        assert {path.name for path in tmp_path.iterdir()} <= {source.name, "store", "e.csv", "n.csv"}
        return None
    verify(store)
    assert {path.name for path in tmp_path.iterdir()} <= {source.name, "store", "e.csv", "n.csv"}
    return GraphStore.open(store)


def edges_of(store: GraphStore) -> list[tuple[object, object]]:
    """All edges by the users' names, in row order."""
    names = store.names().tolist()
    return [(names[u], names[v]) for v in range(store.num_nodes) for u in store.neighbors(v)]


def naive_text(data: bytes, kind: type) -> list[tuple[object, object]]:
    """Edges of a comma-separated file as Python's own reader sees them."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    rows = [next(csv.reader([line])) for line in lines]
    if rows[0][:2] == ["source", "target"]:
        rows = rows[1:]

    def convert(cell: str) -> object:
        plain = cell.strip(" \t")
        return (int(plain, 16) if plain.lower().startswith("0x") else int(plain)) if kind is int else plain

    return [(convert(row[0]), convert(row[1])) for row in rows]


@EXAMPLES
@given(damage(), st.booleans())
def test_csv_of_integers(tmp_path, change, header):
    text = "# a comment\n" + "source,target\n" * header + "".join(f"{u},{v}\n" for u, v in EDGES.T)
    source = tmp_path / "e.csv"
    source.write_bytes(change(text.encode()))
    options = {"delimiter": ",", "header": header}
    store = ingested(tmp_path, source, ids="int", **options)
    if store is not None and not header:
        expected = naive_text(source.read_bytes(), int)
        assert sorted(edges_of(store)) == sorted(expected)
    store = ingested(tmp_path, source, ids="auto", **options)
    if store is not None and not header:
        kind = str if store.has("name_bytes") else int
        assert sorted(edges_of(store)) == sorted(naive_text(source.read_bytes(), kind))


@EXAMPLES
@given(damage())
def test_csv_of_names(tmp_path, change):
    names = ["alice", '"b,ob"', "c d", "é", '"q""q"', "7", "#x"]
    text = "".join(f"{names[u]},{names[v]}\n" for u, v in EDGES.T)
    source = tmp_path / "e.csv"
    source.write_bytes(change(text.encode()))
    store = ingested(tmp_path, source, ids="str", delimiter=",", header=False)
    if store is not None:
        assert sorted(edges_of(store)) == sorted(naive_text(source.read_bytes(), str))


@EXAMPLES
@given(damage())
def test_everything_guessed(tmp_path, change):
    text = "# FromNodeId\tToNodeId\n" + "".join(f"{u}\t{v}\n" for u, v in EDGES.T)
    source = tmp_path / "e.csv"
    source.write_bytes(change(text.encode()))
    ingested(tmp_path, source)


@EXAMPLES
@given(damage())
def test_node_table(tmp_path, change):
    (tmp_path / "e.csv").write_text("".join(f"{u},{v}\n" for u, v in EDGES.T))
    rows = "".join(f"{i},{i / 2},{-i},{'ab'[i % 2]},{['train', 'val', 'test'][i % 3]}\n" for i in range(7))
    source = tmp_path / "n.csv"
    source.write_bytes(change(("id,f,g,label,split\n" + rows).encode()))
    ingested(tmp_path, tmp_path / "e.csv", nodes=source)


@EXAMPLES
@given(damage(), st.sampled_from(["none", "snappy"]))
def test_parquet(tmp_path, change, compression):
    sink = io.BytesIO()
    table = pa.table({"source": EDGES[0], "target": EDGES[1]})
    pq.write_table(table, sink, compression=compression, write_page_checksum=True)
    source = tmp_path / "e.parquet"
    source.write_bytes(change(sink.getvalue()))
    store = ingested(tmp_path, source)
    if store is not None:
        columns = [column.to_pylist() for column in pq.read_table(source, memory_map=False).columns[:2]]
        assert sorted(edges_of(store), key=str) == sorted(zip(*columns), key=str)


@EXAMPLES
@given(damage(), st.booleans())
def test_npz(tmp_path, change, compressed):
    sink = io.BytesIO()
    arrays = {
        "edge_index": EDGES,
        "x": np.arange(14, dtype=np.float32).reshape(7, 2),
        "y": np.array([0, 1, 2, 0, 1, 2, -1]),
        "train_mask": np.array([1, 1, 0, 0, 0, 0, 0], bool),
        "num_nodes": np.int64(7),
    }
    (np.savez_compressed if compressed else np.savez)(sink, **arrays)
    source = tmp_path / "g.npz"
    source.write_bytes(change(sink.getvalue()))
    store = ingested(tmp_path, source)
    if store is not None and source.read_bytes().startswith(b"PK"):  # numpy looks there, zipfile at the end
        with np.load(source) as found:
            np.testing.assert_array_equal(np.sort(edges_of(store), axis=0), np.sort(found["edge_index"].T, axis=0))
            if "x" in found:
                np.testing.assert_array_equal(store.x, found["x"])


@EXAMPLES
@given(damage())
def test_npy(tmp_path, change):
    (tmp_path / "e.csv").write_text("".join(f"{u},{v}\n" for u, v in EDGES.T))
    sink = io.BytesIO()
    np.save(sink, np.arange(14, dtype=np.float32).reshape(7, 2))
    source = tmp_path / "x.npy"
    source.write_bytes(change(sink.getvalue()))
    store = tmp_path / "store"
    try:
        ingest(tmp_path / "e.csv", store, features=source, overwrite=True)
    except PartitaError:
        return
    finally:
        assert {path.name for path in tmp_path.iterdir()} <= {"e.csv", "x.npy", "store"}
    verify(store)
    np.testing.assert_array_equal(GraphStore.open(store).x, np.load(source).astype(np.float32))


@pytest.mark.parametrize("content", [b"", b"\0", b"\n", b",", b",,\n,,\n", b'"', b"\xff\xfe1\0,\x002\0\n\0", b"#"])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "npz", "npy", "bin"])
def test_tiny_files(tmp_path, content, suffix):
    source = tmp_path / f"e.{suffix}"
    source.write_bytes(content)
    with pytest.raises(PartitaError):
        ingest(source, tmp_path / "store")
    assert list(tmp_path.iterdir()) == [source]
