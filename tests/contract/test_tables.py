"""What every entry of the small tables keeps to. One that is new in a table is tested by being there."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from partita.config import PRESETS, Config
from partita.features.policies import POLICIES, best_first
from partita.nn import matmul
from partita.nn.stage import ACTIVATIONS, NORMS, BatchNorm
from partita.parallel.placements.kinds import INPUT_PLACEMENTS, PLACEMENTS, goes_with
from partita.parallel.strategies import AUTO, STRATEGIES, parse_strategy
from partita.setup.optim import LR_SCHEDULES, OPTIMIZERS, learning_rate


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_an_activation_works_entry_by_entry(name) -> None:
    activate = ACTIVATIONS.find(name)
    rows = torch.linspace(-3, 3, 42, dtype=torch.float64).reshape(6, 7).requires_grad_()
    out = activate(rows)
    assert out.shape == rows.shape
    torch.testing.assert_close(activate(rows.flip(0, 1)).flip(0, 1), out, rtol=1e-12, atol=1e-12)
    assert activate(rows[:0]).shape == (0, 7)
    torch.autograd.gradcheck(activate, (rows + 0.05,))


@pytest.mark.parametrize("name", list(NORMS))
def test_a_norm_keeps_the_shape_and_starts_anew(name) -> None:
    norm = NORMS.find(name)(7)
    first = copy.deepcopy(norm.state_dict())
    rows = torch.randn(6, 7)
    assert norm(rows).shape == rows.shape
    if not isinstance(norm, BatchNorm):  # several workers are refused with the only one that is known to mix rows
        assert torch.allclose(norm(rows[:2]), norm(rows)[:2], atol=1e-6)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(1)
    if not isinstance(norm, nn.Identity):
        norm.reset_parameters()
    assert all(torch.equal(first[key], value) for key, value in norm.state_dict().items())


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_optimizer_goes_on_where_it_was_saved(name) -> None:
    config = Config(optimizer=name, lr=0.1)

    def made(weight: torch.Tensor) -> tuple[nn.Parameter, torch.optim.Optimizer]:
        parameter = nn.Parameter(weight.clone())
        return parameter, OPTIMIZERS.find(name)([parameter], config)

    def steps(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            optimizer.zero_grad(set_to_none=True)
            (parameter * torch.linspace(1, 2, 5)).sin().sum().mul(step + 1).backward()
            optimizer.step()

    start = torch.linspace(-1, 1, 5)
    whole, optimizer = made(start)
    steps(whole, optimizer, 0, 6)
    assert not torch.equal(whole.detach(), start)
    begun, optimizer = made(start)
    steps(begun, optimizer, 0, 4)
    resumed, other = made(begun.detach())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(resumed, other, 4, 6)
    assert torch.equal(resumed.detach(), whole.detach())


@pytest.mark.parametrize("name", list(LR_SCHEDULES))
def test_a_schedule_of_the_learning_rate_is_a_function_of_the_step(name) -> None:
    config = Config(schedule=name, lr=0.5, warmup=3)
    rates = [learning_rate(config, step, 20) for step in range(20)]
    assert all(math.isfinite(rate) and rate >= 0 for rate in rates)
    assert rates[3] > 0
    assert rates == [learning_rate(config, step, 20) for step in range(20)]


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_strategy_names_a_placement_for_every_layer(name, layers) -> None:
    strategy = parse_strategy(name, layers)
    assert len(strategy.placements) == layers
    assert parse_strategy(str(strategy), layers) == strategy
    assert strategy.is_named


@pytest.mark.parametrize("name", list(INPUT_PLACEMENTS))
def test_an_input_placement_goes_with_some_placement(name) -> None:
    kind = INPUT_PLACEMENTS.find(name)
    assert kind.sentence
    first = next(first for first in PLACEMENTS if goes_with(name, first))
    strategy = parse_strategy(f"{name},{first},data", 2)
    assert (strategy.inputs, strategy.is_collective) == (name, kind.collective or PLACEMENTS.find(first).collective)


class Counted:
    """Statistics of five nodes."""

    def degrees(self) -> torch.Tensor:
        return torch.tensor([3, 0, 1, 7, 2])

    def visits(self) -> torch.Tensor:
        return torch.tensor([0.5, 0.0, 0.25, 1.0, 0.125])

    def frequencies(self) -> torch.Tensor:
        assert self.dry_run, "scores are made of a dry run that the policy does not say it needs"
        return torch.tensor([4, 0, 2, 1, 0], dtype=torch.int32)

    by_rule = frequencies

    def __init__(self, dry_run: bool) -> None:
        self.dry_run = dry_run


@pytest.mark.parametrize("name", [name for name in POLICIES if POLICIES.find(name).score is not None])
def test_a_cache_policy_scores_every_node(name) -> None:
    policy = POLICIES.find(name)
    scores = policy.score(Counted(policy.needs_dry_run))
    assert scores.shape == (5,)
    assert bool((scores >= 0).all())
    assert len(best_first(scores, 3)) <= 3


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_is_a_configuration_and_gives_way_to_options(name) -> None:
    config = Config(preset=name)
    given = PRESETS.find(name)
    assert {key: getattr(config, key) for key in given} == given
    assert Config(preset=name, strategy="nfp").strategy == "nfp"
    if config.strategy != AUTO:
        parse_strategy(config.strategy, config.layers)


@pytest.mark.parametrize("name", list(matmul.BACKENDS))
def test_a_backend_multiplies(name) -> None:
    if matmul.BACKENDS.find(name).needs_onednn and not matmul.onednn_works():
        pytest.skip("this PyTorch has no oneDNN")
    x, weight, bias = torch.randn(300, 40), torch.randn(24, 40, requires_grad=True), torch.randn(24)
    with matmul.use(name):
        out = matmul.linear(x, weight, bias)
        (gradient,) = torch.autograd.grad(out.square().sum(), weight)
    wanted = nn.functional.linear(x, weight, bias)
    assert torch.allclose(out, wanted, rtol=1e-4, atol=1e-4)
    (other,) = torch.autograd.grad(wanted.square().sum(), weight)
    assert torch.allclose(gradient, other, rtol=1e-3, atol=1e-2)
