"""Losses by name, in place of that of a task of labeled nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional

from partita.core.errors import ConfigError
from partita.core.registry import Registry
from partita.graph.metadata import CLASSES, MULTILABEL, REGRESSION

FOCUS = 2.0


@dataclass(frozen=True)
class Loss:
    """What is minimized: a number for each node, the mean of which over a batch is its loss.

    Attributes:
        of: ``(output, targets) -> (B,)``: of every node, from its own row only. Logits (B, C) and classes (B) or zeros
            and ones (B, C); of a regression values (B) and targets (B), both on the scale that the setting
            ``target_scaling`` says.
        tasks: that it is for, as a store's metadata name them; empty: any.
    """

    of: Callable[[Any, Any], Tensor]
    tasks: frozenset[str] = frozenset()

    def summed(self, name: str, output: Float[Tensor, "B ..."], targets: Num[Tensor, "B ..."]) -> Float[Tensor, ""]:
        """The sum over the nodes.

        Raises:
            ConfigError: the loss is not one number for each.
        """
        found = self.of(output, targets)
        if not isinstance(found, Tensor) or found.shape != targets.shape[:1]:
            what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ConfigError(
                f"the loss '{name}' gives {what} for {len(targets)} nodes, not ({len(targets)},)",
                where="loss",
                fix='Return one number per node, for instance with reduction="none"',
            )
        return found.sum()


def focal(output: Float[Tensor, "B C"], targets: Num[Tensor, "B ..."]) -> Float[Tensor, "B"]:
    """``(1 - p)^2`` times the cross-entropy, p being the probability of what is true; the mean over labels.

    Lin et al., "Focal loss for dense object detection", ICCV 2017, with gamma = 2: nodes that are easy count less.
    """
    if targets.ndim == 1:
        loss = functional.cross_entropy(output, targets, reduction="none")
    else:
        loss = functional.binary_cross_entropy_with_logits(output, targets.to(output.dtype), reduction="none")
    loss = (1 - (-loss).exp()) ** FOCUS * loss
    return loss if loss.ndim == 1 else loss.mean(dim=1)


def absolute(output: Float[Tensor, "B"], targets: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    """The absolute error."""
    return (output - targets).abs()


def _as_loss(name: str, found: Any) -> Loss:
    if isinstance(found, Loss):
        return found
    if not callable(found):
        fix = "Name a function (output, targets) that returns one number per node"
        raise ConfigError(f"'{name}' is a {type(found).__name__}, not a loss", where="loss", fix=fix)
    return Loss(found)


LOSSES: Registry[Loss] = Registry(
    "loss",
    {
        "focal": Loss(focal, frozenset({CLASSES, MULTILABEL})),
        "absolute": Loss(absolute, frozenset({REGRESSION})),
    },
    also=("auto",),
    adapt=_as_loss,
)
"""By name. ``package.module:Name`` may be a :class:`Loss`, or a function as its ``of``."""
