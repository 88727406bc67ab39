"""Keyed initialization: a parameter's first value is a function of (key, its name, its shape) alone.

It depends neither on torch's global generator nor on the order in which layers are built, and it is drawn in
float64 and then rounded, so that the same model in two precisions starts from the same point.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from partita.core.keys import fold
from partita.nn.matmul import Linear

_BLOCK = 1 << 18
"""Values that are drawn at once; drawn one after the other, they do not depend on it."""


def name_key(key: int, name: str) -> int:
    """Fold a name into a key; stable over processes and Python versions."""
    return fold(key, int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))


@torch.no_grad()
def uniform_(parameter: Tensor, bound: float, key: int) -> None:
    """Fill uniformly in +-bound."""
    if parameter.is_meta:  # has a shape only; to draw for it would import torch's compiler
        return
    generator = torch.Generator().manual_seed(key)
    for block in parameter.view(-1).split(_BLOCK):  # in float64 all of it would take many times the parameter
        block.copy_((2.0 * torch.rand(block.shape, generator=generator, dtype=torch.float64) - 1.0) * bound)


def glorot(module: nn.Module, key: int) -> None:
    """+-sqrt(6 / (rows + columns)) over the last two axes (Glorot and Bengio, AISTATS 2010), 0 for biases.

    What PyG's ``GCNConv`` and ``GATConv`` do.
    """
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2 and not name.endswith("bias"):
            bound = math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1]))
            uniform_(parameter, bound, name_key(key, name))
        else:
            torch.nn.init.zeros_(parameter)


def fan_in(module: nn.Module, key: int) -> None:
    """+-1 / sqrt(columns) for the weight and for the bias of every linear map.

    What ``torch.nn.Linear`` does, and with it PyG's ``SAGEConv`` and the usual mlp of ``GINConv``. The last layer's
    outputs start smaller than with :func:`glorot`, which matters where there are few classes.
    """
    for path, linear in module.named_modules():
        if isinstance(linear, nn.Linear):
            bound = 1.0 / math.sqrt(linear.in_features)
            for name, parameter in linear.named_parameters(recurse=False):
                uniform_(parameter, bound, name_key(key, f"{path}.{name}"))


def stacked_fan_in(module: nn.Module, key: int) -> None:
    """+-1 / sqrt(columns) for weights, of which each is for a type or relation, as :func:`fan_in`; 0 for biases."""
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2 and not name.endswith("bias"):
            uniform_(parameter, 1.0 / math.sqrt(parameter.shape[-1]), name_key(key, name))
        else:
            torch.nn.init.zeros_(parameter)


def linear(in_width: int, out_width: int, *, bias: bool) -> nn.Linear:
    """A linear map whose parameters hold no value yet (and for which no random number was drawn).

    What ``torch.nn.utils.skip_init`` does, which imports torch's compiler: a second of processor time.
    """
    module = Linear(in_width, out_width, bias=bias, device="meta")
    for name, parameter in list(module.named_parameters()):
        setattr(module, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
    return module
