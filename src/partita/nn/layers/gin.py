"""Graph isomorphism network (Xu, Hu, Leskovec and Jegelka, ICLR 2019)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.core.records import Block
from partita.nn import initialise
from partita.nn.layers.base import ReducedLayer
from partita.nn.layers.reductions import REDUCTIONS


class GIN(ReducedLayer):
    """``mlp((1 + eps) x_v + sum of x_u)`` with ``mlp = linear, relu, linear``, hidden as wide as the result.

    Equals PyG's ``GINConv(Sequential(Linear, ReLU, Linear), eps=eps, train_eps=True)``, with the same parameter
    names. The mlp is not linear and is not pushed through the sum: a state is as wide as the input.

    Args:
        in_width: columns of the input.
        out_width: columns of the result.
        eps: first value of the trained eps.
    """

    name: ClassVar[str] = "gin"

    def __init__(self, in_width: int, out_width: int, *, eps: float = 0.0) -> None:
        super().__init__(in_width, out_width, REDUCTIONS["sum"], commutes=False)
        self.own_joins_state = True
        self.initial_eps = eps
        self.eps = nn.Parameter(torch.empty(1))
        self.nn = nn.Sequential(
            initialise.linear(in_width, out_width, bias=True),
            nn.ReLU(),
            initialise.linear(out_width, out_width, bias=True),
        )
        self.reset()

    def reset(self, key: int | None = None) -> None:
        """See :meth:`Layer.reset`; eps gets its first value."""
        super().reset(key)
        nn.init.constant_(self.eps, self.initial_eps)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {**super().arguments(), "eps": self.initial_eps}

    def own(self, x_dst: Float[Tensor, "D in"], block: Block) -> Float[Tensor, "D in"]:
        """``(1 + eps) x_v``."""
        return (1.0 + self.eps) * x_dst

    def finish(self, state: Float[Tensor, "D in"], own: Tensor | None) -> Float[Tensor, "D out"]:
        """The mlp of the sum."""
        return self.nn(state if own is None else state + own)
