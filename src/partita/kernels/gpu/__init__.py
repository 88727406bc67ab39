"""The kernels on a CUDA device: Triton for the draws, reads and sums, PyTorch's sorts and scans for the rest.

Sums and maxima over edges go in the order of the edges and nothing is added atomically, so that results do not depend
on how a device schedules its work. Columns of the store (``indptr``, ``indices``, ``weights``, ``self_loops``, ``x``,
``scale``) may lie in pinned host memory, which a device reads in place; everything else lies on the device.

Without a device, the same code runs in Triton's interpreter; see :mod:`partita.kernels.gpu.launch`.
"""

from partita.kernels.gpu.expand import expand_rows
from partita.kernels.gpu.launch import INTERPRETED
from partita.kernels.gpu.norm import dropout, edge_dropout, norm_relu_dropout, norm_relu_dropout_backward
from partita.kernels.gpu.rows import (
    aggregate,
    aggregate_weight_grad,
    gather_rows,
    segment_max,
    segment_max_backward,
    transpose,
)
from partita.kernels.gpu.sampling import (
    find_edges,
    gcn_coefficients,
    keyed_permutation,
    relabel,
    sample_neighbors,
    sample_relations,
)
from partita.kernels.reference.edge_positions import gather_positions, locate_edges
from partita.kernels.reference.pairs import pair_edges
from partita.kernels.reference.rows import move_rows
from partita.kernels.reference.sampling import count_distinct


def __getattr__(name: str) -> None:
    raise AttributeError(f"'{name}' has no kernel for a CUDA device yet")
