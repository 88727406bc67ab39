"""Syncs: how workers that train on views of their own agree on one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from partita.comm.group import Group
from partita.core.errors import ConfigError, nearest
from partita.core.registry import Registry
from partita.isolated.averaging import OPTIMIZER_RULES, RunningMean, optimizer_tensors, with_tensors
from partita.isolated.coverage import COVERAGES, Coverage

Joined = tuple[dict[str, Tensor], list[Mapping[str, Any]]]
"""The joined model by name, and the optimizer state of every replica."""


@dataclass(frozen=True)
class SyncSettings:
    """What a sync may be told.

    Attributes:
        coverage: correction of gradients, one of :data:`~partita.isolated.coverage.COVERAGES`.
        every: epochs from one averaging of models to the next.
        optimizer: what becomes of optimizer states then, an :data:`~partita.isolated.averaging.OptimizerRule`.
    """

    coverage: str = "resampling"
    every: int = 1
    optimizer: str = "keep"


@dataclass(frozen=True)
class Replica:
    """What was trained on one part.

    Attributes:
        model: its ``state_dict()``.
        optimizer: the ``state_dict()`` of its optimizer.
        weight: its number of training nodes.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    weight: float


@runtime_checkable
class Sync(Protocol):
    """How workers agree on one model.

    Attributes:
        every_step: gradients are joined in every step. Then all workers make the same number of steps, with one model
            and one optimizer state each, and the loss of a worker is its sum over own seeds divided by the seeds of
            *all* workers in the step. Otherwise steps are the worker's own, the loss is divided by the worker's seeds,
            and every part has a model and an optimizer state of its own.
    """

    every_step: bool

    def factor(self, sampled: Int[Tensor, "B"], d_local: Int[Tensor, "B"], d_global: Int[Tensor, "B"]) -> float:
        """What the gradients of a batch are multiplied with.

        Args:
            sampled: number of sampled in-edges of every seed of this worker; in typed graphs of every seed and
                relation, see :class:`~partita.isolated.neighborhoods.Neighborhoods`.
            d_local: its in-edges in the view.
            d_global: its in-edges in the whole graph.
        """
        ...

    def join_gradients(self, parameters: Iterable[Tensor], factor: float, group: Group) -> None:
        """Between backward and the optimizer's step. Where :attr:`every_step`, all workers call this.

        Args:
            parameters: of the model; their gradients are changed in place.
            factor: of this worker's batch.
            group: of all workers.
        """
        ...

    def due(self, epoch: int, epochs: int) -> bool:
        """Whether models are joined after an epoch (0-based) of so many."""
        ...

    def join_models(self, replicas: Sequence[Replica], group: Group) -> Joined:
        """Join models. All workers call this where it is :meth:`due`, also those without a part.

        Args:
            replicas: this worker's, one per part.
            group: of all workers.

        Returns:
            The ``state_dict()`` of the model, the same on all workers; of each replica, the optimizer's to go on with.
        """
        ...


class GradientSum:
    """Gradients are summed in every step, each worker's multiplied with the coverage of its batch (Grappa).

    Args:
        settings: ``coverage`` counts.

    Raises:
        ConfigError: no such correction.
    """

    every_step = True

    def __init__(self, settings: SyncSettings = SyncSettings()) -> None:
        self._coverage: Coverage = COVERAGES.find(settings.coverage)

    def factor(self, sampled: Int[Tensor, "B"], d_local: Int[Tensor, "B"], d_global: Int[Tensor, "B"]) -> float:
        """By the rule of :mod:`partita.isolated.coverage` that was asked for."""
        return self._coverage(sampled, d_local, d_global)

    def join_gradients(self, parameters: Iterable[Tensor], factor: float, group: Group) -> None:
        """Multiply and sum; a parameter that a worker did not use has gradient 0 there."""
        gradients = []
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        if factor != 1:
            for gradient in gradients:
                gradient.mul_(factor)
        group.sum_(gradients)

    def due(self, epoch: int, epochs: int) -> bool:
        """Never: models do not come apart."""
        return False

    def join_models(self, replicas: Sequence[Replica], group: Group) -> Joined:
        """There is nothing to join.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("gradients are summed in every step; there are no models to average")


class ModelAverage:
    """Every part is trained alone, and models are averaged every n epochs (SDT-GNN, section III-D).

    The mean weighs a part by its share of the training nodes. All parts must begin with one initialization.

    Args:
        settings: ``every`` and ``optimizer`` count.

    Raises:
        ConfigError: a setting is out of range.
    """

    every_step = False

    def __init__(self, settings: SyncSettings = SyncSettings()) -> None:
        if settings.every < 1:
            raise ConfigError(f"every {settings.every} epochs", where="average_every", fix="Give at least 1")
        if settings.optimizer not in OPTIMIZER_RULES:
            raise ConfigError(
                f"unknown rule '{settings.optimizer}' for optimizer states",
                where="optimizer_state",
                fix=nearest(settings.optimizer, OPTIMIZER_RULES),
            )
        self._every, self._rule = settings.every, settings.optimizer

    def factor(self, sampled: Int[Tensor, "B"], d_local: Int[Tensor, "B"], d_global: Int[Tensor, "B"]) -> float:
        """Always 1."""
        return 1.0

    def join_gradients(self, parameters: Iterable[Tensor], factor: float, group: Group) -> None:
        """Gradients stay with the worker."""

    def due(self, epoch: int, epochs: int) -> bool:
        """After every n-th epoch, and after the last."""
        return (epoch + 1) % self._every == 0 or epoch + 1 == epochs

    def join_models(self, replicas: Sequence[Replica], group: Group) -> Joined:
        """The mean of the models; see :class:`Sync`.

        Raises:
            ValueError: no part of any worker has training nodes, or models differ in shape.
        """
        model, state = RunningMean(), RunningMean()
        for replica in replicas:
            model.add(replica.model, replica.weight)
            if self._rule == "average" and replica.weight > 0:  # an optimizer that never stepped has no state
                state.add(optimizer_tensors(replica.optimizer), replica.weight)
        joined = model.over(group)
        if self._rule == "keep":
            return joined, [replica.optimizer for replica in replicas]
        tensors = state.over(group) if self._rule == "average" else {}
        return joined, [with_tensors(replica.optimizer, tensors) for replica in replicas]


SYNCS: Registry[Callable[[SyncSettings], Sync]] = Registry(
    "sync", {"gradient-sum": GradientSum, "model-average": ModelAverage}
)
"""By name: what makes a sync of its settings. ``SYNCS.register`` adds one's own."""
