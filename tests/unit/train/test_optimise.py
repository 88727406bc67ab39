"""Learning rates are a function of the step alone; every optimiser has its entry."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
import torch

from partita.config import Config
from partita.train.optimise import OPTIMIZERS, SCHEDULES, learning_rate


def test_the_tables_hold_what_the_configuration_allows() -> None:
    assert set(OPTIMIZERS) == set(get_args(Config.model_fields["optimizer"].annotation))
    assert set(SCHEDULES) == set(get_args(Config.model_fields["schedule"].annotation))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_goes_downhill(name) -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = OPTIMIZERS[name]([weight], Config.make({"optimizer": name, "lr": 0.05}))
    for _ in range(200):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
    assert weight.abs().item() < 0.5


def test_warm_up_rises_then_schedules_fall() -> None:
    for schedule, last in [("constant", 0.1), ("linear", 0.1 / 90), ("cosine", 0.1 * 0.000305)]:
        config = Config.make({"lr": 0.1, "schedule": schedule, "warmup": 10})
        rates = [learning_rate(config, step, 100) for step in range(100)]
        assert rates[:10] == pytest.approx([0.01 * (step + 1) for step in range(10)])
        assert rates[10] == pytest.approx(0.1)
        assert all(a >= b for a, b in pairwise(rates[10:]))
        assert rates[-1] == pytest.approx(last, rel=0.01)
