"""What full-graph inference takes of memory at most, from the sizes of graph and model."""

from __future__ import annotations

from dataclasses import dataclass

from partita.core.memory import available_bytes, bytes_for_files
from partita.nn.layers import Layer
from partita.nn.model import Model

BLOCK_BYTES = 64 * 2**20
"""Of a block of nodes. Larger ones are slower: their temporaries leave the cache and are mapped afresh each time."""
FEWEST_BYTES = 64 * 2**20
"""The least that inference takes as its limit by itself."""
_NODE_BYTES = 64
"""Of a node: the scratch that numbers sources, ids, cumulated costs, order of ingest and targets."""
_OUTPUTS = 4
"""How often outputs of the last layer are held at most: as they come, gathered, judged, written."""


def own_limit(workers: int) -> int:
    """Bytes that inference allows itself where nothing is said: a quarter of what is available to a worker."""
    return max(available_bytes(workers) // 4, FEWEST_BYTES)


def stays_in_memory(num_bytes: int, limit: int) -> bool:
    """Whether an array is kept in memory: while six such fit into the limit. Larger ones are files."""
    return 6 * num_bytes <= limit


def exceeds_cache(num_bytes: int, limit: int) -> bool:
    """Whether rows in a file are read in order: they do not fit into the memory that inference leaves for files.

    Args:
        num_bytes: of the rows.
        limit: bytes that inference takes itself.
    """
    return num_bytes > bytes_for_files() - limit


@dataclass(frozen=True, slots=True)
class OrderedMemory:
    """What a layer that reads its table in order takes of memory.

    Attributes:
        node_bytes: of a destination of a block, until all of its sources are read.
        states: for all destinations of a block.
        work: for a chunk of the table, and for edges that are computed at once.
    """

    node_bytes: int
    states: int
    work: int

    @classmethod
    def of(cls, layer: Layer, item: int, limit: int, kept: int) -> OrderedMemory:
        """Of a layer that is split.

        Args:
            layer: the layer.
            item: bytes of an element of a row.
            limit: for all that inference keeps.
            kept: of it, what tables in memory take: at most half.
        """
        split = layer.split
        assert split is not None
        columns = split.state_width + split.query_width + 1 + layer.fills_loops * layer.edge_width
        work = min(limit // 6, BLOCK_BYTES)
        # A sixth is for the edges, which are a file where they do not fit.
        states = limit - min(kept, limit // 2) - limit // 6 - work
        return cls(32 + item * columns, states, work)


def edge_record_bytes(layer: Layer, item: int) -> int:
    """Bytes of an edge while it waits for its source, at most: both ends, weight, relation, features."""
    return 4 + 8 + item + 4 + item * layer.edge_width


def inference_parts(
    model: Model, nodes: int, edges: int, *, item: int, limit: int, node_bytes: int = 0
) -> dict[str, int]:
    """Bytes that a worker takes at most, by what they are for.

    Args:
        model: whose layers are computed, one after the other.
        nodes, edges: of the graph.
        item: bytes of an element of a row.
        limit: for hidden layers and node blocks together.
        node_bytes: to find the neighbors of a node.
    """

    def kept(width: int) -> int:
        size = nodes * width * item
        return size if stays_in_memory(size, limit) else 0

    layers, hidden, block, ordered = model.layers, 0, 0, 0
    for layer in layers:
        split = layer.split
        message = 0 if split is None or split.message_width is None else split.message_width
        tables = kept(layer.in_width) + kept(message) + kept(layer.out_width)
        hidden = max(hidden, tables)
        sums = layer.starts_with_sum if split is None or not message else split.sums_messages
        columns = 3 * layer.in_width if split is None else (message or layer.in_width) + 2 * split.state_width
        columns += 0 if split is None else split.columns_per_edge
        of_nodes = nodes * (item * (3 * layer.in_width + 6 * layer.out_width) + node_bytes)
        of_edges = edges * (24 if sums else 24 + item * columns)
        block = max(block, min(limit // 4, of_nodes + of_edges, BLOCK_BYTES if sums else limit))
        if split is not None and exceeds_cache(nodes * (message or layer.in_width) * item, limit):
            memory = OrderedMemory.of(layer, item, limit, tables)
            records = edges * edge_record_bytes(layer, item)
            records = records if stays_in_memory(records, limit) else 0
            states = min(memory.states, nodes * memory.node_bytes)
            ordered = max(ordered, min(tables, limit // 2) + states + records + memory.work)
    # Rows that links are scored with are kept once, as hidden layers are.
    width = layers[-1].out_width
    outputs = _OUTPUTS * nodes * width * item if model.decoder is None else kept(width)
    return {
        "inference": max(min(hidden, limit // 2) + block, ordered),
        "nodes": _NODE_BYTES * nodes + outputs,
    }
