"""Graphs of the sizes of public ones that papers measure speed on, with classes that are to be learned.

They are planted communities, see :func:`partita.generate_sbm`; their sizes are those of the public graphs, but neither
their edges nor their features are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from partita.core.errors import ConfigError
from partita.core.options import takes
from partita.graph.generate import generate_sbm
from partita.graph.options import ShapeOptions


@dataclass(frozen=True)
class PublicShape:
    """Sizes of a public graph.

    Attributes:
        nodes: N.
        edges: pairs of nodes; each is stored in both directions.
        features: columns.
        classes: of nodes.
        split: nodes for training, validation and tests; the others have no split.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    split: tuple[int, int, int]


PRODUCTS = PublicShape(2_449_029, 61_859_140, 100, 47, (196_615, 39_323, 2_213_091))
PAPERS100M = PublicShape(111_059_956, 1_615_685_872, 128, 172, (1_207_179, 125_265, 214_338))
"""Counts of ogbn-products and ogbn-papers100M: Hu et al., "Open Graph Benchmark: datasets for machine learning on
graphs" (NeurIPS 2020), and the splits of the data sets."""


@takes(ShapeOptions)
def generate_products(path: str | os.PathLike[str], options: ShapeOptions) -> Path:
    """Generate a graph of the size of ogbn-products: 2,449,029 nodes, 61.9 million edges, 196,615 training nodes.

    Args:
        path: of the store to make.
        options: see :class:`~partita.graph.options.ShapeOptions`. ``scale`` multiplies nodes and edges.

    Returns:
        The path of the store.

    Raises:
        ConfigError: a parameter is out of range.
    """
    return _generate(path, PRODUCTS, options)


@takes(ShapeOptions)
def generate_papers100m(path: str | os.PathLike[str], options: ShapeOptions) -> Path:
    """Generate a graph of the size of ogbn-papers100M: 111,059,956 nodes, 1.6 billion edges, 1,207,179 training nodes.

    Edges are stored in both directions, as the public graph is usually trained on. The others of its nodes have
    classes, too, and are in no split.

    Args:
        path: of the store to make.
        options: see :class:`~partita.graph.options.ShapeOptions`. ``scale`` multiplies nodes and edges.

    Returns:
        The path of the store.

    Raises:
        ConfigError: a parameter is out of range.
    """
    return _generate(path, PAPERS100M, options)


def _generate(path: str | os.PathLike[str], shape: PublicShape, options: ShapeOptions) -> Path:
    nodes = round(shape.nodes * options.scale)
    if nodes < shape.classes:
        fix = f"Give at least {shape.classes / shape.nodes:.1e}"
        raise ConfigError(f"{nodes} nodes for {shape.classes} classes", where="scale", fix=fix)
    return generate_sbm(
        path,
        num_nodes=nodes,
        num_classes=shape.classes,
        average_degree=2 * shape.edges / shape.nodes,
        num_features=shape.features,
        homophily=options.homophily,
        power_law=options.power_law,
        noise=options.noise,
        dtype=options.dtype,
        split=tuple(count / shape.nodes for count in shape.split),
        seed=options.seed,
        memory_limit=options.memory_limit,
        overwrite=options.overwrite,
    )
