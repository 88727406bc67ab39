"""The decoders, and the table of their names: scores of links from the rows of their ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.core.registry import Registry
from partita.nn.decoders.base import Decoder, ProductDecoder, Side, arguments_of, as_decoder_type
from partita.nn.decoders.distances import DistanceDecoder, RotatE, TransE
from partita.nn.decoders.perceptron import MLPDecoder
from partita.nn.decoders.products import Bilinear, ComplEx, Cosine, DistMult, Dot
from partita.nn.decoders.reciprocal import Reciprocal

_OWN = (Dot, Cosine, MLPDecoder, Bilinear, DistMult, ComplEx, TransE, RotatE)

DECODERS: Registry[type[Decoder]] = Registry(
    "decoder", {decoder.name: decoder for decoder in _OWN}, also=("auto",), adapt=as_decoder_type
)
"""By name."""


def build_decoder(
    name: str, width: int, num_relations: int = 1, *, reciprocal: bool = False, **options: Any
) -> Decoder:
    """The decoder of a name, which it is described by.

    Args:
        name: in :data:`DECODERS`, or ``package.module:Name``.
        width: columns of a node's row.
        num_relations: 1 in an untyped graph.
        reciprocal: with a second set of parameters of relations, by which heads are ranked; see :class:`Reciprocal`.
        options: of the decoder, see :attr:`Decoder.options`.

    Raises:
        ConfigError: there is none of this name, or it does not take such sizes or options.
    """
    decoder = DECODERS.find(name)(width, 2 * num_relations if reciprocal else num_relations, **options)
    decoder.name = name
    return Reciprocal(decoder) if reciprocal else decoder


def from_description(description: Mapping[str, Any]) -> Decoder:
    """The decoder that :meth:`Decoder.describe` described, its parameters initialized anew."""
    name, arguments = arguments_of(description)
    return build_decoder(name, **arguments)


__all__ = [
    "DECODERS", "Bilinear", "ComplEx", "Cosine", "Decoder", "DistMult", "DistanceDecoder", "Dot", "MLPDecoder",
    "ProductDecoder", "Reciprocal", "RotatE", "Side", "TransE", "build_decoder", "from_description",
]  # fmt: skip
