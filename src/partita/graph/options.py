"""The options of generated graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from partita.core.options import SEEDS, SIZES, Options, Range, Size, fractions, parse_bytes, words

_SHARES, _COLUMNS = Range(0, 1), Range(0, 10**6)


@dataclass(frozen=True, kw_only=True)
class _GenerateOptions(Options):
    seed: Annotated[int, "Random seed.", SEEDS] = 0
    dtype: Annotated[Any, "float32 or float16."] = "float32"
    split: Annotated[Sequence[float], "Fractions of training, validation and test nodes.", fractions] = (0.6, 0.2, 0.2)
    memory_limit: Annotated[Size, "Private memory for sorting, for instance 2GiB.", SIZES, parse_bytes] = "1GiB"
    overwrite: Annotated[bool, "Replace an existing store."] = False


@dataclass(frozen=True, kw_only=True)
class RmatOptions(_GenerateOptions):
    """See :func:`partita.generate_rmat`."""

    scale: Annotated[int, "2^scale nodes.", Range(1, 40)] = 16
    edge_factor: Annotated[int, "Edges per node.", Range(0, 10**6)] = 16
    a: Annotated[float, "Probability of the upper left quarter of the matrix; d is what remains of 1.", _SHARES] = 0.57
    b: Annotated[float, "Probability of the upper right quarter.", _SHARES] = 0.19
    c: Annotated[float, "Probability of the lower left quarter.", _SHARES] = 0.19
    num_features: Annotated[int, "Feature columns.", _COLUMNS] = 0
    num_classes: Annotated[int, "Classes; 0 for no labels.", _COLUMNS] = 0
    undirected: Annotated[bool, "Store every edge in both directions."] = False
    deduplicate: Annotated[bool, "Keep only the first of equal edges."] = False


@dataclass(frozen=True, kw_only=True)
class SbmOptions(_GenerateOptions):
    """See :func:`partita.generate_sbm`."""

    num_nodes: Annotated[int, "Number of nodes.", Range(2, 10**11)] = 20_000
    num_classes: Annotated[int, "Number of communities.", Range(2, _COLUMNS.high)] = 8
    average_degree: Annotated[float, "Neighbors per node.", Range(0, 10**6)] = 16.0
    homophily: Annotated[float, "Fraction of edges inside a community.", _SHARES] = 0.8
    power_law: Annotated[float, "Exponent of the degrees, above 2.", Range(2, 1000)] = 2.5
    num_features: Annotated[int, "Feature columns.", _COLUMNS] = 64
    noise: Annotated[float, "Standard deviation of the noise on a feature.", Range(0, 10**6)] = 0.65


@dataclass(frozen=True, kw_only=True)
class TypedOptions(_GenerateOptions):
    """See :func:`partita.generate_typed`."""

    shape: Annotated[str, "Sizes: tiny (0.5 million nodes) or small (3.1 million), as of IGB-Heterogeneous."] = "tiny"
    scale: Annotated[float, "By what all sizes are multiplied.", Range(0, 1000)] = 1.0
    num_classes: Annotated[int, "Classes of the papers.", Range(2, _COLUMNS.high)] = 19
    num_features: Annotated[int, "Feature columns of every node type.", _COLUMNS] = 128
    homophily: Annotated[float, "Fraction of edges whose ends are drawn from one class.", _SHARES] = 0.6
    power_law: Annotated[float, "Exponent of the degrees, above 2.", Range(2, 1000)] = 2.5
    noise: Annotated[float, "Standard deviation of the noise on a feature.", Range(0, 10**6)] = 0.65
    one_way: Annotated[bool, "Leave out the reverse relations."] = False


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(Options):
    """See :func:`partita.generate_products`."""

    scale: Annotated[float, "By what nodes and edges are multiplied.", Range(0, 1000)] = 1.0
    homophily: Annotated[float, "Fraction of edges inside a community.", _SHARES] = 0.5
    power_law: Annotated[float, "Exponent of the degrees, above 2.", Range(2, 1000)] = 2.5
    noise: Annotated[float, "Standard deviation of the noise on a feature.", Range(0, 10**6)] = 1.0
    seed: Annotated[int, "Random seed.", SEEDS] = 0
    dtype: Annotated[Any, "float32 or float16."] = "float32"
    memory_limit: Annotated[Size, "Private memory for sorting, for instance 2GiB.", SIZES, parse_bytes] = "1GiB"
    overwrite: Annotated[bool, "Replace an existing store."] = False


@dataclass(frozen=True, kw_only=True)
class SplitLinksOptions(Options):
    """See :func:`partita.split_links`."""

    val: Annotated[float, "Share of the links for validation; 0: none.", _SHARES] = 0.05
    test: Annotated[float, "Share of the links for tests; 0: none.", _SHARES] = 0.1
    relations: Annotated[
        Sequence[str] | None, "Relations of a typed graph whose edges are held out, as 'cites wrote'; all if left out.",
        words,
    ] = None  # fmt: skip
    seed: Annotated[int, "Random seed.", SEEDS] = 0
    memory_limit: Annotated[Size, "Private memory for sorting, for instance 2GiB.", SIZES, parse_bytes] = "1GiB"
    overwrite: Annotated[bool, "Replace an existing store."] = False
