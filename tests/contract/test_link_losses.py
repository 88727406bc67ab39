"""What must be true of every loss of links, whatever it computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from partita.config import Config
from partita.core.errors import ConfigError
from partita.tasks.links.losses import LINK_LOSSES, LOSS_SETTINGS, link_losses
from partita.tasks.task import adjusted_task
from partita.testing.graphs import formula_store

every_loss = pytest.mark.parametrize("name", list(LINK_LOSSES))
SETTINGS = {"margin": 0.7, "temperature": 0.6}


def scores(rows: int = 5, negatives: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    positive = torch.randn(rows, generator=generator, dtype=torch.float64)
    negative = torch.randn(rows, negatives, generator=generator, dtype=torch.float64)
    allowed = torch.rand(rows, negatives, generator=generator) < 0.6
    allowed[0] = True
    allowed[1:, 0] = True
    return positive, negative, allowed


@every_loss
def test_negatives_have_no_order_and_those_not_allowed_do_not_count(name) -> None:
    positive, negative, allowed = scores()
    found = link_losses(name, positive, negative, allowed, **SETTINGS)
    assert found.shape == positive.shape
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(found, link_losses(name, positive, negative[:, order], allowed[:, order], **SETTINGS))
    for fill in (-torch.inf, torch.inf, torch.nan, 1e300):
        filled = negative.masked_fill(~allowed, fill).requires_grad_()
        masked = link_losses(name, positive, filled, allowed, **SETTINGS)
        torch.testing.assert_close(masked, found)
        (gradient,) = torch.autograd.grad(masked.sum(), filled)
        assert not gradient[~allowed].any()
        assert bool(gradient.isfinite().all())
    for row in range(len(positive)):
        one, few = positive[row : row + 1], negative[row : row + 1, allowed[row]]
        torch.testing.assert_close(
            link_losses(name, one, few, torch.ones_like(few, dtype=torch.bool), **SETTINGS), found[row : row + 1]
        )


@every_loss
def test_gradients(name) -> None:
    positive, negative, allowed = scores()
    if name == "self_adversarial":  # its weights have none: they do not change with scores that are alike
        negative = negative[:, :1].expand(-1, 6).clone()
        inputs = (positive.requires_grad_(), negative[:, :1].clone().requires_grad_())
        assert torch.autograd.gradcheck(lambda p, n: link_losses(name, p, n.expand(-1, 6), allowed, **SETTINGS), inputs)
        return
    inputs = (positive.requires_grad_(), negative.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: link_losses(name, p, n, allowed, **SETTINGS), inputs)


@every_loss
def test_a_better_order_costs_less(name) -> None:
    """Higher scores of links and lower ones of negatives never cost more, and sometimes less."""
    positive, negative, allowed = scores()
    inputs = positive.requires_grad_(), negative.requires_grad_()
    up, down = torch.autograd.grad(link_losses(name, *inputs, allowed, **SETTINGS).sum(), inputs)
    assert bool((up <= 0).all())
    assert bool((down >= 0).all())
    assert bool(up.any())
    assert bool(down.any())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores_and_rows_without_negatives_are_finite(name, dtype) -> None:
    large = torch.tensor([1e4, -1e4, 1e4, 0.0], dtype=dtype).requires_grad_()
    negative = torch.tensor([[1e4, -1e4]] * 2 + [[-torch.inf, torch.nan]] * 2, dtype=dtype).requires_grad_()
    allowed = torch.tensor([[True, True]] * 2 + [[False, False]] * 2)
    for temperature in (0.05, 20.0):
        found = link_losses(name, large, negative, allowed, margin=1.0, temperature=temperature)
        assert bool(found.isfinite().all())
        assert bool((found >= 0).all())
        for gradient in torch.autograd.grad(found.sum(), (large, negative)):
            assert bool(gradient.isfinite().all())
    none = link_losses(name, large, negative[:, :0], allowed[:, :0])
    assert bool(none.isfinite().all())
    assert link_losses(name, large[:0], negative[:0], allowed[:0]).shape == (0,)


def test_how_many_negatives_there_are_does_not_change_their_weight() -> None:
    positive, negative, _ = scores()
    for name in set(LINK_LOSSES.own) - {"softmax"}:
        found = [
            link_losses(name, positive, negative.repeat(1, times), torch.ones(5, 6 * times, dtype=torch.bool))
            for times in (1, 4)
        ]
        torch.testing.assert_close(*found)


def test_losses_are_those_of_the_equations() -> None:
    """Also that the names are tied together: without a temperature, self-adversarial weights are those of a mean."""
    positive, negative, _ = scores()
    allowed = torch.ones_like(negative, dtype=torch.bool)
    both = torch.cat([positive[:, None], negative], dim=1)
    labels = torch.zeros_like(both)
    labels[:, 0] = 1
    entropy = functional.binary_cross_entropy_with_logits(both, labels, reduction="none")
    entropy = (entropy[:, 0] + entropy[:, 1:].mean(1)) / 2
    weight = torch.softmax(0.6 * negative, dim=1)
    wanted = {
        "cross_entropy": entropy,
        "margin": (0.7 - positive[:, None] + negative).clamp(min=0).mean(1),
        "bpr": -(positive[:, None] - negative).sigmoid().log().mean(1),
        "softmax": functional.cross_entropy(both / 0.6, torch.zeros(5, dtype=torch.int64), reduction="none"),
        "self_adversarial": (-positive.sigmoid().log() - (weight * (-negative).sigmoid().log()).sum(1)) / 2,
    }
    assert set(wanted) == set(LINK_LOSSES.own)
    for name, losses in wanted.items():
        torch.testing.assert_close(link_losses(name, positive, negative, allowed, **SETTINGS), losses)
    alike = link_losses("self_adversarial", positive, negative, allowed, temperature=0.0)
    torch.testing.assert_close(alike, entropy)


@every_loss
@pytest.mark.parametrize("corrupt", ["tail", "both"])
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_the_loss_of_a_link_is_the_mean_over_its_sides(tmp_path, name, corrupt, penalty) -> None:
    """Of the scores that a task makes: each side has a loss of its own, also one whose negatives are all left out."""
    store = formula_store(tmp_path / "g", num_nodes=20)
    read = {setting: value for setting, value in SETTINGS.items() if LOSS_SETTINGS.get(name, setting) == setting}
    config = Config.make(
        {"task": "links", "loss": name, "corrupt": corrupt, "penalty": penalty, "decoder": "distmult", **read}
    )
    task, _ = adjusted_task(config, store)
    positive, negative, allowed = scores()
    allowed[2, 3:] = False
    sides = [(negative, allowed)]
    if corrupt == "both":
        sides.append((negative.flip(0) * 2, allowed.flip(1)))
    each = torch.stack([link_losses(name, positive, some, which, **SETTINGS) for some, which in sides]).mean(0)
    columns = [positive[:, None], *(some.masked_fill(~which, -torch.inf) for some, which in sides)]
    more = torch.rand(5, 1, dtype=torch.float64)
    output = torch.cat([*columns, more] if penalty else columns, dim=1).requires_grad_()
    targets = torch.zeros(5, dtype=torch.int64)
    torch.testing.assert_close(task.loss_sum(output, targets), (each + penalty * more[:, 0]).sum())
    if name != "self_adversarial":  # its weights have no gradient
        finite = output.detach().clamp(min=-1e3).requires_grad_()
        assert torch.autograd.gradcheck(lambda rows: task.loss_sum(rows, targets), finite)


def test_what_is_no_loss_is_refused() -> None:
    for name, message in (
        ("sofmax", "Did you mean 'softmax'"),
        ("math:pi", "not a loss"),
    ):
        with pytest.raises(ConfigError, match=message):
            link_losses(name, *scores())
    LINK_LOSSES.register("summed", lambda positive, negative, allowed, **_: positive.sum())
    try:
        with pytest.raises(ConfigError, match=r"gives shape \(\) for 5 links"):
            link_losses("summed", *scores())
    finally:
        LINK_LOSSES.remove("summed")
