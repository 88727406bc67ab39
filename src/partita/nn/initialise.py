"""Keyed initialisation: a parameter's first value is a function of (key, its name, its shape) alone.

It depends neither on torch's global generator nor on the order in which layers are built, and it is drawn in
float64 and then rounded, so that the same model in two precisions starts from the same point.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from partita.core.keys import fold


def name_key(key: int, name: str) -> int:
    """Fold a name into a key; stable over processes and Python versions."""
    return fold(key, int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))


@torch.no_grad()
def glorot_(parameter: Tensor, key: int) -> None:
    """Fill uniformly in +-sqrt(6 / (rows + columns)) (Glorot and Bengio, AISTATS 2010; over the last two axes)."""
    generator = torch.Generator().manual_seed(key)
    uniform = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    bound = math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1]))
    parameter.copy_((2.0 * uniform - 1.0) * bound)


@torch.no_grad()
def reset_parameters(module: nn.Module, key: int) -> None:
    """Glorot for every parameter of two or more axes, 0 for the others (biases), as in PyG."""
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            glorot_(parameter, name_key(key, name))
        else:
            parameter.zero_()


def linear(in_width: int, out_width: int, *, bias: bool) -> nn.Linear:
    """A linear map whose parameters hold no value yet (and for which no random number was drawn)."""
    return nn.utils.skip_init(nn.Linear, in_width, out_width, bias=bias)
