"""The softmax of links among their negatives: the compiled kernel against the reference in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita import kernels
from partita.kernels import reference
from partita.kernels.memory import empty_scores


def exact(scores: torch.Tensor, temperature: float, sides: int, added: float) -> tuple[torch.Tensor, torch.Tensor]:
    losses, gradient = torch.empty(len(scores)).double(), torch.empty(scores.shape).double()
    reference.side_softmax(scores.double(), temperature, sides, added, losses, gradient)
    return losses, gradient


@settings(max_examples=80)
@given(
    st.integers(0, 9), st.integers(0, 200), st.integers(1, 2), st.sampled_from([0.0, 0.25]),
    st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([1e-3, 1.0, 50.0, 1e4]), st.sampled_from([0.0, 0.2, 1.0]),
    st.integers(0, 2**32),
)  # fmt: skip
def test_losses_and_gradients_are_those_of_the_reference(
    both, rows, negatives, sides, added, temperature, spread, left_out, seed
) -> None:
    """Also of scores that are far apart, and of rows none of whose negatives count."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, 1 + negatives * sides + (added != 0), generator=draw) * spread
    without = torch.rand(scores.shape, generator=draw) < left_out
    without[:, 0] = False
    if added:
        without[:, -1] = False
    scores.masked_fill_(without, -torch.inf)
    losses, gradient = exact(scores, temperature, sides, added)
    for found, mine in both(lambda: kernels.side_softmax(scores, temperature=temperature, sides=sides, added=added)):
        torch.testing.assert_close(found.double(), losses, rtol=2e-6, atol=2e-6 + 1e-6 * spread)  # of what is added
        rounding = 5e-7 * spread / temperature  # of exponents, which is relative to their powers
        torch.testing.assert_close(mine.double(), gradient, rtol=1e-5 + rounding, atol=1e-6)
        assert not mine[without].any()


def test_numbers_that_are_none_stay_so(both) -> None:
    scores = torch.zeros(3, 131)
    scores[0, 0], scores[1, 5], scores[2, 130] = torch.nan, torch.nan, torch.nan
    for losses, _ in both(lambda: kernels.side_softmax(scores, sides=2)):
        assert bool(losses.isnan().all())


def test_any_number_of_threads_gives_the_same(both) -> None:
    scores = torch.randn(700, 401)
    found = []
    for threads in (1, 3):
        kernels.set_threads(threads)
        found.append(kernels.side_softmax(scores, sides=2))
    kernels.set_threads(None)
    assert all(map(torch.equal, *found))


def test_negatives_that_no_sides_can_have_are_refused() -> None:
    with pytest.raises(ValueError, match="5 negatives of 2 sides"):
        kernels.side_softmax(torch.zeros(2, 6), sides=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (1, 1), (5, 16), (7, 41)])
def test_rows_of_scores_begin_with_a_line_behind_their_first_column(rows, columns, dtype) -> None:
    made = empty_scores(rows, columns, dtype, torch.device("cpu"))
    assert made.shape == (rows, columns)
    assert made.dtype == dtype
    assert all((row.data_ptr() + dtype.itemsize) % 64 == 0 for row in made)


def test_the_same_of_rows_that_lie_apart(both) -> None:
    dense = torch.randn(9, 41)
    apart = empty_scores(9, 41, torch.float32, torch.device("cpu")).copy_(dense)
    wanted = both(lambda: kernels.side_softmax(dense, sides=2))
    for scores in (apart, dense.t().contiguous().t()):
        found = both(lambda: kernels.side_softmax(scores, sides=2))  # noqa: B023
        for mine, theirs in zip(found, wanted, strict=True):
            assert all(map(torch.equal, mine, theirs))
