"""Tasks whose seeds are nodes, and whose targets are their labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num, UInt8
from torch import Tensor
from torch.nn import functional

from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.sample.topology import as_tensor
from partita.tasks.losses import LOSSES
from partita.tasks.task import Answers, ClassCounts, refuse_setting, unlabeled

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
        self.target_scale: tuple[float, float] | None = None
        self.class_weights: Float[Tensor, "C"] | None = None
        self.label_smoothing = 0.0
        self._own_loss: Callable[[Tensor, Tensor], Tensor] | None = None
        self._y = as_tensor(store.y)

    @property
    def splits(self) -> list[str]:
        """Those of the store that have nodes."""
        return [name for name, ids in self.store.splits.items() if len(ids)]

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

    loss_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that :meth:`loss_sum` follows, as long as no subclass has another loss."""

    scale_settings: ClassVar[frozenset[str]] = frozenset({"target_scaling"})
    """Those of them that hold for a loss that the settings name, too."""

    def adjust(self, config: Config) -> dict[str, Any]:
        """See :meth:`partita.tasks.task.AdjustableTask.adjust`."""
        taken, whose = self.loss_settings if self._has_known_loss else frozenset[str](), type(self).__name__
        if config.loss != "auto":
            if not taken:
                refuse_setting(config, "loss", f"the task has the loss of {whose}")
            self._own_loss, taken, whose = self._named_loss(config.loss), taken & self.scale_settings, config.loss
        for setting in sorted({"class_weights", "label_smoothing", "target_scaling"} - taken):
            refuse_setting(config, setting, f"the task has the loss of {whose}")
        return self._adjust(config) if taken else {}

    def _named_loss(self, name: str) -> Callable[[Tensor, Tensor], Tensor]:
        loss = LOSSES.find(name)
        if loss.tasks and self.labels not in loss.tasks:
            able = [other for other in LOSSES if self.labels in LOSSES.find(other).tasks]
            raise ConfigError(
                f"the loss '{name}' is for {' or '.join(sorted(loss.tasks))}, and the labels are for '{self.labels}'",
                where="loss",
                fix=f"Use {', '.join(['auto', *able])}",
            )
        return partial(loss.summed, name)

    @property
    def _has_known_loss(self) -> bool:
        """Whether the loss is that of the class which :attr:`loss_settings` speaks of."""
        kind = next(kind for kind in type(self).__mro__ if "loss_settings" in vars(kind))
        return all(getattr(type(self), name) is getattr(kind, name) for name in ("loss_sum", "scores"))

    def _adjust(self, config: Config) -> dict[str, Any]:
        """Take the settings in :attr:`loss_settings`; returns those that were resolved."""
        return {}

    def _take_weights(self, config: Config) -> dict[str, Any]:
        """Take class weights and label smoothing."""
        self.label_smoothing, given = config.label_smoothing, config.class_weights
        if given == "none":
            return {}
        names = self.class_names
        if given == "balanced":
            given = tuple(self._balanced().tolist())
        if len(given) != len(names):
            raise ConfigError(
                f"{len(given)} class weight{'s are' if len(given) != 1 else ' is'} given for {len(names)} classes",
                where="class_weights",
                fix=f"Give one number for each, in this order: {', '.join(names[:10])}{', ...' * (len(names) > 10)}",
            )
        self.class_weights = torch.tensor(given, dtype=torch.float64)
        return {"class_weights": given}

    def _balanced(self) -> Float[Tensor, "C"]:
        """Weights, float64, with which classes count alike."""
        raise NotImplementedError

    def _weights_like(self, output: Tensor) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights.to(output)

    def seed_weights(self, targets: Num[Tensor, "B ..."]) -> Float[Tensor, "B"] | None:
        """All alike."""
        return None

    def baseline(self) -> Float[Tensor, "C"] | None:
        """See :meth:`partita.tasks.task.AdjustableTask.baseline`."""
        return self._baseline() if self._has_known_loss and len(self._training_targets()) else None

    def _baseline(self) -> Float[Tensor, "C"] | None:
        return None

    def labeled(self, targets: Num[Tensor, "B ..."]) -> Bool[Tensor, "B"]:
        """See :meth:`partita.tasks.task.Task.labeled`."""
        raise NotImplementedError

    def _training_targets(self) -> Num[Tensor, "T ..."]:
        """Those of the training split that have a label."""
        targets = self.targets(self.seeds("train"))
        return targets[self.labeled(targets)]


class Classes(NodeTask):
    """One class per node, int64: cross-entropy. A node of class -1 has no label."""

    labels = "classes"
    metrics = ("accuracy", "macro_f1", "roc_auc")
    loss_settings = frozenset({"class_weights", "label_smoothing"})

    def labeled(self, targets: Int[Tensor, "B"]) -> Bool[Tensor, "B"]:
        """Those of a class >= 0."""
        return targets >= 0

    def loss_sum(self, output: Float[Tensor, "B C"], targets: Int[Tensor, "B"]) -> Float[Tensor, ""]:
        """Cross-entropy of logits, with class weights and label smoothing where the settings say so."""
        if self._own_loss is not None:
            return self._own_loss(output, targets)
        weight, smoothing = self._weights_like(output), self.label_smoothing
        return functional.cross_entropy(output, targets, weight, reduction="sum", label_smoothing=smoothing)

    def seed_weights(self, targets: Int[Tensor, "B"]) -> Float[Tensor, "B"] | None:
        """The weights of their classes."""
        return None if self.class_weights is None else self.class_weights.to(targets.device)[targets]

    def _adjust(self, config: Config) -> dict[str, Any]:
        return self._take_weights(config)

    def _class_sizes(self) -> Float[Tensor, "C"]:
        """Training nodes of every class, float64."""
        return torch.bincount(self._training_targets(), minlength=len(self.class_names)).double()

    def _balanced(self) -> Float[Tensor, "C"]:
        """Training nodes / (classes * training nodes of the class), as scikit-learn's "balanced"; 1 for a class that
        has none. Their mean over the training nodes is 1."""
        sizes = self._class_sizes()
        weights = sizes.sum() / (int((sizes > 0).sum()) * sizes)
        return torch.where(sizes > 0, weights, 1.0)

    def _baseline(self) -> Float[Tensor, "C"]:
        """Logarithms of how frequent classes are: the largest class is predicted."""
        sizes = self._class_sizes()
        return (sizes / sizes.sum()).clamp(min=1e-9).log().float()

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
    loss_settings = frozenset({"class_weights", "label_smoothing"})

    def labeled(self, targets: UInt8[Tensor, "B C"]) -> Bool[Tensor, "B"]:
        """All."""
        return torch.ones(targets.shape[0], dtype=torch.bool)

    def loss_sum(self, output: Float[Tensor, "B C"], targets: UInt8[Tensor, "B C"]) -> Float[Tensor, ""]:
        """Binary cross-entropy of logits, with weights of positive labels and label smoothing as the settings say."""
        if self._own_loss is not None:
            return self._own_loss(output, targets)
        wanted = targets.to(output.dtype)
        if self.label_smoothing:
            wanted = wanted * (1 - self.label_smoothing) + self.label_smoothing / 2
        loss = functional.binary_cross_entropy_with_logits(
            output, wanted, reduction="sum", pos_weight=self._weights_like(output)
        )
        return loss / output.shape[1]

    def _adjust(self, config: Config) -> dict[str, Any]:
        return self._take_weights(config)

    def _positive_share(self) -> Float[Tensor, "C"]:
        """The share of training nodes that have each label, float64."""
        return self._training_targets().double().mean(dim=0)

    def _balanced(self) -> Float[Tensor, "C"]:
        """Negative / positive training nodes of every label; 1 where there is no one or no other."""
        share = self._positive_share()
        return torch.where((share > 0) & (share < 1), (1 - share) / share, 1.0)

    def _baseline(self) -> Float[Tensor, "C"]:
        """Logits of how frequent labels are."""
        return self._positive_share().clamp(1e-9, 1 - 1e-9).logit().float()

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
    """One number per node, float32: squared error, by default of standardized targets.

    A node of value NaN has no label. Outputs are in the units of the targets.
    """

    labels = "regression"
    metrics = ("mae", "rmse", "r2")
    loss_settings = frozenset({"target_scaling"})

    def labeled(self, targets: Float[Tensor, "B"]) -> Bool[Tensor, "B"]:
        """Those with a number."""
        return ~targets.isnan()

    def loss_sum(self, output: Float[Tensor, "B 1"], targets: Float[Tensor, "B"]) -> Float[Tensor, ""]:
        """Squared error, in units of the targets' variance where they are standardized."""
        values, wanted = output.squeeze(1), targets.to(output.dtype)
        if self._own_loss is not None:
            mean, deviation = self.target_scale or (0.0, 1.0)
            return self._own_loss((values - mean) / deviation, (wanted - mean) / deviation)
        if self.target_scale is None:
            return functional.mse_loss(values, wanted, reduction="sum")
        return ((values - wanted) / self.target_scale[1]).square().sum()

    def _adjust(self, config: Config) -> dict[str, Any]:
        given = config.target_scaling
        if given == "none":
            return {}
        if isinstance(given, str):
            known = self._training_targets().double()
            if len(known) == 0:
                return {}
            deviation = float(known.std(correction=0))
            given = (float(known.mean()), deviation if deviation > 0 else 1.0)
        mean, deviation = given
        self.target_scale = (mean, deviation)
        return {"target_scaling": self.target_scale}

    def _baseline(self) -> Float[Tensor, "1"]:
        """The mean."""
        return self._training_targets().double().mean()[None].float()

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
