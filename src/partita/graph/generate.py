"""Graphs from a formula and a seed, of any size: R-MAT, and planted communities with labels and features.

Every random choice is a keyed hash of what it decides (edge i, node v, column f), so a graph depends on its
parameters and seed only, not on batch sizes or the memory limit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from partita.core import progress
from partita.core.errors import ConfigError
from partita.core.keys import MASK64, Purpose, fold
from partita.core.options import size_of, takes
from partita.graph.build import TopologyBuilder
from partita.graph.hashing import fold_array, mix64_inplace, uniform
from partita.graph.options import RmatOptions, SbmOptions
from partita.graph.planted import WeightedNodes, centroids, draw_classes, write_features
from partita.graph.splits import seeded_split, write_splits
from partita.graph.writer import StoreWriter

_EDGES_AT_ONCE = 1 << 19
_LEVELS_PER_HASH = 4

# What a key decides, folded in after the seed.
_EDGE, _SCRAMBLE, _CLASS, _DEGREE, _SOURCE, _INSIDE, _TARGET, _CENTROID, _NOISE = range(9)


@takes(RmatOptions)
def generate_rmat(path: str | os.PathLike[str], options: RmatOptions) -> Path:
    """Generate a recursive-matrix graph with the parameters of the Graph500 benchmark.

    Chakrabarti, Zhan and Faloutsos, "R-MAT: a recursive model for graph mining" (SDM 2004). Node ids are scrambled
    by a keyed permutation, so that an id tells nothing about the degree. Features are Gaussian noise around a
    centroid of the node's class (pure noise without classes); the classes are independent of the edges.

    Args:
        path: of the store to make.
        options: see :class:`~partita.graph.options.RmatOptions`. ``scale`` is 1 to 40; ``edge_factor`` edges per node
            are drawn. Without classes there are no labels and no splits.

    Returns:
        The path of the store.

    Raises:
        ConfigError: a parameter is out of range.
    """
    scale, edge_factor, a, b, c = options.scale, options.edge_factor, options.a, options.b, options.c
    num_classes, seed, split = options.num_classes, options.seed, options.split
    if not 1 <= scale <= 40:
        raise ConfigError(f"scale {scale} is outside 1 to 40", where="scale")
    if min(a, b, c) < 0 or a + b + c > 1:
        raise ConfigError(f"({a}, {b}, {c}) are not probabilities of quadrants", where="a, b, c")
    _check_common(edge_factor, options)
    num_nodes = 1 << scale
    key = fold(int(Purpose.GENERATE), seed)
    with StoreWriter(path, overwrite=options.overwrite) as writer:
        builder = TopologyBuilder(
            writer,
            memory_limit=size_of(options.memory_limit, "memory_limit"),
            undirected=options.undirected,
            deduplicate=options.deduplicate,
        )
        num_drawn = num_nodes * edge_factor
        with progress.task("generate edges", total=num_drawn, unit="edges") as task:
            for first in range(0, num_drawn, _EDGES_AT_ONCE):
                edges = np.arange(first, min(first + _EDGES_AT_ONCE, num_drawn))
                src, dst = _rmat_endpoints(fold(key, _EDGE), edges, scale, (a, b, c))
                builder.add(_scramble(key, src, scale), _scramble(key, dst, scale))
                task.advance(len(edges))
        summary = builder.finish(num_nodes)
        y = draw_classes(fold(key, _CLASS), num_nodes, num_classes) if num_classes else None
        _write_features(writer, key, num_nodes, options, y, 1.0)
        _write_labels(writer, y, split, seed)
        return writer.finish(
            num_nodes=num_nodes,
            num_edges=summary.num_edges,
            task="classes" if num_classes else None,
            num_classes=num_classes,
            source=f"generate rmat: scale {scale}, edge factor {edge_factor}, a {a}, b {b}, c {c}, seed {seed}",
            split_rule=_split_rule(split, seed) if num_classes else "",
            undirected=options.undirected,
        )


@takes(SbmOptions)
def generate_sbm(path: str | os.PathLike[str], options: SbmOptions) -> Path:
    """Generate an undirected graph of planted communities that are to be learned.

    The degree-corrected stochastic block model of Karrer and Newman, "Stochastic blockmodels and community structure
    in networks" (Phys. Rev. E 83, 2011), by drawing edges: one end in proportion to the nodes' weights, the other
    likewise, within the same class with probability ``homophily`` and among all other classes otherwise. Repeats and
    self loops are dropped, so the average degree is a little below the one asked for.

    The features of a node are its class's centroid, a random direction of length 1, plus Gaussian noise. With
    the default noise a linear model on the features alone is right for 50-70 % of the nodes, and averaging over
    neighbors makes it more than 90 %.

    Args:
        path: of the store to make.
        options: see :class:`~partita.graph.options.SbmOptions`. At least 2 classes; an infinite ``power_law`` gives all
            nodes the same weight.

    Returns:
        The path of the store.

    Raises:
        ConfigError: a parameter is out of range.
    """
    num_nodes, num_classes, seed, split = options.num_nodes, options.num_classes, options.seed, options.split
    average_degree, homophily = options.average_degree, options.homophily
    power_law, noise = options.power_law, options.noise
    _check_common(average_degree, options)
    if num_nodes < 2 or num_classes < 2 or num_nodes < num_classes:
        raise ConfigError(
            f"{num_nodes} nodes in {num_classes} classes: at least 2 of each, and a node for every class, are needed"
        )
    if not (0 <= homophily <= 1 and power_law > 2 and noise >= 0):
        raise ConfigError("homophily must be in 0..1, power_law above 2, noise >= 0", where="generate sbm")
    key = fold(int(Purpose.GENERATE), seed)
    y = draw_classes(fold(key, _CLASS), num_nodes, num_classes)
    with StoreWriter(path, overwrite=options.overwrite) as writer:
        builder = TopologyBuilder(
            writer,
            memory_limit=size_of(options.memory_limit, "memory_limit"),
            undirected=True,
            deduplicate=True,
            self_loops="drop",
        )
        communities = WeightedNodes(fold(key, _DEGREE), y, num_classes, power_law)
        num_drawn = round(num_nodes * average_degree / 2)
        with progress.task("generate edges", total=num_drawn, unit="edges") as task:
            for first in range(0, num_drawn, _EDGES_AT_ONCE):
                edges = np.arange(first, min(first + _EDGES_AT_ONCE, num_drawn))
                builder.add(*_endpoints(key, edges, communities, homophily))
                task.advance(len(edges))
        del communities
        summary = builder.finish(num_nodes)
        _write_features(writer, key, num_nodes, options, y, noise)
        _write_labels(writer, y, split, seed)
        return writer.finish(
            num_nodes=num_nodes,
            num_edges=summary.num_edges,
            task="classes",
            num_classes=num_classes,
            source=(
                f"generate sbm: {num_nodes} nodes, {num_classes} classes, average degree {average_degree}, "
                f"homophily {homophily}, power law {power_law}, noise {noise}, seed {seed}"
            ),
            split_rule=_split_rule(split, seed),
            undirected=True,
        )


def _check_common(edges_per_node: float | int, options: RmatOptions | SbmOptions) -> None:
    if edges_per_node < 0 or options.num_features < 0 or options.num_classes < 0:
        raise ConfigError("numbers of edges, features and classes must be >= 0", where="generate")
    seeded_split(0, options.split, options.seed)  # complains about bad fractions before the long work
    if options.dtype not in ("float32", "float16", np.float32, np.float16):
        raise ConfigError(f"features cannot be {options.dtype}", where="dtype", fix="Use float32 or float16")


def _split_rule(split: Sequence[float | int], seed: int) -> str:
    return f"random {'/'.join(f'{f:g}' for f in split)}, seed {seed}"


# R-MAT


def _rmat_endpoints(
    key: int, edges: Int64[np.ndarray, "n"], scale: int, quarters: tuple[float, float, float]
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """Row and column of every edge: one quarter of the matrix is chosen per level, 16 random bits each."""
    a, b, c = quarters
    ends = [np.uint16(min(65535, round(total * 65536))) for total in (a, a + b, a + b + c)]
    src, dst = np.empty(len(edges), dtype=np.int64), np.empty(len(edges), dtype=np.int64)
    at_once = 1 << 14  # so that the many passes stay in the processor's cache
    for start in range(0, len(edges), at_once):
        part = slice(start, start + at_once)
        row, column = np.zeros(len(edges[part]), dtype=np.int64), np.zeros(len(edges[part]), dtype=np.int64)
        base = fold_array(key, edges[part])
        for level in range(scale):
            if level % _LEVELS_PER_HASH == 0:
                bits = base + np.uint64(fold(key, level) & MASK64)
                mix64_inplace(bits)
            draw = (bits >> np.uint64(16 * (level % _LEVELS_PER_HASH))).astype(np.uint16)
            lower = draw >= ends[1]
            right = ((draw >= ends[0]) & ~lower) | (draw >= ends[2])
            row += row
            row += lower
            column += column
            column += right
        src[part], dst[part] = row, column
    return src, dst


def _scramble(key: int, ids: Int64[np.ndarray, "n"], scale: int) -> Int64[np.ndarray, "n"]:
    """A keyed permutation of 0..2^scale-1: rounds of odd multiplication, addition and xor-shift, all bijections."""
    mask = np.uint64((1 << scale) - 1)
    z = ids.astype(np.uint64)
    for turn in range(3):
        word = fold(fold(key, _SCRAMBLE), turn)
        z *= np.uint64(word | 1)
        z += np.uint64(word >> 32)
        z &= mask
        z ^= z >> np.uint64(scale // 2 + 1)
    return z.astype(np.int64)


# Planted communities


def _endpoints(
    key: int, edges: Int64[np.ndarray, "n"], nodes: WeightedNodes, homophily: float | int
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """Both ends of every edge: the second is of the class of the first, or of all others."""
    src = nodes.at(uniform(fold(key, _SOURCE), edges) * nodes.total)
    begin, end = nodes.begin[nodes.y[src]], nodes.end[nodes.y[src]]
    inside = uniform(fold(key, _INSIDE), edges) < homophily
    draw = uniform(fold(key, _TARGET), edges)
    within = begin + draw * (end - begin)
    without = draw * (nodes.total - (end - begin))
    without += np.where(without >= begin, end - begin, 0.0)  # skips the own class
    return src, nodes.at(np.where(inside, within, without))


# Labels and features


def _write_labels(
    writer: StoreWriter, y: Int64[np.ndarray, "N"] | None, split: Sequence[float | int], seed: int
) -> None:
    if y is None:
        return
    writer.write("y", y)
    write_splits(writer, seeded_split(len(y), split, seed))


def _write_features(
    writer: StoreWriter,
    key: int,
    num_nodes: int,
    options: RmatOptions | SbmOptions,
    y: Int64[np.ndarray, "N"] | None,
    noise: float | int,
) -> None:
    """Write ``x`` = direction of the class + noise."""
    width = options.num_features
    directions = centroids(fold(key, _CENTROID), options.num_classes, width) if y is not None and width else None
    write_features(
        writer, "x", (num_nodes, width), options.dtype, noise_key=fold(key, _NOISE), noise=noise, y=y,
        directions=directions,
    )  # fmt: skip
