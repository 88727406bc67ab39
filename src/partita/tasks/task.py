"""What a task is, and the tasks by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from jaxtyping import Bool, Float, Int, Int64, Num, Shaped
from torch import Tensor

from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.core.records import TargetEdges
from partita.core.registry import Registry
from partita.graph.store import GraphStore
from partita.sample.seeds import SeedOrder

if TYPE_CHECKING:
    import pyarrow as pa

    from partita.nn.decoders import Decoder
    from partita.nn.model import Model

ClassCounts = dict[str, list[int]]
"""``nodes`` of every class, how many nodes were ``predicted`` to be of it, and how many of these are (``correct``)."""


@runtime_checkable
class Task(Protocol):
    """What is learned from a store: what an epoch consists of, the loss, and what a model is judged by.

    In every step the nodes that a batch of seeds requests get rows from the model, and these come to an output for
    every seed, which is compared with its target.

    An epoch consists of *seeds*. A seed is a node, or a row of nodes (the ends of an edge, for instance), in ids of
    whatever graph a worker trains on: the store, or a view of it. It is dealt to a worker by its first node.

    Attributes:
        store: that it learns from.
        metrics: names in :data:`partita.tasks.metrics.METRICS`; the first one picks the best model unless the run says
            otherwise. The loss is reported besides.
    """

    store: GraphStore
    metrics: tuple[str, ...]

    @property
    def splits(self) -> list[str]:
        """Names of the splits that have seeds."""
        ...

    @property
    def width(self) -> int:
        """C: columns of the model's output."""
        ...

    @property
    def class_names(self) -> list[str]:
        """Of what :meth:`class_counts` counts."""
        ...

    def seeds(self, split: str) -> Int[Tensor, "S ..."]:
        """The seeds of a split, in an order that does not depend on how the store is partitioned.

        Raises:
            StoreError: the store has no such split.
        """
        ...

    def requests(self, seeds: Int[Tensor, "B ..."]) -> Int[Tensor, "R"]:
        """The distinct nodes whose output rows a step on these seeds needs."""
        ...

    def outputs(self, rows: Float[Tensor, "R C"], seeds: Int[Tensor, "B ..."]) -> Float[Tensor, "B C"]:
        """What the rows of :meth:`requests` come to for each seed."""
        ...

    def targets(self, seeds: Int[Tensor, "B ..."]) -> Num[Tensor, "B ..."]:
        """What is known of seeds (ids of the store), on their device."""
        ...

    def labeled(self, targets: Num[Tensor, "B ..."]) -> Bool[Tensor, "B"]:
        """Of which seeds something is known: no others are trained on, or judged."""
        ...

    def loss_sum(self, output: Float[Tensor, "B C"], targets: Num[Tensor, "B ..."]) -> Float[Tensor, ""]:
        """The losses of all seeds, summed: of any shares of a batch they add up to that of the batch."""
        ...

    def scores(self, output: Float[Tensor, "R C"]) -> Float[Tensor, "R C"]:
        """Probabilities of classes or of labels, or values."""
        ...

    def predicted(self, output: Float[Tensor, "R C"]) -> Shaped[Tensor, "R ..."]:
        """What the model says, in the form of the targets."""
        ...

    def class_counts(self, answers: Answers) -> ClassCounts | None:
        """What precision, recall and F1 of every class follow from; ``None`` where there are no classes."""
        ...

    def columns(self, output: Float[Tensor, "R C"], *, flat: bool) -> dict[str, pa.Array]:
        """Columns of a prediction file.

        Args:
            output: float32.
            flat: the file cannot hold lists.
        """
        ...


@runtime_checkable
class AdjustableTask(Task, Protocol):
    """A task whose loss follows the settings ``loss``, ``class_weights``, ``label_smoothing`` and ``target_scaling``.

    Attributes:
        target_scale: mean and standard deviation of the targets on whose scale the loss is taken; the model's output
            is in the targets' own units. ``None``: the loss is taken of the values as they are.
    """

    target_scale: tuple[float, float] | None

    def adjust(self, config: Config) -> dict[str, Any]:
        """Take these settings.

        Returns:
            The settings with what is counted in the training nodes in place of "balanced" and "auto".

        Raises:
            ConfigError: a setting is not for this task.
        """
        ...

    def seed_weights(self, targets: Num[Tensor, "B ..."]) -> Float[Tensor, "B"] | None:
        """What the losses of seeds count in their mean, float64: the mean is :meth:`Task.loss_sum` over the sum of
        these; ``None``: all alike."""
        ...

    def baseline(self) -> Float[Tensor, "C"] | None:
        """The output, float32, of a model that predicts the same for every seed, whatever most training nodes are: the
        frequencies of classes or labels, or the mean; ``None`` where that is not known."""
        ...


@runtime_checkable
class SampledTask(Task, Protocol):
    """A task whose steps have more than their seeds: what is drawn for them, such as negative edges."""

    def examples(self, batch: Int[Tensor, "B ..."], key: StepKey) -> Int[Tensor, "B ..."]:
        """Seeds with what is drawn for them, a function of the key and of the whole batch.

        They are dealt to workers as seeds are, and take their place in :meth:`Task.requests`, :meth:`Task.outputs` and
        :meth:`Task.targets`.
        """
        ...

    def excluded(self, batch: Int[Tensor, "B ..."], numbers: Int64[Tensor, "B"] | None = None) -> TargetEdges | None:
        """Edges that carry no messages in the step of a batch; ``None``: all do.

        Args:
            batch: seeds.
            numbers: which of the seeds of training they are, where they are such.
        """
        ...


@runtime_checkable
class EdgeTask(SampledTask, Protocol):
    """A task that makes scores of edges from the rows of their ends.

    Attributes:
        decoder: makes them.
        undirected: links go both ways.
        eval_negatives: among how many sampled nodes an end of a link is ranked; 0: among all of its type.
    """

    decoder: Decoder

    @property
    def eval_negatives(self) -> int: ...  # noqa: D102

    @property
    def undirected(self) -> bool: ...  # noqa: D102

    @property
    def supervision(self) -> TargetEdges | None:
        """Edges that carry no messages in any step of training; ``None``: each step has its own."""
        ...

    def shared_candidates(self, batch: int) -> list[int]:
        """How many candidates all edges of a batch of some size share, for each end that is replaced; none where every
        edge has its own."""
        ...

    def attach(self, model: Model) -> None:
        """Make the decoder the model's; or take the one that the model has."""
        ...


def seed_order(
    task: Task, seeds: Int[Tensor, "S ..."], config: Config, times: Int64[Tensor, "S"] | None = None
) -> SeedOrder:
    """The order of seeds of a task, whose batches are what its steps consist of.

    Args:
        task, seeds, config: of the run.
        times: when each seed is asked about; batches go by time where all of their seeds are asked about at once.
    """
    examples = task.examples if isinstance(task, SampledTask) else None
    by_time = None if config.time_cutoff == "seed" else times
    return SeedOrder(seeds, config.seed, config.batch_size or len(seeds), examples, times=by_time)


def key_of(task: Task, order: SeedOrder, key: StepKey) -> StepKey:
    """The key of a step, with the edges that carry no messages in it."""
    if order.examples is None:  # so it is no such task; to ask for its type would look at every method of it
        return key
    sampled = cast(SampledTask, task)
    start = key.step * order.batch_size
    stop = start + order.size(key.step)
    numbers = order.numbers(key.epoch, start, stop)
    trains = order.seeds is task.seeds("train")
    excluded = sampled.excluded(order.between(key.epoch, start, stop), numbers if trains else None)
    return key if excluded is None else replace(key, excluded=excluded)


@dataclass(frozen=True)
class Answers:
    """The model's output beside what is known.

    Attributes:
        task: that was set.
        output: (R, C) float32.
        truth: (R, ...) targets.
    """

    task: Task
    output: Float[Tensor, "R C"]
    truth: Num[Tensor, "R ..."]

    @cached_property
    def scores(self) -> Float[Tensor, "R C"]:
        """See :meth:`Task.scores`."""
        return self.task.scores(self.output)

    @cached_property
    def predicted(self) -> Shaped[Tensor, "R ..."]:
        """See :meth:`Task.predicted`."""
        return self.task.predicted(self.output)


TASKS: Registry[Callable[[GraphStore], Task]] = Registry(
    "task",
    {
        "classes": "partita.tasks.nodes:Classes",
        "multilabel": "partita.tasks.nodes:MultiLabel",
        "regression": "partita.tasks.nodes:Regression",
        "links": "partita.tasks.links.task:LinkTask",
    },
)
"""What makes a task of a store, by the task's name."""


def task_name(config: Config, store: GraphStore) -> str:
    """The name of what a run learns: as the settings say, or what the store's labels are for.

    Raises:
        ConfigError: the store has no labels.
    """
    if config.task != "auto":
        return config.task
    if store.task is None:
        raise unlabeled(store)
    return store.task


def make_task(config: Config, store: GraphStore) -> Task:
    """What a run learns from a store, with the loss that the settings say.

    Raises:
        ConfigError: there is no such task, the store is not for it, or a setting of the loss is not.
    """
    return adjusted_task(config, store)[0]


def adjusted_task(config: Config, store: GraphStore) -> tuple[Task, Config]:
    """The same, and the settings with numbers in place of what follows from the training nodes.

    Raises:
        ConfigError: as for :func:`make_task`.
    """
    name = task_name(config, store)
    task = TASKS.find(name)(store)
    if ":" in config.metric and config.metric not in task.metrics:
        task.metrics = (*task.metrics, config.metric)
    if isinstance(task, AdjustableTask):
        return task, config.model_copy(update=task.adjust(config))
    for setting in ("loss", "class_weights", "label_smoothing", "target_scaling"):
        refuse_setting(config, setting, f"the task '{name}' has a loss of its own")
    return task, config


def refuse_setting(config: Config, setting: str, why: str) -> None:
    """See that a setting of the loss, which the task has no use for, was not changed.

    Raises:
        ConfigError: it was.
    """
    if getattr(config, setting) not in (Config.model_fields[setting].default, "none"):
        raise ConfigError(f"{why}, which takes no {setting}", where=setting, fix=f"Leave {setting} out")


def weights_of(task: Task, targets: Num[Tensor, "B ..."]) -> Float[Tensor, "B"] | None:
    """See :meth:`AdjustableTask.seed_weights`."""
    return task.seed_weights(targets) if isinstance(task, AdjustableTask) else None


def training_seeds(task: Task) -> Int[Tensor, "S ..."]:
    """The seeds of an epoch: those of the training split.

    Raises:
        ConfigError: there is none, or one without a label.
    """
    seeds, where = task.seeds("train"), str(task.store.path)
    if len(seeds) == 0:
        raise ConfigError("the training split is empty", where=where, fix="Ingest again with a split")
    if not bool(task.labeled(task.targets(seeds)).all()):
        raise ConfigError(
            "the training split holds nodes without a label",
            where=where,
            fix="Take them out of the split, or give them labels, and ingest again",
        )
    return seeds


def unlabeled(store: GraphStore) -> ConfigError:
    """That a store has no labels."""
    return ConfigError("the store has no labels", where=str(store.path), fix="Ingest again with --labels FILE")
