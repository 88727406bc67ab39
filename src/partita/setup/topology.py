"""Opens the edges that workers draw from, as the settings of a run want them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.memory import bytes_for_files
from partita.core.options import format_bytes
from partita.graph.column_specs import known
from partita.graph.store import GraphStore
from partita.sample.disk import edges_on_disk
from partita.sample.hot_rows import RANK_BYTES, ROW_BYTES, edge_columns
from partita.sample.topology import EDGE_ROWS, ArrayTopology, LocalTopology
from partita.setup.batch_sizes import LayerSizes, batch_sizes, mean_degree
from partita.setup.sampler import WHOLE, sampler_settings

_READ_BYTES = 64
"""Of an edge that is read, while it is: where it is, whose it is, the order of reads, what is read."""
_PICKING = "node"
"""The sampler that reads of a row what it has picked, where all edges of the row are equally likely."""


def mapped_topology(store: GraphStore, config: Config) -> LocalTopology:
    """The store's edges, mapped into memory, with the sampling settings of a run."""
    return LocalTopology(store, replace=config.replace, weighted=config.weighted, types=True)


def open_topology(store: GraphStore, config: Config) -> ArrayTopology:
    """The same; read from files as they are drawn, where the settings say how much memory edges may take.

    Raises:
        ConfigError: the edges are not in files.
    """
    local = mapped_topology(store, config)
    if config.topology_memory is None or not store.held("indices")[0].size:
        return local
    looked_at = edge_columns(local)
    specs = known(store.columns).items()
    columns = {spec.sampler: store.held(name)[0] for name, spec in specs if spec.sampler in looked_at}
    columns |= {name: store.held(name)[0] for name in EDGE_ROWS if store.has(name)}
    asked, picks = _draws(store, config)
    found = edges_on_disk(local, columns, config.topology_memory, asked=asked, picks=picks)
    if found is None:
        raise ConfigError(
            "the edges are in memory, not in files that they could be read from",
            where="topology_memory",
            fix="Save the graph as a store, or leave topology_memory out",
        )
    return found


def _draws(store: GraphStore, config: Config) -> tuple[int, int]:
    """Edges that a worker's batch comes along before its last hop; and edges drawn of a node, -1 for whole rows."""
    batch = min(config.batch_size or store.num_nodes, store.num_nodes)
    last, *others = batch_sizes(config, store, -(-batch // config.workers), config.workers)
    asked = max(1, sum(each.edges for each in others))
    fanouts = torch.tensor(sampler_settings(config, store.schema).fanouts).flatten()
    whole_rows = config.sampler != _PICKING or config.weighted or store.schema is not None
    if whole_rows or (fanouts < 0).any():
        return asked, -1
    return asked, max(1, math.ceil(last.edges / max(1, last.destinations)))


def check_topology_memory(config: Config, store: GraphStore, device: torch.device | str) -> None:
    """Refuse to read edges from files where nobody does so.

    Raises:
        ConfigError: on a GPU, or in isolated training.
    """
    if config.topology_memory is None:
        return
    for where, wrong, fix in (
        (f"device {device}", str(device).startswith("cuda"), "topology_cache says how much of a device edges take"),
        (f"views {config.views}", config.views != WHOLE, "memory_per_worker says how much memory parts take"),
    ):
        if wrong:
            raise ConfigError(
                "topology_memory is for the CPU and for training on the whole graph, so far",
                where=where,
                fix=f"Leave topology_memory out; {fix}",
            )


def topology_bytes(config: Config, store: GraphStore) -> int:
    """Bytes of memory for edges that are kept of those in files, and for finding them, at most; 0 where none are."""
    if config.topology_memory is None:
        return 0
    of_nodes = (RANK_BYTES + ROW_BYTES) * store.num_nodes
    return min(max(config.topology_memory, RANK_BYTES * store.num_nodes), edge_bytes(config, store) + of_nodes)


def drawing_bytes(config: Config, store: GraphStore, sizes: Sequence[LayerSizes]) -> int:
    """Bytes that reading the edges of a batch takes while it is sampled, one layer after the other."""
    if _draws(store, config)[1] >= 0:
        return _READ_BYTES * max(size.edges for size in sizes)
    edges = max(size.destinations for size in sizes) * mean_degree(store)
    return _READ_BYTES * math.ceil(min(edges, store.num_edges))


def edge_bytes(config: Config, store: GraphStore) -> int:
    """Bytes of what draws look at of all edges that are here."""
    return sum(column.nbytes for column in edge_columns(mapped_topology(store, config)).values())


def topology_note(config: Config, store: GraphStore, workers: int) -> str | None:
    """What to tell of edges that are mapped and do not fit into memory.

    Args:
        config, store: of the run.
        workers: of this host, who share its memory.
    """
    available, edges = bytes_for_files(), edge_bytes(config, store)
    if config.topology_memory is not None or edges <= available:
        return None
    wanted = max(1, available // 2 // workers >> 20)
    return (
        f"edges take {format_bytes(edges)}, and {format_bytes(available)} of memory are available: pages that do not "
        f"fit are read anew, one after the other; --topology-memory {wanted}MiB reads what is drawn in large and "
        "simultaneous reads, and keeps the edges that are drawn most"
    )
