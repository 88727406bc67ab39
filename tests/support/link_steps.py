"""A step of link prediction for oracles: edges of a graph, their negatives, and the gradients of all workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lacking import lacking
from learnt_steps import LearntStep
from steps import KEY, Step
from torch import Tensor, nn
from typed_graphs import TypedStep

from partita.comm.axis import Workers
from partita.config import Config
from partita.core.keys import StepKey
from partita.core.protocols import Topology
from partita.nn.model import Model
from partita.sample.topology import ArrayTopology
from partita.tasks.links.negatives import NEGATIVES
from partita.tasks.links.task import LinkTask
from partita.tasks.task import key_of, seed_order


@dataclass(frozen=True)
class _Links(Step):
    """What a step learns instead of labels.

    Attributes:
        settings: of the task.
    """

    classes: int = 6
    settings: tuple[tuple[str, object], ...] = ()

    def task(self) -> LinkTask:
        task = LinkTask(self.store)
        settings = {"task": "links", "hidden": self.classes, "batch_size": len(self.seeds), **dict(self.settings)}
        if NEGATIVES.find(str(settings.get("negative_sampler", "uniform"))).counted:
            settings.setdefault("negatives", 4)
        task.adjust(Config.make(settings))
        return task

    def model(self) -> Model:
        model = super().model()
        self.task().attach(model)
        return model.to(self.dtype)

    def _order(self):
        task = self.task()
        return task, seed_order(task, task.seeds("train"), task.config.model_copy(update={"seed": KEY.seed}))

    def batch_seeds(self) -> Tensor:
        return self._order()[1].batch(0, 1)

    def key(self) -> StepKey:
        return key_of(*self._order(), replace(KEY, epoch=0, step=1))

    def topology_of(self, context: Workers) -> Topology:
        if (supervision := self.task().supervision) is None:
            return super().topology_of(context)
        found = super().topology_of(context) if self.split_topology else super().topology()
        return found.without(supervision)

    def topology(self) -> ArrayTopology:
        """What the reference draws from: what is predicted in all steps was taken out of the arrays."""
        found, supervision = super().topology(), self.task().supervision
        return found if supervision is None else lacking(found, supervision)

    def requests(self, seeds: Tensor) -> Tensor:
        return self.task().requests(seeds).to(self.topology().id_dtype)

    def loss_sum(self, model: nn.Module, output: Tensor, seeds: Tensor) -> Tensor:
        task = self.task()
        task.attach(model)  # type: ignore[arg-type]
        return task.loss_sum(task.outputs(output, seeds), task.targets(seeds))


@dataclass(frozen=True)
class LinkStep(_Links):
    """Of an untyped graph."""


@dataclass(frozen=True)
class TypedLinkStep(_Links, TypedStep):
    """Of a typed graph."""


@dataclass(frozen=True)
class LearntLinkStep(_Links, LearntStep):
    """Of an untyped graph whose nodes have learnt rows."""
