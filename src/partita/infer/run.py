"""What ``evaluate`` and ``predict`` have in common: the workers, and what a run's store is read through."""

from __future__ import annotations

import os
from typing import Any

from partita.comm.context import Context
from partita.comm.launch import launch
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.core.options import parse_bytes
from partita.graph.store import GraphStore
from partita.infer.neighbors import check_walkable
from partita.infer.row_table import RowTable
from partita.nn.model import Model
from partita.sample.samplers import evaluation_sampler
from partita.sample.topology import LocalTopology, as_tensor
from partita.setup.inputs import feature_column, open_features, open_topology


def launched() -> bool:
    """Whether a launcher such as torchrun has started this process as one of several workers."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def on_workers(entry: str, workers: int, model: Model | None, **arguments: Any) -> Any:
    """Run an entry on so many workers of this machine; returns what the first one returned.

    Raises:
        ConfigError: a model was given, which is an object of this process.
    """
    if model is not None:
        raise ConfigError(
            "a model of your own is an object of this process, which other processes do not have",
            where="model",
            fix="Leave workers at 1, or run a script that makes the model with torchrun",
        )
    return launch(entry, workers, arguments=arguments)


def join(context: Context | None, workers: int) -> Context:
    """The context of this process.

    Raises:
        ConfigError: another number of workers is asked for than were started.
    """
    context = context or Context.from_environment() or Context.alone()
    size = context.mesh.size
    if workers not in (1, size):
        raise ConfigError(
            f"{workers} workers are asked for, but this process is one of {size}",
            where="workers",
            fix="Leave workers out where a launcher starts them",
        )
    return context


def memory_limit_of(given: int | str | None, config: Config) -> int | None:
    """Bytes of private memory per worker: as given, or as in a run's settings."""
    return parse_bytes(given) if given is not None else config.memory_limit  # type: ignore[return-value]


def open_inference(store: GraphStore, config: Config, mesh: Mesh) -> tuple[LocalTopology, RowTable]:
    """Neighbors and input rows of a store, or of this host's shard, as the settings of a run want them.

    Raises:
        ConfigError: the store has no features, or not the edges for the walks of a run.
        StoreError: the store is the shard of another host.
    """
    store.require_host(mesh.host, mesh.hosts)
    check_walkable(store, evaluation_sampler(config))
    home, topology, first = open_features(store, config), open_topology(store, config), store.held("x")[1]
    if store.hot is None:
        return topology, RowTable(home, store.num_nodes, first)
    ids, rows = store.hot
    return topology, RowTable(home, store.num_nodes, first, as_tensor(ids), feature_column(rows, config))
