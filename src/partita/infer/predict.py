"""``predict``: what the model says of every node, by the users' own ids, streamed to a file or as arrays."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn

from partita.comm.context import Context
from partita.core.asides import private_folder, written_aside
from partita.core.errors import ConfigError, nearest
from partita.core.files import require_parent
from partita.core.options import Size
from partita.graph.store import GraphStore
from partita.infer.layerwise import OutputRows
from partita.infer.prediction_columns import PredictionColumns, matrix_of, predicts_values
from partita.infer.run import inference_of, ingest_order, join, launched, on_workers, require_memory
from partita.infer.table_files import TABLES, write_tables
from partita.runs.load import load_run
from partita.sample.topology import as_tensor
from partita.tasks.task import EdgeTask, make_task

_ARRAY = ".npy"
_FORMATS = {**TABLES, _ARRAY: "NumPy"}


@dataclass(frozen=True, slots=True)
class PredictionSummary:
    """What was written: the file, how many rows, and its columns; and what was not as in training."""

    path: str
    nodes: int
    columns: tuple[str, ...]
    checkpoint: str
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it; without ``notes`` where there are none."""
        values = {**asdict(self), "columns": list(self.columns), "notes": list(self.notes)}
        return values if self.notes else {name: value for name, value in values.items() if name != "notes"}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PredictionSummary:
        """The inverse of :meth:`to_json`."""
        return cls(**{**values, "columns": tuple(values["columns"]), "notes": tuple(values.get("notes", ()))})


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Predictions:
    """Predictions as arrays, a row for each node, in the order in which nodes were ingested.

    Attributes:
        ids: (R) the user's ids, int64 or ``str`` objects.
        predicted: (R) names or numbers of classes; of a regression float32; of several labels lists of their names.
        probabilities: (R, C) float32, of all classes; ``None`` of a regression.
        class_names: of the columns of ``probabilities``, C names or numbers; empty for a regression.
        logits: (R, C) float32, the model's output; ``None`` where not asked for, likewise the others.
        labels: (R) true labels as ``predicted`` has them, ``None`` or NaN where there is none.
        splits: (R) the split of each node, ``None`` where it is in none.
        embeddings: (R, F) float32, the output of the last hidden layer.
        checkpoint: that the weights are of.
        notes: what is not as it was in training.
    """

    ids: Shaped[np.ndarray, "R"]
    predicted: Shaped[np.ndarray, "R"]
    probabilities: Float[np.ndarray, "R C"] | None
    class_names: list[str]
    logits: Float[np.ndarray, "R C"] | None
    labels: Shaped[np.ndarray, "R"] | None
    splits: Shaped[np.ndarray, "R"] | None
    embeddings: Float[np.ndarray, "R F"] | None
    checkpoint: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        there = [
            name
            for name in ("probabilities", "logits", "labels", "splits", "embeddings")
            if getattr(self, name) is not None
        ]
        return f"Predictions({len(self):,} nodes: {', '.join(['ids', 'predicted', *there])})"

    @classmethod
    def of(cls, table: pa.Table, checkpoint: str, notes: tuple[str, ...]) -> Predictions:
        """Of the columns of a prediction file."""

        def plain(name: str) -> Any:
            return table[name].to_numpy() if name in table.column_names else None

        def matrix(name: str) -> Any:
            return matrix_of(table[name]) if name in table.column_names else None

        names = json.loads((table.schema.metadata or {}).get(b"class_names", b"[]"))
        return cls(
            plain("node"), plain("prediction"), matrix("probabilities"), names, matrix("logits"), plain("label"),
            plain("split"), matrix("embedding"), checkpoint, notes,
        )  # fmt: skip


@overload
def predict(
    run: str | os.PathLike[str],
    *,
    out: None = None,
    split: str | None = None,
    node_type: str | None = None,
    probabilities: bool | None = None,
    logits: bool = False,
    labels: bool = False,
    splits: bool = False,
    embeddings: bool = False,
    store: str | os.PathLike[str] | None = None,
    model: nn.Module | None = None,
    memory_limit: Size | None = None,
    trust: str | None = None,
    workers: int = 1,
    context: Context | None = None,
) -> Predictions: ...


@overload
def predict(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    split: str | None = None,
    node_type: str | None = None,
    probabilities: bool | None = None,
    logits: bool = False,
    labels: bool = False,
    splits: bool = False,
    embeddings: bool = False,
    store: str | os.PathLike[str] | None = None,
    model: nn.Module | None = None,
    memory_limit: Size | None = None,
    trust: str | None = None,
    workers: int = 1,
    context: Context | None = None,
) -> PredictionSummary: ...


def predict(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    split: str | None = None,
    node_type: str | None = None,
    probabilities: bool | None = None,
    logits: bool = False,
    labels: bool = False,
    splits: bool = False,
    embeddings: bool = False,
    store: str | os.PathLike[str] | None = None,
    model: nn.Module | None = None,
    memory_limit: Size | None = None,
    trust: str | None = None,
    workers: int = 1,
    context: Context | None = None,
) -> PredictionSummary | Predictions:
    """Predictions of the best checkpoint of a run, for the graph that it was trained on or any with the same features.

    One row per node, in the order in which nodes were ingested, however the store is partitioned: ``node`` (the
    user's id), of a typed graph ``type``, where nodes are asked about at times ``time``, then ``prediction`` (class
    name or number; for multi-label a list of names, in CSV joined by ``;``; for regression the value), and for
    classes ``probability`` of that class, for multi-label ``probabilities`` of all labels. Further columns on
    request; what are lists of C or F numbers in Parquet are as many columns in CSV.

    In processes that torchrun has started, every one of them calls this, and they share the work; the first one
    writes the file, or gets the arrays (the others get arrays of no rows).

    Args:
        run: the run folder. Of several workers only the first one reads it.
        out: a ``.parquet`` or ``.csv`` file, or with ``embeddings`` an ``.npy`` file of nothing else; an existing one
            is replaced when the new one is complete. ``None``: arrays are returned.
        split: only the nodes of this split; default all nodes, of a typed graph all of the types that have labels.
        node_type: only the nodes of this type.
        probabilities: those of all classes: ``probabilities``, in CSV ``probability_<class>`` ...; default only without
            ``out``.
        logits: the model's output as it is: ``logits``, in CSV ``logit_<class>`` ....
        labels: the true label: ``label``, empty where there is none.
        splits: the split that a node is in: ``split``, empty where it is in none.
        embeddings: the output of the last hidden layer: ``embedding``, in CSV ``embedding_0`` ...; of a run on
            links the output of the last layer, from which they are told, and nothing else.
        store: path of a graph store with the same features; default the one that the run was trained on.
        model: for runs of a user's own model: one of the same shape.
        memory_limit: bytes per worker, or text such as ``"2GiB"``; default as in the run's settings.
        trust: ``"imports"``: the run may name code to import, such as a model or a loss of one's own.
        workers: so many processes are started on this machine to share the work; 1 for none.
        context: of this worker, where the caller has made one.

    Returns:
        The arrays, or with ``out`` what was written.

    Raises:
        ConfigError: unknown file type, embeddings of a model of one layer, probabilities of a regression, or a run on
            links is asked for anything but embeddings: see :func:`partita.predict_links`.
        RunError: there is no run, or the store does not fit it; the message says what differs.
        StoreError, ResourceError: the store or the disk cannot be used.
    """
    given: dict[str, Any] = {
        "split": split, "node_type": node_type, "probabilities": probabilities, "logits": logits, "labels": labels,
        "splits": splits, "embeddings": embeddings, "store": store, "memory_limit": memory_limit, "trust": trust,
    }  # fmt: skip
    if workers == 1 or context is not None or launched():
        return _predict(join(context, workers), run, out, model=model, arrays=out is None, **given)
    entry = "partita.infer.predict:predict_on_worker"
    if out is not None:
        return PredictionSummary.from_json(on_workers(entry, workers, model, run=run, out=out, **given))
    with private_folder("partita-predict-") as folder:
        file = folder / "rows.parquet"
        found = on_workers(entry, workers, model, run=run, out=file, arrays=True, **given)
        summary = PredictionSummary.from_json(found)
        return Predictions.of(pyarrow.parquet.read_table(file), summary.checkpoint, summary.notes)


def predict_on_worker(context: Context, **options: Any) -> dict[str, Any]:
    """What every worker that :func:`predict` starts runs."""
    found = _predict(context, **options)
    assert isinstance(found, PredictionSummary)
    return found.to_json()


def _predict(
    context: Context,
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    *,
    split: str | None,
    node_type: str | None,
    probabilities: bool | None,
    logits: bool,
    labels: bool,
    splits: bool,
    embeddings: bool,
    store: str | os.PathLike[str] | None,
    memory_limit: Size | None,
    trust: str | None,
    model: nn.Module | None = None,
    arrays: bool = False,
) -> PredictionSummary | Predictions:
    """See :func:`predict`; ``arrays``: what is made becomes arrays, in this process or another one."""
    target = None if out is None else Path(out)
    if target is not None:
        others = {"probabilities": probabilities, "logits": logits, "labels": labels, "splits": splits}
        unwanted = [name for name, value in others.items() if value]
        context.agree(lambda: _check_target(target, embeddings, unwanted))
    loaded = load_run(run, store=store, labels=labels, model=model, trust=trust, context=context)
    graph, task = loaded.store, make_task(loaded.config, loaded.store)
    of_links = isinstance(task, EdgeTask)
    if of_links and not embeddings:
        raise ConfigError(
            "the run has learned links, of which nothing is said for a single node",
            where="predict",
            fix="Give --links or --pairs; or --embeddings for the rows that links are told from",
        )
    if embeddings and not of_links and len(loaded.model.stages) == 1:
        raise ConfigError("a model of one layer has no embeddings", fix="Leave out --embeddings")
    if embeddings and not of_links and loaded.model.whole:
        raise ConfigError(
            "a torch.nn.Module is computed as a whole, so there are no rows before its last layer",
            where="embeddings",
            fix="Leave out --embeddings",
        )
    width = loaded.model.widths[-1 if of_links else -2]
    columns = PredictionColumns(
        task,
        arrays and not of_links and not predicts_values(task) if probabilities is None else probabilities,
        logits=logits,
        labels=labels,
        splits=splits,
        embeddings=embeddings,
        flat=target is not None and target.suffix == ".csv",
    )
    columns.check()
    ids = _asked_for(graph, split, node_type, all_types=of_links)
    count = graph.num_nodes if ids is None else len(ids)
    if count == 0:
        raise ConfigError("there are no nodes to predict", fix=nearest("", ("train", "val", "test")))
    inference = inference_of(loaded.model, graph, loaded.config, context, memory_limit=memory_limit)
    require_memory(inference, graph, context)
    pieces = inference.collect(ids, embeddings=embeddings and not of_links)
    if of_links:  # whose rows are the model's output
        pieces = (OutputRows(piece.ids, piece.output, piece.output) for piece in pieces)
    if target is None:
        none = OutputRows(torch.empty(0, dtype=torch.int64), torch.empty(0, task.width), torch.empty(0, width))
        tables = [columns.table(none), *map(columns.table, pieces)]
        table = pa.concat_tables(tables, promote_options="permissive")  # no names of classes are of no type
        return Predictions.of(table, loaded.checkpoint.name, loaded.notes)
    if context.mesh.rank == 0:
        nodes, names = _write(target, pieces, columns, (count, width))
        summary = PredictionSummary(str(target), nodes, names, loaded.checkpoint.name, loaded.notes).to_json()
    else:
        deque(pieces, maxlen=0)  # takes part, and yields nothing
        summary = None
    return PredictionSummary.from_json(context.group("all").broadcast(summary))


def _asked_for(
    store: GraphStore, split: str | None, node_type: str | None, *, all_types: bool
) -> Int64[Tensor, "n"] | None:
    """Store ids of the nodes to predict, in the order in which they were ingested; ``None`` for all of them.

    Of a typed graph, unless a type is named, these are all, or those of the types that have labels.
    """
    if split is not None and node_type is not None:
        raise ConfigError("a split and a node type are both given", where="predict", fix="Give one of them")
    if split is not None:
        return as_tensor(store.split(split))
    if store.schema is None:
        if node_type is not None:
            raise ConfigError("the graph has no node types", where="node_type", fix="Leave it out")
        return ingest_order(store)
    types = range(len(store.schema.node_types))
    if node_type is not None:
        kinds = [store.schema.type_number(node_type)]
    elif all_types:
        kinds = list(types)
    else:
        labeled = np.unique(np.concatenate([np.empty(0, np.int64), *map(store.types, store.splits.values())]))
        kinds = labeled.tolist() or list(types)
    ids = np.concatenate([store.node_types.all_ids(kind) for kind in kinds])
    return as_tensor(ids[np.argsort(store.to_original(ids))])


def _check_target(out: Path, embeddings: bool, others: list[str]) -> None:
    if out.suffix not in _FORMATS:
        raise ConfigError(
            f"cannot write '{out.suffix}' files",
            where=str(out),
            fix=f"Name a file that ends in {', '.join(_FORMATS)}",
        )
    if out.suffix == _ARRAY and (others or not embeddings):
        raise ConfigError(
            f"an {_ARRAY} file holds embeddings and nothing else",
            where=str(out),
            fix=f"Leave out {', '.join(others)}, or name a .parquet file" if embeddings else "Give --embeddings",
        )
    require_parent(out)


def _write(
    out: Path, pieces: Iterator[OutputRows], columns: PredictionColumns, shape: tuple[int, int]
) -> tuple[int, tuple[str, ...]]:
    """Write rows as they come to a temporary sibling, then rename it; ``shape``: of the embeddings."""
    first = list(islice(pieces, 1))  # which takes longest: until then nothing is there that a kill could leave
    pieces = chain(first, pieces)
    with written_aside(out) as aside:
        if out.suffix == _ARRAY:
            return _write_array(aside, pieces, shape)
        return write_tables(aside, out.suffix, map(columns.table, pieces))


def _write_array(file: Path, pieces: Iterator[OutputRows], shape: tuple[int, int]) -> tuple[int, tuple[str, ...]]:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype("<f4")), "fortran_order": False, "shape": shape}
    with file.open("wb") as opened:
        np.lib.format.write_array_header_2_0(opened, header)
        for piece in pieces:
            opened.write(np.ascontiguousarray(piece.embedding.float().numpy(), "<f4").tobytes())
    return shape[0], ("embedding",)
