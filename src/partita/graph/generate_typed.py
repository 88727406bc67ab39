"""Typed graphs from a seed, of the shape of IGB-Heterogeneous: papers, authors, institutes and fields of study.

Every random choice is a keyed hash of what it decides, as in :mod:`partita.graph.generate`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from jaxtyping import Float64, Int64

from partita.core import progress
from partita.core.errors import ConfigError, nearest
from partita.core.keys import Purpose, fold
from partita.core.options import size_of, takes
from partita.graph.build import TopologyBuilder
from partita.graph.hashing import uniform
from partita.graph.metadata import TYPE_PREFIX
from partita.graph.options import TypedOptions
from partita.graph.planted import WeightedNodes, centroids, draw_classes, write_features
from partita.graph.schema import Relation, Schema
from partita.graph.splits import seeded_split, write_splits
from partita.graph.writer import StoreWriter

CITES, WRITTEN_BY, TOPIC, AFFILIATED_TO = (
    Relation("paper", "cites", "paper"),
    Relation("paper", "written_by", "author"),
    Relation("paper", "topic", "fos"),
    Relation("author", "affiliated_to", "institute"),
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a graph.

    Attributes:
        num_nodes: by type.
        num_edges: by relation, in one direction.
    """

    num_nodes: Mapping[str, int]
    num_edges: Mapping[Relation, int]


def _shape(paper: int, author: int, institute: int, fos: int, *num_edges: int) -> Shape:
    edges = dict(zip((CITES, WRITTEN_BY, TOPIC, AFFILIATED_TO), num_edges, strict=True))
    return Shape({"paper": paper, "author": author, "institute": institute, "fos": fos}, edges)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "tiny": _shape(100_000, 357_041, 8_738, 84_220, 447_416, 471_443, 718_445, 325_410),
        "small": _shape(1_000_000, 1_926_066, 14_751, 190_449, 12_070_502, 4_553_516, 7_234_122, 1_630_476),
    }
)
"""Nodes and edges of IGBH-tiny and IGBH-small: Khatua et al., "IGB: addressing the gaps in labeling, features, and
heterogeneity, and size of public graph datasets for deep learning research" (KDD 2023); counts of the data sets."""

_EDGES_AT_ONCE = 1 << 19
_FEWEST = 2

# What a key decides, folded in after the seed.
_CLASS, _DEGREE, _SOURCE, _INSIDE, _TARGET, _CENTROID, _NOISE = range(100, 107)


@takes(TypedOptions)
def generate_typed(path: str | os.PathLike[str], options: TypedOptions) -> Path:
    """Generate a typed graph whose papers have classes that are to be learned.

    Every node, of any type, has a class of its own, which only papers show. Of an edge, the source is drawn in
    proportion to weights that follow a power law, and the destination likewise: among nodes of the source's class with
    probability ``homophily``, and among all otherwise. Edges may occur twice. Features are a direction of length 1 for
    each class, another one for each type, plus Gaussian noise.

    Args:
        path: of the store to make.
        options: see :class:`~partita.graph.options.TypedOptions`. ``shape`` is one of :data:`SHAPES`; all of its sizes
            are multiplied by ``scale``.

    Returns:
        The path of the store.

    Raises:
        ConfigError: a parameter is out of range.
    """
    if options.shape not in SHAPES:
        raise ConfigError(f"there is no shape '{options.shape}'", where="shape", fix=nearest(options.shape, SHAPES))
    seeded_split(0, options.split, options.seed)  # complains about bad fractions before the long work
    shape, key = SHAPES[options.shape], fold(int(Purpose.GENERATE), options.seed)
    sizes = {name: max(_FEWEST, round(options.scale * count)) for name, count in shape.num_nodes.items()}
    one_way = {relation: round(options.scale * count) for relation, count in shape.num_edges.items()}
    relations = (*one_way, *(relation.reverse for relation in one_way if not options.one_way))
    counts = (*one_way.values(), *(count for count in one_way.values() if not options.one_way))
    schema = Schema(tuple(sizes), tuple(sizes.values()), relations, counts)
    populations = {
        name: _Population(schema.first_nodes[number], _nodes(fold(key, number), size, options))
        for number, (name, size) in enumerate(sizes.items())
    }
    with StoreWriter(path, overwrite=options.overwrite) as writer:
        builder = TopologyBuilder(
            writer, memory_limit=size_of(options.memory_limit, "memory_limit"), edge_dtype=schema.edge_dtype
        )
        with progress.task("generate edges", total=sum(one_way.values()), unit="edges") as task:
            for number, (relation, count) in enumerate(one_way.items()):
                ends = populations[relation.source], populations[relation.target]
                for first in range(0, count, _EDGES_AT_ONCE):
                    edges = np.arange(first, min(first + _EDGES_AT_ONCE, count))
                    src, dst = _ends(fold(key, 50 + number), edges, *ends, options.homophily)
                    builder.add(src, dst, None, np.full(len(edges), number, schema.edge_dtype))
                    if not options.one_way:
                        back = np.full(len(edges), number + len(one_way), schema.edge_dtype)
                        builder.add(dst, src, None, back)
                    task.advance(len(edges))
        num_nodes = schema.first_nodes[-1]
        summary = builder.finish(num_nodes)
        for number, (name, population) in enumerate(populations.items()):
            of_type, width = fold(key, number), options.num_features
            write_features(
                writer, f"{TYPE_PREFIX}{number}", (sizes[name], width), options.dtype, noise_key=fold(of_type, _NOISE),
                noise=options.noise, y=population.nodes.y, title=f"generate features of {name}",
                directions=centroids(fold(of_type, _CENTROID), options.num_classes, width) if width else None,
            )  # fmt: skip
        y = np.full(num_nodes, -1, np.int64)
        y[: sizes["paper"]] = populations["paper"].nodes.y
        writer.write("y", y)
        write_splits(writer, seeded_split(sizes["paper"], options.split, options.seed))
        return writer.finish(
            num_nodes=num_nodes,
            num_edges=summary.num_edges,
            task="classes",
            num_classes=options.num_classes,
            source=(
                f"generate typed: shape {options.shape} x {options.scale:g}, {options.num_classes} classes, homophily "
                f"{options.homophily}, power law {options.power_law}, noise {options.noise}, seed {options.seed}"
            ),
            split_rule=f"random {'/'.join(f'{f:g}' for f in options.split)} of the papers, seed {options.seed}",
            schema=schema,
        )


def _nodes(key: int, size: int, options: TypedOptions) -> WeightedNodes:
    """Of one type, each with a class."""
    y = draw_classes(fold(key, _CLASS), size, options.num_classes)
    return WeightedNodes(fold(key, _DEGREE), y, options.num_classes, options.power_law)


@dataclass(frozen=True)
class _Population:
    """The nodes of one type.

    Attributes:
        first: store id of the first node.
        nodes: numbered within the type.
    """

    first: int
    nodes: WeightedNodes

    def draw(
        self, draws: Float64[np.ndarray, "n"], classes: Int64[np.ndarray, "n"] | None = None
    ) -> Int64[np.ndarray, "n"]:
        """Nodes in proportion to their weights: of all classes, or of the given ones, as far as there are such."""
        begin, end = np.zeros(len(draws)), np.full(len(draws), self.nodes.total)
        if classes is not None:
            there = self.nodes.end[classes] > self.nodes.begin[classes]
            begin = np.where(there, self.nodes.begin[classes], begin)
            end = np.where(there, self.nodes.end[classes], end)
        return self.nodes.at(begin + draws * (end - begin))


def _ends(
    key: int, edges: Int64[np.ndarray, "n"], sources: _Population, targets: _Population, homophily: float
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """Store ids of both ends of every edge."""
    src = sources.draw(uniform(fold(key, _SOURCE), edges))
    inside = uniform(fold(key, _INSIDE), edges) < homophily
    draws = uniform(fold(key, _TARGET), edges)
    dst = np.where(inside, targets.draw(draws, sources.nodes.y[src]), targets.draw(draws))
    return src + sources.first, dst + targets.first
