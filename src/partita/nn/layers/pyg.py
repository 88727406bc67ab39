"""Any PyG convolution as a layer. PyG itself is not imported: the convolution is only called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn import ops
from partita.nn.layers.base import Layer, global_key
from partita.nn.ops import Rows

_TURN = RLock()
"""Held by the thread that has torch's generator for itself."""


class PygLayer(Layer):
    """Wraps a convolution that takes ``((x_src, x_dst), edge_index)``, as PyG's bipartite convolutions do.

    What it computes from a destination's edges is not known to be divisible, so every edge of a destination must be
    at one place: it works wherever whole blocks are computed, and not where edges are dealt out.

    Its own dropout draws from torch's global generator, which is seeded with the layer's key for the call: a resumed
    run draws the same masks, but the masks depend on which rows are computed together.

    Args:
        conv: the convolution.
        in_width: columns of the input.
        out_width: columns of the result (for an attention layer that concatenates, all heads together).
    """

    name = "pyg"

    def __init__(self, conv: nn.Module, in_width: int, out_width: int) -> None:
        super().__init__(in_width, out_width)
        self.conv = conv

    @property
    def draws_by_call(self) -> bool:
        """Whether the convolution drops anything out: a module or a number in it named ``dropout`` says so."""
        return any(
            isinstance(getattr(module, name, None), (int, float)) and getattr(module, name) > 0
            for module in self.conv.modules()
            for name in ("dropout", *(("p",) if isinstance(module, nn.modules.dropout._DropoutNd) else ()))
        )

    def reset(self, key: int | None = None) -> None:
        """Call the convolution's ``reset_parameters``, where it has one, under a generator seeded with the key."""
        reset_parameters = getattr(self.conv, "reset_parameters", None)
        if callable(reset_parameters):
            with seeded(global_key() if key is None else key):
                reset_parameters()

    def arguments(self) -> dict[str, Any]:
        """What can be said of the convolution; not enough to build it again."""
        return {**super().arguments(), "conv": repr(self.conv)}

    def forward(self, block: Block, h: Rows, key: int | None = None) -> Float[Tensor, "D out"]:
        """See :meth:`Layer.forward`.

        Raises:
            ConfigError: the result is not ``out_width`` wide.
        """
        x = ops.all_rows(h)
        with nullcontext() if key is None or not self.training else seeded(key):
            out = self.computed(block, x)
        if out.shape != (block.num_dst, self.out_width):
            raise ConfigError(
                f"the convolution returned rows of shape {tuple(out.shape)}, not {(block.num_dst, self.out_width)}",
                where=repr(self.conv),
                fix="Give the PygLayer the out_width that the convolution returns",
            )
        return out

    def computed(self, block: Block, x: Float[Tensor, "S in"]) -> Tensor:
        """What the convolution returns for the destinations of a block, from the rows of its sources."""
        more = {} if block.edge_attr is None else {"edge_attr": block.edge_attr.to(x.dtype)}
        return self.conv((x, x[: block.num_dst]), block.edge_index(), **more)

    def extra_repr(self) -> str:
        """Nothing: the convolution is printed as a child."""
        return ""


@contextmanager
def seeded(key: int | None) -> Iterator[None]:
    """Seed torch's global CPU generator inside the ``with`` block, and put its state back afterwards.

    Threads wait for each other: all share the generator. Torch would also hang where one thread asks for its state
    while another, which is asking, has to collect garbage.

    Args:
        key: ``None``: the generator goes on as it is.
    """
    with _TURN, torch.random.fork_rng(devices=[]):
        if key is not None:
            torch.default_generator.manual_seed(key)
        yield
