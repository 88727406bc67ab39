"""What kind of thing a source is: a file, a directory of OGB, the name of a dataset, or an object."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.sources.arrays import ArrayFile, open_npz
from partita.sources.objects import arrays_of, is_sparse_file, sparse_arrays
from partita.sources.ogb import fetched, is_ogb, is_ogb_name, ogb_arrays


@contextmanager
def graph_of(source: Any, store: Path) -> Iterator[tuple[Path, dict[str, ArrayFile] | None]]:
    """The file that the edges are in; or what stands for it in messages, and the arrays that the graph is in.

    Args:
        source: see :func:`partita.ingest`.
        store: that is to be made; what has to be written meanwhile lies beside it.

    Raises:
        InputError: an object that is no graph; a directory of OGB that is not whole; a dataset that is not there.
    """
    if not isinstance(source, str | os.PathLike):
        where, arrays = arrays_of(source)
        yield Path(where), arrays
        return
    path = Path(source)
    if is_ogb_name(str(source)) and not path.exists():
        path = fetched(str(source))
    if is_ogb(path):
        beside = store.absolute()
        with tempfile.TemporaryDirectory(prefix=f".{beside.name}.arrays-", dir=beside.parent) as scratch:
            yield path, ogb_arrays(path, Path(scratch))
        return
    if path.suffix.lower() == ".npz" and path.is_file() and is_sparse_file(arrays := open_npz(path)):
        yield path, sparse_arrays(path, arrays)
        return
    yield path, None
