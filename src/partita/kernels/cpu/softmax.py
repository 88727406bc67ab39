"""The softmax of links among their negatives, compiled: one pass over scores that stay in the processor's cache."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numba import njit
from torch import Tensor

from partita.kernels import threads
from partita.kernels.cpu.arrays import run
from partita.kernels.intrinsics import power_of_two

_LANES, _FEW = 64, 8  # running maxima and sums side by side, which become vectors; of a single one they do not
_WORK = 4  # an exponential costs about as much as this many streamed elements
F = np.float32
_LEAST = F(-87.0)  # exp of less is below the smallest normal number, and taken as 0
_LOG2_E, _LN2_HIGH, _LN2_LOW = F(1.442695040888963), F(0.693359375), F(-2.12194440e-4)


def side_softmax(
    scores: Float[Tensor, "B K_1"],
    temperature: float,
    sides: int,
    added: float,
    losses: Float[Tensor, "B"],
    gradient: Float[Tensor, "B K_1"],
) -> None:
    """See :func:`partita.kernels.side_softmax`."""
    bounds = threads.even_bounds(len(scores), scores.numel() * _WORK)
    places = [(_elements(rows), rows.stride(0)) for rows in (scores, gradient)]
    run(softmax_loop, bounds, scores.shape[1], *places, F(1 / temperature), sides, F(added), losses)


def _elements(rows: Float[Tensor, "n F"]) -> Float[np.ndarray, "_"]:
    """All of the memory that rows lie in, from the first to the last: in it, compiled loops know what are neighbors."""
    if not rows.numel():
        return np.empty(0, np.float32)
    span = (len(rows) - 1) * rows.stride(0) + rows.shape[1]
    return rows.detach().as_strided((span,), (1,)).numpy()


@njit(fastmath={"contract"})
def _exp(x):
    """Of a float32 that is at most 0: e^r 2^n with n + r / ln 2 the exponent of 2; e^r by its series up to r^7."""
    n = np.floor(x * _LOG2_E + F(0.5))
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    series = F(1 / 5040)
    series = series * r + F(1 / 720)
    series = series * r + F(1 / 120)
    series = series * r + F(1 / 24)
    series = series * r + F(1 / 6)
    series = series * r + F(0.5)
    series = series * r + F(1)
    series = series * r + F(1)
    return F(0) if x < _LEAST else series * power_of_two(n)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def softmax_loop(columns, given_scores, given_gradient, factor, sides, added, losses, low, high):
    """The rows from ``low`` to ``high``; scores and gradient are elements, and how far a row is behind another."""
    all_scores, stride = given_scores
    all_gradient, gradient_stride = given_gradient
    width = (columns - 1 - (1 if added else 0)) // sides
    whole = width - width % _LANES
    lanes = np.empty(_LANES, np.float32)
    for row in range(low, high):
        scores = all_scores[row * stride : row * stride + columns]
        gradient = all_gradient[row * gradient_stride : row * gradient_stride + columns]
        positive, loss, outside = scores[0] * factor, 0.0, F(0)
        for side in range(sides):
            first, last = 1 + side * width, 1 + (side + 1) * width
            given, out = scores[first:last], gradient[first:last]
            lanes[:] = scores[0]
            for begin in range(0, whole, _LANES):
                some = given[begin : begin + _LANES]
                for lane in range(_LANES):
                    lanes[lane] = some[lane] if some[lane] > lanes[lane] else lanes[lane]
            for lane in range(_FEW, _LANES):
                lanes[lane % _FEW] = max(lanes[lane % _FEW], lanes[lane])
            most = scores[0]
            for lane in range(_FEW):
                most = max(most, lanes[lane])
            for place in range(whole, width):
                most = max(most, given[place])
            most *= factor
            lanes[:] = F(0)
            for begin in range(0, whole, _LANES):
                some, shares = given[begin : begin + _LANES], out[begin : begin + _LANES]
                for lane in range(_LANES):
                    shares[lane] = _exp(some[lane] * factor - most)
                for lane in range(_LANES):
                    lanes[lane] += shares[lane]
            for lane in range(_FEW, _LANES):
                lanes[lane % _FEW] += lanes[lane]
            total = F(0)
            for place in range(whole, width):
                out[place] = _exp(given[place] * factor - most)
                total += out[place]
            for lane in range(_FEW):
                total += lanes[lane]
            own = math.exp(positive - most)
            loss += math.log1p(total) if own == 1.0 else math.log(own + total) + (most - positive)
            scale = F(factor / (sides * (own + total)))
            for place in range(width):
                out[place] *= scale
            outside += total * scale
        losses[row] = loss / sides
        if added:
            losses[row] += added * scores[columns - 1]
            gradient[columns - 1] = added
        gradient[0] = -outside
