"""Repairs a graph store: columns that follow from others, and those of a presampling, are made anew."""

from __future__ import annotations

import os
from pathlib import Path

from partita.core.errors import PartitaError
from partita.graph.metadata import DERIVED_PREFIX, StoreMetadata
from partita.graph.repair import repair_columns, require_repaired, strike
from partita.sample.presample import NOTE, presample


def repair(path: str | os.PathLike[str]) -> list[str]:
    """Make damaged columns of a store anew, as far as they follow from sound ones; these are not touched.

    Args:
        path: a graph store, whole or a shard.

    Returns:
        One line for everything that was done.

    Raises:
        StoreError: no store, its metadata are damaged, another process writes it, or a column cannot be computed from
            others; those that can be were made anew by then.
    """
    directory = Path(path)
    done, wrong = repair_columns(directory)
    metadata = StoreMetadata.read(directory)
    counted = {name for name in metadata.columns if name.startswith(DERIVED_PREFIX)}
    require_repaired(directory, {name: what for name, what in wrong.items() if name not in counted})
    if not wrong:
        return done or ["there is nothing to repair"]
    note = dict(metadata.notes.get(NOTE, {}))
    settings = {name: note[name] for name in _SETTINGS if name in note}
    counted &= {*wrong, *_TOGETHER}
    strike(directory, counted)
    done.append(f"taken out: {', '.join(sorted(counted))}, what a presampling had counted")
    if len(settings) < len(_SETTINGS):
        return done
    try:
        presample(directory, **settings)
    except (PartitaError, TypeError, ValueError) as error:
        return [*done, f"presample the store again: {error}"]
    again = StoreMetadata.read(directory).columns
    same = all(again[name].checksum == metadata.columns[name].checksum for name in counted if name in again)
    return [*done, f"presampled again with the settings of before: {'the same' if same else 'other'} counts"]


_TOGETHER = ("presample_node", "presample_edge")
"""Columns that one presampling makes."""
_SETTINGS = ("fanout", "batch_size", "epochs", "seed", "split", "replace", "weighted")
