"""Greedy edge placement, as PowerGraph runs it (Gonzalez et al., "PowerGraph", OSDI 2012).

The score of part p for the edge (u, v) is ``[p holds u] + [p holds v] + (max - load_p) / (1 + max - min)``; ties go to
the lowest part. It is HDRF's without degrees, so a part that holds both ends wins, then the least loaded of those that
hold one end, then the least loaded of all. As with HDRF, a part with ``1 + epsilon`` times the mean number of edges is
full.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Shaped

from partita.core.partitioning import PartitionTask, Requires
from partita.partitioning.hdrf import place_by_replicas
from partita.partitioning.owners import EdgePartitioner, Owners, edge_limit


class Greedy(EdgePartitioner):
    """Edges where their ends already are; where they are nowhere, to the least load."""

    requires = Requires(passes=1, grouped=True, node_bytes=(20.0, 1 / 8), options=())
    edge_bound = staticmethod(edge_limit)

    def place(self, task: PartitionTask, sets: Shaped[np.ndarray, "N words"], owners: Owners) -> None:
        """See :meth:`partita.partitioning.owners.EdgePartitioner.place`."""
        place_by_replicas(task, sets, owners, np.empty(0, dtype=np.int32))
