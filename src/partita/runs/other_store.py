"""A run and a store that it was not trained on: what must be equal, and what is taken over from training."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Shaped

from partita.core.errors import PartitaError, ResourceError, RunError, is_disk_full
from partita.graph.column_specs import spec_of
from partita.graph.metadata import StoreMetadata
from partita.graph.small import BITS, SmallRows
from partita.graph.store import GraphStore
from partita.runs.folder import RunFolder
from partita.sources.encoding import NOTE, Encoding, rows_at_once

_IN_MEMORY = 64 * 2**20
_SHOWN = 5


def kept(metadata: StoreMetadata) -> dict[str, Any]:
    """What ``run.json`` keeps of its store besides the summary, so that the run can be applied to other stores."""
    names = metadata.class_names
    return {"class_names": None if names is None else list(names), "feature_encoding": metadata.notes.get(NOTE, {})}


def with_kept(folder: RunFolder, record: Mapping[str, Any]) -> dict[str, Any]:
    """The ``store`` of a ``run.json``; of an older run with what its store says today, if that is still there."""
    store = dict(record["store"])
    if "feature_encoding" in store:
        return store
    try:
        metadata = StoreMetadata.read(folder.store_path(record))
    except PartitaError:
        metadata = None
    if metadata is not None and metadata.fingerprint == store["fingerprint"]:
        return {**store, **kept(metadata)}
    names = record.get("classes", {}).get("names")
    if names is not None:
        numbers = list(map(str, range(len(names))))
        store["class_names"] = None if names == numbers else names
    return store


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run was trained on, as far as it matters on another store.

    Attributes:
        path: of its store, for messages.
        width: F, the features that the model takes.
        dtype: in which its store holds them.
        encoding: how they were made of columns; ``None``: the run does not say.
        task: what its labels were for.
        num_classes: classes, labels, or 1 for a number.
        class_names: names of the classes; ``None`` where they have none.
        names_known: false for an old run that does not say what its classes are called.
        types: feature columns of each node type, by name; empty of an untyped graph.
        relations: of a typed graph, their whole names.
    """

    path: str
    width: int
    dtype: str
    encoding: Encoding | None
    task: str | None
    num_classes: int
    class_names: tuple[str, ...] | None
    names_known: bool
    types: Mapping[str, int]
    relations: tuple[str, ...]

    @classmethod
    def of(cls, store: Mapping[str, Any]) -> Trained:
        """Of the ``store`` in a ``run.json``, see :func:`with_kept`."""
        encoding = store.get("feature_encoding")
        names = store.get("class_names")
        return cls(
            path=store["path"],
            width=store["features"],
            dtype=store["feature_dtype"] or "float32",
            encoding=None if encoding is None else Encoding.of({NOTE: encoding}),
            task=store["task"],
            num_classes=store["classes"],
            class_names=None if names is None else tuple(names),
            names_known="class_names" in store,
            types={name: store["type_features"].get(name, 0) for name in store.get("node_types", ())},
            relations=tuple(store.get("relations", ())),
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or their numbers."""
        return self.class_names or tuple(map(str, range(self.num_classes)))


def apply_to(store: GraphStore, trained: Trained, *, labels: bool) -> tuple[GraphStore, list[str]]:
    """A store as the model of a run takes it: features scaled as in training, classes numbered as in training.

    Args:
        store: any store with the same features.
        trained: what the run was trained on.
        labels: the labels of the store will be read. Otherwise they may be of any kind, or not there.

    Returns:
        The store, with the task and the classes of the run, and notes on what is not as it was in training.

    Raises:
        RunError: the store does not fit; the message says what differs.
    """
    _require_types(store, trained)
    columns, notes = _features(store, trained)
    columns["y"] = _labels(store, trained, required=labels)
    if not trained.names_known:
        notes.append("the run does not say what its classes are called: they have numbers")
    return (
        store.with_(columns, task=trained.task, num_classes=trained.num_classes, class_names=trained.class_names),
        notes,
    )


def _refusal(store: GraphStore, trained: Trained, what: str) -> RunError:
    return RunError(what, where=str(store.path), fix=f"Ingest the graph again with --like {trained.path}")


def _require_types(store: GraphStore, trained: Trained) -> None:
    """See that a typed graph has the node types, with their features, and relations that the model was made for."""
    schema = store.schema
    types = {} if schema is None else dict(zip(schema.node_types, store.type_widths, strict=True))
    relations = () if schema is None else tuple(map(str, schema.relations))
    for what, found, wanted in (
        (
            "node types",
            *([f"'{name}' of {width} features" for name, width in each.items()] for each in (types, trained.types)),
        ),
        ("relations", list(relations), list(trained.relations)),
    ):
        if found != wanted:
            at = next(
                (at for at, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1]), min(len(found), len(wanted))
            )
            one, other = (each[at] if at < len(each) else "none" for each in (found, wanted))
            raise RunError(
                f"has other {what} than the model was trained on, of which the first is {one} where there was {other}",
                where=str(store.path),
                fix="Use a graph of the same schema, its types and relations in the same order",
            )


def _features(store: GraphStore, trained: Trained) -> tuple[dict[str, Shaped[np.ndarray, "..."]], list[str]]:
    """The columns to replace, and notes."""
    if store.num_features != trained.width:
        has = f"has {store.num_features} features" if store.num_features else "has no features"
        raise RunError(
            f"{has}, but the model was trained on {trained.width}",
            where=str(store.path),
            fix="Use a graph with the same features",
        )
    found, wanted = Encoding.of(store.metadata.notes), trained.encoding
    if wanted is None:
        return {}, ["the run does not say how its features were made: only their number was compared"]
    if wanted.names and found.names and wanted.names != found.names:
        raise _refusal(store, trained, _difference(found.names, wanted.names))
    notes = []
    if found.fill is not None and found.fill != wanted.fill:
        if wanted.fill is not None:
            raise _refusal(store, trained, "empty cells were filled with other values than in training")
        notes.append("empty cells of features were filled, which was not so in training")
    if (found.mean, found.scale) == (wanted.mean, wanted.scale) and (found.fill is not None or wanted.fill is None):
        return {}, notes
    if (found.mean, found.scale) != (wanted.mean, wanted.scale):
        how = "not standardized" if wanted.mean is None else "standardized with the means and deviations of training"
        notes.append(f"features are {how}, as the model was trained; those of the store are not")
    store.require_whole("scaling features as in training")
    dtype = np.dtype(np.float32 if trained.dtype in BITS else trained.dtype)  # small integers are of a whole column
    assert store.x is not None
    return {"x": _again(store.x, found, wanted, dtype)}, notes


def _difference(found: Sequence[str], wanted: Sequence[str]) -> str:
    at = next(at for at, (one, other) in enumerate(zip(found, wanted)) if one != other)
    order = "in another order" if sorted(found) == sorted(wanted) else "other ones"
    return f"the features are {order} than in training: feature {at} is '{found[at]}', in training '{wanted[at]}'"


def _again(
    x: Float[np.ndarray, "N F"] | SmallRows, found: Encoding, wanted: Encoding, dtype: np.dtype[Any]
) -> Float[np.ndarray, "N F"]:
    """Features as ``--like`` would have made them."""
    made = _room(x.shape, dtype)
    step = rows_at_once(x.shape[1])
    for start in range(0, len(x), step):
        rows = x[start : start + step].astype(np.float64)
        if found.mean is not None and found.scale is not None:
            rows = rows * np.array(found.scale) + np.array(found.mean)
        if wanted.fill is not None:
            rows = np.where(np.isnan(rows), np.array(wanted.fill), rows)
        if wanted.mean is not None and wanted.scale is not None:
            rows = (rows - np.array(wanted.mean)) / np.array(wanted.scale)
        made[start : start + step] = rows.astype(dtype)
    return made


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Shaped[np.ndarray, "..."]:
    """An array in memory, or in a file without a name where it is large."""
    size = int(np.prod(shape)) * dtype.itemsize
    if size <= _IN_MEMORY:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile(prefix="partita-features-") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)
    except OSError as error:
        if is_disk_full(error):
            raise ResourceError(
                f"scaled features need {size:,} bytes of disk", where=tempfile.gettempdir(), fix="Free space there"
            ) from None
        raise


def _labels(store: GraphStore, trained: Trained, *, required: bool) -> Shaped[np.ndarray, "N ..."]:
    """Labels in the numbering of the run; where they are not required and do not fit, none."""
    nothing = _unlabeled(store, trained)
    if store.y is None or store.task != trained.task:
        if not required:
            return nothing
        if store.y is None:
            raise RunError("the store has no labels", where=str(store.path), fix="Ingest again with --labels FILE")
        what = f"its labels are for '{store.task}', those of the run are for '{trained.task}'"
        raise _refusal(store, trained, what)
    theirs = store.class_names or list(map(str, range(store.num_classes)))
    mine = list(trained.classes)
    if not trained.names_known:  # numbers can only be taken as they are
        theirs = list(map(str, range(store.num_classes)))
    if theirs == mine:
        return store.y
    place = {name: number for number, name in enumerate(mine)}
    unknown = [name for name in theirs if name not in place]
    # A class that does not occur is no harm; what is not known of a label is.
    absent = [name for name in mine if name not in theirs] if store.y.ndim == 2 else []
    if unknown or absent:
        if not required:
            return nothing
        raise _refusal(store, trained, _strange(unknown, absent, mine))
    numbers = np.array([place[name] for name in theirs], np.int64)
    return _renumbered(store.y, numbers, len(mine))


def _renumbered(
    y: Shaped[np.ndarray, "N ..."], numbers: Int64[np.ndarray, "c"], count: int
) -> Shaped[np.ndarray, "N ..."]:
    if y.ndim == 1:
        return np.append(numbers, -1)[y]  # -1: no label
    made = np.zeros((len(y), count), y.dtype)
    made[:, numbers] = y
    return made


def _strange(unknown: list[str], absent: list[str], mine: list[str]) -> str:
    if unknown:
        return f"has classes that the model does not know: {_some(unknown)} (it knows {_some(mine)})"
    return f"has no labels {_some(absent)}, which the model predicts"


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    )


def _unlabeled(store: GraphStore, trained: Trained) -> Shaped[np.ndarray, "N ..."]:
    """Labels of which none is known, without memory for them."""
    spec = spec_of("y")
    form = (
        None
        if spec is None
        else spec.expected(
            StoreMetadata(store.num_nodes, store.num_edges, task=trained.task, num_classes=trained.num_classes), "y"
        )
    )
    assert form is not None
    (name, *_), shape = form
    dtype = np.dtype(name)
    return np.broadcast_to(np.array({"i": -1, "f": np.nan}.get(dtype.kind, 0), dtype), shape)
