"""What brings the input rows of all node types to one width, before the first layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.core.records import Block, Reduce, RowsByType
from partita.nn import initialize, ops
from partita.nn.ages import AgeEncoder
from partita.nn.grouped import linears


class LearntSource(Protocol):
    """Where learnt rows come from."""

    def read(self, kind: int, numbers: Int64[Tensor, "n"], pull: Any = None) -> Float[Tensor, "n w"]:
        """Learnt rows of a type.

        Args:
            kind: its number.
            numbers: of the rows, among those of the type.
            pull: what the source was asked for them before, see :attr:`~partita.core.records.RowsByType.pulls`.
        """
        ...


class Encoder(nn.Module):
    """``W_t [x_v | e_v] + b_t``, where t is the type of v, x_v its features and e_v the row that is learnt of it.

    A type without either has a learnt vector of its own. Where a type has learnt rows only, as wide as the result,
    there is no map: a row is taken as it is. An untyped graph with learnt rows has one type.

    Args:
        widths: feature columns of each node type; 0 for types without features.
        out_width: columns of the result, the input width of the first layer.
        node_types: their names, to recognize a graph by.
        learnt: columns of the learnt rows of each node type, 0 for types without; none at all by default.
        dated: names of the node types whose rows have times, where these are read; see :mod:`partita.nn.ages`.
        age_unit: of the ages of such rows, above 0, in units of the store's times.

    Attributes:
        learnt: a number for each type.
        ages: adds what the ages of rows say, once the rows are encoded; ``None`` without ``dated``.
        source: where learnt rows come from; they are no parameters. Whoever trains or evaluates sets it.

    Raises:
        ConfigError: there are no types, or other numbers of names and widths; ``dated`` names a type that there is
            not, or ``age_unit`` is not above 0.
    """

    def __init__(
        self,
        widths: Sequence[int],
        out_width: int,
        node_types: Sequence[str],
        learnt: Sequence[int] = (),
        *,
        dated: Sequence[str] = (),
        age_unit: float = 1.0,
    ) -> None:
        super().__init__()
        if not widths or len(widths) != len(node_types) or len(learnt) not in (0, len(widths)):
            more = f" and {len(learnt)} widths of learnt rows" if learnt else ""
            raise ConfigError(f"{len(widths)} widths{more} for {len(node_types)} node types", where="encoder")
        self.widths, self.out_width, self.node_types = tuple(widths), out_width, tuple(node_types)
        self.learnt = tuple(learnt) or (0,) * len(self.widths)
        self.source: LearntSource | None = None
        self.lins = nn.ModuleList(map(self._map, self.widths, self.learnt))
        self.ages = self._ages(dated, age_unit) if dated else None
        self.reset(0)

    def _ages(self, dated: Sequence[str], unit: float) -> AgeEncoder:
        if unknown := [name for name in dated if name not in self.node_types]:
            raise ConfigError(f"there is no node type '{unknown[0]}'", where="encoder, dated")
        if not 0 < unit < math.inf:
            raise ConfigError(f"ages are in units of {unit}: must be above 0", where="encoder, age_unit")
        kinds = [kind for kind, name in enumerate(self.node_types) if name in dated]
        return AgeEncoder(kinds, self.out_width, unit)

    def _map(self, width: int, learnt: int) -> nn.Module:
        if learnt == self.out_width and not width:
            return nn.Identity()
        # The learnt vector of a type is the weight of a single column of ones.
        return initialize.linear(width + learnt or 1, self.out_width, bias=width + learnt > 0)

    def forward(self, inputs: RowsByType) -> Float[Tensor, "n out"]:
        """The rows of all types, in the order of the nodes.

        Every map is used, also for no row, so that each gets a gradient, which is 0 then. Learnt rows are asked for
        type by type, in the order of the types.

        Raises:
            ValueError: there is no :attr:`source` of learnt rows.
        """
        if len(self.lins) == 1:  # the rows are in order as they are
            only: Tensor = self.lins[0](self._raw(inputs, 0, self.lins[0]))
            return only
        heads, tails = list[Tensor](), list[Tensor]()
        for kind, (lin, where) in enumerate(zip(self.lins, inputs.at, strict=True)):
            count = int(torch.searchsorted(where, inputs.head))
            rows = self._raw(inputs, kind, lin)
            heads.append(lin(rows[:count]))
            if count < rows.shape[0]:
                tails.append(lin(rows[count:]))
        # Only the head is put in order, which takes a pass over rows forward and another one backward.
        return torch.cat([_in_order(torch.cat(heads), inputs, inputs.head), *tails])

    def _raw(self, inputs: RowsByType, kind: int, lin: Any) -> Float[Tensor, "n raw"]:
        """What the map of a type takes: features, learnt rows, both side by side, or a column of ones."""
        rows, width = inputs.rows[kind], self.widths[kind]
        if not self.learnt[kind]:
            return rows.to(lin.weight.dtype) if width else lin.weight.new_ones(rows.shape[0], 1)
        if self.source is None:
            raise ValueError(f"rows of '{self.node_types[kind]}' are learnt, and there is no table of them")
        found = self.source.read(kind, inputs.numbers[kind], inputs.pulls[kind] if inputs.pulls else None)
        found = found.to(inputs.at[kind].device)  # tables are in host memory, and gradients go back there
        return torch.cat([rows.to(found.dtype), found], dim=1) if width else found

    @property
    def composable(self) -> bool:
        """Whether a layer may compose the maps with its own: sums of raw rows have no gradient for learnt ones."""
        return not any(self.learnt)

    def over(self, inputs: RowsByType) -> Encoding:
        """The rows of all types, for a layer that composes the encoder."""
        return Encoding(self, inputs)

    def reset(self, key: int) -> None:
        """Initialize every parameter from a 64-bit key."""
        initialize.fan_in(self, key)

    def describe(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able; and the types whose learnt rows are taken as they are."""
        known: dict[str, Any] = {
            "widths": list(self.widths), "out_width": self.out_width, "node_types": list(self.node_types)
        }  # fmt: skip
        if self.ages is not None:
            known |= {"dated": [self.node_types[kind] for kind in self.ages.kinds], "age_unit": self.ages.unit}
        if not any(self.learnt):
            return known
        named = zip(self.node_types, self.lins, strict=True)
        identities = [name for name, lin in named if isinstance(lin, nn.Identity)]
        return {**known, "learnt": list(self.learnt), "without_map": identities}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Encoder:
        """What :meth:`describe` described, its parameters initialized anew."""
        return cls(**{name: value for name, value in description.items() if name != "without_map"})

    def extra_repr(self) -> str:
        """The types, for ``print``."""
        every = zip(self.node_types, self.widths, self.learnt, strict=True)
        dated = () if self.ages is None else [self.node_types[kind] for kind in self.ages.kinds]
        return ", ".join(
            f"{name}: {width}" + f" + {learnt} learnt" * (learnt > 0) + " + age" * (name in dated)
            for name, width, learnt in every
        )


@dataclass(frozen=True, slots=True)
class Encoding:
    """Rows of all types and what is to encode them: what a layer that composes the encoder takes as its input."""

    encoder: Encoder
    inputs: RowsByType

    def rows(self, block: Block, key: StepKey | None = None) -> EncodedRows:
        """The rows of a block's sources."""
        return EncodedRows(self, block)


class EncodedRows:
    """Rows that are encoded when they are asked for, see :class:`~partita.core.records.LazyRows`.

    The encoder is linear, and so is what most layers of typed graphs do first. Such a layer takes the raw rows, and
    multiplies its weight with that of the encoder instead of all rows with both.

    Args:
        encoding: the rows, and what is to encode them.
        block: whose sources they are.
    """

    def __init__(self, encoding: Encoding, block: Block) -> None:
        self.encoder, self.inputs, self.block = encoding.encoder, encoding.inputs, block
        self._all: Tensor | None = None
        self._local: Tensor | None = None

    @property
    def width(self) -> int:
        """Columns of an encoded row."""
        return self.encoder.out_width

    def all(self) -> Float[Tensor, "S out"]:
        """The rows of all sources, encoded once."""
        if self._all is None:
            self._all = self.encoder(self.inputs)
        return self._all

    def of_destinations(self) -> Float[Tensor, "D out"]:
        """The rows of the destinations; they alone are encoded where the others were not."""
        if self._all is not None:
            return self._all[: self.block.num_dst]
        lins: list[Any] = list(self.encoder.lins)
        rows = linears(self._own(), [lin.weight for lin in lins], [lin.bias for lin in lins])
        return _in_order(rows, self.inputs, self.block.num_dst)

    def aggregate(self, reduce: Reduce) -> Float[Tensor, "D out"]:
        """See :func:`partita.nn.ops.aggregate`."""
        return ops.aggregate(self.block, self.all(), reduce)

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in, float32 or float64; products under autocast are not."""
        return next(self.encoder.parameters()).dtype

    def raw(self, kind: int) -> Float[Tensor, "_ _"]:
        """Rows of a type as they were read, also of float16; a column of ones where it has no features."""
        rows = self.inputs.rows[kind]
        return rows if self.encoder.widths[kind] else rows.new_ones(rows.shape[0], 1, dtype=self.dtype)

    def local(self) -> Int32[Tensor, "S"]:
        """Where the row of each source is among those of its type."""
        if self._local is None:
            at = self.inputs.at
            self._local = torch.empty(sum(map(len, at)), dtype=torch.int32, device=at[0].device)
            for where in at:
                self._local[where] = torch.arange(len(where), dtype=torch.int32, device=where.device)
        return self._local

    def composed(
        self, weight: Float[Tensor, "G m in"], kinds: Sequence[int], bias: Float[Tensor, "G m"] | None = None
    ) -> tuple[list[Float[Tensor, "m raw"]], list[Float[Tensor, "m"] | None]]:
        """The encoders of some types, each followed by a product with a weight, as one weight and one bias.

        Args:
            weight: of each product.
            kinds: the type of each product's rows.
            bias: of each product.
        """
        lins: list[Any] = [self.encoder.lins[kind] for kind in kinds]
        device = weight.device.type
        casts = torch.amp.is_autocast_available(device)
        with torch.autocast(device, enabled=False) if casts else nullcontext():  # rounded once, as the product takes it
            weight = weight.to(self.dtype)
            if len({lin.weight.shape for lin in lins}) == 1:  # all at once
                weights = list((weight @ torch.stack([lin.weight for lin in lins])).unbind())
            else:
                weights = [each @ lin.weight for each, lin in zip(weight.unbind(), lins, strict=True)]
            none = weight.new_zeros(weight.shape[2])
            shifts = torch.stack([none if lin.bias is None else lin.bias for lin in lins]).unsqueeze(2)
            biases = (weight @ shifts).squeeze(2)
            if bias is not None:
                return weights, list((biases + bias).unbind())
            each = zip(lins, biases.unbind(), strict=True)
            return weights, [None if lin.bias is None else of for lin, of in each]

    def composing_pays(self, kinds: Sequence[int], sizes: Sequence[int], out_width: int) -> bool:
        """Whether products of raw rows, forward and backward, take fewer multiplications than encoding all sources.

        Where there are no such rows they do not: nothing would give the weights a gradient.

        Args:
            kinds: type of each group of rows that are multiplied.
            sizes: rows of each group.
            out_width: columns of their products.
        """
        if self._all is not None or not sum(sizes):
            return False
        widths = [max(1, width) for width in self.encoder.widths]
        composed = 2 * out_width * sum(widths[kind] * size for kind, size in zip(kinds, sizes, strict=True))
        encoding = 2 * self.width * sum(width * len(at) for width, at in zip(widths, self.inputs.at, strict=True))
        return composed <= encoding + 3 * out_width * self.width * sum(sizes)

    def own_linear(
        self, weight: Float[Tensor, "T out in"], bias: Float[Tensor, "T out"] | None = None
    ) -> Float[Tensor, "D out"]:
        """``W_t x_v + b_t`` of the encoded rows of the destinations, where t is the type of each.

        The encoder's map of every type is used, so that each gets a gradient.
        """
        rows = linears(self._own(), *self.composed(weight, range(len(weight)), bias))
        return _in_order(rows, self.inputs, self.block.num_dst)

    def _own(self) -> list[Float[Tensor, "_ _"]]:
        """Rows of the destinations of each type as they were read, widened."""
        counts = [int(torch.searchsorted(where, self.block.num_dst)) for where in self.inputs.at]
        return [self.raw(kind)[:count].to(self.dtype) for kind, count in enumerate(counts)]


def _in_order(rows: Float[Tensor, "n out"], inputs: RowsByType, count: int) -> Float[Tensor, "n out"]:
    """Rows that are sorted by type, of the first so many nodes, in the order of the nodes."""
    order = torch.cat([where[: int(torch.searchsorted(where, count))] for where in inputs.at])
    place = torch.empty_like(order)
    place[order] = torch.arange(count, device=order.device)
    return ops.permute_rows(rows, place, order)
