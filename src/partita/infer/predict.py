"""``predict``: what the model says of every node, by the users' own ids, streamed to a file."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from partita.comm.context import Context
from partita.core.errors import ConfigError, ResourceError, is_disk_full, nearest
from partita.core.files import require_parent
from partita.infer.layerwise import OutputRows
from partita.infer.run import inference_of, join, launched, on_workers
from partita.nn.model import Model
from partita.runs.load import load_run
from partita.sample.topology import as_tensor
from partita.tasks.nodes import lists
from partita.tasks.task import Task, make_task

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
        return {**asdict(self), "columns": list(self.columns)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PredictionSummary:
        """The inverse of :meth:`to_json`."""
        return cls(**{**values, "columns": tuple(values["columns"])})


def predict(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    split: str | None = None,
    embeddings: bool = False,
    store: str | os.PathLike[str] | None = None,
    model: Model | None = None,
    memory_limit: int | str | None = None,
    workers: int = 1,
    context: Context | None = None,
) -> PredictionSummary:
    """Write predictions of the best checkpoint of a run.

    One row per node: ``node`` (the user's id), ``prediction`` (class name or number; for multi-label a list of
    names, in CSV joined by ``;``; for regression the value), and for classes ``probability`` of that class, for
    multi-label ``probabilities`` of all labels. With ``embeddings`` a column ``embedding`` (in CSV ``embedding_0``
    ...) holds the output of the last hidden layer.

    In processes that torchrun has started, every one of them calls this, and they share the work; the first one
    writes the file.

    Args:
        run: the run folder. Of several workers only the first one reads it.
        out: a ``.parquet`` or ``.csv`` file; an existing one is replaced when the new one is complete.
        split: only the nodes of this split; default all nodes.
        embeddings: write them too.
        store: path of the graph store, if it has moved.
        model: for runs of a user's own model: one of the same shape.
        memory_limit: bytes per worker, or text such as ``"2GiB"``; default as in the run's settings.
        workers: so many processes are started on this machine to share the work; 1 for none.
        context: of this worker, where the caller has made one.

    Raises:
        ConfigError: unknown file type, or embeddings of a model of one layer.
        RunError, StoreError, ResourceError: the run, the store or the disk cannot be used.
    """
    if workers > 1 and context is None and not launched():
        given = {"out": out, "split": split, "embeddings": embeddings, "store": store, "memory_limit": memory_limit}
        found = on_workers("partita.infer.predict:predict_on_worker", workers, model, run=run, **given)
        return PredictionSummary.from_json(found)
    context = join(context, workers)
    out = Path(out)
    context.agree(lambda: _check_target(out))
    loaded = load_run(run, store=store, model=model, context=context)
    if embeddings and len(loaded.model.stages) == 1:
        raise ConfigError("a model of one layer has no embeddings", fix="Leave out --embeddings")
    graph, task = loaded.store, make_task(loaded.config, loaded.store)
    ids = as_tensor(graph.split(split)) if split is not None else None
    if (graph.num_nodes if ids is None else len(ids)) == 0:
        raise ConfigError("there are no nodes to predict", fix=nearest("", ("train", "val", "test")))
    inference = inference_of(loaded.model, graph, loaded.config, context, memory_limit=memory_limit)
    tables = (
        _table(task, rows, embeddings, flat=out.suffix == ".csv")
        for rows in inference.collect(ids, embeddings=embeddings)
    )
    if context.mesh.rank == 0:
        nodes, columns = _write(out, tables)
        summary = PredictionSummary(str(out), nodes, columns, loaded.checkpoint.name).to_json()
    else:
        deque(tables, maxlen=0)  # takes part, and yields nothing
        summary = None
    return PredictionSummary.from_json(context.group("all").broadcast(summary))


def predict_on_worker(context: Context, **options: Any) -> dict[str, Any]:
    """What every worker that :func:`predict` starts runs."""
    return predict(**options, context=context).to_json()


def _check_target(out: Path) -> None:
    if out.suffix not in _FORMATS:
        raise ConfigError(
            f"cannot write '{out.suffix}' files",
            where=str(out),
            fix=f"Name a file that ends in {' or '.join(_FORMATS)}",
        )
    require_parent(out)


def _table(task: Task, rows: OutputRows, embeddings: bool, *, flat: bool) -> pa.Table:
    """A piece of the prediction file. ``flat``: CSV has no lists."""
    columns: dict[str, Any] = {"node": pa.array(task.store.names(rows.ids.numpy()))}
    columns |= task.columns(rows.output.float(), flat=flat)
    if embeddings and flat:
        for column in range(rows.embedding.shape[1]):
            columns[f"embedding_{column}"] = rows.embedding[:, column].float().numpy()
    elif embeddings:
        columns["embedding"] = lists(rows.embedding.float().numpy())
    return pa.table(columns)


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
        if writer is not None:
            writer.close()
        os.replace(aside, out)
    except OSError as error:
        if is_disk_full(error):
            raise ResourceError("no space left for predictions", where=str(out), fix="Free space there") from None
        raise
    finally:
        aside.unlink(missing_ok=True)
    return nodes, columns
