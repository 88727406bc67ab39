"""Who multiplies rows by weights in a run, chosen by what is fastest on the machine at hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from partita.config import Config
from partita.nn.decoders import Decoder, ProductDecoder, Reciprocal
from partita.nn.layers import Layer
from partita.nn.matmul import BACKENDS, LEAST_COLUMNS, LEAST_ROWS, TORCH, Backend, Linear, onednn_works
from partita.nn.model import Model
from partita.runs.checkpoint import TrainState
from partita.setup.sampler import lone_sampler
from partita.tasks.task import EdgeTask
from partita.train.job import Job
from partita.train.recorder import Recorder

WORTH_FLOP = 1e12
"""Runs of fewer operations are not worth a measurement: two cores do them in five to ten seconds. They start at once,
and multiply as PyTorch does, which every machine has.
"""
LEAST_GAIN = 1.25
"""Another backend than PyTorch's must be so many times as fast: it is measured for a moment only."""
_SECONDS = 0.2
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 7
_FLOP_A_ROUND = 5e8
"""Of each backend, on every thread: some 10 ms."""
_MOST_ROWS, _FEWEST_ROWS = 6144, 768
"""Two of the pieces that oneDNN is given at a time, whatever lies between them."""
_MOST_COLUMNS = 2048
"""Of a product that is measured. Of more candidates, as many products are thought of as make them up."""
_SHARE = 0.8
"""The largest products are measured that make up so much of the work."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A product of rows and weights in training.

    Attributes:
        rows: of a batch, on one worker.
        before: columns of a row.
        after: columns of the result.
        inner: the rows need a gradient: they are no input features.
    """

    rows: int
    before: int
    after: int
    inner: bool

    @property
    def flop(self) -> float:
        """Operations, forward and backward."""
        return 2.0 * self.rows * self.before * self.after * (3 if self.inner else 2)


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend of a run, and what the user should know of it, if anything."""

    name: str
    note: str | None = None


def resolve_matmul(job: Job, recorder: Recorder, state: TrainState, chosen: Choice | None = None) -> str:
    """The backend that a run uses from now on: that of its record, or ``chosen``, which was found out for it before.

    It is recorded. All workers call this, on the threads of the run.
    """
    recorded = recorder.record.get("matmul", recorder.record.get("products"))  # its name in older runs
    choice = chosen if chosen is not None and recorded is None else choose_products(job, recorded)
    recorder.put(matmul=choice.name)
    if choice.note is not None:
        recorder.emit({"event": "note", "text": choice.note}, state)
    return choice.name


def choose_products(job: Job, recorded: str | None) -> Choice:
    """The backend of a run, which has used ``recorded`` so far. All workers call this, on the threads of the run."""
    config, team = job.config, job.team
    if config.precision != "float32" or team.context.device.type != "cpu":
        return Choice(TORCH)
    if config.matmul != "auto":
        return Choice(config.matmul)
    if recorded == TORCH:
        return Choice(TORCH)
    rows = batch_rows(config, job.store.num_nodes, job.store.num_edges, job.num_seeds, team.size)
    shapes = shapes_of(job.model, rows)
    batch = min(config.batch_size or job.num_seeds, job.num_seeds)
    if isinstance(job.task, EdgeTask):
        shapes += shapes_of_scores(job.task.decoder, math.ceil(batch / team.size), job.task.shared_candidates(batch))
    steps = config.epochs * math.ceil(job.num_seeds / (config.batch_size or job.num_seeds))
    if recorded is None and steps * sum(shape.flop * times for shape, times in shapes.items()) < WORTH_FLOP:
        return Choice(TORCH)
    if not all(team.group.gather(onednn_works())):
        return Choice(TORCH, None if recorded is None else f"matmul backend: torch ({recorded} is not available here)")
    if recorded is not None:
        return Choice(recorded)

    def measure() -> dict[str, str]:
        name, gain = fastest(seconds_of(shapes))
        if name == TORCH:
            return {"name": name, "note": f"matmul backend: torch ({_compared(gain)} here)"}
        return {"name": name, "note": f"matmul backend: {name} ({gain:.1f}x faster than torch here)"}

    return Choice(**team.agree(measure))


def _compared(gain: float) -> str:
    """How fast oneDNN is where PyTorch's own product is kept."""
    return f"oneDNN is only {gain:.1f}x faster" if gain > 1 else f"oneDNN is {1 / gain:.1f}x slower"


def batch_rows(config: Config, nodes: int, edges: int, seeds: int, workers: int) -> list[tuple[int, int]]:
    """About how many destinations and sources the layers of a batch have on one worker, the input side first.

    Args:
        config: the settings.
        nodes: of the graph.
        edges: of the graph.
        seeds: training nodes.
        workers: which share a batch.
    """
    degree, sampler = edges / max(1, nodes), lone_sampler(config)
    wanted = math.ceil(min(config.batch_size or seeds, seeds) / workers)
    rows: list[tuple[int, int]] = []
    for layer in range(config.layers, 0, -1):
        sources = min(nodes, math.ceil(wanted + sampler.expected_edges(layer, wanted, degree, workers)))
        rows.append((wanted, sources))
        wanted = sources
    return rows[::-1]


def shapes_of(model: Model, rows: list[tuple[int, int]]) -> Counter[Shape]:
    """The products of a training step that a backend may compute, and how often each is computed.

    Args:
        model: its own layers count, not convolutions that it wraps.
        rows: see :func:`batch_rows`.
    """
    shapes: Counter[Shape] = Counter()
    for number, (layer, (destinations, sources)) in enumerate(zip(model.layers, rows, strict=True)):
        count = sources if _multiplies_sources(layer) else destinations
        for module in layer.modules():
            if isinstance(module, Linear) and count >= LEAST_ROWS:
                shape = Shape(count, module.in_features, module.out_features, inner=number > 0)
                if min(shape.before, shape.after) >= LEAST_COLUMNS:
                    shapes[shape] += 1
    return shapes


def _multiplies_sources(layer: Layer) -> bool:
    """Whether a layer maps the rows of its sources; as far as it does not say what it does, where parts of it do."""
    work = layer.known_work()
    if work is not None:
        return work.maps_sources
    return layer.sends_messages


def shapes_of_scores(decoder: Decoder, edges: int, candidates: Sequence[int]) -> Counter[Shape]:
    """The products of a training step that score candidates which edges share.

    Args:
        decoder: makes the scores.
        edges: of a batch, on one worker.
        candidates: how many, of each end that is replaced.
    """
    shapes: Counter[Shape] = Counter()
    decoder = decoder.inner if isinstance(decoder, Reciprocal) else decoder
    if isinstance(decoder, ProductDecoder) and edges >= LEAST_ROWS and decoder.width >= LEAST_COLUMNS:
        for number in candidates:
            pieces = math.ceil(number / _MOST_COLUMNS)
            if number >= LEAST_COLUMNS:
                shapes[Shape(edges, decoder.width, math.ceil(number / pieces), inner=True)] += pieces
    return shapes


def seconds_of(
    shapes: Mapping[Shape, int],
    backends: Mapping[str, Backend] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, float]:
    """What the products of a training step take by each backend, from measuring the largest for a moment.

    Args:
        shapes: the products, and how often each is computed.
        backends: those to measure; ``None``: Partita's own.
        clock: gives seconds.
    """
    backends = backends or {name: BACKENDS.find(name) for name in BACKENDS.own}
    measured, rows = _sample(shapes)
    taken: dict[tuple[str, Shape], list[float]] = {(name, shape): [] for name in backends for shape in measured}
    begun = clock()
    for number in range(1 + _MOST_ROUNDS):
        for shape in measured:
            # Of ones, as drawing numbers would change what the run draws, and take longer than multiplying them.
            x, grad = (torch.ones(min(rows, shape.rows), width) for width in (shape.before, shape.after))
            weight = torch.ones(shape.after, shape.before)
            for name, backend in backends.items():
                start = clock()
                backend.linear(x, weight, None)
                backend.by_rows(grad, x)
                if shape.inner:
                    backend.by_weight(grad, weight)
                if number:  # the first round compiles
                    taken[name, shape].append(clock() - start)
        if number >= _LEAST_ROUNDS and clock() - begun > _SECONDS:
            break
    return {
        name: sum(median(taken[name, shape]) * shapes[shape] * shape.rows / min(rows, shape.rows) for shape in measured)
        for name in backends
    }


def _sample(shapes: Mapping[Shape, int]) -> tuple[list[Shape], int]:
    """Shapes to measure, and of how many rows."""
    total = sum(shape.flop * times for shape, times in shapes.items())
    measured: list[Shape] = []
    for shape in sorted(shapes, key=lambda shape: shape.flop * shapes[shape], reverse=True):
        if sum(each.flop * shapes[each] for each in measured) < _SHARE * total:
            measured.append(shape)
    rows, most = _MOST_ROWS, _FLOP_A_ROUND * torch.get_num_threads()
    while rows > _FEWEST_ROWS and sum(each.flop * min(1, rows / each.rows) for each in measured) > most:
        rows //= 2
    return measured, rows


def fastest(seconds: Mapping[str, float]) -> tuple[str, float]:
    """The backend to use, and how many times as fast as PyTorch's the fastest of the others is.

    Args:
        seconds: by name.
    """
    best = min((name for name in seconds if name != TORCH), key=seconds.__getitem__)
    gain = seconds[TORCH] / seconds[best]
    return (best if gain >= LEAST_GAIN else TORCH), gain
