"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from partita.config import Config
from partita.core.registry import Registry

Parameters = Sequence[nn.Parameter]


def _without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """The optimizer with its methods as they are written, without the wrappers that are there for ``torch.compile``.

    These import the compiler when they are first called: a second of processor time in every process that trains.
    ``step`` gets back what its wrapper does besides, which is to compute without gradients.
    """
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    written = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), {**written, "step": torch.no_grad()(inspect.unwrap(kind.step))})


def _maker(kind: type[torch.optim.Optimizer], *settings: str) -> Callable[[Parameters, Config], torch.optim.Optimizer]:
    """What makes an optimizer that takes these settings."""
    bare = _without_compiler(kind)

    def make(parameters: Parameters, config: Config) -> torch.optim.Optimizer:
        # One kernel that updates everything takes a third of the time of an operation per parameter and term.
        fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
        options = {name: getattr(config, name) for name in settings}
        # Of a model whose rows are all that is learnt there are none: PyTorch refuses an empty list, no empty group.
        given: Any = parameters or [{"params": []}]
        return bare(given, **options, fused=fused)

    return make


OPTIMIZERS: Registry[Callable[[Parameters, Config], torch.optim.Optimizer]] = Registry(
    "optimizer",
    {
        "adam": _maker(torch.optim.Adam, "lr", "weight_decay"),
        "adamw": _maker(torch.optim.AdamW, "lr", "weight_decay"),
        "sgd": _maker(torch.optim.SGD, "lr", "weight_decay", "momentum"),
    },
)
"""By name: what makes an optimizer of parameters as the settings of a run say."""


class Progress(float):
    """How far a run has come, from 0 to 1, after the warm-up; for a learning-rate schedule.

    Attributes:
        step: 0-based, after the warm-up.
        steps: of the whole run after the warm-up, at least 1.
        epoch: 0-based.
        reductions: how often a better evaluation was waited for in vain (``lr_patience``).
        config: the settings of the run.
    """

    step: int
    steps: int
    epoch: int
    reductions: int
    config: Config

    @classmethod
    def of(cls, config: Config, step: int, total_steps: int, reductions: int) -> Progress:
        """At a step (0-based, over the whole run) after the warm-up."""
        steps = max(1, total_steps - config.warmup)
        progress = cls((step - config.warmup) / steps)
        progress.step, progress.steps, progress.epoch = step - config.warmup, steps, step * config.epochs // total_steps
        progress.reductions, progress.config = reductions, config
        return progress


def _one_cycle(progress: Progress) -> float:
    """Up from 1/25 over the first 30 % of the steps, then down to 1/250,000, along cosines; as torch's ``OneCycleLR``.

    Smith and Topin, "Super-convergence: very fast training of neural networks using large learning rates", 2019.
    """
    first, last, turn, end = 1 / 25, 1 / 25 / 1e4, 0.3 * progress.steps - 1, progress.steps - 1
    if progress.step <= turn:
        start, stop, part = first, 1.0, progress.step / turn if turn > 0 else 1.0
    else:
        start, stop, part = 1.0, last, (progress.step - turn) / (end - turn)
    return stop + (start - stop) / 2 * (1.0 + math.cos(math.pi * part))


class Plateau:
    """Multiplies with ``lr_decay`` whenever more than ``lr_patience`` evaluations in a row found nothing better."""

    needs_evaluations = True

    def __call__(self, progress: Progress) -> float:
        """The factor."""
        return progress.config.lr_decay**progress.reductions


LR_SCHEDULES: Registry[Callable[[Progress], float]] = Registry(
    "learning-rate schedule",
    {
        "constant": lambda progress: 1.0,
        "linear": lambda progress: 1.0 - progress,
        "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
        "one-cycle": _one_cycle,
        "step": lambda progress: progress.config.lr_decay ** (progress.epoch // progress.config.lr_step),
        "plateau": Plateau(),
    },
    setting="schedule",
)
"""By name: how far the run has come -> factor of the learning rate. One that looks at ``reductions`` has an attribute
``needs_evaluations`` that is true."""


def needs_evaluations(config: Config) -> bool:
    """Whether the learning rate depends on how evaluations turn out."""
    return bool(getattr(LR_SCHEDULES.find(config.schedule), "needs_evaluations", False))


def make_optimizer(parameters: Parameters, config: Config) -> torch.optim.Optimizer:
    """The optimizer that the settings name.

    Raises:
        ConfigError: there is none of this name.
    """
    return OPTIMIZERS.find(config.optimizer)(parameters, config)


def learning_rate(config: Config, step: int, total_steps: int, reductions: int = 0) -> float:
    """Learning rate of a step: a pure function of its arguments, so that a resumed run needs no scheduler state.

    Args:
        config: ``lr``, ``schedule`` with what belongs to it, ``warmup`` and ``epochs``.
        step: 0-based, over the whole run.
        total_steps: steps of the whole run.
        reductions: how often a better evaluation was waited for in vain.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    return config.lr * LR_SCHEDULES.find(config.schedule)(Progress.of(config, step, total_steps, reductions))
