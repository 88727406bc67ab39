"""``predict``: what the model says of every node, by the users' own ids, streamed to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from partita.config import parse_bytes
from partita.core.errors import ConfigError, ResourceError, is_disk_full, nearest
from partita.graph.store import GraphStore
from partita.infer.layerwise import LayerwiseInference, OutputRows
from partita.infer.metrics import probabilities
from partita.nn.model import Model
from partita.runs.load import load_run, open_features, open_topology
from partita.sample.topology import as_tensor

_FORMATS = {".parquet": "Parquet", ".csv": "CSV"}


@dataclass(frozen=True, slots=True)
class PredictionSummary:
    """What was written: the file, how many rows, and its columns."""

    path: str
    nodes: int
    columns: tuple[str, ...]
    checkpoint: str

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            "path": self.path,
            "nodes": self.nodes,
            "columns": list(self.columns),
            "checkpoint": self.checkpoint,
        }


def predict(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    split: str | None = None,
    embeddings: bool = False,
    store: str | os.PathLike[str] | None = None,
    model: Model | None = None,
    memory_limit: int | str | None = None,
) -> PredictionSummary:
    """Write predictions of the best checkpoint of a run.

    One row per node: ``node`` (the user's id), ``prediction`` (class name or number; for multi-label a list of
    names, in CSV joined by ``;``; for regression the value), and for classes ``probability`` of that class, for
    multi-label ``probabilities`` of all labels. With ``embeddings`` a column ``embedding`` (in CSV ``embedding_0``
    ...) holds the node's row before the last layer.

    Args:
        run: the run folder.
        out: a ``.parquet`` or ``.csv`` file; an existing one is replaced when the new one is complete.
        split: only the nodes of this split; default all nodes.
        embeddings: write them too.
        store: where the run's store lies now, if it was moved.
        model: for runs of a user's own model: one of the same shape.
        memory_limit: bytes, or text such as ``"2GiB"``; default as in the run's settings.

    Raises:
        ConfigError: unknown file type, or embeddings of a model of one layer.
        RunError, StoreError, ResourceError: the run, the store or the disk cannot be used.
    """
    out = Path(out)
    if out.suffix not in _FORMATS:
        raise ConfigError(
            f"cannot write '{out.suffix}' files",
            where=str(out),
            fix=f"Name a file that ends in {' or '.join(_FORMATS)}",
        )
    if not out.parent.is_dir():
        raise ConfigError("there is no such directory", where=str(out.parent), fix="Make it, or name another file")
    loaded = load_run(run, store=store, model=model)
    if embeddings and len(loaded.model.stages) == 1:
        raise ConfigError("a model of one layer has no embeddings", fix="Leave out --embeddings")
    limit = parse_bytes(memory_limit) if memory_limit is not None else loaded.config.memory_limit
    graph = loaded.store
    ids = as_tensor(graph.split(split)) if split is not None else None
    inference = LayerwiseInference(
        loaded.model,
        open_topology(graph, loaded.config),
        open_features(graph, loaded.config),
        memory_limit=limit,  # type: ignore[arg-type]
    )
    tables = (_table(graph, rows, embeddings, flat=out.suffix == ".csv") for rows in inference.run(ids))
    nodes, columns = _write(out, tables)
    return PredictionSummary(str(out), nodes, columns, loaded.checkpoint.name)


def _table(store: GraphStore, rows: OutputRows, embeddings: bool, *, flat: bool) -> pa.Table:
    """A piece of the prediction file. ``flat``: CSV has no lists."""
    task = store.task or "regression"
    columns: dict[str, Any] = {"node": pa.array(store.names(rows.ids.numpy()))}
    chance = probabilities(task, rows.output.float())
    if task == "regression":
        columns["prediction"] = chance.squeeze(1).numpy()
    elif task == "classes":
        best = chance.argmax(dim=1)
        columns["prediction"] = _class_names(store, best.numpy())
        columns["probability"] = chance.gather(1, best[:, None]).squeeze(1).numpy()
    else:
        on = chance.numpy() >= 0.5
        labels = [list(_class_names(store, np.flatnonzero(row)).tolist()) for row in on]
        if flat:
            columns["prediction"] = [";".join(map(str, row)) for row in labels]
            for label in range(chance.shape[1]):
                columns[f"probability_{_class_names(store, np.array([label]))[0]}"] = chance[:, label].numpy()
        else:
            kind = pa.string() if store.class_names else pa.int64()
            columns["prediction"] = pa.array(labels, type=pa.list_(kind))
            columns["probabilities"] = _lists(chance.numpy())
    if embeddings and flat:
        for column in range(rows.embedding.shape[1]):
            columns[f"embedding_{column}"] = rows.embedding[:, column].float().numpy()
    elif embeddings:
        columns["embedding"] = _lists(rows.embedding.float().numpy())
    return pa.table(columns)


def _class_names(store: GraphStore, classes: np.ndarray) -> np.ndarray:
    return np.asarray(store.class_names, dtype=object)[classes] if store.class_names else classes


def _lists(rows: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _write(out: Path, tables: Iterator[pa.Table]) -> tuple[int, tuple[str, ...]]:
    """Write tables as they come to a temporary sibling, then rename it."""
    aside = out.with_name(f".{out.stem}.partial-{os.getpid()}{out.suffix}")
    nodes, writer, columns = 0, None, ()
    try:
        for table in tables:
            if writer is None:
                kind = pa.parquet.ParquetWriter if out.suffix == ".parquet" else pa.csv.CSVWriter
                writer, columns = kind(aside, table.schema), tuple(table.column_names)
            writer.write_table(table)
            nodes += table.num_rows
        if writer is None:
            raise ConfigError("there is no node to predict", fix=nearest("", ("train", "val", "test")))
        writer.close()
        os.replace(aside, out)
    except OSError as error:
        if is_disk_full(error):
            raise ResourceError("no space left for predictions", where=str(out), fix="Free space there") from None
        raise
    finally:
        aside.unlink(missing_ok=True)
    return nodes, columns
