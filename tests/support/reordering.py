"""Re-ordering of a store in one call."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from jaxtyping import Integer

from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.partitioning import reorder as reordering


def reorder(
    store: GraphStore,
    parts: Integer[np.ndarray, "_"],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    resume_key: str | None = None,
    **options: Any,
) -> GraphStore:
    """As :func:`partita.partitioning.reorder.reorder`, with a writer of ``out``."""
    with StoreWriter(out, overwrite=overwrite, resume_key=resume_key) as writer:
        return reordering.reorder(store, parts, writer, **options)
