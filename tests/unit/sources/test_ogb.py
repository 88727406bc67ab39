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


PAPERS, AUTHORS = 9, 5


def make_typed(folder):
    """A directory as OGB's archive of a graph of several types holds it."""
    random, raw = np.random.default_rng(1), folder / "raw"
    raw.mkdir(parents=True)
    ends = {
        ("author", "writes", "paper"): np.column_stack(
            [random.integers(0, AUTHORS, 12), random.integers(0, PAPERS, 12)]
        ),
        ("paper", "cites", "paper"): random.integers(0, PAPERS, (20, 2)),
    }
    for triple, edges in ends.items():
        (raw / "relations" / "___".join(triple)).mkdir(parents=True)
        write(raw / "relations" / "___".join(triple) / "edge.csv.gz", edges)
    for name, lines in (
        ("triplet-type-list", [",".join(triple) for triple in ends]),
        ("num-node-dict", ["author,paper", f"{AUTHORS},{PAPERS}"]),
    ):
        with gzip.open(raw / f"{name}.csv.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    x, y = random.normal(size=(PAPERS, 3)).astype(np.float32), random.integers(0, 3, (PAPERS, 1))
    for what, rows, form in (("feat", x, "%.9g"), ("label", y, "%d")):
        (raw / f"node-{what}" / "paper").mkdir(parents=True)
        write(raw / f"node-{what}" / "paper" / f"node-{what}.csv.gz", rows, form)
    split = np.array_split(np.arange(PAPERS), 3)
    (folder / "split" / "time" / "paper").mkdir(parents=True)
    for name, ids in zip(("train", "valid", "test"), split, strict=True):
        write(folder / "split" / "time" / "paper" / f"{name}.csv.gz", ids)
    return ends, x, y[:, 0], split


def test_several_types(tmp_path) -> None:
    ends, x, y, split = make_typed(tmp_path / "ogbn_small")
    partita.ingest(tmp_path / "ogbn_small", tmp_path / "g")
    store = partita.open(tmp_path / "g")
    assert store.schema.node_types == ("author", "paper")
    dst = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    rows = store.type_rows(store.indices.astype(np.int64)), store.type_rows(dst)
    for at, relation in enumerate(store.schema.relations):
        found = sorted(zip(*(end[store.edge_type == at].tolist() for end in rows)))
        triple = relation.source, relation.name, relation.target
        assert found == sorted(map(tuple, ends[triple].tolist()))
    assert (store.x_of("paper") == x).all()
    assert store.x_of("author") is None
    assert store.y.tolist() == [*[-1] * AUTHORS, *y]
    for name, ids in zip(("train", "val", "test"), split, strict=True):
        assert store.split(name).tolist() == (ids + AUTHORS).tolist()
    assert {path.name for path in tmp_path.iterdir()} == {"g", "ogbn_small"}


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("raw/num-node-dict.csv.gz", "num-node-dict.*is missing"),
        ("raw/relations/paper___cites___paper/edge.csv.gz", "edge.csv.gz.*is missing"),
        ("split/time/paper/valid.csv.gz", "valid.csv.gz.*is missing"),
    ],
)
def test_a_directory_of_several_types_that_is_not_whole(tmp_path, missing, message) -> None:
    make_typed(tmp_path / "ogbn_small")
    (tmp_path / "ogbn_small" / missing).unlink()
    with pytest.raises(InputError, match=message):
        partita.ingest(tmp_path / "ogbn_small", tmp_path / "g")
