"""Full-graph metrics of a model that is being trained, and which of its states was the best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

from partita.comm.context import Context
from partita.core.errors import ConfigError
from partita.features.typed import TypedColumns
from partita.infer.analysis import Observer
from partita.infer.evaluate import evaluate_split
from partita.infer.row_table import RowTable
from partita.infer.run import inference_of, open_inference
from partita.nn.model import Model
from partita.runs.checkpoint import Best, TrainState
from partita.sample.topology import LocalTopology
from partita.setup.optim import needs_evaluations
from partita.tasks.metrics import Judged, Metrics, better
from partita.tasks.task import ClassCounts, EdgeTask
from partita.train.job import WHOLE, Job


class Evaluation:
    """Metrics of the model as it is, from all neighbors of every node, whatever it is trained on.

    All workers compute, each for its own nodes. In isolated training the first worker computes alone, and nothing
    but its result travels, unless hosts have shards, so that no worker sees all of the graph.

    Args:
        job: what is trained.

    Attributes:
        job: as given.
        classes: of each class of every split, as they were last evaluated.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.classes: dict[str, ClassCounts] = {}
        self._opened: tuple[LocalTopology, RowTable | TypedColumns] | None = None
        self._copy: Model | None = None
        self._alone = job.config.views != WHOLE and job.store.shard is None

    def of(self, split: str, observer: Observer | None = None) -> Metrics:
        """Metrics on a split. All workers call this.

        Args:
            split: its name.
            observer: see :func:`partita.infer.evaluate.evaluate_split`.
        """

        def compute() -> Judged:
            return self._compute(split, observer)

        judged = Judged(*self.job.team.agree(compute)) if self._alone else compute()
        if judged.classes is not None:
            self.classes[split] = judged.classes
        return judged.metrics

    def _compute(self, split: str, observer: Observer | None) -> Judged:
        job, context = self.job, self.job.team.context
        if self._opened is None:
            self._opened = open_inference(job.store, job.config, context.mesh)
        who, model = Context.alone() if self._alone else context, self._on_host()
        inference = inference_of(model, job.store, job.config, who, opened=self._opened)
        with self._judging(model):
            return evaluate_split(inference, job.task, split, observer)

    @contextmanager
    def _judging(self, model: Model) -> Iterator[None]:
        """A block in which the task asks the decoder of a model, where it needs one."""
        task = self.job.task
        if not isinstance(task, EdgeTask):
            yield
            return
        task.attach(model)
        try:
            yield
        finally:
            task.attach(self.job.model)

    def _on_host(self) -> Model:
        """The model, or a copy of it where it is on a device: evaluation computes on the CPU."""
        model = self.job.model
        if self.job.team.context.device.type == "cpu":
            return model
        if self._copy is None:
            self._copy = deepcopy(model).cpu()
        self._copy.load_state_dict(model.state_dict())
        return self._copy

    @property
    def splits(self) -> list[str]:
        """Those that there is something to measure on, but for the training nodes."""
        return [name for name in self.job.task.splits if name != "train"]

    def due(self, epoch: int) -> bool:
        """Whether the model is to be evaluated after an epoch (0-based)."""
        config, done = self.job.config, epoch + 1
        wanted = bool(config.eval_every) and (done % config.eval_every == 0 or done == config.epochs)
        return wanted and "val" in self.splits

    def judge(self, state: TrainState, metrics: Metrics) -> TrainState:
        """Compare an evaluation with the best so far.

        Args:
            state: the position that the metrics are of, and the best so far.
            metrics: on the validation split.

        Raises:
            ConfigError: the metric that picks the best model is not among them.
        """
        metric = self.job.metric
        value = metrics.get(metric)
        if value is None:
            raise ConfigError(
                f"metric '{metric}' does not exist for this validation split",
                where=str(self.job.store.path),
                fix=f"Choose another: --metric {'|'.join(metrics)}",
            )
        if state.best is None or better(metric, value, state.best.value):
            best = Best(metric, value, state.epoch, state.name)
            return state.with_(best=best, evaluations_since_best=0, evaluations_since_reduction=0)
        waited = state.evaluations_since_best + 1
        if needs_evaluations(self.job.config):
            in_vain = state.evaluations_since_reduction + 1
            reduced = int(in_vain > self.job.config.lr_patience)
            state = state.with_(
                lr_reductions=state.lr_reductions + reduced, evaluations_since_reduction=0 if reduced else in_vain
            )
        return state.with_(evaluations_since_best=waited, stopped=0 < self.job.config.patience <= waited)
