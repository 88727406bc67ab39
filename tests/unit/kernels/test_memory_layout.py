"""Where arrays lie in memory changes no bit.

Compilers look at run time how far arrays are apart, and take another loop where one of them is written just behind
another one that is read. Sums that such a loop adds in another order would be others in another process.
"""

from __future__ import annotations

import numpy as np
import pytest

from partita.kernels.cpu.norm import backward_loop, forward_loop
from partita.kernels.cpu.rows import aggregate_loop, weight_grad_loop

COLUMNS = (1, 3, 8, 16, 19, 40, 100, 256)
PLACES = 60


def placed(random: np.random.Generator, arrays: list[np.ndarray], widest_gap: int) -> list[np.ndarray]:
    """Copies that lie in any order in one piece of memory, with so many bytes at most between any two."""
    arena = np.zeros(sum(array.nbytes + 16 + widest_gap for array in arrays), np.uint8)
    copies, at = {}, 0
    for place in random.permutation(len(arrays)).tolist():
        array = arrays[place]
        at += -at % array.itemsize + int(random.integers(0, widest_gap // 8 + 1)) * array.itemsize
        copy = arena[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[:] = array
        copies[place], at = copy, at + array.nbytes
    return [copies[place] for place in range(len(arrays))]


def results(kernel, arrays: dict[str, np.ndarray], written: tuple[str, ...]) -> list[bytes]:
    """What the kernel writes, in the bytes of it, for arrays far from each other and for many other places."""
    random, found = np.random.default_rng(1), []
    for widest_gap in (2**16, *[8, 64, 256] * (PLACES // 3)):
        given = dict(zip(arrays, placed(random, list(arrays.values()), widest_gap), strict=True))
        kernel(**given)
        found.append(b"".join(given[name].tobytes() for name in written))
    return found


def draw(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", COLUMNS)
def test_of_norm_relu_dropout(columns, dtype):
    rows = 5
    arrays = {
        "x": draw(rows, columns, dtype=dtype), "weight": draw(columns, dtype=dtype), "bias": draw(columns, dtype=dtype),
        "out": np.zeros((rows, columns), dtype), "moments": np.zeros((rows, 2), dtype), "row": np.zeros(columns, dtype),
    }  # fmt: skip

    def forward(x, weight, bias, out, moments, row):
        original, seed = np.arange(rows), np.uint64(3)
        rest = (original, seed, np.uint64(0), dtype(1), out, moments, row, 0, rows)
        forward_loop(x, weight, bias, dtype(1e-5), *rest)

    assert len(set(results(forward, arrays, ("out", "moments")))) == 1

    forward(**arrays)
    more = {
        "grad": draw(rows, columns, dtype=dtype)[::-1].copy(), "grad_x": np.zeros((rows, columns), dtype),
        "grad_weight": np.zeros((1, columns), dtype), "grad_bias": np.zeros((1, columns), dtype),
    }  # fmt: skip

    def backward(x, weight, bias, out, moments, row, grad, grad_x, grad_weight, grad_bias):
        backward_loop(grad, out, x, weight, moments, dtype(1), grad_x, grad_weight, grad_bias, row, 0, 1)

    assert len(set(results(backward, arrays | more, ("grad_x", "grad_weight", "grad_bias")))) == 1


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("columns", COLUMNS)
def test_of_sums_over_edges(columns, heads):
    indptr = np.array([0, 3, 3, 4, 9])
    indices = np.array([0, 2, 1, 3, 4, 4, 0, 1, 2])
    arrays = {
        "x": draw(5, columns * heads), "grad": draw(4, columns * heads), "weight": draw(9, heads), "scale": draw(5),
        "out": np.zeros((4, columns * heads), np.float32), "of_edges": np.zeros((9, heads), np.float32),
    }  # fmt: skip
    every = np.zeros(0, np.int64)

    def kernel(x, grad, weight, scale, out, of_edges):
        aggregate_loop(x, indptr, indices, every, weight, scale, True, out, 0, 4)
        weight_grad_loop(grad, x, indptr, indices, True, of_edges, 0, 4)

    assert len(set(results(kernel, arrays, ("out", "of_edges")))) == 1
