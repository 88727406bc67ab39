"""Columns of features as loaders read them."""

from __future__ import annotations

from partita.features.levels import Levels
from partita.features.rows import FeatureColumn
from partita.graph.store import GraphStore
from partita.sample.topology import as_tensor


def column_of(store: GraphStore, name: str) -> FeatureColumn:
    """A whole column of features of a store, which is read as float32.

    Args:
        store: the graph.
        name: ``"x"``, or that of a type, such as ``"x_0"``.
    """
    return FeatureColumn(as_tensor(store.column(name)), levels=Levels.of(store.levels_of(name)))
