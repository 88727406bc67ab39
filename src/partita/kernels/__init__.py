"""The inner loops of sampling and training, behind one dispatcher: tensors in, tensors out.

What every kernel means is written in :mod:`partita.kernels.reference` (plain numpy and torch). The functions here
check and normalize their arguments and call an implementation: for tensors on a CUDA device Triton, on the CPU what
numba compiles, or the reference where numba is not installed. All implementations draw identical samples; sums differ
by rounding only.

Conventions: ``indptr`` is int64; the edges of destination i are ``indptr[i]:indptr[i+1]``. Ids and indices are int32
or int64. Letters as in :mod:`partita.core.records`: D destinations, S sources, E edges, F columns, H heads,
N nodes of the store, M edges of the store. Every function can be called from several threads at once; no result
depends on the number of threads.

Names are loaded when they are first used: building a store needs :mod:`partita.graph.build_loops` and
:mod:`partita.sources.id_loops`, and should not have to wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partita.kernels.dispatch import load as load
    from partita.kernels.dispatch import use as use
    from partita.kernels.layer_sampling import arrival_times as arrival_times
    from partita.kernels.layer_sampling import importance as importance
    from partita.kernels.layer_sampling import pick_arrivals as pick_arrivals
    from partita.kernels.relabeller import Relabeller as Relabeller
    from partita.kernels.rows import aggregate as aggregate
    from partita.kernels.rows import aggregate_backward as aggregate_backward
    from partita.kernels.rows import aggregate_weight_grad as aggregate_weight_grad
    from partita.kernels.rows import dropout as dropout
    from partita.kernels.rows import dropout_factor as dropout_factor
    from partita.kernels.rows import edge_dropout as edge_dropout
    from partita.kernels.rows import gather_rows as gather_rows
    from partita.kernels.rows import norm_relu_dropout as norm_relu_dropout
    from partita.kernels.rows import norm_relu_dropout_backward as norm_relu_dropout_backward
    from partita.kernels.rows import segment_max as segment_max
    from partita.kernels.rows import segment_max_backward as segment_max_backward
    from partita.kernels.rows import transpose as transpose
    from partita.kernels.rows import widened as widened
    from partita.kernels.sampling import count_distinct as count_distinct
    from partita.kernels.sampling import gcn_coefficients as gcn_coefficients
    from partita.kernels.sampling import keyed_permutation as keyed_permutation
    from partita.kernels.sampling import relabel as relabel
    from partita.kernels.sampling import sample_neighbors as sample_neighbors
    from partita.kernels.threads import limited as limited
    from partita.kernels.threads import set_threads as set_threads
    from partita.kernels.walks import random_walks as random_walks
    from partita.kernels.walks import top_visits as top_visits
    from partita.kernels.walks import walk_draws as walk_draws
    from partita.kernels.walks import walk_step as walk_step

_MODULES = {
    "dispatch": ("load", "use"),
    "layer_sampling": ("importance", "pick_arrivals", "arrival_times"),
    "relabeller": ("Relabeller",),
    "rows": (
        "aggregate",
        "aggregate_backward",
        "aggregate_weight_grad",
        "dropout",
        "dropout_factor",
        "edge_dropout",
        "gather_rows",
        "norm_relu_dropout",
        "norm_relu_dropout_backward",
        "segment_max",
        "segment_max_backward",
        "transpose",
        "widened",
    ),
    "sampling": ("count_distinct", "gcn_coefficients", "keyed_permutation", "relabel", "sample_neighbors"),
    "threads": ("limited", "set_threads"),
    "walks": ("random_walks", "top_visits", "walk_draws", "walk_step"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'partita.kernels' has no attribute '{name}'")
    value = getattr(import_module(f"partita.kernels.{_HOME[name]}"), name)
    globals()[name] = value
    return value
