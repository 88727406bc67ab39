"""The softmax of links among their negatives: arguments checked, implementation called."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from partita.kernels import reference
from partita.kernels.dispatch import implementation
from partita.kernels.memory import empty_scores


def side_softmax(
    scores: Float[Tensor, "B K_1"], *, temperature: float = 1.0, sides: int = 1, added: float = 0.0
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B K_1"]]:
    """The cross-entropy of the first score of every row among the others, and its gradient.

    ``mean over sides of -log(exp(s_0 / T) / (exp(s_0 / T) + sum over j of the side of exp(s_j / T)))``.

    Args:
        scores: in every row that of a link, then those of its negatives, as many of each side; -inf of those that do
            not count, whose gradient is 0. With ``added`` a column more.
        temperature: T, above 0.
        sides: number of the sides.
        added: so many times the last column is added to the losses; 0: there is no such column.

    Returns:
        the losses, and the gradient of each by the scores of its row.

    Raises:
        ValueError: the scores of negatives cannot be divided by the sides.
    """
    if (negatives := scores.shape[1] - 1 - (added != 0)) % sides:
        raise ValueError(f"{negatives} negatives of {sides} sides")
    rows, columns = scores.shape
    losses, gradient = scores.new_empty(rows), empty_scores(rows, columns, scores.dtype, scores.device)
    compiled = scores.device.type == "cpu" and scores.dtype == torch.float32
    chosen = implementation(scores) if compiled else reference
    by_rows = scores if scores.stride(1) == 1 and scores.stride(0) >= scores.shape[1] else scores.contiguous()
    chosen.side_softmax(by_rows, temperature, sides, added, losses, gradient)
    return losses, gradient
