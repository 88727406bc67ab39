"""Tasks whose seeds are nodes, and whose targets are their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num, UInt8
from torch import Tensor
from torch.nn import functional

from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.sample.topology import as_tensor
from partita.tasks.task import Answers, ClassCounts, unlabeled

if TYPE_CHECKING:
    import pyarrow as pa


class NodeTask:
    """Implements what tasks of labeled nodes share of :class:`~partita.tasks.task.Task`.

    Args:
        store: with labels that the task can learn.

    Raises:
        ConfigError: it has none.
    """

    labels: ClassVar[str]
    """What the labels of a store must be for, as its metadata say."""

    metrics: tuple[str, ...] = ()

    def __init__(self, store: GraphStore) -> None:
        if store.task is None or store.y is None:
            raise unlabeled(store)
        if store.task != self.labels:
            raise ConfigError(
                f"the task learns labels for '{self.labels}', those of the store are for '{store.task}'",
                where=str(store.path),
                fix=f"Leave out --task, or ingest again with --task {self.labels}",
            )
        self.store = store
        self._y = as_tensor(store.y)

    @property
    def width(self) -> int:
        """One column per class or label; one for a number."""
        return self.store.num_classes

    @property
    def class_names(self) -> list[str]:
        """The user's, or numbers."""
        return self.store.class_names or list(map(str, range(self.width)))

    def seeds(self, split: str) -> Int[Tensor, "S"]:
        """Store ids of the nodes of a split, in ascending original index."""
        return as_tensor(self.store.split(split))

    def requests(self, seeds: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """The seeds themselves."""
        return seeds

    def outputs(self, rows: Float[Tensor, "B C"], seeds: Int[Tensor, "B"]) -> Float[Tensor, "B C"]:
        """The rows themselves."""
        return rows

    def targets(self, seeds: Int[Tensor, "B ..."]) -> Num[Tensor, "B ..."]:
        """Labels of nodes, as the store holds them."""
        return self._y[seeds.long().to(self._y.device)].to(seeds.device)

    def class_counts(self, answers: Answers) -> ClassCounts | None:
        """There are no classes."""
        return None


class Classes(NodeTask):
    """One class per node, int64: cross-entropy. A node of class -1 has no label."""

    labels = "classes"
    metrics = ("accuracy", "macro_f1", "roc_auc")

    def labeled(self, targets: Int[Tensor, "B"]) -> Bool[Tensor, "B"]:
        """Those of a class >= 0."""
        return targets >= 0

    def loss_sum(self, output: Float[Tensor, "B C"], targets: Int[Tensor, "B"]) -> Float[Tensor, ""]:
        """Cross-entropy of logits."""
        return functional.cross_entropy(output, targets, reduction="sum")

    def scores(self, output: Float[Tensor, "R C"]) -> Float[Tensor, "R C"]:
        """Probabilities of classes: rows sum to 1."""
        return output.softmax(dim=1)

    def predicted(self, output: Float[Tensor, "R C"]) -> Int[Tensor, "R"]:
        """The most probable class."""
        return output.argmax(dim=1)

    def class_counts(self, answers: Answers) -> ClassCounts | None:
        """Of every class."""
        truth, said, columns = answers.truth, answers.predicted, answers.scores.shape[1]
        tallies = [torch.bincount(each, minlength=columns) for each in (truth, said, truth[truth == said])]
        return _class_counts(tallies)

    def columns(self, output: Float[Tensor, "R C"], *, flat: bool) -> dict[str, Any]:
        """``prediction``, a class by name or number, and its ``probability``."""
        best = self.predicted(output)
        chance = self.scores(output).gather(1, best[:, None]).squeeze(1)
        return {"prediction": _named(self.store, best.numpy()), "probability": chance.numpy()}


class MultiLabel(NodeTask):
    """Several labels per node, uint8 (B, C) of zeros and ones: binary cross-entropy, its mean over labels."""

    labels = "multilabel"
    metrics = ("micro_f1", "macro_f1", "roc_auc")

    def labeled(self, targets: UInt8[Tensor, "B C"]) -> Bool[Tensor, "B"]:
        """All."""
        return torch.ones(targets.shape[0], dtype=torch.bool)

    def loss_sum(self, output: Float[Tensor, "B C"], targets: UInt8[Tensor, "B C"]) -> Float[Tensor, ""]:
        """Binary cross-entropy of logits."""
        loss = functional.binary_cross_entropy_with_logits(output, targets.to(output.dtype), reduction="sum")
        return loss / output.shape[1]

    def scores(self, output: Float[Tensor, "R C"]) -> Float[Tensor, "R C"]:
        """Probabilities of labels."""
        return output.sigmoid()

    def predicted(self, output: Float[Tensor, "R C"]) -> Bool[Tensor, "R C"]:
        """The labels that are more probable than not."""
        return output > 0

    def class_counts(self, answers: Answers) -> ClassCounts | None:
        """Of every label."""
        truth, said = answers.truth.bool(), answers.predicted
        return _class_counts([truth.sum(0), said.sum(0), (truth & said).sum(0)])

    def columns(self, output: Float[Tensor, "R C"], *, flat: bool) -> dict[str, Any]:
        """``prediction``, labels by name or number, and the ``probabilities`` of all."""
        import pyarrow as pa

        chance, store = self.scores(output).numpy(), self.store
        labels = [list(_named(store, np.flatnonzero(row)).tolist()) for row in self.predicted(output).numpy()]
        if flat:
            of_labels = {f"probability_{name}": column for name, column in zip(self.class_names, chance.T, strict=True)}
            return {"prediction": [";".join(map(str, row)) for row in labels], **of_labels}
        kind = pa.string() if store.class_names else pa.int64()
        return {"prediction": pa.array(labels, type=pa.list_(kind)), "probabilities": lists(chance)}


class Regression(NodeTask):
    """One number per node, float32: squared error. A node of value NaN has no label."""

    labels = "regression"
    metrics = ("mae", "rmse")

    def labeled(self, targets: Float[Tensor, "B"]) -> Bool[Tensor, "B"]:
        """Those with a number."""
        return ~targets.isnan()

    def loss_sum(self, output: Float[Tensor, "B 1"], targets: Float[Tensor, "B"]) -> Float[Tensor, ""]:
        """Squared error."""
        return functional.mse_loss(output.squeeze(1), targets.to(output.dtype), reduction="sum")

    def scores(self, output: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
        """The values."""
        return output

    def predicted(self, output: Float[Tensor, "R 1"]) -> Float[Tensor, "R"]:
        """The values."""
        return self.scores(output).squeeze(1)

    def columns(self, output: Float[Tensor, "R 1"], *, flat: bool) -> dict[str, Any]:
        """``prediction``, the value."""
        return {"prediction": self.predicted(output).numpy()}


def lists(rows: Float[np.ndarray, "R C"]) -> pa.Array:
    """A column whose cells are rows."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _class_counts(tallies: list[Tensor]) -> ClassCounts:
    return dict(zip(("nodes", "predicted", "correct"), (each.tolist() for each in tallies), strict=True))


def _named(store: GraphStore, classes: Int[np.ndarray, "n"]) -> np.ndarray:
    return np.asarray(store.class_names, dtype=object)[classes] if store.class_names else classes
