"""The columns of predictions: ids, classes, probabilities, logits, labels, splits, embeddings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int, Int8, Int64, Shaped
from pyarrow import compute
from torch import Tensor

from partita.core.errors import ConfigError
from partita.graph.times import ALWAYS, DATES
from partita.infer.layerwise import OutputRows
from partita.tasks.nodes import lists
from partita.tasks.periods import seed_times_of
from partita.tasks.task import EdgeTask, Task


@dataclass(frozen=True)
class PredictionColumns:
    """Makes tables of what a model says of nodes.

    Attributes:
        task: what the model has learned, of the store with the nodes.
        probabilities: of all classes.
        logits: the model's output as it is.
        labels: the true label.
        splits: the split that a node is in.
        embeddings: the rows that went into the last layer.
        flat: the table must not hold lists, as it goes to a CSV file.
    """

    task: Task
    probabilities: bool = False
    logits: bool = False
    labels: bool = False
    splits: bool = False
    embeddings: bool = False
    flat: bool = False

    def check(self) -> None:
        """See that the task has what is wanted.

        Raises:
            ConfigError: the model predicts numbers, or links, which have neither probabilities nor logits.
        """
        for name, wanted in (("probabilities", self.probabilities), ("logits", self.logits)):
            if wanted and isinstance(self.task, EdgeTask):
                raise ConfigError(f"the model tells links, and a node has no {name}", fix=f"Leave {name} out")
            if wanted and predicts_values(self.task):
                raise ConfigError(f"the model predicts numbers, which have no {name}", fix=f"Leave {name} out")

    @cached_property
    def class_names(self) -> list[str]:
        """Of the columns of the model's output, or their numbers."""
        width, names = self.task.width, self.task.class_names
        return names if len(names) == width else list(map(str, range(width)))

    def table(self, rows: OutputRows) -> pa.Table:
        """What is said of some nodes, a row for each."""
        task, output = self.task, rows.output.float()
        columns: dict[str, Any] = {"node": pa.array(task.store.names(rows.ids.numpy()))}
        if (schema := task.store.schema) is not None:
            kinds = pa.array(task.store.types(rows.ids.numpy()), type=pa.int32())
            columns["type"] = pa.DictionaryArray.from_arrays(kinds, list(schema.node_types)).cast(pa.string())
        if (times := seed_times_of(task.store, rows.ids)) is not None:
            columns["time"] = self._times(times)
        if not isinstance(task, EdgeTask):
            columns |= task.columns(output, flat=self.flat)
        if self.probabilities:
            scores = task.scores(output).numpy()
            for name, column in self._spread("probability", "probabilities", scores, self.class_names).items():
                columns.setdefault(name, column)
        if self.logits:
            columns |= self._spread("logit", "logits", output.numpy(), self.class_names)
        if self.labels:
            columns["label"] = self._truth(rows.ids)
        if self.splits:
            columns["split"] = self._split_names(rows.ids)
        if self.embeddings:
            found = rows.embedding.float().numpy()
            columns |= self._spread("embedding", "embedding", found, list(map(str, range(found.shape[1]))))
        table = pa.table(columns)
        if self.flat or not (self.probabilities or self.logits):
            return table
        return table.replace_schema_metadata({"class_names": json.dumps(self.class_names)})

    def _spread(self, each: str, together: str, rows: Float[np.ndarray, "R C"], names: Sequence[str]) -> dict[str, Any]:
        if self.flat:
            return {f"{each}_{name}": column for name, column in zip(names, rows.T, strict=True)}
        return {together: lists(rows)}

    def _times(self, times: Int64[np.ndarray, "R"]) -> pa.Array:
        """When nodes are asked about; empty where they have no time. Dates in CSV files are text, to seconds."""
        found = pa.array(times, mask=times == ALWAYS)
        if not self.task.store.metadata.notes.get(DATES):
            return found
        dates = found.cast(pa.timestamp("us"))
        seconds = compute.floor_temporal(dates, unit="second").cast(pa.timestamp("s"))
        return compute.strftime(seconds, format="%Y-%m-%dT%H:%M:%S") if self.flat else dates

    def _truth(self, ids: Int[Tensor, "R"]) -> pa.Array:
        targets = self.task.targets(ids)
        known, values = self.task.labeled(targets).numpy(), targets.numpy()
        names = self.task.store.class_names
        if values.ndim == 2:
            several = [[names[at] if names else at for at in np.flatnonzero(row).tolist()] for row in values]
            if self.flat:
                return pa.array([";".join(map(str, row)) for row in several])
            return pa.array(several, type=pa.list_(pa.string() if names else pa.int64()))
        if names and values.dtype.kind == "i":
            values = np.asarray([*names, None], dtype=object)[np.where(known, values, -1)]
        return pa.array(values, mask=~known)

    @cached_property
    def _splits_of_nodes(self) -> Int8[np.ndarray, "N"]:
        """Number of the split of every node, -1 for none."""
        store = self.task.store
        found = np.full(store.num_nodes, -1, np.int8)
        for number, ids in enumerate(store.splits.values()):
            found[ids] = number
        return found

    def _split_names(self, ids: Int[Tensor, "R"]) -> pa.Array:
        names = np.asarray([*self.task.store.splits, None], dtype=object)
        return pa.array(names[self._splits_of_nodes[ids.numpy()]], type=pa.string())


def predicts_values(task: Task) -> bool:
    """Whether a task predicts numbers, not classes."""
    return task.predicted(torch.zeros(1, task.width)).is_floating_point()


def matrix_of(column: pa.ChunkedArray) -> Shaped[np.ndarray, "R C"]:
    """A column whose cells are lists of one length, as an array."""
    width, values = column.type.list_size, [chunk.flatten().to_numpy() for chunk in column.chunks]
    return (np.concatenate(values) if values else np.empty(0, np.float32)).reshape(-1, width)
