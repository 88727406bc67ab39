"""Graphs of the sizes of public ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import partita
from partita.core.errors import ConfigError
from partita.graph.generate_shapes import PAPERS100M, PRODUCTS

MADE = {"products": (partita.generate_products, PRODUCTS), "papers100m": (partita.generate_papers100m, PAPERS100M)}


@pytest.mark.parametrize("name", MADE)
def test_sizes_are_those_of_the_public_graph(name: str, tmp_path: Path) -> None:
    make, shape = MADE[name]
    scale = 8000 / shape.nodes
    store = partita.GraphStore.open(make(tmp_path / "graph", scale=scale))
    assert store.num_nodes == 8000
    assert store.metadata.num_classes == shape.classes
    assert store.num_features == shape.features
    # Repeats and self loops are left out, which are more in a small graph.
    assert 0.5 < store.num_edges / (2 * shape.edges * scale) <= 1
    sizes = [len(store.splits[split]) for split in ("train", "val", "test")]
    assert sizes == pytest.approx([count * scale for count in shape.split], abs=1)
    degrees = np.sort(np.diff(store.indptr))
    assert degrees[-1] > 4 * degrees.mean()  # some nodes have many more neighbors than most


def test_bad_sizes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nodes for 47 classes"):
        partita.generate_products(tmp_path / "graph", scale=1e-6)
    assert not (tmp_path / "graph").exists()
