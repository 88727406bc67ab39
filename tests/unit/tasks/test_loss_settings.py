"""Class weights, label smoothing and target scaling: the losses of torch with the same settings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.tasks.metrics import judge
from partita.tasks.nodes import Classes, Regression
from partita.tasks.task import AdjustableTask, Task, adjusted_task, make_task, weights_of
from partita.testing.graphs import small_random_store


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, GraphStore]:
    folder = tmp_path_factory.mktemp("stores")
    return {
        task: small_random_store(folder / task, 60, 200, num_classes=1 if task == "regression" else 4, task=task)
        for task in ("classes", "multilabel", "regression")
    }


def mean_loss(task: Task, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As a step divides it."""
    weights = weights_of(task, targets)
    return task.loss_sum(output, targets) / (len(targets) if weights is None else weights.sum())


def test_classes_have_the_loss_of_torch(stores) -> None:
    task = make_task(Config.make({"class_weights": "0.5,1,2,4", "label_smoothing": 0.1}), stores["classes"])
    output, targets = torch.randn(50, 4, dtype=torch.float64), torch.arange(50) % 4
    weight = torch.tensor([0.5, 1, 2, 4], dtype=torch.float64)
    wanted = nn.CrossEntropyLoss(weight, label_smoothing=0.1)(output, targets)
    torch.testing.assert_close(mean_loss(task, output, targets), wanted)
    shares = targets[:7], targets[7:]
    summed = sum(task.loss_sum(rows, share) for rows, share in zip(output.split([7, 43]), shares, strict=True))
    torch.testing.assert_close(summed / weight[targets].sum(), wanted)
    assert judge(task, output, targets).metrics["loss"] == pytest.approx(float(wanted), rel=1e-6)


def test_labels_have_the_loss_of_torch(stores) -> None:
    task = make_task(Config.make({"class_weights": [1, 2, 3, 9]}), stores["multilabel"])
    output, targets = torch.randn(50, 4), (torch.rand(50, 4) < 0.3).to(torch.uint8)
    wanted = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2, 3, 9]))(output, targets.float())
    torch.testing.assert_close(mean_loss(task, output, targets), wanted)


@pytest.mark.parametrize("name", ["classes", "multilabel"])
def test_balanced_classes_count_alike(stores, name) -> None:
    task, settled = adjusted_task(Config(class_weights="balanced"), stores[name])
    targets = task.targets(task.seeds("train"))
    given = torch.tensor(settled.class_weights, dtype=torch.float64)
    if name == "classes":
        sizes = torch.bincount(targets, minlength=4)
        torch.testing.assert_close(given * sizes, torch.full((4,), len(targets) / 4, dtype=torch.float64))
    else:
        torch.testing.assert_close(given * targets.sum(0), (1 - targets.long()).sum(0).double())
    same, again = adjusted_task(settled, stores[name])
    assert again == settled
    output = torch.randn(len(targets), 4)
    assert torch.equal(task.loss_sum(output, targets), same.loss_sum(output, targets))


def test_regression_is_judged_in_units_of_the_targets(stores) -> None:
    task, settled = adjusted_task(Config(), stores["regression"])
    targets = task.targets(task.seeds("train")).double()
    mean, deviation = settled.target_scaling
    assert mean == pytest.approx(float(targets.mean()))
    assert deviation == pytest.approx(float(targets.std(correction=0)))
    always = torch.full((len(targets), 1), mean)
    found = judge(task, always, targets).metrics
    assert found["loss"] == pytest.approx(1)
    assert found["r2"] == pytest.approx(0, abs=1e-6)
    assert found["mae"] == pytest.approx(float((targets - mean).abs().mean()), rel=1e-5)
    raw = make_task(Config(target_scaling="none"), stores["regression"])
    assert judge(raw, always, targets).metrics["loss"] == pytest.approx(deviation**2, rel=1e-5)


def test_a_baseline_predicts_the_same_for_every_node(stores) -> None:
    for name, store in stores.items():
        task = make_task(Config(), store)
        assert isinstance(task, AdjustableTask)
        targets, row = task.targets(task.seeds("train")), task.baseline()
        assert row is not None
        if name == "classes":
            assert int(row.argmax()) == int(torch.bincount(targets).argmax())
            torch.testing.assert_close(row.exp().sum(), torch.tensor(1.0))
        elif name == "multilabel":
            torch.testing.assert_close(row.sigmoid(), targets.float().mean(0))
        else:
            torch.testing.assert_close(row, targets.mean()[None])


class Absolute(Regression):
    """A loss of one's own."""

    def loss_sum(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Absolute error."""
        return (output.squeeze(1) - targets).abs().sum()


def test_what_does_not_fit_is_refused(stores) -> None:
    for name, settings, words in [
        ("regression", {"class_weights": "balanced"}, "takes no class_weights"),
        ("regression", {"label_smoothing": 0.1}, "takes no label_smoothing"),
        ("classes", {"target_scaling": "0,1"}, "takes no target_scaling"),
        ("classes", {"class_weights": "1,2"}, r"2 class weights are given for 4 classes.*0, 1, 2, 3"),
        ("regression", {"task": f"{__name__}:Absolute", "target_scaling": "0,1"}, "takes no target_scaling"),
    ]:
        with pytest.raises(ConfigError, match=words):
            make_task(Config.make(settings), stores[name])
    for settings, words in [
        ({"class_weights": "blanced"}, "give none, balanced, or numbers"),
        ({"class_weights": "1,0"}, "above 0"),
        ({"class_weights": "1,inf"}, "finite"),
        ({"target_scaling": "5"}, "a mean, and a deviation"),
    ]:
        with pytest.raises(ConfigError, match=words):
            Config.make(settings)
    own = make_task(Config(task=f"{__name__}:Absolute"), stores["regression"])
    assert isinstance(own, Absolute)
    assert own.target_scale is None
    assert isinstance(make_task(Config(), stores["classes"]), Classes)
