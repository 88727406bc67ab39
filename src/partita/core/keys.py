"""Keys: every random choice is a hash of what it is about, never of how many choices came before it.

A key is an unsigned 64-bit integer. :func:`fold` mixes one more integer into a key; a chain of folds names one
place in the run, ``fold(fold(fold(purpose, seed), epoch), step)``, and a kernel then folds in the node and the
slot. The mixing function is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014). It uses only 64-bit integer multiplication, xor and shift, so that every
implementation (numpy, numba, Triton) gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

    from partita.core.records import TargetEdges

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


class Purpose(IntEnum):
    """What a random choice is for. Different purposes never share draws."""

    SAMPLE = 1
    SEED_ORDER = 2
    DROPOUT = 3
    ATTENTION_DROPOUT = 4
    INPUT_DROPOUT = 5
    SPLIT = 6
    INITIALISE = 7
    GENERATE = 8
    PARTITION = 9
    WALK = 10
    EVALUATION_WALK = 11
    NEGATIVE = 12
    LINK_SPLIT = 13
    MESSAGE_SHARE = 14


def mix64(z: int) -> int:
    """Finalize 64 bits: a bijection whose output bits each depend on all input bits."""
    z = ((z ^ (z >> 30)) * MIX_1) & MASK64
    z = ((z ^ (z >> 27)) * MIX_2) & MASK64
    return z ^ (z >> 31)


def fold(key: int, value: int) -> int:
    """Mix ``value`` into ``key``: ``mix64(key + GOLDEN * (value + 1))`` modulo 2^64."""
    return mix64((key + GOLDEN * ((value + 1) & MASK64)) & MASK64)


def below(draw: int, n: int) -> int:
    """Map a 64-bit draw to 0..n-1."""
    return (draw * n) >> 64


@dataclass(frozen=True, slots=True)
class StepKey:
    """Names one training step: all sampling and dropout of the step is a function of it.

    Attributes:
        seed: the run's seed, any integer >= 0.
        epoch: 0-based.
        step: 0-based within the epoch.
        excluded: edges that carry no messages in the step. It has no part in which step is meant, nor in the keys: rows
            without such edges draw what they draw in any case.
        times: int64 (T), the distinct times of the seeds of all workers, ascending, where seeds have times; it names
            no step either.
    """

    seed: int
    epoch: int
    step: int
    excluded: TargetEdges | None = field(default=None, compare=False, repr=False)
    times: Int64[Tensor, "T"] | None = field(default=None, compare=False, repr=False)

    def at(self, purpose: Purpose, layer: int) -> int:
        """The 64-bit key of one purpose in one layer (1 = input-side layer, K = seed layer)."""
        return fold(self.before(purpose), layer)

    def before(self, purpose: Purpose) -> int:
        """What :func:`fold` gives the key of a layer from, see :meth:`at`."""
        return fold(fold(fold(int(purpose), self.seed), self.epoch), self.step)
