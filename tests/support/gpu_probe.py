"""The device functions of keyed arithmetic, one call per element; imported by :mod:`gpu_imports`."""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from partita.kernels.gpu.draws import arrival_time, below, fold, leading_zeros


@triton.jit
def arithmetic(key, value, n, weight, table, folded, mapped, zeros, times, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    draw = tl.load(key + i).to(tl.uint64)
    tl.store(folded + i, fold(draw, tl.load(value + i)).to(tl.int64))
    tl.store(mapped + i, below(draw, tl.load(n + i)))
    tl.store(zeros + i, leading_zeros(draw | 1).to(tl.int64))
    tl.store(times + i, arrival_time(draw, tl.load(weight + i).to(tl.uint64), table))
