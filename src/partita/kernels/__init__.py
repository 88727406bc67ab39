"""The inner loops of sampling and training, behind one dispatcher: tensors in, tensors out.

What every kernel means is written in :mod:`partita.kernels.reference` (plain numpy and torch). The functions here
check and normalise their arguments and call an implementation: compiled by numba on the CPU, or the reference where
numba is not installed. All implementations draw identical samples; sums differ by rounding only.

Conventions: ``indptr`` is int64; the edges of destination i are ``indptr[i]:indptr[i+1]``. Ids and indices are int32
or int64. Letters as in :mod:`partita.core.records`: D destinations, S sources, E edges, F columns, H heads,
N nodes of the store, M edges of the store. Every function can be called from several threads at once; no result
depends on the number of threads.
"""

from __future__ import annotations

from partita.kernels.choice import load, use
from partita.kernels.relabel import Relabeller
from partita.kernels.rows import (
    aggregate,
    aggregate_backward,
    aggregate_weight_grad,
    dropout,
    edge_dropout,
    gather_rows,
    segment_max,
    segment_max_backward,
    transpose,
)
from partita.kernels.sampling import Sampled, count_distinct, gcn_coefficients, keyed_permutation, sample_neighbors
from partita.kernels.threads import limited, set_threads

__all__ = [
    "Relabeller",
    "Sampled",
    "aggregate",
    "aggregate_backward",
    "aggregate_weight_grad",
    "count_distinct",
    "dropout",
    "edge_dropout",
    "gather_rows",
    "gcn_coefficients",
    "keyed_permutation",
    "limited",
    "load",
    "sample_neighbors",
    "segment_max",
    "segment_max_backward",
    "set_threads",
    "transpose",
    "use",
]
