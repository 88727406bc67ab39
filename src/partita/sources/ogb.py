"""OGB's node-property datasets as they lie in a directory, or fetched by their name (Hu et al., "Open Graph Benchmark:
datasets for machine learning on graphs", NeurIPS 2020).

A directory, for instance ``ogbn_arxiv``, has ``raw/`` with ``edge.csv.gz``, ``num-node-list.csv.gz`` and, as far as
there are any, ``node-feat.csv.gz`` and ``node-label.csv.gz``; or, of large graphs, ``raw/data.npz`` with ``edge_index``
and ``node_feat``, and ``raw/node-label.npz``. ``split/`` has a directory named after the rule of the split, with
``train.csv.gz``, ``valid.csv.gz`` and ``test.csv.gz``. What the ``ogb`` package keeps in ``processed/`` are pickled
objects, which are never read. Nor are features of edges.

A dataset is fetched only where its name is given as the source, such as ``ogbn-arxiv``, and kept in
``$XDG_CACHE_HOME/partita/ogb`` (``~/.cache``).
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Num

from partita.core import progress
from partita.core.asides import private_folder
from partita.core.errors import InputError, nearest, of_the_system
from partita.sources.arrays import ArrayFile, open_npz
from partita.sources.objects import OGB_SPLITS, labels_of, mask_of
from partita.sources.ogb_typed import is_typed_ogb, typed_ogb_arrays

URL = "https://snap.stanford.edu/ogb/data/nodeproppred"
ARCHIVES = {
    "ogbn-arxiv": "arxiv",
    "ogbn-products": "products",
    "ogbn-proteins": "proteins",
    "ogbn-papers100M": "papers100M-bin",
}
"""Names of datasets with one type of nodes and edges, and of their archives."""

SHA256 = {
    "ogbn-arxiv": "49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
    "ogbn-products": "5ea0a112edaec2141c0a2a612dd4aed58df97ff3e1ab1a0ca8238f43cbbb50a8",
    "ogbn-proteins": "1cd3113dc2a6f0c87a549332b77d78be45cf99804c254c18d9c72029164a0859",
}
"""Of the archives, as others have published them; OGB itself names none."""

STORED_ONCE = ("products", "proteins")
"""Of these an edge in the file stands for both directions."""


def is_ogb_name(source: str) -> bool:
    """Whether a source looks like the name of a dataset."""
    return re.fullmatch(r"ogbn-\w+", source) is not None


def is_ogb(path: Path) -> bool:
    """Whether a directory is, or was meant to be, one of OGB's."""
    return (path / "raw").is_dir() or ((path / "split").is_dir() and path.name.startswith("ogbn"))


def ogb_arrays(folder: Path, scratch: Path) -> dict[str, ArrayFile]:
    """The graph in a directory, by the names of :mod:`partita.sources.array_graph`.

    Args:
        folder: the directory.
        scratch: an empty directory, where text becomes arrays that are read from disk.

    Raises:
        InputError: a file is missing or cannot be used.
    """
    raw = folder / "raw"
    if is_typed_ogb(folder):
        return typed_ogb_arrays(folder, scratch, _table)
    found = _of_arrays(raw) if (raw / "data.npz").exists() else _of_text(raw, scratch)
    num_nodes = int(found["num_nodes"].load().reshape(-1)[0])
    for name, ids in _split(folder / "split", scratch).items():
        mask = mask_of(ids, num_nodes, str(folder / "split" / name))
        found[OGB_SPLITS[name]] = ArrayFile.held(f"{folder / 'split'}, {name}", mask)
    if folder.name.removeprefix("ogbn_") in STORED_ONCE:
        found |= {name: ArrayFile.held(name, np.array(0)) for name in ("is_directed", "both_directions")}
    return found


def _of_arrays(raw: Path) -> dict[str, ArrayFile]:
    file = raw / "data.npz"
    arrays = open_npz(file)
    if "edge_index" not in arrays:
        raise InputError("has no array 'edge_index'", where=str(file), fix="Fetch it again")
    found = {"edge_index": arrays["edge_index"]}
    if "node_feat" in arrays:
        found["x"] = arrays["node_feat"]
    if "num_nodes_list" in arrays:
        found["num_nodes"] = arrays["num_nodes_list"]
    elif "x" in found:
        found["num_nodes"] = ArrayFile.held("num_nodes", np.array(len(found["x"])))
    else:
        raise InputError("does not say how many nodes there are", where=str(file), fix="Fetch it again")
    labels = raw / "node-label.npz"
    if labels.exists():
        y = open_npz(labels)
        if "node_label" not in y:
            raise InputError("has no array 'node_label'", where=str(labels), fix=nearest("node_label", y))
        found["y"] = ArrayFile.held(str(labels), labels_of(y["node_label"].load()))
    return found


def _of_text(raw: Path, scratch: Path) -> dict[str, ArrayFile]:
    file, count_file = raw / "edge.csv.gz", raw / "num-node-list.csv.gz"
    edges = _table(file, scratch, np.int64)
    if edges.shape[1] != 2:
        raise InputError(f"has {edges.shape[1]} columns, not 2", where=str(file), fix="Fetch it again")
    num_nodes = _table(count_file, scratch, np.int64).reshape(-1)
    if len(num_nodes) != 1:
        raise InputError(f"lists {len(num_nodes)} graphs, a store holds one", where=str(count_file), fix="Split it")
    found = {
        "edge_index": ArrayFile.held(str(file), edges.T),
        "num_nodes": ArrayFile.held(str(count_file), num_nodes),
    }
    features, labels = raw / "node-feat.csv.gz", raw / "node-label.csv.gz"
    if features.exists():
        found["x"] = ArrayFile.held(str(features), _table(features, scratch, np.float32))
    if labels.exists():
        y = _table(labels, scratch, np.float64)
        integral = np.isfinite(y).all() and (y == np.floor(y)).all()
        found["y"] = ArrayFile.held(str(labels), labels_of(y.astype(np.int64) if integral else y))
    return found


def _split(folder: Path, scratch: Path) -> dict[str, Num[np.ndarray, "n"]]:
    rules = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if len(rules) != 1:
        what = f"must have the directory of one split, it has {', '.join(path.name for path in rules) or 'none'}"
        raise InputError(what, where=str(folder), fix="Fetch it again")
    return {name: _table(rules[0] / f"{name}.csv.gz", scratch, np.int64).reshape(-1) for name in OGB_SPLITS}


def _table(path: Path, scratch: Path, dtype: type) -> Num[np.ndarray, "n columns"]:
    """The numbers in a gzipped table without a header; mapped from a file in ``scratch``."""
    if not path.exists():
        what = "is missing, so the directory is not whole"
        raise InputError(what, where=str(path), fix="Fetch the dataset again")
    file, rows, width = scratch / f"{path.name}.bytes", 0, 1
    with file.open("wb") as out:
        for piece in _pieces(path, dtype):
            out.write(piece.tobytes())
            rows, width = rows + len(piece), piece.shape[1]
    return np.memmap(file, dtype=dtype, mode="r", shape=(rows, width)) if rows else np.empty((0, width), dtype)


def _pieces(path: Path, dtype: type) -> Iterator[Num[np.ndarray, "n columns"]]:
    """Runs of rows. Where a number is missing, floats are not a number, and integers an error."""
    import pyarrow as pa
    from pyarrow import csv

    try:
        with gzip.open(path, "rt", encoding="utf-8") as text:
            names = [f"f{column}" for column in range(text.readline().count(",") + 1)]
        read = csv.ReadOptions(column_names=names, block_size=4 << 20)
        types = dict.fromkeys(names, pa.from_numpy_dtype(dtype))
        convert = csv.ConvertOptions(column_types=types, null_values=["", "nan", "NaN"])
        with (
            csv.open_csv(path, read_options=read, convert_options=convert) as reader,
            progress.task(f"read {path.name}", total=None, unit="rows") as task,
        ):
            for piece in reader:
                columns = [column.to_numpy(zero_copy_only=False) for column in piece.columns]
                if dtype is np.int64 and any(column.null_count for column in piece.columns):
                    raise ValueError("a number is missing")
                yield np.stack(columns, axis=1)
                task.advance(len(piece))
    except (pa.ArrowInvalid, OSError, EOFError, ValueError) as error:
        raise InputError(f"is not a table of numbers ({error})", where=str(path), fix="Fetch it again") from None


def fetched(name: str) -> Path:
    """The directory of a dataset, fetched if it is not there.

    Raises:
        InputError: there is no such dataset, or it cannot be fetched.
    """
    if name not in ARCHIVES:
        what = "no file, and no dataset of OGB with one type of nodes"
        raise InputError(what, where=name, fix=nearest(name, ARCHIVES))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partita" / "ogb"
    folder = cache / name.replace("-", "_")
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    url = f"{URL}/{ARCHIVES[name]}.zip"
    with private_folder(f".{name}.unpacked-", cache) as private:
        archive, unpacked = private / "archive.zip", private / "unpacked"
        try:
            found = _download(url, archive)
            if found != SHA256.get(name, found):
                what = f"is not the archive that was published: its SHA-256 is {found}, not {SHA256[name]}"
                fix = "Try again; if that does not help, fetch it by hand, look at it, and give the directory"
                raise InputError(what, where=url, fix=fix)
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(unpacked)
            inside = [path for path in unpacked.iterdir() if path.is_dir()]
            if len(inside) != 1:
                raise InputError(f"holds {len(inside)} directories, not one", where=url, fix="Fetch it by hand")
            os.replace(inside[0], folder)
        except urllib.error.URLError as error:
            raise _unfetched(url, error) from None
        except OSError as error:
            if of_the_system(error) is not None:
                raise
            raise _unfetched(url, error) from None
        except (zipfile.BadZipFile, http.client.HTTPException) as error:
            raise _unfetched(url, error) from None
    return folder


def _unfetched(url: str, error: Exception) -> InputError:
    fix = "Fetch and unpack it, and give the directory"
    return InputError(f"cannot be fetched: {error}", where=url, fix=fix)


class _Secure(urllib.request.HTTPRedirectHandler):
    """Follows no redirection from https to something that is not."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.URLError(f"it leads to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(url: str, to: Path) -> str:
    """Fetch a file; returns its SHA-256."""
    digest = hashlib.sha256()
    with urllib.request.build_opener(_Secure).open(url, timeout=60) as response, to.open("wb") as file:
        size = response.headers.get("Content-Length")
        with progress.task(f"fetch {url}", total=None if size is None else int(size), unit="bytes") as task:
            while piece := response.read(1 << 20):
                file.write(piece)
                digest.update(piece)
                task.advance(len(piece))
    return digest.hexdigest()
