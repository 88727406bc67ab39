"""The options of presampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from partita.core.options import SEEDS, SIZES, Options, Range, Size, numbers_by_relation, parse_bytes


@dataclass(frozen=True, kw_only=True)
class PresampleOptions(Options):
    """See :func:`partita.presample`."""

    fanout: Annotated[
        str | Sequence[int] | Mapping[str, str | int | Sequence[int]],
        "Neighbors per layer, starting with the first hop from the seed nodes; -1: all. In typed graphs so many of "
        "every relation; or of each by name, as 'cites=15,10 *=5,5'.",
        numbers_by_relation,
    ] = (15, 10, 5)
    batch_size: Annotated[int, "Seed nodes per mini-batch, over all workers.", Range(1, 2**31 - 1)] = 1024
    epochs: Annotated[int, "Epochs to sample.", Range(1, 2**31)] = 10
    seed: Annotated[int, "Random seed.", SEEDS] = 0
    split: Annotated[str, "Split whose nodes are the seed nodes."] = "train"
    replace: Annotated[bool, "Sample with replacement."] = False
    weighted: Annotated[bool, "Sample in proportion to edge weights."] = False
    memory_limit: Annotated[Size, "Private memory for buffers, for instance 2GiB.", SIZES, parse_bytes] = "1GiB"
