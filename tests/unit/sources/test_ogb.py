"""OGB's datasets: directories in their layout, made here, and one that is fetched from this machine."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import partita
from partita.core.errors import InputError
from partita.sources import ogb

N, E = 40, 200


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(0)
    x = random.normal(size=(N, 3)).astype(np.float32)
    x[: N // 2] = np.round(x[: N // 2])  # the first rows look like integers
    sources = random.integers(0, N, E)
    return {
        "edges": np.stack([sources, (sources + random.integers(1, N, E)) % N], axis=1),  # no self loops
        "x": x,
        "y": random.integers(0, 4, (N, 1)),
        "split": np.array_split(random.permutation(N), 3),
    }


def write(path, rows, form="%d") -> None:
    with gzip.open(path, "wt") as file:
        np.savetxt(file, rows, fmt=form, delimiter=",")


def make(folder, arrays, *, large=False):
    """A directory as OGB's archives hold it."""
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / "time").mkdir(parents=True)
    raw = folder / "raw"
    if large:
        np.savez(raw / "data.npz", edge_index=arrays["edges"].T, node_feat=arrays["x"], num_nodes_list=np.array([N]))
        label = arrays["y"].astype(np.float32)
        label[:5] = np.nan
        np.savez(raw / "node-label.npz", node_label=label)
    else:
        write(raw / "edge.csv.gz", arrays["edges"])
        write(raw / "node-feat.csv.gz", arrays["x"], "%.9g")
        write(raw / "node-label.csv.gz", arrays["y"])
        write(raw / "num-node-list.csv.gz", [N])
        write(raw / "num-edge-list.csv.gz", [E])
    for name, ids in zip(("train", "valid", "test"), arrays["split"], strict=True):
        write(folder / "split" / "time" / f"{name}.csv.gz", ids)
    return folder


def check(path, arrays, *, missing=0, directions=1) -> None:
    store = partita.open(path)
    assert (store.x == arrays["x"]).all()
    assert (store.y[missing:] == arrays["y"][missing:, 0]).all()
    assert (store.y[:missing] == -1).all()
    assert store.task == "classes"
    assert store.num_edges == directions * E
    if directions == 1:
        for node in range(N):
            assert store.neighbors(node).tolist() == arrays["edges"][arrays["edges"][:, 1] == node, 0].tolist()
    for name, ids in zip(("train", "val", "test"), arrays["split"], strict=True):
        assert store.split(name).tolist() == sorted(i for i in ids.tolist() if i >= missing)


def test_a_directory_of_tables(arrays, tmp_path) -> None:
    partita.ingest(make(tmp_path / "ogbn_small", arrays), tmp_path / "graph")
    check(tmp_path / "graph", arrays)
    assert {path.name for path in tmp_path.iterdir()} == {"ogbn_small", "graph"}


def test_a_directory_of_arrays(arrays, tmp_path) -> None:
    partita.ingest(make(tmp_path / "ogbn_large", arrays, large=True), tmp_path / "graph")
    check(tmp_path / "graph", arrays, missing=5)


def test_edges_that_are_stored_once(arrays, tmp_path) -> None:
    partita.ingest(make(tmp_path / "ogbn_products", arrays), tmp_path / "graph")
    check(tmp_path / "graph", arrays, directions=2)


def test_without_features(arrays, tmp_path) -> None:
    folder = make(tmp_path / "ogbn_bare", arrays)
    (folder / "raw" / "node-feat.csv.gz").unlink()
    partita.ingest(folder, tmp_path / "graph")
    assert partita.open(tmp_path / "graph").x is None


@pytest.mark.parametrize(
    "missing", ["raw/edge.csv.gz", "raw/num-node-list.csv.gz", "split/time/valid.csv.gz", "split", "raw"]
)
def test_a_directory_that_is_half_there(arrays, tmp_path, missing) -> None:
    folder = make(tmp_path / "ogbn_half", arrays)
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match=r"not whole|one split") as raised:
        partita.ingest(folder, tmp_path / "graph")
    assert missing.split("/")[-1] in str(raised.value.where)
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("raw/edge.csv.gz", "1,2\n3,x\n", "not a table of numbers"),
        ("raw/edge.csv.gz", "1,2\n3,\n", "a number is missing"),
        ("raw/edge.csv.gz", "1,2,3\n", "3 columns, not 2"),
        ("raw/num-node-list.csv.gz", "20\n20\n", "2 graphs"),
        ("split/time/train.csv.gz", "3\n40\n", r"node 40 in row 1 \(from 0\)"),
    ],
)
def test_damaged_tables(arrays, tmp_path, name, text, said) -> None:
    folder = make(tmp_path / "ogbn_bad", arrays)
    with gzip.open(folder / name, "wt") as file:
        file.write(text)
    with pytest.raises(InputError, match=said):
        partita.ingest(folder, tmp_path / "graph")


def test_a_table_that_is_no_gzip(arrays, tmp_path) -> None:
    folder = make(tmp_path / "ogbn_bad", arrays)
    (folder / "raw" / "edge.csv.gz").write_text("1,2\n")
    with pytest.raises(InputError, match="not a table of numbers"):
        partita.ingest(folder, tmp_path / "graph")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A directory that is served as OGB's site, and an empty cache."""
    site = tmp_path / "site"
    site.mkdir()
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(ogb, "URL", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(ogb, "SHA256", {})
        yield site
        server.shutdown()
        thread.join()


def test_a_dataset_is_fetched_by_its_name_once(arrays, served, tmp_path) -> None:
    make(tmp_path / "packed" / "arxiv", arrays)
    shutil.make_archive(str(served / "arxiv"), "zip", tmp_path / "packed")
    partita.ingest("ogbn-arxiv", tmp_path / "graph")
    check(tmp_path / "graph", arrays)
    (served / "arxiv.zip").unlink()
    partita.ingest("ogbn-arxiv", tmp_path / "again")
    check(tmp_path / "again", arrays)
    kept = tmp_path / "cache" / "partita" / "ogb"
    assert [path.name for path in kept.iterdir()] == ["ogbn_arxiv"]


def test_what_cannot_be_fetched(served, tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be fetched"):
        partita.ingest("ogbn-products", tmp_path / "graph")
    (served / "proteins.zip").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be fetched"):
        partita.ingest("ogbn-proteins", tmp_path / "graph")
    assert list((tmp_path / "cache" / "partita" / "ogb").iterdir()) == []


def test_an_unknown_dataset(tmp_path) -> None:
    with pytest.raises(InputError, match="no dataset of OGB") as raised:
        partita.ingest("ogbn-arxve", tmp_path / "graph")
    assert "ogbn-arxiv" in str(raised.value)


def test_an_archive_that_is_another_one_is_refused(arrays, served, tmp_path, monkeypatch) -> None:
    make(tmp_path / "packed" / "arxiv", arrays)
    archive = Path(shutil.make_archive(str(served / "arxiv"), "zip", tmp_path / "packed"))
    monkeypatch.setattr(ogb, "SHA256", {"ogbn-arxiv": "0" * 64})
    with pytest.raises(InputError, match=r"not the archive that was published: its SHA-256 is \w{64}, not 0{64}"):
        partita.ingest("ogbn-arxiv", tmp_path / "graph")
    assert list((tmp_path / "cache" / "partita" / "ogb").iterdir()) == []
    monkeypatch.setattr(ogb, "SHA256", {"ogbn-arxiv": hashlib.sha256(archive.read_bytes()).hexdigest()})
    partita.ingest("ogbn-arxiv", tmp_path / "graph")


def test_archives_come_encrypted() -> None:
    assert ogb.URL.startswith("https://")
    assert all(len(each) == 64 for each in ogb.SHA256.values())
    assert ogb.SHA256.keys() <= ogb.ARCHIVES.keys()
    request = urllib.request.Request("https://a.example/x.zip")
    with pytest.raises(urllib.error.URLError, match="not encrypted"):
        ogb._Secure().redirect_request(request, None, 302, "", {}, "http://a.example/x.zip")
