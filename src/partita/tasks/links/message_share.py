"""Which edges of training are predicted and which carry messages, where no edge does both."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from partita.core.errors import ConfigError
from partita.core.keys import Purpose, fold
from partita.graph.hashing import fold_arrays
from partita.graph.store import GraphStore
from partita.tasks.links.edges import RELATION, SOURCE, TARGET


def supervision_edges(
    store: GraphStore, edges: Int64[Tensor, "S columns"], share: float, seed: int
) -> Int64[Tensor, "n columns"]:
    """The edges that are predicted, in their order; all others carry messages.

    An edge is told by a hash of the seed, its relation and the original indices of its ends, so the same ones are
    predicted however the store is partitioned. A relation and its reverse have the same hashes, and so have both
    directions: parallel edges of a pair, and the reverses of all of them, are on the same side.

    Args:
        store: the graph.
        edges: of training, rows ``[source, destination]``, of a typed graph ``[source, destination, relation]``; store
            ids.
        share: of the edges that carry messages, about; between 0 and 1.
        seed: of the run.

    Raises:
        ConfigError: all edges are on one side.
    """
    found = edges[_predicted(store, edges, share, seed)]
    if len(edges) and not 0 < len(found) < len(edges):
        what = "no edge is predicted" if len(found) == 0 else "no edge carries messages"
        raise ConfigError(
            f"{what} with a share of {share} of the {len(edges):,} edges of training",
            where="message_share",
            fix=f"Give a {'smaller' if len(found) == 0 else 'larger'} share, or leave message_share out",
        )
    return found


def _predicted(store: GraphStore, edges: Int64[Tensor, "S columns"], share: float, seed: int) -> Bool[Tensor, "S"]:
    schema, key = store.schema, fold(int(Purpose.MESSAGE_SHARE), seed)
    ends = [store.to_original(edges[:, column].numpy()) for column in (SOURCE, TARGET)]
    relation = np.zeros(len(edges), np.int64)
    if schema is not None:
        own = np.arange(len(schema.relations))
        both = np.where(schema.reverses < 0, own, np.minimum(own, schema.reverses))
        relation = both[edges[:, RELATION].numpy()]
    keys = np.array([fold(key, number) for number in range(int(relation.max(initial=0)) + 1)], np.uint64)[relation]
    for column in (np.minimum(*ends), np.maximum(*ends)):
        keys = fold_arrays(keys, column)
    return torch.from_numpy((keys >> np.uint64(11)) * 2.0**-53 >= share)
