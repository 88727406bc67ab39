"""Where the graph of a run lies: what of it goes to a worker's device, and who draws from its edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from partita.comm.axis import Workers, make_axis
from partita.comm.device import free_bytes, sharers
from partita.core.errors import ConfigError, ResourceError
from partita.core.memory import available_bytes
from partita.core.protocols import Topology
from partita.features.host import HostRows
from partita.features.typed import TypedColumns
from partita.graph.store import GraphStore
from partita.kernels.memory import pinned, pinned_bytes
from partita.sample.collective import CollectiveTopology
from partita.sample.device import DeviceTopology, HostDraws, edge_bytes, node_bytes, on_device
from partita.sample.topology import ArrayTopology, as_tensor

PINNED_SHARE = 4
"""One part of so many of the host's available memory may be pinned, by all its workers together."""
EDGE_SHARE = 2
"""One part of so many of the device's free memory is for edges, where no size is given; the rest is for computing."""


@dataclass(frozen=True)
class Placed:
    """Where the graph is.

    Attributes:
        topology: draws on the device.
        rows: the input rows of the host: on the device if all of them fit into its cache, else pinned if they fit.
        cache: bytes of the device's memory that are left for a cache of rows: none where it has them all.
        notes: what did not go to the device.
    """

    topology: ArrayTopology
    rows: HostRows | TypedColumns
    cache: int
    notes: list[str]


def place_on_device(
    local: ArrayTopology,
    rows: HostRows | TypedColumns,
    device: torch.device,
    *,
    workers: int,
    edges: int | None,
    cache: int,
    draws: bool = True,
) -> Placed:
    """Put a graph on a device, as far as it goes.

    Columns of nodes go there whole. Edges go there up to ``edges`` bytes. What is left of them, and input rows, is
    copied to pinned memory, which the device reads in place, up to a share of what the host has; beyond that the host
    draws and gathers, and sends the result.

    Args:
        local: the edges that this host has.
        rows: the input rows that this host has.
        device: of this worker.
        workers: of this host.
        edges: bytes of the device's memory for edges; ``None``: what fits in half of what is free.
        cache: bytes of it that are for input rows.
        draws: the device draws; otherwise, for want of kernels, the host does and keeps all edges.

    Raises:
        ResourceError: what was asked for does not fit.
    """
    free = free_bytes(device) // sharers(device, workers)
    needed = node_bytes(local)
    if needed > free:
        raise ResourceError(
            f"the device has {free:,} bytes free for this worker, and the columns of {local.num_nodes:,} nodes "
            f"take {needed:,}",
            where=str(device),
            fix="Use device cpu, or partition the graph and train on views of it",
        )
    free -= needed
    if cache > free:
        raise _too_much("cache", cache, free, device)
    free -= cache
    if edges is not None and edges > free and edge_bytes(local) > free:
        raise _too_much("topology_cache", edges, free, device)
    pinnable = available_bytes(workers) // PINNED_SHARE
    budget = free // EDGE_SHARE if edges is None else edges
    pins_edges = draws and pinned_bytes(edge_bytes(local)) <= pinnable
    topology = on_device(local, device, budget, pin=pins_edges) if draws else HostDraws(local, device)
    notes = []
    if isinstance(topology, DeviceTopology):
        how = "are read from pinned host memory" if pins_edges else "are drawn by the host"
        notes.append(f"{topology.num_hot:,} of {local.num_nodes:,} nodes have their edges on the device; others {how}")
        pinnable -= pinned_bytes(edge_bytes(local)) if pins_edges else 0
    if rows.whole and rows.num_bytes <= cache:
        rows, cache = _moved(rows, lambda column: column.to(device)), 0
    elif pinned_bytes(rows.num_bytes) <= pinnable:
        rows = _moved(rows, pinned)
    else:
        notes.append("the host gathers input rows: they are too many to be pinned")
    return Placed(topology, rows, cache, notes)


def _moved(rows: HostRows | TypedColumns, move: Callable[[torch.Tensor], torch.Tensor]) -> HostRows | TypedColumns:
    return rows.mapped(
        lambda each: replace(
            each,
            x=move(each.x),
            scale=None if each.scale is None else move(each.scale),
            levels=None if each.levels is None else each.levels.mapped(move),
        )
    )


def _too_much(name: str, asked: int, free: int, device: torch.device) -> ResourceError:
    return ResourceError(
        f"{name} is {asked:,} bytes, but only {free:,} are free for it",
        where=str(device),
        fix=f"Set {name} to at most {free:,} bytes, and leave some for computing",
    )


def place_topology(
    local: ArrayTopology, mode: Literal["replicated", "partitioned"], store: GraphStore, context: Workers
) -> Topology:
    """Where a worker draws neighbors from.

    Args:
        local: what this host has of the graph.
        mode: ``"replicated"``: every worker draws for all nodes; ``"partitioned"``: only for nodes that it owns. A
            shard with a host's own edges is partitioned over the hosts; a whole store over all workers, or inside
            every host where it has a part for each worker of a host.
        store: the graph, or the shard of this host.
        context: of this worker.

    Raises:
        ConfigError: the parts of the store do not fit the workers, or a shard has no edges of other hosts' nodes.
    """
    if mode == "replicated":
        if store.edges_are_cut and context.mesh.hosts > 1:
            raise ConfigError(
                "every host has the edges of its own nodes only",
                where=str(store.path),
                fix="Use --topology partitioned, or make shards with --topology replicated",
            )
        return local
    whole_axis = "workers" if store.num_parts == context.mesh.workers else "all"
    axis = "hosts" if store.edges_are_cut else whole_axis
    return CollectiveTopology(local, make_axis(context, axis, as_tensor(store.part_offsets) * local.slots))
