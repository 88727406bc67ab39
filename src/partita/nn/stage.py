"""One stage of a model: a layer and what is done to its rows afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey
from partita.core.records import Block
from partita.core.registry import Registry
from partita.nn import ops
from partita.nn.layers.base import Layer
from partita.nn.ops import Rows


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization over the rows at hand; with fewer than two rows it uses the running statistics.

    Its statistics are those of the rows that one worker computes together: they depend on how rows are placed.
    """

    def forward(self, input: Float[Tensor, "n F"]) -> Float[Tensor, "n F"]:
        """Normalize each column."""
        if self.training and input.shape[0] < 2:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        return super().forward(input)


NORMS: Registry[Callable[[int], nn.Module]] = Registry(
    "normalization",
    {
        "none": lambda _: nn.Identity(),
        "layer": nn.LayerNorm,
        "batch": BatchNorm,
    },
    setting="norm",
)
"""By name: what makes a module of a number of columns."""

ACTIVATIONS: Registry[Callable[[Tensor], Tensor]] = Registry(
    "activation",
    {
        "none": lambda rows: rows,
        "relu": functional.relu,
        "elu": functional.elu,
        "gelu": functional.gelu,
        "leaky_relu": functional.leaky_relu,
        "silu": functional.silu,
        "tanh": lambda rows: rows.tanh(),
    },
)
"""By name: entry by entry."""


class Stage(nn.Module):
    """A layer, then normalization, activation and keyed dropout, each of which may be absent.

    Args:
        layer: the layer.
        norm: a name from :data:`NORMS`.
        activation: a name from :data:`ACTIVATIONS`.
        dropout: probability with which an entry of the result is set to 0 in training.

    Attributes:
        row_wise: every row of the result depends on its own row only (false with batch normalization).
        output_scale: mean and standard deviation of what is predicted: entries of the result, z, become
            ``mean + deviation * z``; ``None``: they stay as they are.

    Raises:
        ConfigError: a name is not known or the probability is out of range.
    """

    def __init__(self, layer: Layer, *, norm: str = "none", activation: str = "none", dropout: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:
            raise ConfigError(f"a probability in [0, 1) is needed, not {dropout}", where="dropout")
        self.layer = layer
        self.norm = NORMS.find(norm)(layer.out_width)
        self.norm_name = norm
        self.activation = activation
        self._activate = ACTIVATIONS.find(activation)
        self.dropout = dropout
        self.row_wise = not isinstance(self.norm, BatchNorm)
        self.output_scale: tuple[float, float] | None = None

    def forward(self, block: Block, h: Rows, step_key: StepKey | None, layer: int) -> Float[Tensor, "D out"]:
        """Rows of the block's destinations.

        Args:
            block: every sampled edge of the destinations.
            h: rows of the block's sources.
            step_key: names the training step; ``None`` in evaluation (no dropout).
            layer: number of this layer, 1 = input side.
        """
        key = None if step_key is None else step_key.at(Purpose.ATTENTION_DROPOUT, layer)
        return self.post(self.layer(block, h, key), block.dst_original, step_key, layer)

    def post(
        self, rows: Float[Tensor, "D out"], dst_original: Int[Tensor, "D"], step_key: StepKey | None, layer: int
    ) -> Float[Tensor, "D out"]:
        """What follows the layer, for rows of which ``dst_original`` are the original indices."""
        return self.scaled(self._post(rows, dst_original, step_key, layer))

    def scaled(self, rows: Float[Tensor, "D out"]) -> Float[Tensor, "D out"]:
        """Rows in the units of what is predicted, at least float32; see :attr:`output_scale`."""
        if self.output_scale is None:
            return rows
        mean, deviation = self.output_scale
        return rows.to(torch.promote_types(rows.dtype, torch.float32)) * deviation + mean

    def _post(
        self, rows: Float[Tensor, "D out"], dst_original: Int[Tensor, "D"], step_key: StepKey | None, layer: int
    ) -> Float[Tensor, "D out"]:
        activation = self._activate
        p = 0.0 if step_key is None else self.dropout
        key = 0 if step_key is None else step_key.at(Purpose.DROPOUT, layer)
        if isinstance(self.norm, nn.LayerNorm) and activation is functional.relu:
            return ops.norm_relu_dropout(rows, self.norm, dst_original, key, p)
        rows = self.norm(rows)
        if p == 0.0:
            return activation(rows)
        if activation is functional.relu:
            return ops.relu_dropout(rows, dst_original, key, p)
        return ops.keyed_dropout(activation(rows), dst_original, key, p)

    def reset(self, key: int) -> None:
        """Initialize the layer from a key; the normalization starts as the identity."""
        self.layer.reset(key)
        if not isinstance(self.norm, nn.Identity):
            self.norm.reset_parameters()  # type: ignore[operator]

    def describe(self) -> dict[str, Any]:
        """The stage as JSON-able values."""
        return {
            "layer": {"name": self.layer.name, **self.layer.arguments()},
            "norm": self.norm_name,
            "activation": self.activation,
            "dropout": self.dropout,
            **({} if self.output_scale is None else {"output_scale": list(self.output_scale)}),
        }

    def extra_repr(self) -> str:
        """What has no module of its own, for ``print``."""
        return f"activation={self.activation}, dropout={self.dropout}"
