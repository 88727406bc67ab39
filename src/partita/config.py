"""The configuration of a run: one typed record, the same in YAML, on the command line and in Python.

Every field of :class:`Config` is a key in ``run.yaml``, an option of ``partita train`` (``batch_size`` is
``--batch-size``) and a keyword of :class:`partita.Trainer`. An unknown key stops the run.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from partita.config_links import LinkSettings
from partita.core.errors import ConfigError, nearest
from partita.core.files import parse_yaml
from partita.core.options import (
    HEARTBEAT_SECONDS,
    MOST_BYTES,
    MOST_NEIGHBORS,
    MOST_SEED,
    OLD_NAMES,
    layer_numbers,
    numbers_by_relation,
    parse_bytes,
    widths_by_type,
    window_by_relation,
)
from partita.core.registry import Registry
from partita.core.trust import refuse_code

PRESETS: Registry[Mapping[str, Any]] = Registry(
    "preset",
    {
        "dsp": {"strategy": "gdp", "seed_split": "owner", "topology": "partitioned", "cache_layout": "partitioned"},
        "apt": {"strategy": "auto", "cache_policy": "strategy"},
        "gsplit": {"strategy": "gsplit", "seed_split": "owner", "cache_policy": "strategy"},
        "grappa": {"views": "tournament", "halo": "none", "sync": "gradient-sum", "coverage": "resampling"},
        "sdt-gnn": {"views": "cyclic", "halo": "one-hop", "sync": "model-average"},
    },
)
"""Settings of a published system by its name; what is given besides wins over them."""

RENAMED = {**OLD_NAMES, "placements": "strategy"}
"""Settings by all other names that are taken."""

NO_LAYERS = "none"
"""The model that gives every node its input row."""

ROWS_LR = 0.01
"""The learning rate of learnt rows alone, unless another is given."""

DEFAULT_FANOUTS = (15, 10, 5)
_MOST_WEIGHT = 10**9
"""Of a class."""
_MOST_WIDTH = 2**16
"""Of a learnt row."""


def default_fanout(layers: int) -> tuple[int, ...]:
    """Neighbors sampled in each layer where nothing is said, the first hop from the seed nodes first."""
    return (DEFAULT_FANOUTS + (DEFAULT_FANOUTS[-1],) * layers)[:layers]


def _parse_options(value: object) -> object:
    """``name=value`` texts, as on the command line, as a mapping; values as YAML has them."""
    if not isinstance(value, (list, tuple)):
        return value
    if not all(isinstance(text, str) and "=" in text for text in value):
        raise ValueError("write name=value")
    return {name: parse_yaml(text) for name, text in (option.split("=", 1) for option in value)}


def _parse_model_options(value: object) -> object:
    """As :func:`_parse_options`; one text may hold several options, with commas between them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        return value
    return _parse_options([option.strip() for text in texts for option in re.split(r",(?=\s*\w+\s*=)", text)])


def _numbers_or(*words: str) -> Callable[[object], object]:
    """What reads a setting that is one of some words, or a list of numbers, as text separated by commas."""

    def read(value: object) -> object:
        if isinstance(value, str) and value.strip() in words:
            return value.strip()
        entries = value.split(",") if isinstance(value, str) else value
        try:
            numbers = tuple(float(entry) for entry in entries)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            raise ValueError(f"give {', '.join(words)}, or numbers separated by commas") from None
        if not numbers or not all(math.isfinite(number) for number in numbers):
            raise ValueError("every number must be finite")
        return numbers

    return read


def _positive(value: str | tuple[float, ...]) -> str | tuple[float, ...]:
    if not isinstance(value, str) and not all(0 < weight <= _MOST_WEIGHT for weight in value):
        raise ValueError(f"every number must be above 0, at most {_MOST_WEIGHT:,}")
    return value


def _mean_and_deviation(value: str | tuple[float, ...]) -> str | tuple[float, ...]:
    if not isinstance(value, str) and (len(value) != 2 or value[1] <= 0):
        raise ValueError("give two numbers: a mean, and a deviation above 0")
    return value


def _widths(value: int | dict[str, int]) -> int | dict[str, int]:
    widths = list(value.values()) if isinstance(value, dict) else [value]
    if not widths or not all(1 <= width <= _MOST_WIDTH for width in widths):
        raise ValueError(f"give numbers of columns from 1 to {_MOST_WIDTH:,}")
    return value


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Fanouts = Annotated[tuple[int, ...], BeforeValidator(layer_numbers)]
RelationFanouts = Annotated[tuple[int, ...] | dict[str, tuple[int, ...]], BeforeValidator(numbers_by_relation)]
ClassWeights = Annotated[
    str | tuple[float, ...], BeforeValidator(_numbers_or("none", "balanced")), AfterValidator(_positive)
]
TargetScaling = Annotated[
    str | tuple[float, ...], BeforeValidator(_numbers_or("auto", "none")), AfterValidator(_mean_and_deviation)
]
Window = Annotated[str | dict[str, str], BeforeValidator(window_by_relation)]
Widths = Annotated[int | dict[str, int], BeforeValidator(widths_by_type), AfterValidator(_widths)]
Options = Annotated[dict[str, Any], BeforeValidator(_parse_options)]
ModelOptions = Annotated[dict[str, Any], BeforeValidator(_parse_model_options)]


class Config(LinkSettings):
    """All settings of a training run. See :func:`field_help` for what each means."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        validate_default=True,
        defer_build=True,
        allow_inf_nan=False,
    )

    # Model
    model: str = Field(
        "sage",
        description="Layer type by name: sage, gcn, gat, gin, mlp (own features only, no neighbors); for typed graphs "
        "also rgcn, hetero-sage, rgat, hgt; none (the learnt rows of nodes themselves, for links); pyg:NAME, a "
        "convolution of PyG; or package.module:Name, a layer, a convolution or a whole model of your own.",
    )
    model_options: ModelOptions = Field(
        default_factory=dict,
        description="Arguments of the layer or model that is named, for instance heads=4,concat=false.",
    )
    layers: int = Field(3, ge=1, le=1000, description="Number of layers K.")
    hidden: int = Field(256, ge=1, le=2**20, description="Width of the hidden layers (all heads together).")
    heads: int = Field(
        1,
        ge=1,
        le=2**10,
        description="Attention heads (gat, gatv2, transformer, rgat, hgt): concatenated in hidden layers, averaged in "
        "the last.",
    )
    aggregator: str = Field("mean", description="GraphSAGE neighbor aggregation: mean, sum, max.")
    residual: bool = Field(
        False,
        description="Residual connections: hidden layers add their input to their output, through a linear map where "
        "the widths differ.",
    )
    norm: str = Field("layer", description="Normalization after hidden layers: none, layer, batch.")
    activation: str = Field("relu", description="Activation after hidden layers, by name.")
    dropout: float = Field(0.5, ge=0, lt=1, description="Dropout after hidden layers.")
    input_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on the input features.")
    attn_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on attention weights (gat).")
    normalize_features: bool = Field(
        False, description="Divide each node's features by the sum of their absolute values."
    )

    # Sampling
    sampler: str = Field(
        "node",
        description="Neighbor sampling: node (per node), labor (per node, by numbers that a layer shares), layer (per "
        "layer), walk (random walks).",
    )
    fanout: RelationFanouts = Field(
        (),
        description="Neighbors sampled per layer, starting with the first hop from the seed nodes; -1: all; one number "
        "applies to every layer. Default 15,10,5, and 5 for every further layer. In typed graphs so many of every "
        "relation; or of each by name, as 'cites=15,10 *=5,5'.",
    )
    layer_budget: RelationFanouts = Field(
        (),
        description="Edges sampled per layer for the whole batch (sampler layer), starting with the first hop from the "
        "seed nodes; one number applies to every layer. In typed graphs so many of every relation; or of each by name, "
        "as 'cites=1000 *=500'.",
    )
    batch_dependency: int = Field(
        1,
        ge=1,
        le=2**31,
        description="Steps over which the sampler labor lets its random numbers change, so that batches in a row share "
        "input rows; 1: batches are independent.",
    )
    layer_dependency: bool = Field(
        False, description="The same random numbers in all layers of a step (sampler labor)."
    )
    walks: int = Field(
        10,
        ge=1,
        le=10**4,
        description="Random walks per node (sampler walk); the most visited nodes are its neighbors, --fanout of them.",
    )
    walk_length: int = Field(3, ge=1, le=10**4, description="Steps per walk (sampler walk).")
    walk_restart: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="Probability of restarting the walk before each step (sampler walk).",
    )
    metapath: str = Field(
        "",
        description="Relations that walks go along in turn, against their direction, in typed graphs (sampler walk), "
        "for instance 'writes rev_writes'; a step is then a traversal of all of them.",
    )
    temporal_strategy: Literal["auto", "none", "uniform", "last"] = Field(
        "auto",
        description="In stores whose edges have times, neighbors not later than the time of each seed: uniform (random "
        "ones), last (the latest); none: times are ignored; auto: uniform where edges have times.",
    )
    time_window: Window | None = Field(
        None,
        description="Where neighbors are sampled by time, edges that are older than this at the time of a seed do not "
        "count, at any hop: a number in the unit of the store's times, or, of dates, 30d, 12h, 2w, 5m, 10s; in typed "
        "graphs of relations by name, as 'bought=30d viewed=1w'. Default: edges of any age.",
    )
    time_cutoff: Literal["seed", "batch"] = Field(
        "seed",
        description="Where neighbors are sampled by time, up to when edges count in training: seed (the time of each "
        "seed), batch (the earliest time of the seeds of a step, which are close in time then and share all that they "
        "have in common).",
    )
    time_encoding: Literal["auto", "none", "age"] = Field(
        "auto",
        description="What the model is told of the times of rows where neighbors are sampled by time: age (how old a "
        "row is at the time of a seed; typed graphs); none; auto: age where nodes of a typed graph have times.",
    )
    replace: bool = Field(False, description="Sample with replacement.")
    weighted: bool = Field(False, description="Sample neighbors in proportion to their edge weights.")
    edge_weights: bool = Field(
        False, description="Multiply each neighbor's row by the weight of its edge (gcn, sage, graphconv)."
    )
    options: Options = Field(default_factory=dict, description="Options of a custom sampler or layer, name=value each.")

    # Workers
    preset: str = Field(
        "",
        description="Settings of a published system: apt, dsp, gsplit, grappa, sdt-gnn; options take precedence.",
    )
    workers: int = Field(
        1, ge=1, le=2**12, description="Worker processes; the trained model does not depend on their number."
    )
    strategy: str = Field(
        "auto",
        description="Parallelization strategy: gdp, nfp, snp, dnp, gsplit, one placement per layer (input side first), "
        "one per axis, such as data@hosts+gsplit@workers, or auto: the fastest, measured before training (gdp in "
        "short runs).",
    )
    replan: Literal["auto", "never"] = Field(
        "auto",
        description="With strategy auto: after an epoch that took longer than planned, switch to another strategy if "
        "that is clearly faster.",
    )
    allow: Literal["exact", "approximate"] = Field(
        "exact",
        description="What strategy auto may choose: exact strategies only (same model as one process), or isolated "
        "training too.",
    )
    seed_split: Literal["auto", "owner", "even"] = Field(
        "auto",
        description="How seed nodes are assigned to workers: to their owners, or in even shares.",
    )
    deal_parts: bool = Field(
        False,
        description="Join or cut the store's partitions so that each worker owns an equal share, where the store has "
        "another number of them.",
    )
    topology: Literal["replicated", "partitioned"] = Field(
        "replicated",
        description="Whether each worker holds the edges of the whole graph, or only those of the nodes that it owns.",
    )
    cache: Bytes = Field(
        0,
        ge=0,
        le=MOST_BYTES,
        description="Memory per worker for caching the most used feature rows, for instance 512MiB.",
    )
    cache_policy: str = Field(
        "in-degree",
        description="Which feature rows are cached: by in-degree, pagerank or presample, or strategy: those that the "
        "strategy reads most on this worker; look-ahead: rows of other hosts that batches sampled ahead use again "
        "first.",
    )
    cache_layout: str = Field(
        "own",
        description="own: a separate cache per worker; partitioned: one cache shared by the workers of a host; or "
        "package.module:Name.",
    )

    feature_memory: Bytes | None = Field(
        None,
        ge=0,
        le=MOST_BYTES,
        description="Read feature rows from disk, and keep those that are used again first in so much memory per "
        "worker, for instance 2GiB; default: rows are memory-mapped.",
    )
    topology_memory: Bytes | None = Field(
        None,
        ge=0,
        le=MOST_BYTES,
        description="Read edges from disk as they are drawn, and keep those that are drawn most in so much memory per "
        "worker, for instance 2GiB; default: edges are memory-mapped.",
    )
    look_ahead: int = Field(
        0,
        ge=0,
        le=10**6,
        description="With feature_memory, embed_memory, or cache_policy look-ahead: batches sampled ahead, which say "
        "which rows are used again first; 0: as many as a quarter of that memory has room for.",
    )
    topology_cache: Bytes | None = Field(
        None,
        ge=0,
        le=MOST_BYTES,
        description="Device memory per worker for edges (device cuda), for instance 8GiB; default half of the free "
        "memory.",
    )

    # Isolated training
    views: str = Field(
        "whole",
        description="What each worker trains on: whole (the whole graph), or partitions of it by a schedule: all, "
        "cyclic, tournament, or package.module:Name.",
    )
    halo: Literal["none", "one-hop", "one-hop+edges"] = Field(
        "none",
        description="Which boundary (halo) nodes a partition includes: none, their features, or their edges too.",
    )
    sync: str = Field(
        "gradient-sum",
        description="Synchronization of partitions: gradient-sum in every step, model-average, or package.module:Name.",
    )
    coverage: str = Field(
        "resampling",
        description="Gradient correction for neighbors outside the partition: resampling, uniform, resampling_raw, "
        "none.",
    )
    average_every: int = Field(1, ge=1, le=10**6, description="Epochs between model averages (sync model-average).")
    optimizer_state: Literal["keep", "reset", "average"] = Field(
        "keep", description="Optimizer state when models are averaged."
    )
    switch_deficit: float = Field(
        0.0,
        ge=0,
        le=1,
        description="End a tournament round early if the mean share of in-neighbors outside the partition exceeds "
        "this; 0: never.",
    )
    switch_window: int = Field(20, ge=1, le=10**6, description="Steps over which --switch-deficit is averaged.")
    memory_per_worker: Bytes | None = Field(
        None,
        ge=2**20,
        le=MOST_BYTES,
        description="Memory limit per worker for partitions, and for strategy auto, for instance 4GiB; default what is "
        "available.",
    )
    compute_share: float = Field(
        2 / 3,
        ge=0,
        lt=1,
        description="Share of --memory-per-worker reserved for computation; the rest is for partitions.",
    )

    # Optimization
    batch_size: int = Field(
        1024,
        ge=0,
        le=2**31 - 1,
        description="Seed nodes per step, over all workers (model-average: per partition); 0: full batch.",
    )
    epochs: int = Field(10, ge=1, le=10**6, description="Passes over the training nodes.")
    optimizer: str = Field("adam", description="Optimizer: adam, adamw, sgd.")
    lr: float = Field(0.003, gt=0, le=10**3, description="Learning rate. With model none 0.01.")
    weight_decay: float = Field(0.0, ge=0, le=10**3, description="Weight decay of the optimizer.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum (sgd).")
    schedule: str = Field(
        "constant",
        description="Learning-rate schedule: constant, cosine, linear, one-cycle, step (every lr_step epochs), plateau "
        "(after lr_patience evaluations without improvement).",
    )
    lr_step: int = Field(
        30, ge=1, le=10**6, description="Epochs from one reduction of the learning rate to the next (step)."
    )
    lr_decay: float = Field(0.1, gt=0, lt=1, description="Factor of each reduction (schedules step, plateau).")
    lr_patience: int = Field(
        10, ge=0, le=10**6, description="Evaluations without improvement before the learning rate is reduced (plateau)."
    )
    warmup: int = Field(0, ge=0, le=10**6, description="Learning rate warmup steps.")
    clip_norm: float = Field(
        0.0,
        ge=0,
        le=10**9,
        description="Scale gradients down to this norm, over all parameters, where theirs is larger; 0: never.",
    )
    class_weights: ClassWeights = Field(
        "none",
        description="Weights of classes in the loss: none, balanced (classes count alike, however many training nodes "
        "each has), or a number per class. With several labels per node: weights of positive ones.",
    )
    loss: str = Field(
        "auto",
        description="Loss: auto (the task's), focal (classification), absolute (regression); of links cross_entropy, "
        "margin, bpr, softmax, self_adversarial; or package.module:Name, a function (output, targets) that returns one "
        "number per node.",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Share of every target that is spread over all classes (cross-entropy)."
    )
    target_scaling: TargetScaling = Field(
        "auto",
        description="Regression: auto trains on targets less their mean, over their standard deviation (of the "
        "training nodes); none trains on them as they are; or mean,deviation. Predictions are in the targets' units.",
    )
    patience: int = Field(
        0, ge=0, le=10**6, description="Early stopping: evaluations without improvement before the run stops; 0: never."
    )
    task: str = Field(
        "auto",
        description="Task: auto (from the store's labels), links (predict edges), another one by name, or "
        "package.module:Name.",
    )
    metric: str = Field(
        "auto",
        description="Metric that selects the best epoch: auto, one that the task reports, or package.module:Name, a "
        "function of Answers.",
    )
    eval_every: int = Field(
        1, ge=0, le=10**6, description="Evaluate on the validation nodes every n epochs; 0: only at the end."
    )
    precision: Literal["float32", "bf16", "float64"] = Field(
        "float32", description="Floating-point precision; bf16 keeps float32 weights; float64 is for verification."
    )

    # Run
    seed: int = Field(0, ge=0, le=MOST_SEED, description="Random seed of the run.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "cpu",
        description="cpu; cuda (one device per worker); auto: cuda if available.",
    )
    threads: int = Field(0, ge=0, le=2**10, description="CPU threads; 0: all that are available.")
    matmul: str = Field(
        "auto",
        description="Matrix-multiplication backend (device cpu, precision float32): torch; onednn; onednn-all (weight "
        "gradients as well); auto: torch, or in long runs the fastest by measurement.",
    )
    prefetch: int = Field(
        2,
        ge=0,
        le=100,
        description="Batches prefetched by the sampling thread, and by the loading thread; 0: sample, load and train "
        "in sequence.",
    )
    trace: bool = Field(False, description="Write a timeline of all threads to trace.json, for chrome://tracing.")
    memory_limit: Bytes | None = Field(
        None,
        ge=2**20,
        le=MOST_BYTES,
        description="Memory for evaluation and prediction buffers, for instance 2GiB; default a quarter of what is "
        "available.",
    )
    checkpoint_minutes: float = Field(10.0, gt=0, le=10**6, description="Maximum minutes between checkpoints.")
    heartbeat: float = Field(
        HEARTBEAT_SECONDS,
        ge=0,
        le=10**6,
        description="Seconds without a sign of life after which a worker counts as lost, and the run ends; 0: it never "
        "does.",
    )
    checkpoint_steps: int = Field(
        0, ge=0, le=10**9, description="Maximum steps between checkpoints; 0: as --checkpoint-minutes and epochs say."
    )
    copy_checkpoints: bool = Field(
        False, description="With several hosts: also write checkpoints to --out on every other host."
    )
    keep_checkpoints: int = Field(
        2, ge=1, le=10**6, description="How many of the latest checkpoints are kept; the best one is kept besides."
    )

    relative_paths: bool = Field(
        False,
        description="Keep absolute paths out of the run folder and its reports: the store is named as seen from the "
        "run folder, or only by its name.",
    )

    # Learnt rows
    embed: Widths | None = Field(
        None,
        description="Learn a row of so many columns for every node, beside its features or in their place: a number "
        "(typed graphs: for all types without features), or by node type, as 'author=64 paper=32'; '*' stands for all "
        "types that are not named.",
    )
    embed_optimizer: str = Field(
        "adam",
        description="Optimizer of learnt rows, which moves only rows that a step has reached: adam; adagrad, with one "
        "number per row; sgd.",
    )
    embed_lr: float | None = Field(
        None, gt=0, le=10**3, description="Learning rate of learnt rows; default --lr. The schedule applies."
    )
    embed_init: float | None = Field(
        None,
        gt=0,
        le=10**6,
        description="Learnt rows begin uniformly in plus or minus this; default the root of 3 / columns, so that a row "
        "has a length of about 1.",
    )
    embed_memory: Bytes | None = Field(
        None,
        ge=0,
        le=MOST_BYTES,
        description="Memory per worker for learnt rows and what their optimizer remembers, for instance 2GiB; what is "
        "more lies in files in TMPDIR, and rows are in memory that are used again soon. Default: all in memory.",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: Any) -> Any:
        """Put a preset's settings under those given, and take settings by their other names too."""
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        for other, name in RENAMED.items():
            if (value := values.pop(other, None)) is None:
                continue
            if name in values:
                raise ValueError(f"{name} and {other} mean the same setting; give one of them")
            values[name] = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        values = {**_preset(values.get("preset")), **values}
        if values.get("model") == NO_LAYERS:
            if values.setdefault("layers", 1) not in (1, "1"):
                raise ValueError(f"model {NO_LAYERS} has no layers; leave layers out")
            values.setdefault("embed", str(values.get("hidden", cls.model_fields["hidden"].default)))
            values.setdefault("lr", ROWS_LR)
        return values

    @model_validator(mode="after")
    def _per_layer(self) -> Self:
        if self.layer_budget:
            found = self._per_layer_and_relation("layer_budget", self.layer_budget, (), "")
            object.__setattr__(self, "layer_budget", found)
        if self.fanout or not self.layer_budget:
            fanout = self.fanout or default_fanout(self.layers)
            found = self._per_layer_and_relation("fanout", fanout, (-1,), ", or -1 for all neighbors")
            object.__setattr__(self, "fanout", found)
        return self

    def _per_layer_and_relation(
        self, name: str, given: tuple[int, ...] | dict[str, tuple[int, ...]], special: tuple[int, ...], more: str
    ) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
        """Lists with an entry for every layer, of every relation where they are given for relations."""
        if not isinstance(given, dict):
            return self._per_layer_of(name, given, special, f"every entry must be >= 1 and <= {MOST_NEIGHBORS:,}{more}")
        rule = f"every entry must be >= 0 and <= {MOST_NEIGHBORS:,}{more}"
        found = {
            key: self._per_layer_of(f"{name} {key}", numbers, (*special, 0), rule) for key, numbers in given.items()
        }
        if not any(map(any, found.values())):
            raise ValueError(f"{name}: at least one relation must have neighbors to sample")
        return found

    def _per_layer_of(
        self, name: str, entries: tuple[int, ...], special: tuple[int, ...], rule: str
    ) -> tuple[int, ...]:
        """A list with an entry for every layer; a single one stands for all."""
        if len(entries) == 1:
            entries = entries * self.layers
        if len(entries) != self.layers:
            raise ValueError(
                f"{name} has {len(entries)} entries but layers is {self.layers}; "
                "give one entry per layer, or a single one for all"
            )
        if any((k < 1 and k not in special) or k > MOST_NEIGHBORS for k in entries):
            raise ValueError(f"{name} {','.join(map(str, entries))}: {rule}")
        return entries

    @classmethod
    def make(cls, values: Mapping[str, Any], *, where: str = "configuration") -> Config:
        """Validate settings.

        Args:
            values: settings by name; ``None`` values count as not given.
            where: what to name in an error message (a file, "command line").

        Raises:
            ConfigError: an unknown key (with the nearest known one), a value of the wrong type or out of range,
                or two settings that do not fit each other.
        """
        try:
            unknown = values.keys() - cls.model_fields.keys() - RENAMED.keys()  # refused, also without a value
            return cls(**{key: value for key, value in values.items() if value is not None or key in unknown})
        except ValidationError as error:
            raise _readable(error, where) from None
        except ConfigError as error:
            raise ConfigError(f"{error.where}: {error.what}", where=where, fix=error.fix) from None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        overrides: Mapping[str, Any] | None = None,
        *,
        notes: list[str] | None = None,
        trust: str | None = None,
    ) -> Config:
        """Read a YAML file of settings.

        Args:
            path: the file.
            overrides: settings that win over it, for instance from the command line.
            notes: gets what a user should know of the file, such as that a setting has another name by now.
            trust: ``"imports"``: the file may name code to import, ``package.module:Name``.

        Raises:
            ConfigError: the file is missing, is not YAML, holds a bad setting, or names code that it must not name.
        """
        values = read_yaml(path)
        refuse_code(values, str(path), trust)
        empty = [key for key, value in values.items() if value is None and not _may_be_none(RENAMED.get(key, key))]
        if empty:
            raise ConfigError(f"{empty[0]} has no value", where=str(path), fix="Write one, or leave out the line")
        given = {key: value for key, value in (overrides or {}).items() if value is not None}
        given = {**_preset(given.get("preset")), **given}
        if notes is not None:
            notes += [f"{path}: the setting {other} is called {RENAMED[other]}" for other in RENAMED if other in values]
        settled = {RENAMED.get(key, key) for key in given}
        values = {key: value for key, value in values.items() if RENAMED.get(key, key) not in settled}
        return cls.make({**values, **given}, where=str(path))

    def to_yaml(self) -> str:
        """All settings with their resolved values, as :meth:`load` reads them."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def _may_be_none(name: str) -> bool:
    """Whether ``None`` is a value of a setting; of one that does not exist, what is wrong is said elsewhere."""
    field = Config.model_fields.get(name)
    return field is None or type(None) in get_args(field.annotation)


def _preset(name: str | None) -> Mapping[str, Any]:
    """Its settings; none without a name."""
    return PRESETS.find(name) if name else {}


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: missing file, not YAML, or not a mapping.
    """
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("there is no such file", where=str(path), fix="Check the path given to --config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from None
    except RecursionError:
        raise ConfigError("is nested too deeply", where=str(path)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError("is not valid YAML", where=f"{path}{line}", fix="Write one 'key: value' per line") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError("must be a mapping of settings", where=str(path), fix="Write one 'key: value' per line")
    return values


def field_help() -> dict[str, str]:
    """What each setting means, by name."""
    return {name: field.description or "" for name, field in Config.model_fields.items()}


def _readable(error: ValidationError, where: str) -> ConfigError:
    """The first thing pydantic found, in our words."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][:1])
    if first["type"] == "extra_forbidden":
        return ConfigError(f"unknown setting '{name}'", where=where, fix=nearest(name, Config.model_fields))
    message = first["msg"].removeprefix("Value error, ")
    if not name:
        return ConfigError(message, where=where)
    message = message[0].lower() + message[1:]
    return ConfigError(f"{name} = {first['input']!r}: {message}", where=where, fix=field_help().get(name))
