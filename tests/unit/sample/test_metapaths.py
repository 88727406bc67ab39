"""Walks along metapaths against the rule, written out for one walk at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.keys import MASK64, below, fold
from partita.core.node_types import NodeTypes
from partita.graph.schema import Relation, Schema
from partita.sample.topology import ArrayTopology
from partita.sample.walks import WalkWise, step_by_step

SCHEMA = Schema(
    ("paper", "author"),
    (3, 2),
    (Relation("paper", "cites", "paper"), Relation("author", "writes", "paper"),
     Relation("paper", "rev_writes", "author"), Relation("author", "cites", "author")),
    (1, 1, 1, 1),
)  # fmt: skip


def graph(random: np.random.Generator, nodes: int, edges: int, relations: int, weighted: bool):
    """Repeated edges, loops, weights of 0, nodes without in-edges along some relations, or any."""
    ends = random.integers(0, nodes, (edges, 2))
    ends[:, 1] = (ends[:, 1] ** 2) // nodes
    kinds = random.integers(0, relations, edges)
    order = np.lexsort((kinds, ends[:, 1]))
    ends, kinds, weights = ends[order], kinds[order], random.integers(0, 3, edges).astype(np.uint32)
    topology = ArrayTopology(
        torch.from_numpy(np.concatenate([[0], np.cumsum(np.bincount(ends[:, 1], minlength=nodes))])),
        torch.from_numpy(ends[:, 0].astype(np.int32)),
        original=torch.from_numpy(random.permutation(nodes)),
        weights=torch.from_numpy(weights),
        weighted=weighted,
        edge_type=torch.from_numpy(kinds.astype(np.uint8)),
        num_relations=relations,
        node_types=NodeTypes(np.array([0, nodes])),
    )
    return topology, ends, kinds, weights.astype(int) if weighted else np.ones(edges, int)


def next_of(node, relation, draw, ends, kinds, weights):
    """Where a step goes: the edges of the relation, in order, take shares of the draw by their weights."""
    (row,) = np.nonzero((ends[:, 1] == node) & (kinds == relation))
    tops = np.cumsum(weights[row])
    if not len(row) or tops[-1] == 0:
        return None
    return int(ends[row[np.searchsorted(tops, below(draw, int(tops[-1])), side="right")], 0])


def walked(home, walk_key, length, restart, metapath, edges):
    """One walk: its start, and where it is after every traversal."""
    walk = [home]
    for traversal in range(length):
        node, first = walk[-1], traversal * len(metapath)
        if node < 0:
            walk.append(-1)
            continue
        if fold(fold(walk_key, first), 1) & 0xFFFF < round(restart * 2**16):
            walk.append(home)
            continue
        for number, relation in enumerate(metapath):
            to = next_of(node, relation, fold(fold(walk_key, first + number), 0), *edges)
            if to is None:
                to = -1 if number == 0 and node == home else home
                break
            node = to
        walk.append(to)
    return walk


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), nodes=st.integers(1, 25), edges=st.integers(0, 150), relations=st.integers(1, 4),
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=3), restart=st.sampled_from([0.0, 0.5]),
    weighted=st.booleans(), key=st.integers(0, MASK64), name=st.sampled_from(["reference", "cpu"]),
)  # fmt: skip
def test_walks_are_those_of_the_rule(seed, nodes, edges, relations, steps, restart, weighted, key, name):
    topology, *known = graph(np.random.default_rng(seed), nodes, edges, relations, weighted)
    metapath = [step % relations for step in steps]
    start = torch.arange(nodes)
    with kernels.use(name):
        found, _ = step_by_step(topology, start, key, walks=3, length=4, restart=restart, metapath=metapath)
    original = topology.original(start).tolist()
    wanted = [
        walked(node, fold(fold(key, original[node]), r), 4, restart, metapath, known)
        for node in range(nodes)
        for r in range(3)
    ]
    assert found.tolist() == wanted


def test_shares_are_the_probabilities_of_ways_along_the_metapath() -> None:
    """Node 0 has in-edges of r0 from 1 and 2, these of r1 from 3 (and 4): 3 is reached three times of four."""
    topology = ArrayTopology(
        torch.tensor([0, 2, 4, 6, 6, 6]), torch.tensor([1, 2, 4, 3, 3, 4], dtype=torch.int32),
        edge_type=torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.uint8), num_relations=2,
        node_types=NodeTypes(np.array([0, 5])),
    )  # fmt: skip
    sampler = WalkWise((5,), walks=4000, length=1, restart=0.0, metapath=(0, 1))
    found = sampler.draw(topology, torch.tensor([0, 3]), 7, 1)
    assert found.indptr.tolist() == [0, 2, 2]
    assert found.indices.tolist() == [3, 4]
    assert found.visit_weight.tolist() == pytest.approx([0.75, 0.25], abs=4 * (0.75 * 0.25 / 4000) ** 0.5)
    assert found.edge_type.tolist() == [0, 0]
    with pytest.raises(ValueError, match="go along a metapath"):
        WalkWise((5,), walks=4, length=1, restart=0.0).draw(topology, torch.tensor([0]), 7, 1)


def test_metapaths_by_name() -> None:
    assert SCHEMA.metapath(["writes", "rev_writes"], "metapath") == (1, 2)
    assert SCHEMA.metapath(["paper:cites:paper", "writes", "author:cites:author"], "metapath") == (0, 1, 3)
    for names, message in (
        (["cites"], "name of 2 relations.*paper:cites:paper, author:cites:author"),
        (["sites"], "no relation 'sites'"),
        (["writes", "writes"], "leads to 'paper'.*comes to 'author'"),
    ):
        with pytest.raises(ConfigError, match=message):
            SCHEMA.metapath(names, "metapath")
