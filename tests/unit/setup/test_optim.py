"""Learning rates are a function of the step alone; every optimizer has its entry."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from partita.config import Config
from partita.core.errors import ConfigError
from partita.setup.optim import LR_SCHEDULES, OPTIMIZERS, learning_rate, make_optimizer


def test_an_optimizer_and_a_schedule_of_ones_own() -> None:
    OPTIMIZERS.register("rms", lambda parameters, config: torch.optim.RMSprop(parameters, lr=config.lr))
    LR_SCHEDULES.register("halves", lambda progress: 0.5)
    try:
        config = Config.make({"optimizer": "rms", "schedule": "halves", "lr": 0.2})
        assert isinstance(make_optimizer([torch.nn.Parameter(torch.zeros(9))], config), torch.optim.RMSprop)
        assert learning_rate(config, 3, 10) == 0.1
    finally:
        OPTIMIZERS.remove("rms")
        LR_SCHEDULES.remove("halves")
    with pytest.raises(ConfigError, match=r"optimizer: there is no optimizer 'admw'. Did you mean 'adamw'"):
        make_optimizer([], Config.make({"optimizer": "admw"}))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_goes_downhill(name) -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = OPTIMIZERS.find(name)([weight], Config.make({"optimizer": name, "lr": 0.05}))
    for _ in range(200):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
    assert weight.abs().item() < 0.5


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_steps_like_that_of_torch(name) -> None:
    config = Config.make({"optimizer": name, "lr": 0.05, "weight_decay": 0.1})
    ours, theirs = (torch.nn.Parameter(torch.arange(-4.0, 5.0)) for _ in range(2))
    optimizer = OPTIMIZERS.find(name)([ours], config)
    wanted = getattr(torch.optim, {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}[name])
    reference = wanted([theirs], lr=0.05, weight_decay=0.1, **({"momentum": config.momentum} if name == "sgd" else {}))
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for step in range(5):
        for parameter, each in ((ours, optimizer), (theirs, reference)):
            each.zero_grad()
            (parameter.sin().sum() * (step + 1)).backward()
            each.step()
        assert not ours.grad_fn
    assert len(calls) == 5
    torch.testing.assert_close(ours, theirs)
    fresh = OPTIMIZERS.find(name)([torch.nn.Parameter(torch.zeros(9))], config)
    fresh.load_state_dict(optimizer.state_dict())
    for mine, saved in zip(fresh.state.values(), optimizer.state.values(), strict=True):
        assert mine.keys() == saved.keys()


TRAINING = """
import sys
import partita

store = partita.generate_rmat(sys.argv[1] + "/g", scale=6, edge_factor=4, num_features=4, num_classes=2)
partita.Trainer(store, out=sys.argv[1] + "/run", layers=1, fanout=3, epochs=1).fit()
print("torch._dynamo" in sys.modules)
"""


def test_training_does_not_wait_for_a_compiler_that_it_does_not_use(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split()[-1] == "False"


def test_warm_up_rises_then_schedules_fall() -> None:
    for schedule, last in [("constant", 0.1), ("linear", 0.1 / 90), ("cosine", 0.1 * 0.000305)]:
        config = Config.make({"lr": 0.1, "schedule": schedule, "warmup": 10})
        rates = [learning_rate(config, step, 100) for step in range(100)]
        assert rates[:10] == pytest.approx([0.01 * (step + 1) for step in range(10)])
        assert rates[10] == pytest.approx(0.1)
        assert all(a >= b for a, b in pairwise(rates[10:]))
        assert rates[-1] == pytest.approx(last, rel=0.01)


def torch_rates(make, steps: int, *, last: bool = True) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule, rates = make(optimizer), []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if last or step + 1 < steps:  # some schedules end with the last step
            schedule.step()
    return rates


def test_schedules_are_those_of_torch() -> None:
    lr_scheduler = torch.optim.lr_scheduler
    for steps in (1, 5, 40, 101):
        config = Config.make({"lr": 0.1, "schedule": "one-cycle"})
        if steps > 4:  # torch divides by zero below
            wanted = torch_rates(lambda o, n=steps: lr_scheduler.OneCycleLR(o, 0.1, total_steps=n), steps, last=False)
            assert [learning_rate(config, step, steps) for step in range(steps)] == pytest.approx(wanted)
        assert all(0 < learning_rate(config, step, steps) <= 0.1 for step in range(steps))
    config = Config.make({"lr": 0.1, "schedule": "step", "lr_step": 3, "lr_decay": 0.5, "epochs": 10})
    wanted = torch_rates(lambda o: lr_scheduler.StepLR(o, 3, 0.5), 10)
    for steps in (1, 7):  # of an epoch
        found = [learning_rate(config, step, 10 * steps) for step in range(10 * steps)]
        assert found == pytest.approx([rate for rate in wanted for _ in range(steps)])
    assert learning_rate(Config.make({"schedule": "plateau", "lr_decay": 0.1, "lr": 1.0}), 5, 9, 2) == pytest.approx(
        0.01
    )


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_model_without_parameters(name) -> None:
    """Its rows may be all that is learnt."""
    optimizer = make_optimizer([], Config.make({"optimizer": name, "lr": 0.5}))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state_dict()["state"] == {}
