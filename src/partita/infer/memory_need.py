"""What full-graph inference takes of memory at most, from the sizes of graph and model."""

from __future__ import annotations

from partita.core.memory import available_bytes
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
        return size if 6 * size <= limit else 0  # larger ones are files

    layers, hidden, block = model.layers, 0, 0
    for layer in layers:
        split = layer.split
        message = 0 if split is None or split.message_width is None else split.message_width
        hidden = max(hidden, kept(layer.in_width) + kept(message) + kept(layer.out_width))
        sums = layer.starts_with_sum if split is None or not message else split.sums_messages
        columns = 3 * layer.in_width if split is None else (message or layer.in_width) + 2 * split.state_width
        columns += 0 if split is None else split.columns_per_edge
        of_nodes = nodes * (item * (3 * layer.in_width + 6 * layer.out_width) + node_bytes)
        of_edges = edges * (24 if sums else 24 + item * columns)
        block = max(block, min(limit // 4, of_nodes + of_edges, BLOCK_BYTES if sums else limit))
    # Rows that links are scored with are kept once, as hidden layers are.
    width = layers[-1].out_width
    outputs = _OUTPUTS * nodes * width * item if model.decoder is None else kept(width)
    return {
        "inference": min(hidden, limit // 2) + block,
        "nodes": _NODE_BYTES * nodes + outputs,
    }
