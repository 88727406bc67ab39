"""The edges of a store, or of one host's shard of it, as the workers of a run see them."""

from __future__ import annotations

from typing import Literal

from partita.core.errors import ConfigError
from partita.core.protocols import Topology
from partita.graph.store import GraphStore
from partita.parallel.strategies import Workers, make_axis
from partita.sample.collective import CollectiveTopology
from partita.sample.topology import ArrayTopology, as_tensor


def place_topology(
    local: ArrayTopology, mode: Literal["replicated", "partitioned"], store: GraphStore, context: Workers
) -> Topology:
    """Where a worker draws neighbours from.

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
    cut = store.shard is not None and store.shard.topology == "partitioned"
    if mode == "replicated":
        if cut and context.mesh.hosts > 1:
            raise ConfigError(
                "every host has the edges of its own nodes only",
                where=str(store.path),
                fix="Use --topology partitioned, or make shards with --topology replicated",
            )
        return local
    mesh = context.mesh
    if cut:
        axis = "hosts"
    else:
        axis = "workers" if store.num_parts == mesh.workers else "all"
    return CollectiveTopology(local, make_axis(context, axis, as_tensor(store.part_offsets)))
