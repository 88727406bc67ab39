"""Edges that are predicted never carry messages, whichever those are is a matter of the seed and the edge alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from link_stores import edges_of, untyped_stores

import partita
from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.graph.split_links import split_links
from partita.graph.store import GraphStore
from partita.parallel.strategies import parse_strategy
from partita.plan.dryrun import DryRun
from partita.sample.blocks import sample_block
from partita.sample.samplers import LayerWise, NodeWise
from partita.sample.topology import ArrayTopology, LocalTopology
from partita.tasks.links.task import LinkTask
from partita.tasks.task import key_of, seed_order
from partita.testing.graphs import small_random_store

REVERSES = {0: 3, 1: 4, 2: 5, 3: 0, 4: 1, 5: 2}
"""Of the typed graph below."""


@pytest.fixture(scope="module")
def untyped(tmp_path_factory) -> list[GraphStore]:
    return untyped_stores(tmp_path_factory.mktemp("untyped"))


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> list[GraphStore]:
    """Users buy items, items are like items, users follow users, all with reverses; with loops and parallel edges."""
    path: Path = tmp_path_factory.mktemp("typed") / "g"
    generator = np.random.default_rng(2)
    kinds = np.repeat([0, 1], [20, 15]).astype(np.uint8)
    buys = np.stack([generator.integers(0, 20, 90), generator.integers(20, 35, 90)])
    like = generator.integers(20, 35, (2, 70))
    follows = generator.integers(0, 20, (2, 60))
    np.savez(
        path.with_suffix(".npz"),
        edge_index=np.concatenate([buys, like, follows], axis=1),
        edge_type=np.repeat([0, 1, 2], [90, 70, 60]).astype(np.uint8),
        node_type=kinds,
        node_type_names=np.array(["user", "item"]),
        edge_type_names=np.array(["buys", "like", "follows"]),
        x_user=generator.normal(size=(20, 3)).astype(np.float32),
        x_item=generator.normal(size=(15, 4)).astype(np.float32),
    )
    whole = GraphStore.open(partita.ingest(path.with_suffix(".npz"), path, undirected=True).path)
    assert {at: int(to) for at, to in enumerate(whole.schema.reverses) if to >= 0} == REVERSES
    partita.partition(path, path.with_suffix(".parts"), parts=3, algorithm="random")
    return [whole, GraphStore.open(path.with_suffix(".parts"))]


@pytest.fixture(scope="module", params=["untyped", "typed"])
def stores(request) -> list[GraphStore]:
    found: list[GraphStore] = request.getfixturevalue(request.param)
    return found


def task_of(store: GraphStore, share: float | None = 0.6, **settings) -> LinkTask:
    task = LinkTask(store)
    task.adjust(Config.make({"task": "links", "hidden": 4, "message_share": share, "batch_size": 16, **settings}))
    return task


def original(store: GraphStore, edges: torch.Tensor) -> list[tuple[int, ...]]:
    """Rows of a batch in original ids."""
    ends = [store.to_original(edges[:, column].numpy()).tolist() for column in (0, 1)]
    kinds = edges[:, 2].tolist() if edges.shape[1] > 2 else [0] * len(edges)
    return list(zip(*ends, kinds, strict=True))


def link(edge: tuple[int, ...]) -> tuple[int, int, int]:
    """What an edge shares with its reverses and with parallel ones."""
    source, target, *kind = edge
    relation = kind[0] if kind else 0
    return min(source, target), max(source, target), min(relation, REVERSES.get(relation, relation))


def of(store: GraphStore, edge: tuple[int, ...]) -> tuple[int, int, int]:
    """The link of an edge; without a schema there are no relations."""
    return link(edge) if store.schema is not None else link(edge[:2])


def test_every_edge_has_a_side_and_its_reverse_the_same(stores) -> None:
    """Whatever the partition; of the edges of the relations that are learned."""
    found = [Counter(original(store, task_of(store).seeds("train"))) for store in stores]
    assert all(each == found[0] for each in found)
    store = stores[0]
    every = Counter(original(store, task_of(store, None).seeds("train")))
    assert not found[0] - every
    predicted = {of(store, edge) for edge in found[0]}
    carrying = {of(store, edge) for edge in every - found[0]}
    assert predicted
    assert carrying
    assert not predicted & carrying
    assert 0.4 < len(carrying) / len(predicted | carrying) < 0.8


def test_shares_are_about_those_asked_for_and_the_seed_says_which(tmp_path) -> None:
    store = GraphStore.open(partita.generate_rmat(tmp_path / "g", scale=12, edge_factor=8))
    every = len(task_of(store, None).seeds("train"))
    for share in (0.1, 0.5, 0.9):
        assert 1 - len(task_of(store, share).seeds("train")) / every == pytest.approx(share, abs=0.02)
    one, other = (set(original(store, task_of(store, 0.5, seed=seed).seeds("train"))) for seed in (0, 1))
    assert len(one & other) / len(one) == pytest.approx(0.5, abs=0.05)


def sources_and_targets(store: GraphStore, block) -> list[tuple[int, ...]]:
    """Edges of a block with store ids as sources, in original ids."""
    columns = [block.indices.long(), block.dst.long()[block.edge_dst()]]
    columns += [] if block.edge_type is None else [block.edge_type.long()]
    return original(store, torch.stack(columns, dim=1))


def topology_of(task: LinkTask, **settings) -> ArrayTopology:
    """What a run draws from."""
    whole = LocalTopology(task.store, types=task.store.schema is not None, **settings)
    return whole.without(task.supervision)


def test_all_others_carry_messages(stores) -> None:
    """All edges of the store but for those between the ends of predicted ones; loops are never predicted."""
    for store in stores:
        task = task_of(store, target_relations="buys like" if store.schema else "", seed=3)
        order = seed_order(task, task.seeds("train"), task.config)
        predicted = {of(store, edge) for edge in original(store, task.seeds("train"))}
        nodes = torch.arange(store.num_nodes)
        block = sample_block(topology_of(task), nodes, key_of(task, order, StepKey(0, 0, 0)), 1, -1)
        wanted = [tuple(edge) for edge in edges_of(store).tolist()]
        wanted = [edge if store.schema else (*edge, 0) for edge in wanted]
        kept = [edge for edge in wanted if edge[0] == edge[1] or of(store, edge) not in predicted]
        assert Counter(sources_and_targets(store, block)) == Counter(kept)
        assert 0 < len(kept) < len(wanted)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("by", ["node", "layer"])
def test_what_is_predicted_carries_no_messages_in_any_step(stores, by, replaced) -> None:
    for store in stores:
        task = task_of(store, target_relations="buys rev_buys like" if store.schema else "")
        order = seed_order(task, task.seeds("train"), task.config)
        predicted = {of(store, edge) for edge in original(store, task.seeds("train"))}
        topology = topology_of(task, replace=replaced)
        relations = topology.num_relations
        number = 3 if relations == 1 else (3,) * relations
        sampler = NodeWise((number,)) if by == "node" else LayerWise((30,), Context.alone().group("all"))
        seen = Counter[tuple[int, ...]]()
        for step in range(order.num_steps):
            key = key_of(task, order, StepKey(0, 0, step))
            nodes = task.requests(order.batch(0, step))
            seen.update(sources_and_targets(store, sample_block(topology, nodes, key, 1, sampler)))
        assert seen
        assert not {of(store, edge) for edge in seen if edge[0] != edge[1]} & predicted


def test_plans_are_of_what_carries_messages(tmp_path) -> None:
    small_random_store(tmp_path / "whole", 90, 900, num_features=3)
    store = split_links(tmp_path / "whole", tmp_path / "g", val=0.1, test=0.1)
    mesh, found = Mesh.of(0, 2, 2), []
    common = {"task": "links", "fanout": -1, "layers": 1, "hidden": 4, "batch_size": 900}
    for more in ({"exclude_targets": False}, {"message_share": 0.3}, {}):
        dry_run = DryRun(store, Config.make({**common, **more}), mesh, [parse_strategy("gdp", 1)])
        for shares in next(dry_run.steps(seconds=0.0)).values():
            found.append(sum(each.blocks[0, 2] for each in shares))
    assert found[1] < 0.5 * found[0]
    assert found[2] < 0.1 * found[0]  # a step on all edges leaves out all that are predicted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"message_share": 1e-9}, "no edge carries messages.*Give a larger share"),
        ({"message_share": 1 - 1e-12}, "no edge is predicted.*Give a smaller share"),
        ({"message_share": 1.0}, "message_share = 1.0: .*less than 1"),
        ({"message_share": 0.0}, "message_share = 0.0: .*greater than 0"),
        ({"exclude_targets": False}, "exclude_targets: with message_share the edges"),
        ({"model": "none"}, "no edge carries messages with model none"),
        ({"views": "all", "sync": "gradient-sum"}, "single nodes"),
        ({"task": "classes"}, "message_share is for the task links"),
    ],
)
def test_what_leaves_nothing_is_refused(tmp_path, settings, message) -> None:
    store = small_random_store(tmp_path / "g", 60, 300, num_features=3)
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        partita.Trainer(store, out=tmp_path / "run", **{"task": "links", "message_share": 0.5, **settings})
