"""Partita trains graph neural networks on graphs that are too big, or too slow, for one device.

    import partita

    partita.ingest("edges.csv", "graph", nodes="nodes.csv")
    run = partita.Trainer("graph", out="run", model="sage", epochs=5).fit()
    partita.predict("run", out="predictions.parquet")

Importing does no work: every name is loaded when it is first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Config": "partita.config",
    "Encoder": "partita.nn.encoder",
    "GraphStore": "partita.graph.store",
    "Model": "partita.nn.model",
    "LinkNeighborLoader": "partita.loaders.link",
    "NeighborLoader": "partita.loaders.neighbor",
    "PartitaError": "partita.core.errors",
    "HeteroLayer": "partita.nn.layers",
    "PygLayer": "partita.nn.layers",
    "Trainer": "partita.train.trainer",
    "check_leaks": "partita.graph.leaks",
    "evaluate": "partita.infer.evaluate",
    "export": "partita.graph.export",
    "export_model": "partita.runs.export_model",
    "generate_papers100m": "partita.graph.generate_shapes",
    "generate_products": "partita.graph.generate_shapes",
    "generate_rmat": "partita.graph.generate",
    "generate_sbm": "partita.graph.generate",
    "generate_shop": "partita.sources.shop.generate",
    "generate_typed": "partita.graph.generate_typed",
    "ingest": "partita.sources.ingest",
    "inspect": "partita.graph.profile",
    "make_plan": "partita.train.planning",
    "partition": "partita.partitioning.job",
    "partition_for_memory": "partita.isolated.memory_parts",
    "predict": "partita.infer.predict",
    "predict_links": "partita.infer.predict_links",
    "presample": "partita.sample.presample",
    "pyg_stores": "partita.loaders.pyg",
    "quality": "partita.partitioning.quality",
    "random_walks": "partita.sample.walks",
    "register": "partita.registries",
    "register_partitioner": "partita.partitioning.partitioners",
    "shard": "partita.partitioning.shards",
    "split_links": "partita.graph.split_links",
    "to_pyg": "partita.loaders.pyg",
    "verify": "partita.graph.verify",
    "write_report": "partita.report.page",
}

__all__ = [*sorted(_PUBLIC), "__version__", "open"]

if TYPE_CHECKING:
    from partita.config import Config as Config
    from partita.core.errors import PartitaError as PartitaError
    from partita.graph.export import export as export
    from partita.graph.generate import generate_rmat as generate_rmat
    from partita.graph.generate import generate_sbm as generate_sbm
    from partita.graph.generate_shapes import generate_papers100m as generate_papers100m
    from partita.graph.generate_shapes import generate_products as generate_products
    from partita.graph.generate_typed import generate_typed as generate_typed
    from partita.graph.leaks import check_leaks as check_leaks
    from partita.graph.profile import inspect as inspect
    from partita.graph.split_links import split_links as split_links
    from partita.graph.store import GraphStore as GraphStore
    from partita.graph.verify import verify as verify
    from partita.infer.evaluate import evaluate as evaluate
    from partita.infer.predict import predict as predict
    from partita.infer.predict_links import predict_links as predict_links
    from partita.isolated.memory_parts import partition_for_memory as partition_for_memory
    from partita.loaders.link import LinkNeighborLoader as LinkNeighborLoader
    from partita.loaders.neighbor import NeighborLoader as NeighborLoader
    from partita.loaders.pyg import pyg_stores as pyg_stores
    from partita.loaders.pyg import to_pyg as to_pyg
    from partita.nn.encoder import Encoder as Encoder
    from partita.nn.layers import HeteroLayer as HeteroLayer
    from partita.nn.layers import PygLayer as PygLayer
    from partita.nn.model import Model as Model
    from partita.partitioning.job import partition as partition
    from partita.partitioning.partitioners import register_partitioner as register_partitioner
    from partita.partitioning.quality import quality as quality
    from partita.partitioning.shards import shard as shard
    from partita.registries import register as register
    from partita.report.page import write_report as write_report
    from partita.runs.export_model import export_model as export_model
    from partita.sample.presample import presample as presample
    from partita.sample.walks import random_walks as random_walks
    from partita.sources.ingest import ingest as ingest
    from partita.sources.shop.generate import generate_shop as generate_shop
    from partita.train.planning import make_plan as make_plan
    from partita.train.trainer import Trainer as Trainer


def open(path: str | os.PathLike[str]) -> GraphStore:
    """Open a graph store; see :meth:`partita.GraphStore.open`. Its repr says what it holds."""
    from partita.graph.store import GraphStore

    return GraphStore.open(path)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'partita' has no attribute '{name}'")
    from partita.core.imports import uncollected

    with uncollected():
        value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
