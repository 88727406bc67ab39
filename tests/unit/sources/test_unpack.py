"""Gzipped files of any-order formats: the same store, errors that name the user's file, no copies left."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from partita.core.errors import InputError, ResourceError
from partita.graph.store import GraphStore
from partita.sources import unpack
from partita.sources.ingest import ingest


def gzipped(path):
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


@pytest.fixture
def files(tmp_path):
    """Edges as npz and as Parquet, features as npy: all of the same graph."""
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]], dtype=np.int32)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.savez(tmp_path / "g.npz", edge_index=edges, is_directed=1, both_directions=0, x=x)
    parquet.write_table(pa.table({"source": edges[0], "target": edges[1]}), tmp_path / "g.parquet")
    np.save(tmp_path / "x.npy", x)
    return tmp_path


def test_packed_files_give_the_same_store(files) -> None:
    ingest(files / "g.npz", files / "plain")
    npz, table, x = (gzipped(files / name) for name in ("g.npz", "g.parquet", "x.npy"))
    ingest(npz, files / "from-npz")
    ingest(table, files / "from-parquet", features=x, ids="index")
    plain = GraphStore.open(files / "plain")
    for name in ("from-npz", "from-parquet"):
        store = GraphStore.open(files / name)
        assert store.fingerprint == plain.fingerprint
        assert store.metadata.source in (str(npz), str(table))
    assert not [path for path in files.iterdir() if "unpacked" in path.name]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"junk", "not a valid gzip file"),
        (gzip.compress(b"x" * 9000, mtime=0)[:-9], "gzip"),
        (gzip.compress(b"junk", mtime=0), "damaged"),
    ],
    ids=["no gzip", "cut", "no archive inside"],  # not by content: every process must find tests of the same names
)
def test_errors_name_the_file_that_was_given(tmp_path, content, words) -> None:
    path = tmp_path / "g.npz.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as error:
        ingest(path, tmp_path / "store")
    assert str(path) in str(error.value)
    assert "unpacked" not in str(error.value)
    assert [found.name for found in tmp_path.iterdir()] == ["g.npz.gz"]


def test_a_full_disk(files, monkeypatch) -> None:
    packed = gzipped(files / "g.npz")

    class Full:
        def advance(self, amount: float = 1) -> None:
            raise OSError(28, "No space left on device")

    class Task:
        def __enter__(self):
            return Full()

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(unpack.progress, "task", lambda *_, **__: Task())
    with pytest.raises(ResourceError, match="no space to unpack"):
        ingest(packed, files / "store")
    assert not [path for path in files.iterdir() if "unpacked" in path.name or path.name == "store"]
