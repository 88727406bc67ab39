"""The inner loops of sampling and training, behind one dispatcher: tensors in, tensors out.

What every kernel means is written in :mod:`partita.kernels.reference` (plain numpy and torch). The functions here
check and normalize their arguments and call an implementation: for tensors on a CUDA device Triton, on the CPU what
numba compiles, or the reference where numba is not installed. All implementations draw identical samples; sums differ
by rounding only.

Conventions: ``indptr`` is int64; the edges of destination i are ``indptr[i]:indptr[i+1]``. Ids and indices are int32
or int64. Letters as in :mod:`partita.core.records`: D destinations, S sources, E edges, F columns, H heads,
N nodes of the store, M edges of the store. Every function can be called from several threads at once; no result
depends on the number of threads.

Names are loaded when they are first used, so that who needs none of them need not wait for torch. They are listed in
``__init__.pyi``, for type checkers and for this module.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_LISTED = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", _LISTED, re.MULTILINE)}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'partita.kernels' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
