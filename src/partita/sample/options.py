"""The options of presampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from partita.core.options import Options, Size, parse_bytes, whole_numbers


@dataclass(frozen=True, kw_only=True)
class PresampleOptions(Options):
    """See :func:`partita.presample`."""

    fanout: Annotated[
        Sequence[int], "Neighbors per layer; the first entry is the hop next to the seeds; -1: all.", whole_numbers
    ] = (15, 10, 5)
    batch_size: Annotated[int, "Seeds of a mini-batch over all workers."] = 1024
    epochs: Annotated[int, "Times over the seeds."] = 10
    seed: Annotated[int, "Of all draws."] = 0
    split: Annotated[str, "Whose nodes are the seeds."] = "train"
    replace: Annotated[bool, "Draw with replacement."] = False
    weighted: Annotated[bool, "Draw in proportion to edge weights."] = False
    memory_limit: Annotated[Size, "Private memory for buffers, for instance 2GiB.", parse_bytes] = "1GiB"
