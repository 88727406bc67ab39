"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence

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
        return bare(parameters, **options, fused=fused)

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


LR_SCHEDULES: Registry[Callable[[float], float]] = Registry(
    "learning-rate schedule",
    {
        "constant": lambda progress: 1.0,
        "linear": lambda progress: 1.0 - progress,
        "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    },
    setting="schedule",
)
"""By name: how far the run has come (0 to 1) -> factor of the learning rate."""


def make_optimizer(parameters: Parameters, config: Config) -> torch.optim.Optimizer:
    """The optimizer that the settings name.

    Raises:
        ConfigError: there is none of this name.
    """
    return OPTIMIZERS.find(config.optimizer)(parameters, config)


def learning_rate(config: Config, step: int, total_steps: int) -> float:
    """Learning rate of a step: a pure function of its number, so that a resumed run needs no scheduler state.

    Args:
        config: ``lr``, ``schedule`` and ``warmup``.
        step: 0-based, over the whole run.
        total_steps: steps of the whole run.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    return config.lr * LR_SCHEDULES.find(config.schedule)((step - config.warmup) / max(1, total_steps - config.warmup))
