"""The keyed hash of :mod:`partita.core.keys` for whole numpy arrays, and numbers drawn from it."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64, Integer, UInt64

from partita.core.keys import GOLDEN, MASK64, MIX_1, MIX_2

_CHUNK = 1 << 15
"""Elements per pass, so that the passes over them stay in the processor's cache."""


def fold_array(key: int, values: Integer[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """``fold(key, value)`` of every value, uint64.

    Args:
        key: unsigned 64-bit.
        values: integers of any dtype, taken modulo 2^64.
    """
    mixed = np.empty(len(values), dtype=np.uint64)
    for start in range(0, len(values), _CHUNK):
        z = values[start : start + _CHUNK].astype(np.uint64)
        z += np.uint64(1)
        z *= np.uint64(GOLDEN)
        z += np.uint64(key & MASK64)
        mix64_inplace(z)
        mixed[start : start + _CHUNK] = z
    return mixed


def fold_arrays(keys: UInt64[np.ndarray, "n"], values: Integer[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """``fold(key, value)`` of every key with its value, uint64."""
    z = values.astype(np.uint64)
    z += np.uint64(1)
    z *= np.uint64(GOLDEN)
    z += keys
    mix64_inplace(z)
    return z


def mix64_inplace(z: UInt64[np.ndarray, "n"]) -> None:
    """:func:`partita.core.keys.mix64` of every element, in place."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(MIX_2)
    z ^= z >> np.uint64(31)


def uniform(key: int, values: Integer[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """A float64 in [0, 1) for every value: the upper 53 bits of its hash."""
    return (fold_array(key, values) >> np.uint64(11)) * 2.0**-53


def normal(key: int, values: Integer[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """A standard normal float64 for every value.

    Box and Muller, "A note on the generation of random normal deviates" (1958), the cosine branch, from the two
    32-bit halves of the hash: no rejection, so the draw depends on nothing but the key and the value.
    """
    bits = fold_array(key, values)
    radius = ((bits >> np.uint64(32)) + 0.5) * 2.0**-32  # never 0, so that the logarithm is finite
    angle = (bits & np.uint64(0xFFFFFFFF)) * (2.0**-32 * 2.0 * math.pi)
    return np.sqrt(-2.0 * np.log(radius)) * np.cos(angle)
