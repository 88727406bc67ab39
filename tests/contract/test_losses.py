"""What must be true of every loss that a setting names."""

from __future__ import annotations

import pytest
import torch

from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.tasks.losses import LOSSES, Loss
from partita.tasks.nodes import NodeTask
from partita.tasks.task import make_task
from partita.testing.graphs import small_random_store

LABELS = ("classes", "multilabel", "regression")


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, GraphStore]:
    folder = tmp_path_factory.mktemp("stores")
    return {
        task: small_random_store(folder / task, 60, 200, num_classes=1 if task == "regression" else 4, task=task)
        for task in LABELS
    }


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", list(LOSSES))
def test_losses_of_shares_add_up(stores, name, labels) -> None:
    """Of any shares of a batch, with gradients from every row's own loss only; another task is refused in words."""
    config = Config.make({"loss": name})
    tasks = LOSSES.find(name).tasks
    if tasks and labels not in tasks:
        with pytest.raises(ConfigError, match=f"the loss '{name}' is for "):
            make_task(config, stores[labels])
        return
    task = make_task(config, stores[labels])
    seeds = task.seeds("train")
    targets = task.targets(seeds)
    output = torch.randn(len(seeds), task.width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    output.requires_grad_()
    whole = task.loss_sum(output, targets)
    assert whole.shape == ()
    assert bool(whole > 0)
    summed = sum(task.loss_sum(rows, some) for rows, some in zip(output.split(7), targets.split(7), strict=True))
    torch.testing.assert_close(summed, whole)
    (gradient,) = torch.autograd.grad(whole, output)
    alone = [torch.autograd.grad(task.loss_sum(output[i : i + 1], targets[i : i + 1]), output)[0] for i in range(3)]
    torch.testing.assert_close(sum(alone)[:3], gradient[:3])
    assert task.loss_sum(output[:0], targets[:0]) == 0


def test_what_is_no_loss_is_refused(stores) -> None:
    task = make_task(Config.make({"loss": "torch.nn.functional:cross_entropy"}), stores["classes"])
    assert isinstance(task, NodeTask)
    with pytest.raises(ConfigError, match=r"gives shape \(\) for 5 nodes.*reduction"):
        task.loss_sum(torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64))
    for settings, message in (
        ({"loss": "focall"}, "Did you mean 'focal'"),
        ({"loss": "math:pi"}, "not a loss"),
        ({"loss": "focal", "class_weights": "balanced"}, "takes no class_weights"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_task(Config.make(settings), stores["classes"])


def test_a_regression_keeps_its_scale(stores) -> None:
    task = make_task(Config.make({"loss": "absolute", "target_scaling": "100,4"}), stores["regression"])
    found = task.loss_sum(torch.tensor([[104.0], [98.0]]), torch.tensor([100.0, 100.0]))
    assert float(found) == pytest.approx(1.5)
    assert isinstance(LOSSES.find("absolute"), Loss)
