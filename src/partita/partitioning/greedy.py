"""Greedy edge placement, as PowerGraph runs it (Gonzalez et al., "PowerGraph", OSDI 2012).

The score of part p for the edge (u, v) is ``[p holds u] + [p holds v] + (max - load_p) / (1 + max - min)``; ties go to
the lowest part. It is HDRF's without degrees, so a part that holds both ends wins, then the least loaded of those that
hold one end, then the least loaded of all.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Shaped

from partita.core.partitioning import PartitionTask, Requires
from partita.partitioning.hdrf import place_by_replicas
from partita.partitioning.owners import EdgePartitioner, close_owners, open_owners


class Greedy(EdgePartitioner):
    """Edges where their ends already are; where they are nowhere, to the least load.

    Args:
        owner: see :class:`~partita.partitioning.owners.EdgePartitioner`.
    """

    requires = Requires(passes=1, grouped=True, node_bytes=(20.0, 1 / 8))

    def partition_edges(self, task: PartitionTask) -> tuple[Int32[np.ndarray, "N"], Shaped[np.ndarray, "N words"]]:
        """See :meth:`partita.partitioning.owners.EdgePartitioner.partition_edges`."""
        owners = open_owners(task, self.owner)
        sets = place_by_replicas(task, owners, np.empty(0, dtype=np.int32))
        return close_owners(owners, task), sets
