"""The options of generated graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from partita.core.options import Options, Size, fractions, parse_bytes


@dataclass(frozen=True, kw_only=True)
class _GenerateOptions(Options):
    seed: Annotated[int, "Random seed."] = 0
    dtype: Annotated[Any, "float32 or float16."] = "float32"
    split: Annotated[Sequence[float], "Fractions of training, validation and test nodes.", fractions] = (0.6, 0.2, 0.2)
    memory_limit: Annotated[Size, "Private memory for sorting, for instance 2GiB.", parse_bytes] = "1GiB"
    overwrite: Annotated[bool, "Replace an existing store."] = False


@dataclass(frozen=True, kw_only=True)
class RmatOptions(_GenerateOptions):
    """See :func:`partita.generate_rmat`."""

    scale: Annotated[int, "2^scale nodes."] = 16
    edge_factor: Annotated[int, "Edges per node."] = 16
    a: Annotated[float, "Probability of the upper left quarter of the matrix; d is what remains of 1."] = 0.57
    b: Annotated[float, "Probability of the upper right quarter."] = 0.19
    c: Annotated[float, "Probability of the lower left quarter."] = 0.19
    num_features: Annotated[int, "Feature columns."] = 0
    num_classes: Annotated[int, "Classes; 0 for no labels."] = 0
    undirected: Annotated[bool, "Store every edge in both directions."] = False
    deduplicate: Annotated[bool, "Keep only the first of equal edges."] = False


@dataclass(frozen=True, kw_only=True)
class SbmOptions(_GenerateOptions):
    """See :func:`partita.generate_sbm`."""

    num_nodes: Annotated[int, "Number of nodes."] = 20_000
    num_classes: Annotated[int, "Number of communities."] = 8
    average_degree: Annotated[float, "Neighbors per node."] = 16.0
    homophily: Annotated[float, "Fraction of edges inside a community."] = 0.8
    power_law: Annotated[float, "Exponent of the degrees, above 2."] = 2.5
    num_features: Annotated[int, "Feature columns."] = 64
    noise: Annotated[float, "Standard deviation of the noise on a feature."] = 0.65
