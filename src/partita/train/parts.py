"""Who owns what, where a store has another number of parts than there are workers."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from partita.config import Config
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.parallel.strategies import AUTO, parse_strategy
from partita.setup.sampler import WHOLE


def with_dealt_parts(store: GraphStore, config: Config, mesh: Mesh) -> GraphStore:
    """The store with one part for every worker, where the settings say so and it has another number of them.

    A part is a range of ids, so nothing is read or written. Samples do not depend on parts, and so the model does not.
    A store in one part is dealt out where the strategy that is named places by owner, whatever the settings say of
    parts: otherwise it would be refused. Shards are left alone, as they belong to hosts; in isolated training parts are
    what is trained on, and any number of workers goes through them.

    Args:
        store: partitioned.
        config: the settings.
        mesh: the workers.
    """
    if config.views != WHOLE or store.shard is not None or store.num_parts == mesh.size or mesh.size == 1:
        return store
    if not (config.deal_parts if store.num_parts > 1 else _needs_owners(config)):
        return store
    if store.num_parts == mesh.workers and (
        config.strategy == AUTO or parse_strategy(config.strategy, config.layers).axis == "workers"
    ):  # every host owns all parts, one for each of its workers
        return store
    return store.with_({"part_offsets": dealt_offsets(store.part_offsets, mesh.size)})


def dealing_note(store: GraphStore, dealt: GraphStore) -> str | None:
    """What users should know of a store in one part that was dealt out; ``None`` where it was not.

    Args:
        store: as it was.
        dealt: what :func:`with_dealt_parts` made of it.
    """
    if store.num_parts > 1 or dealt.num_parts == 1:
        return None
    return (
        f"the store is not partitioned: its nodes are dealt to {dealt.num_parts} workers by their numbers, which "
        f"exchange less after: partita partition {store.path} OUT --parts {dealt.num_parts}"
    )


def _needs_owners(config: Config) -> bool:
    return config.strategy != AUTO and parse_strategy(config.strategy, config.layers).needs_owners


def dealt_offsets(part_offsets: Int64[np.ndarray, "P_1"], owners: int) -> Int64[np.ndarray, "W_1"]:
    """Bounds of the ranges that some workers own, each of them P / W parts long.

    Args:
        part_offsets: int64 (P+1): where parts begin, and the number of nodes. A part that is shared is cut in
            proportion, by the number of its nodes.
        owners: W, the number of workers.

    Returns:
        int64 (W+1), ascending.
    """
    parts = len(part_offsets) - 1
    whole, rest = np.divmod(np.arange(owners + 1, dtype=np.int64) * parts, owners)
    following = np.minimum(whole + 1, parts)
    return part_offsets[whole] + (part_offsets[following] - part_offsets[whole]) * rest // owners
