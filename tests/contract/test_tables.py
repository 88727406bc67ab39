"""What every entry of the small tables keeps to. One that is new in a table is tested by being there."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from partita.config import PRESETS, Config
from partita.nn import matmul
from partita.nn.stage import ACTIVATIONS, NORMS, BatchNorm
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


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_is_a_configuration_and_gives_way_to_options(name) -> None:
    config = Config(preset=name)
    given = PRESETS.find(name) if hasattr(PRESETS, "find") else PRESETS[name]
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
