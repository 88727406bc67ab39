"""Seeded splits into training, validation and test nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int64, Integer

from partita.core.errors import ConfigError
from partita.core.keys import Purpose, fold
from partita.graph.column_specs import MASKS
from partita.graph.hashing import fold_array
from partita.graph.metadata import SPLIT_PREFIX
from partita.graph.writer import StoreWriter

NAMES = tuple(MASKS)


def seeded_split(
    candidates: int | Integer[np.ndarray, "n"], fractions: Sequence[float | int] = (0.6, 0.2, 0.2), seed: int = 0
) -> dict[str, Int64[np.ndarray, "_"]]:
    """Split nodes by rank of a keyed hash of their original index.

    The sizes are exact: with running totals of the fractions f_1, f_1 + f_2, ..., split i ends at position
    ``round(total_i * n)`` of the ranking. The result depends on the set of candidates and the seed only.

    Args:
        candidates: original indices of the nodes to split, without repeats; a number N stands for 0..N-1.
        fractions: of training, validation and test nodes, each >= 0, together at most 1.
        seed: any integer >= 0.

    Returns:
        ``"train"``, ``"val"`` and ``"test"``: int64 original indices, ascending. Some may be empty.

    Raises:
        ConfigError: the fractions are not three numbers >= 0 with a sum of at most 1.
    """
    if len(fractions) != len(NAMES) or not all(f >= 0 for f in fractions) or sum(fractions) > 1 + 1e-9:
        raise ConfigError(
            f"{tuple(fractions)} is not a valid train/validation/test split",
            where="split",
            fix="Give three numbers >= 0 with a sum of at most 1, for instance 0.6,0.2,0.2",
        )
    if isinstance(candidates, int | np.integer):
        candidates = np.arange(candidates, dtype=np.int64)
    candidates = np.sort(np.asarray(candidates, dtype=np.int64))
    hashes = fold_array(fold(int(Purpose.SPLIT), seed), candidates)
    ranked = candidates[np.argsort(hashes, kind="stable")]
    ends = [min(len(ranked), round(total * len(ranked))) for total in np.cumsum(np.asarray(fractions, dtype=float))]
    starts = [0, *ends[:-1]]
    return {name: np.sort(ranked[start:end]) for name, start, end in zip(NAMES, starts, ends)}


def write_splits(writer: StoreWriter, splits: Mapping[str, Integer[np.ndarray, "_"]]) -> None:
    """Write splits as columns.

    Args:
        writer: of the store.
        splits: store ids in ascending original index, by the name of the split.
    """
    for name, ids in splits.items():
        writer.write(SPLIT_PREFIX + name, np.asarray(ids, dtype=np.int64))
