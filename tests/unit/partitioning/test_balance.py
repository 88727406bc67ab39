"""Node types and training nodes spread evenly over parts, by every algorithm; and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from typed_graphs import TYPES, typed_store

import partita
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.partitioning.partitioners import PARTITIONERS
from partita.partitioning.quality import store_quality
from partita.report import tables


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return typed_store(tmp_path_factory.mktemp("balance") / "g", num_nodes=600, parts=1)


@pytest.mark.parametrize("algorithm", sorted(PARTITIONERS))
def test_every_part_gets_its_share_of_every_type(store, algorithm, tmp_path) -> None:
    summary = partita.partition(store, tmp_path / "p", parts=4, algorithm=algorithm, balance="type", epsilon=0.03)
    made = GraphStore.open(tmp_path / "p")
    counts = np.diff(made.type_offsets).reshape(4, len(TYPES))
    assert (counts.max(axis=0) <= np.ceil(1.03 * counts.sum(axis=0) / 4)).all()
    assert {name: spread.counts for name, spread in summary.quality.types.items()} == {
        name: tuple(counts[:, at]) for at, name in enumerate(TYPES)
    }
    assert made.metadata.notes["partition"]["balance"] == "type"  # how it was made is kept
    assert store_quality(made) == summary.quality


@pytest.mark.parametrize("algorithm", ["random", "spring+", "hdrf"])
def test_every_part_gets_its_share_of_training_nodes(store, algorithm, tmp_path) -> None:
    summary = partita.partition(store, tmp_path / "p", parts=3, algorithm=algorithm, balance="train", epsilon=0.0)
    train = summary.quality.train_nodes
    assert max(train.counts) == -(-train.total // 3)
    for spread in summary.quality.types.values():
        assert max(spread.counts) <= -(-spread.total // 3) + 1  # two classes, each rounded up


def test_an_untyped_graph_has_one_type(tmp_path) -> None:
    graph = partita.generate_sbm(tmp_path / "g", num_nodes=300, num_classes=3, average_degree=6)
    summary = partita.partition(graph, None, parts=4, algorithm="hdrf", balance="type", epsilon=0.0)
    assert summary.quality.nodes.counts == (75,) * 4
    assert summary.quality.types == {}


def test_types_are_shown_by_part(store) -> None:
    found = store_quality(store, np.zeros(store.num_nodes, np.int32), 2)
    assert dict(found.rows())["paper nodes"].startswith("balance 2.000")
    assert found.columns()["place nodes"][1] == 0
    assert found.to_json()["types"]["author"]["balance"] == 2.0
    assert ["balance of place nodes", "2.000"] in tables.quality("g", found.to_json()).rows


def test_what_has_no_types_or_training_nodes_is_refused(store, tmp_path) -> None:
    with pytest.raises(ConfigError, match="no balance 'typ'"):
        partita.partition(store, None, parts=2, balance="typ")
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    with pytest.raises(ConfigError, match="those of a graph store"):
        partita.partition(tmp_path / "edges.csv", None, parts=2, algorithm="spring", balance="type")
    graph = partita.generate_rmat(tmp_path / "r", scale=5, edge_factor=4)
    with pytest.raises(ConfigError, match="no training nodes"):
        partita.partition(graph, None, parts=2, balance="train")
