"""What brings the input rows of all node types to one width, before the first layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.records import RowsByType
from partita.nn import initialize, ops


class Encoder(nn.Module):
    """``W_t x_v + b_t``, where t is the type of v; for types without features a learnt vector of the type.

    Args:
        widths: feature columns of each node type; 0 for types without features.
        out_width: columns of the result, the input width of the first layer.
        node_types: their names, to recognize a graph by.

    Raises:
        ConfigError: there are no types, or other numbers of names and widths.
    """

    def __init__(self, widths: Sequence[int], out_width: int, node_types: Sequence[str]) -> None:
        super().__init__()
        if not widths or len(widths) != len(node_types):
            raise ConfigError(f"{len(widths)} widths for {len(node_types)} node types", where="encoder")
        self.widths, self.out_width, self.node_types = tuple(widths), out_width, tuple(node_types)
        # A learnt vector is the weight of a single column of ones.
        self.lins = nn.ModuleList(initialize.linear(width or 1, out_width, bias=width > 0) for width in widths)
        self.reset(0)

    def forward(self, inputs: RowsByType) -> Float[Tensor, "n out"]:
        """The rows of all types, in the order of the nodes.

        Every map is used, also for no row, so that each gets a gradient, which is 0 then.
        """
        heads, tails, at = list[Tensor](), list[Tensor](), list[Tensor]()
        for lin, where, rows, width in zip(self.lins, inputs.at, inputs.rows, self.widths, strict=True):
            count = int(torch.searchsorted(where, inputs.head))
            rows = rows if width else rows.new_ones(rows.shape[0], 1)
            heads.append(lin(rows[:count]))
            at.append(where[:count])
            if count < rows.shape[0]:
                tails.append(lin(rows[count:]))
        order = torch.cat(at)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.shape[0], device=order.device)
        # Only the head is put in order, which takes a pass over rows forward and another one backward.
        return torch.cat([ops.permute_rows(torch.cat(heads), place, order), *tails])

    def reset(self, key: int) -> None:
        """Initialize every parameter from a 64-bit key."""
        initialize.fan_in(self, key)

    def describe(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        return {"widths": list(self.widths), "out_width": self.out_width, "node_types": list(self.node_types)}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Encoder:
        """What :meth:`describe` described, its parameters initialized anew."""
        return cls(**description)

    def extra_repr(self) -> str:
        """The types, for ``print``."""
        return ", ".join(f"{name}: {width}" for name, width in zip(self.node_types, self.widths, strict=True))
