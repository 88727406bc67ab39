"""The softmax of links among their negatives, in torch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


def side_softmax(
    scores: Float[Tensor, "B K_1"],
    temperature: float,
    sides: int,
    added: float,
    losses: Float[Tensor, "B"],
    gradient: Float[Tensor, "B K_1"],
) -> None:
    """See :func:`partita.kernels.side_softmax`."""
    if added:
        gradient[:, -1] = added
        more, scores, gradient = scores[:, -1], scores[:, :-1], gradient[:, :-1]
    scaled = scores if temperature == 1 else scores / temperature
    positive, negative = scaled[:, :1], scaled[:, 1:].unflatten(1, (sides, -1))
    others = negative.logsumexp(2) if negative.shape[2] else negative.new_full(negative.shape[:2], -torch.inf)
    torch.mean(functional.softplus(others - positive), dim=1, out=losses)
    if added:
        losses.add_(more, alpha=added)
    shares, factor = gradient[:, 1:].unflatten(1, (sides, -1)), 1 / (temperature * sides)
    torch.sub(negative, torch.logaddexp(others, positive).unsqueeze(2), out=shares)
    shares.exp_().mul_(factor)
    torch.sum(torch.sigmoid(others - positive).mul_(-factor), dim=1, out=gradient[:, 0])
