"""What ``evaluate`` and ``predict`` have in common: the workers, and what a run's store is read through."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from jaxtyping import Int64
from torch import Tensor, nn

from partita import kernels
from partita.comm.context import Context
from partita.comm.launch import launch
from partita.config import Config
from partita.core import progress
from partita.core.errors import ConfigError
from partita.core.memory_need import MemoryNeed
from partita.core.mesh import Mesh, running
from partita.core.options import Size, size_of
from partita.features.typed import TypedColumns
from partita.graph.store import GraphStore
from partita.infer.layerwise import LayerwiseInference
from partita.infer.memory_need import inference_parts
from partita.infer.neighbors import check_walkable
from partita.infer.ranges import Ranges
from partita.infer.row_table import RowTable
from partita.infer.temporal import TemporalInference
from partita.infer.whole import WholeInference
from partita.nn.model import Model
from partita.sample.temporal import TemporalTopology
from partita.sample.topology import LocalTopology, as_tensor
from partita.setup.ages import attach_times, check_ages
from partita.setup.inputs import feature_column, is_encoded, open_columns, open_features
from partita.setup.model import check_edge_columns
from partita.setup.sampler import evaluation_sampler, make_sampler
from partita.setup.temporal import check_temporal, seed_times, with_times
from partita.setup.topology import mapped_topology

_THREADS = 8
"""Of libraries: those that compute, and those that write files."""


def launched() -> bool:
    """Whether a launcher such as torchrun has started this process as one of several workers."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def on_workers(entry: str, workers: int, model: nn.Module | None, **arguments: Any) -> Any:
    """Run an entry on so many workers of this machine; returns what the first one returned.

    Raises:
        ConfigError: a model was given, which is an object of this process; or ``memory_limit`` is not a size.
    """
    if arguments.get("memory_limit") is not None:
        size_of(arguments["memory_limit"], "memory_limit")  # complains before workers are started
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
            f"workers={workers}, but {running(size)}",
            where="workers",
            fix="Leave workers out where a launcher starts them",
        )
    return context


def open_inference(store: GraphStore, config: Config, mesh: Mesh) -> tuple[LocalTopology, RowTable | TypedColumns]:
    """Neighbors and input rows of a store, or of this host's shard, as the settings of a run want them.

    Raises:
        ConfigError: the store has no features, or not the edges for the walks of a run.
        StoreError: the store is the shard of another host.
    """
    store.require_host(mesh.host, mesh.hosts)
    sampler = evaluation_sampler(config, store.schema)
    check_walkable(store, sampler)
    if sampler is None and not store.has("edge_weight"):  # nothing is drawn, so nothing is drawn by weight
        config = config.model_copy(update={"weighted": False})
    if is_encoded(store, config):
        return mapped_topology(store, config), open_columns(store, store.schema, config)
    home, topology, first = open_features(store, config), mapped_topology(store, config), store.held("x")[1]
    if store.hot is None:
        return topology, RowTable(home, store.num_nodes, first)
    ids, rows = store.hot
    return topology, RowTable(home, store.num_nodes, first, as_tensor(ids), feature_column(rows, config, home.levels))


def inference_of(
    model: Model,
    store: GraphStore,
    config: Config,
    context: Context,
    *,
    memory_limit: Size | None = None,
    opened: tuple[LocalTopology, RowTable | TypedColumns] | None = None,
) -> LayerwiseInference:
    """Inference with a model on the nodes of a store, as the settings of a run want it.

    Args:
        model: the same weights on all workers.
        store: the graph, or this host's shard.
        config: the settings.
        context: of this worker.
        memory_limit: bytes per worker, or text such as ``"2GiB"``; ``None``: as in the settings.
        opened: what :func:`open_inference` gave, where it was called before.

    Raises:
        ConfigError, StoreError: see :func:`open_inference`, and :meth:`Ranges.of`.
    """
    check_edge_columns(model, store)
    check_ages(config.model_copy(update={"time_encoding": "auto"}), store, model)  # what a run was told is settled
    attach_times(model, store)
    topology, inputs = opened or open_inference(store, config, context.mesh)
    kind: Callable[..., LayerwiseInference] = LayerwiseInference
    if model.whole:
        store.require_whole("a model that is computed as a whole")
        kind = WholeInference
    if (times := seed_times(config, store)) is not None:
        check_temporal(config, store, "cpu", model)
        draws = make_sampler(config, context.group("all"), store.schema)
        temporal = cast(TemporalTopology, with_times(topology, config, store))
        kind = partial(TemporalInference, temporal=temporal, times=times, draws=draws)
    return kind(
        model,
        topology,
        inputs,
        memory_limit=config.memory_limit if memory_limit is None else size_of(memory_limit, "memory_limit"),
        context=context,
        ranges=Ranges.of(store, context.mesh),
        sampler=evaluation_sampler(config, store.schema),
    )


def require_memory(inference: LayerwiseInference, store: GraphStore, context: Context) -> None:
    """Say what this worker is going to take of memory.

    Raises:
        ResourceError: it may not take so much.
    """
    kernels.load()  # what the compiler itself takes is held then
    model, limit = inference.model, inference.memory_limit
    parts = inference_parts(
        model, store.num_nodes, store.num_edges, item=inference.dtype.itemsize, limit=limit,
        node_bytes=inference.neighbors.node_bytes,
    )  # fmt: skip
    need = MemoryNeed.of(parts, threads=_THREADS, sharers=context.mesh.workers)
    if context.mesh.rank == 0:
        progress.say(need.text)
    need.require("inference", "Give a lower --memory-limit, use fewer --workers, or raise the limit")


def ingest_order(store: GraphStore) -> Int64[Tensor, "N"] | None:
    """Store ids of all nodes in the order in which they were ingested; ``None`` where that is 0, 1, 2, ..."""
    order = store.ingest_order()
    return None if order is None else as_tensor(order)
