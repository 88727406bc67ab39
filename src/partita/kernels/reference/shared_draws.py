"""Draws that all destinations of a layer share; the rules are in :mod:`partita.kernels.reference`."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped, UInt32, UInt64
from torch import Tensor

from partita.core.keys import MASK64, fold
from partita.kernels.reference.draws import arrival_time
from partita.kernels.reference.excluded import remaining
from partita.kernels.reference.relations import Drawn

NORMAL_BITS = 30
"""Bits after the point of a Gaussian number."""
TURN_BITS = 28
"""Bits after the point of a cosine and a sine."""
OCTAVE_CELLS_BITS = 5
"""Cells of the quantile table for every octave, as a power of 2."""
CELL_BITS = 23
"""A cell of the table of the distribution function is 2^-7 wide."""
MOST_NORMAL = 10 << NORMAL_BITS
"""Gaussian numbers are cut here, beyond any single draw."""
_SIGNIFICANT = 32


class SharedKey(NamedTuple):
    """What the draws of a layer's sources are hashes of.

    Attributes:
        key: 64-bit key; alone, where ``sine`` is 0.
        next_key: of the draws that those of ``key`` turn into.
        cosine, sine: how far they have turned, in units of 2^-28.
    """

    key: int
    next_key: int = 0
    cosine: int = 1 << TURN_BITS
    sine: int = 0

    @classmethod
    def turning(cls, key: int, next_key: int, share: float) -> SharedKey:
        """A ``share``, from 0 on and below 1, of the way from one key's draws to those of the next."""
        angle = math.pi / 2 * share
        return cls(key, next_key, round(math.cos(angle) * 2**TURN_BITS), round(math.sin(angle) * 2**TURN_BITS))


@functools.cache
def quantile_table() -> Int64[np.ndarray, "2079"]:
    """``-Phi^-1(2^-(z+1) (1 + i / 32)) * 2^30`` for z = 1..63 and, within each, i = 0..32.

    Rounded to far fewer bits than the computation has, so that it hardly depends on the machine.
    """
    cells = 1 << OCTAVE_CELLS_BITS
    shares = [math.ldexp(1 + i / cells, -(z + 1)) for z in range(1, 64) for i in range(cells + 1)]
    return np.array([round(-NormalDist().inv_cdf(share) * 2**NORMAL_BITS) for share in shares], np.int64)


@functools.cache
def distribution_table() -> UInt64[np.ndarray, "2561"]:
    """``Phi(x) * 2^64`` for x from -10 to 10 in steps of 2^-7, of 32 significant bits below 0; 2^64 - 1 at most.

    Rounded to far fewer bits than the computation has, so that it hardly depends on the machine.
    """
    steps = MOST_NORMAL >> CELL_BITS
    lower = []
    for step in range(-steps, 1):
        mantissa, exponent = math.frexp(math.erfc(-step * 2.0 ** (CELL_BITS - NORMAL_BITS) / math.sqrt(2)) / 2)
        exact = round(mantissa * 2**_SIGNIFICANT)
        shift = exponent + 64 - _SIGNIFICANT
        lower.append(exact << shift if shift >= 0 else exact >> -shift)
    return np.array(lower + [MASK64 - share for share in lower[-2::-1]], np.uint64)


def quantile(draw: int) -> int:
    """The Gaussian number below which a share ``draw / 2^64`` of all lies, in units of 2^-30."""
    table = quantile_table()
    below_zero = draw < 1 << 63
    tail = (draw if below_zero else MASK64 - draw) | 1
    z = 64 - tail.bit_length()
    tail <<= z
    cell = (z - 1) * ((1 << OCTAVE_CELLS_BITS) + 1) + (
        (tail >> (63 - OCTAVE_CELLS_BITS)) & ((1 << OCTAVE_CELLS_BITS) - 1)
    )
    rest = (tail >> (31 - OCTAVE_CELLS_BITS)) & 0xFFFFFFFF
    high, low = int(table[cell]), int(table[cell + 1])
    size = high - (((high - low) * rest) >> 32)
    return -size if below_zero else size


def distribution(number: int) -> int:
    """The share, in units of 2^-64, of Gaussian numbers that are below one in units of 2^-30."""
    table = distribution_table()
    at = min(max(number + MOST_NORMAL, 0), 2 * MOST_NORMAL - 1)
    cell, rest = at >> CELL_BITS, at & ((1 << CELL_BITS) - 1)
    low, high = int(table[cell]), int(table[cell + 1])
    return low + (((high - low) * rest) >> CELL_BITS)


def shared_draw(key: SharedKey, original: int) -> int:
    """The draw of a source, 64 bits."""
    first = fold(key.key, original)
    if not key.sine:
        return first
    second = fold(key.next_key, original)
    return distribution((key.cosine * quantile(first) + key.sine * quantile(second)) >> TURN_BITS)


def sample_shared(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    dst: Int[Tensor, "D"],
    original: Int[Tensor, "N"] | None,
    key: SharedKey,
    fanouts: Sequence[int],
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
    num_nodes: int,
) -> Drawn:
    """Rows, ids, positions among the given edges and relations (0 where there are no types) of the sample."""

    def time(position: int) -> int:
        source = int(indices[position])
        if not 0 <= source < num_nodes:  # damaged: it is drawn before any other, and so it is noticed
            return 0
        draw = shared_draw(key, source if original is None else int(original[source]))
        return draw >> 1 if weights is None else arrival_time(MASK64 - draw, int(weights[position]))

    def picks(run: Iterable[int], fanout: int) -> list[int]:
        able = [position for position in run if weights is None or int(weights[position])]
        if fanout < 0 or len(able) <= fanout:
            return able
        return sorted(position for _, position in heapq.nsmallest(fanout, ((time(p), p) for p in able)))

    positions, kinds, rows = list[int](), list[int](), [0]
    for node in dst.tolist():
        row = remaining(excluded, int(indptr[node]) - first_edge, int(indptr[node + 1]) - first_edge).tolist()
        for kind, fanout in enumerate(fanouts):
            run = row if edge_type is None else [position for position in row if int(edge_type[position]) == kind]
            found = picks(run, fanout)
            positions += found
            kinds += [kind] * len(found)
        rows.append(len(positions))
    at = torch.tensor(positions, dtype=torch.int64)
    return torch.tensor(rows), indices[at], at, torch.tensor(kinds, dtype=torch.int32)
