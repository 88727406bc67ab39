"""What a layer computes, as counts of columns: from these follows what it takes on a machine that is not here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RowOf = Literal["destination", "source"]


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times a matrix.

    Attributes:
        of: there is a row for each of these.
        in_width: columns of a row.
        out_width: columns of the result.
        first: the rows are those of the layer below, or sums of them; so they need no gradient in layer 1.
    """

    of: RowOf
    in_width: int
    out_width: int
    first: bool = True


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The forward pass of a layer on a block of any size. The backward pass follows from it.

    Attributes:
        products: matrix products.
        summed: columns of the row that is read for every edge and added to its destination.
        projected: these rows are products themselves, so they need a gradient in layer 1, too.
        per_edge: columns that are computed for every edge besides, such as scores of attention. Where there are some,
            the rows that are added up are weighted by them, so backward reads both ends of every edge.
    """

    products: tuple[Product, ...]
    summed: int = 0
    projected: bool = False
    per_edge: int = 0

    @property
    def maps_sources(self) -> bool:
        """Whether a product is computed for every source."""
        return any(product.of == "source" for product in self.products)
