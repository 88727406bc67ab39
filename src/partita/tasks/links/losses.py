"""Losses of links by name: what a link's score and those of its negatives come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.registry import Registry


@runtime_checkable
class LinkLoss(Protocol):
    """A loss for every link, from its own scores only; the mean over a batch is minimized.

    Negatives that are not allowed count nothing, whatever their scores are; without any that is, a link's loss is what
    its own score says.
    """

    def __call__(
        self,
        positive: Float[Tensor, "B"],
        negative: Float[Tensor, "B K"],
        allowed: Bool[Tensor, "B K"],
        *,
        margin: float = 1.0,
        temperature: float = 1.0,
    ) -> Float[Tensor, "B"]:
        """The losses.

        Args:
            positive: scores (logits) of links.
            negative: those of their negatives.
            allowed: which of these count.
            margin: by how much a link should score higher, for losses that have one.
            temperature: of a softmax over negatives, for losses that have one.
        """
        ...


def cross_entropy(
    positive: Float[Tensor, "B"],
    negative: Float[Tensor, "B K"],
    allowed: Bool[Tensor, "B K"],
    *,
    margin: float = 1.0,
    temperature: float = 1.0,
) -> Float[Tensor, "B"]:
    """Binary cross-entropy: half for the link, half for the mean of its negatives.

    So a link counts as much as all its negatives, and how many there are changes their noise, not their weight.
    """
    return (functional.softplus(-positive) + _mean(functional.softplus(_scores(negative, allowed)), allowed)) / 2


def margin_ranking(
    positive: Float[Tensor, "B"],
    negative: Float[Tensor, "B K"],
    allowed: Bool[Tensor, "B K"],
    *,
    margin: float = 1.0,
    temperature: float = 1.0,
) -> Float[Tensor, "B"]:
    """Mean of ``max(0, margin - s+ + s-)``: negatives that score lower by the margin count nothing more.

    Bordes et al., "Translating embeddings for modeling multi-relational data", NeurIPS 2013, eq. 1.
    """
    return _mean(functional.relu(margin - positive.unsqueeze(1) + _scores(negative, allowed)), allowed)


def bpr(
    positive: Float[Tensor, "B"],
    negative: Float[Tensor, "B K"],
    allowed: Bool[Tensor, "B K"],
    *,
    margin: float = 1.0,
    temperature: float = 1.0,
) -> Float[Tensor, "B"]:
    """Mean of ``-log sigmoid(s+ - s-)``.

    Rendle et al., "BPR: Bayesian personalized ranking from implicit feedback", UAI 2009, without its decay of weights.
    """
    return _mean(functional.softplus(_scores(negative, allowed) - positive.unsqueeze(1)), allowed)


def softmax(
    positive: Float[Tensor, "B"],
    negative: Float[Tensor, "B K"],
    allowed: Bool[Tensor, "B K"],
    *,
    margin: float = 1.0,
    temperature: float = 1.0,
) -> Float[Tensor, "B"]:
    """``-log(exp(s+ / T) / (exp(s+ / T) + sum exp(s- / T)))``: the cross-entropy of the link among its negatives.

    InfoNCE, or contrastive loss: van den Oord, Li and Vinyals, "Representation learning with contrastive predictive
    coding" (2018), eq. 4.
    """
    return softmax_of_rows(
        torch.cat([positive.unsqueeze(1), negative.masked_fill(~allowed, -torch.inf)], 1), temperature
    )


def softmax_of_rows(
    scores: Float[Tensor, "B K_1"], temperature: float, sides: int = 1, added: float = 0.0
) -> Float[Tensor, "B"]:
    """The mean over sides of :func:`softmax`, of rows of scores as the task makes them.

    Args:
        scores: of a link, then those of its negatives, as many of each side; -inf of those that do not count.
        temperature: of the softmax.
        sides: number of the sides.
        added: so many times a last column, behind the scores, is added; 0: there is none.
    """
    found: Tensor = _Softmax.apply(scores, temperature, sides, added)
    return found


class _Softmax(Function):
    """With its gradient, which takes the same passes over many negatives as the loss."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, temperature: float, sides: int, added: float) -> Tensor:
        ctx.settings = {"temperature": temperature, "sides": sides, "added": added}
        losses, ctx.gradient = kernels.side_softmax(scores, **ctx.settings)
        ctx.save_for_backward(scores)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        gradient, ctx.gradient = ctx.gradient, None  # what is multiplied in place serves once
        if gradient is None:
            (scores,) = ctx.saved_tensors
            gradient = kernels.side_softmax(scores, **ctx.settings)[1]
        return gradient.mul_(grad.unsqueeze(1)), None, None, None


def self_adversarial(
    positive: Float[Tensor, "B"],
    negative: Float[Tensor, "B K"],
    allowed: Bool[Tensor, "B K"],
    *,
    margin: float = 1.0,
    temperature: float = 1.0,
) -> Float[Tensor, "B"]:
    """As :func:`cross_entropy`, with a mean of the negatives in which those count more that score high.

    They weigh ``softmax(temperature s-)``, which has no gradient: a high temperature looks at the hardest only, 0 at
    all alike. Sun et al., "RotatE", ICLR 2019, eq. 4 and 5, halved as in the authors' code; gamma is the decoder's.
    """
    scores = _scores(negative, allowed)
    lowest = torch.finfo(scores.dtype).min
    weights = (temperature * scores.detach()).masked_fill(~allowed, lowest).softmax(dim=1) * allowed
    return (functional.softplus(-positive) + (weights * functional.softplus(scores)).sum(1)) / 2


def _scores(negative: Float[Tensor, "B K"], allowed: Bool[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """With 0 for what does not count, which may be infinite."""
    return negative.masked_fill(~allowed, 0.0)


def _mean(losses: Float[Tensor, "B K"], allowed: Bool[Tensor, "B K"]) -> Float[Tensor, "B"]:
    """Over the negatives that count; 0 where there are none."""
    return (losses * allowed).sum(1) / allowed.sum(1).clamp(min=1)


def _as_loss(name: str, found: Any) -> LinkLoss:
    if not callable(found):
        fix = "Name a function (positive, negative, allowed, *, margin, temperature) that returns one number per link"
        raise ConfigError(f"'{name}' is a {type(found).__name__}, not a loss", where="loss", fix=fix)
    return found  # type: ignore[no-any-return]


LINK_LOSSES: Registry[LinkLoss] = Registry(
    "loss of links",
    {
        "cross_entropy": cross_entropy,
        "margin": margin_ranking,
        "bpr": bpr,
        "softmax": softmax,
        "self_adversarial": self_adversarial,
    },
    setting="loss",
    also=("auto",),
    adapt=_as_loss,
)
"""By name."""

LOSS_SETTINGS: dict[str, str | None] = {
    "cross_entropy": None,
    "margin": "margin",
    "bpr": None,
    "softmax": "temperature",
    "self_adversarial": "temperature",
}
"""Which setting each loss reads, of those that only some do; losses of users are told all."""

OF_ROWS: dict[LinkLoss, Callable[[Tensor, float, int, float], Tensor]] = {softmax: softmax_of_rows}
"""The same of rows of scores, as the task makes them, of losses that can do without copies of their parts."""


def link_losses(
    name: str,
    positive: Float[Tensor, "B"],
    negative: Float[Tensor, "B K"],
    allowed: Bool[Tensor, "B K"],
    *,
    margin: float = 1.0,
    temperature: float = 1.0,
) -> Float[Tensor, "B"]:
    """The losses of a name in :data:`LINK_LOSSES`, seen to be one for each link.

    Raises:
        ConfigError: there is no such loss, or it gives something else.
    """
    found: Any = LINK_LOSSES.find(name)(positive, negative, allowed, margin=margin, temperature=temperature)
    if not isinstance(found, Tensor) or found.shape != positive.shape:
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ConfigError(
            f"the loss '{name}' gives {what} for {len(positive)} links, not ({len(positive)},)",
            where="loss",
            fix="Return one number per link",
        )
    return found
