"""What every task keeps, and two that users might add: shares of a batch add up, and the order of rows is nothing."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

import partita
from partita.config import Config
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.graph.store import GraphStore
from partita.parallel.seed_split import share_of
from partita.sample.topology import as_tensor
from partita.tasks.metrics import LOSS, METRICS, Metric, better, judge, selection_metric
from partita.tasks.nodes import Classes, Regression
from partita.tasks.task import TASKS, Answers, SampledTask, Task
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES


class Poisson(Regression):
    """Counts, whose expectation is the exponential of the output. One of them is not known."""

    metrics = ("deviance", "mae")

    def targets(self, seeds: Tensor) -> Tensor:
        """The labels of the store, made into counts."""
        return super().targets(seeds).abs().mul(3).floor()

    def loss_sum(self, output: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood, but for a constant."""
        return functional.poisson_nll_loss(output.squeeze(1), targets.to(output.dtype), reduction="sum")

    def scores(self, output: Tensor) -> Tensor:
        """Expectations."""
        return output.exp()


class SameClass(Classes):
    """Whether two nodes are of one class; the seeds are pairs of nodes."""

    metrics = ("accuracy",)

    @property
    def width(self) -> int:
        """What both have is multiplied."""
        return 5

    @property
    def class_names(self) -> list[str]:
        """Of pairs."""
        return ["other", "same"]

    def seeds(self, split: str) -> Tensor:
        """Every node of a split with two others."""
        nodes = super().seeds(split)
        return torch.cat([torch.stack([nodes, nodes.roll(shift)], dim=1) for shift in (1, 2)])

    def requests(self, seeds: Tensor) -> Tensor:
        """The ends of all pairs, each once."""
        return seeds.unique()

    def outputs(self, rows: Tensor, seeds: Tensor) -> Tensor:
        """Logits of the two classes: 0, and how similar the ends are."""
        first, second = rows[seeds.unique(return_inverse=True)[1]].unbind(1)
        similar = (first * second).sum(1, keepdim=True)
        return torch.cat([torch.zeros_like(similar), similar], dim=1)

    def targets(self, seeds: Tensor) -> Tensor:
        """1 for pairs of one class."""
        first, second = super().targets(seeds).unbind(1)
        return (first == second).long()


def deviance(answers: Answers) -> float:
    """Of counts from their expectations, the mean."""
    expected, truth = answers.predicted.double(), answers.truth.double()
    return float(2 * (torch.special.xlogy(truth, truth / expected) - (truth - expected)).mean())


ADDED = {"poisson": Poisson, "same-class": SameClass}
STORES: dict[str, dict[str, Any]] = {
    "classes": {"num_classes": 4},
    "multilabel": {"num_classes": 3, "task": "multilabel"},
    "regression": {"num_classes": 1, "task": "regression"},
    "poisson": {"num_classes": 1, "task": "regression"},
    "same-class": {"num_classes": 3},
    "links": {"num_classes": 3},
}
"""Options of a store that a task is for."""

OTHERS = sorted(set(TASKS) - set(STORES))
"""Tasks of nodes that something else has added: they say which labels they learn."""
for _name in OTHERS:
    STORES[_name] = STORES[TASKS.find(_name).labels]

PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": lambda output, y: -output.log_softmax(1)[torch.arange(len(y)), y].sum(),
    "multilabel": lambda output, y: -torch.where(y == 1, output.sigmoid(), 1 - output.sigmoid()).log().mean(1).sum(),
    "regression": lambda output, y: ((output[:, 0] - y) ** 2).sum(),
    "poisson": lambda output, y: (output[:, 0].exp() - y * output[:, 0]).sum(),
    "same-class": lambda output, y: -output.log_softmax(1)[torch.arange(len(y)), y].sum(),
    "links": lambda output, y: (
        (
            -output[:, 0].sigmoid().log().sum()
            - torch.stack([(1 - row[row > -torch.inf].sigmoid()).log().mean() for row in output[:, 1:]]).sum()
        )
        / 2
    ),
}
"""The sum of the losses, written down once more."""

COLUMNS = {
    "classes": ({"prediction", "probability"}, {"prediction", "probability"}),
    "multilabel": ({"prediction", "probabilities"}, {"prediction", *(f"probability_{label}" for label in range(3))}),
    "regression": ({"prediction"}, {"prediction"}),
    "poisson": ({"prediction"}, {"prediction"}),
}
"""Of files that hold lists, and of those that do not. Pairs are no rows of a file."""


@pytest.fixture(scope="module", autouse=True)
def _added():
    """A user's own tasks and metric, in this process."""
    register()
    yield
    METRICS.remove("deviance")
    for name in ADDED:
        TASKS.remove(name)


def register() -> None:
    partita.register("metric", "deviance", Metric(deviance, higher_is_better=False))
    for name, task in ADDED.items():
        partita.register("task", name, task)


ADJUSTED = {"links": {"negatives": 20, "hidden": 4}}
"""Settings that a task is made with here."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, GraphStore]:
    folder = tmp_path_factory.mktemp("stores")
    found = {
        name: small_random_store(folder / name, 90, 500, num_features=5, undirected=True, **options)
        for name, options in STORES.items()
    }
    held = {f"held_{split}": np.arange(40).reshape(20, 2) + start for start, split in enumerate(("val", "test"))}
    return {**found, "links": found["links"].with_(held)}


def made(name: str, store: GraphStore) -> Task:
    """The task of a name, told what is its own affair here."""
    task = TASKS.find(name)(store)
    if name in ADJUSTED:
        task.adjust(Config.make({"task": name, **ADJUSTED[name]}))
    return task


def seeds_of(task: Task, split: str) -> Tensor:
    """Of a split, with what is drawn for them."""
    seeds = task.seeds(split)
    return task.examples(seeds, StepKey(3, 0, 0)) if isinstance(task, SampledTask) else seeds


@pytest.fixture(scope="module", params=STORES)
def named(request, stores) -> tuple[str, Task]:
    return request.param, made(request.param, stores[request.param])


def rows_for(task: Task, seeds: Tensor, random: int = 0) -> Tensor:
    """Rows as a model might give them."""
    generator = torch.Generator().manual_seed(random)
    return torch.randn(len(task.requests(seeds)), task.width, dtype=torch.float64, generator=generator)


def test_every_task_is_here() -> None:
    assert set(STORES) == set(TASKS)
    assert set(PLAIN) == set(TASKS) - set(OTHERS)
    assert set(COLUMNS) == set(PLAIN) - {"same-class", "links"}


def test_a_task_says_all_that_is_asked(named) -> None:
    name, task = named
    assert isinstance(task, Task)
    assert task.width > 0
    assert set(task.metrics) <= set(METRICS) - {LOSS}
    assert selection_metric(task, "auto", of=name) == task.metrics[0]
    for split in ("train", "val", "test"):
        seeds = seeds_of(task, split)
        nodes = task.requests(seeds)
        assert len(nodes.unique()) == len(nodes)
        assert set(nodes.tolist()) == set(seeds.flatten().tolist())
        assert task.outputs(rows_for(task, seeds), seeds).shape[0] == len(seeds)
        targets = task.targets(seeds)
        assert task.labeled(targets).tolist() == [True] * len(seeds) == [True] * len(targets)


@given(data=st.data(), workers=st.integers(1, 4), by_owner=st.booleans())
def test_losses_of_shares_add_up(named, data, workers, by_owner) -> None:
    _, task = named
    offsets = torch.tensor(sorted([0, *data.draw(st.lists(st.integers(0, 90), min_size=3, max_size=3)), 90]))
    if workers != 4:
        offsets = torch.arange(workers + 1) * 90 // workers
    every = seeds_of(task, "train")
    chosen = data.draw(st.lists(st.integers(0, len(every) - 1), unique=True))
    seeds = every[torch.tensor(chosen, dtype=torch.int64)]
    nodes = task.requests(seeds)
    row_of, rows = torch.full((90,), -1), rows_for(task, seeds)
    row_of[nodes] = torch.arange(len(nodes))
    whole = task.loss_sum(task.outputs(rows, seeds), task.targets(seeds))
    kind, parts, sizes = "owner" if by_owner else "even", [], 0
    for rank in range(workers):
        share = share_of(seeds, Mesh.of(rank, workers, workers), kind, offsets)
        output = task.outputs(rows[row_of[task.requests(share)]], share)
        parts.append(task.loss_sum(output, task.targets(share)))
        sizes += len(share)
    assert sizes == len(seeds)
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-9)


def test_the_gradient_is_that_of_the_plain_loss(named) -> None:
    name, task = named
    seeds = seeds_of(task, "train")
    if name in OTHERS:  # nobody has written its loss down once more
        targets, some = task.targets(seeds), rows_for(task, seeds).requires_grad_()
        assert torch.autograd.gradcheck(lambda rows: task.loss_sum(task.outputs(rows, seeds), targets), (some,))
        return
    gradients = []
    for loss in (task.loss_sum, PLAIN[name]):
        rows = rows_for(task, seeds).requires_grad_()
        summed = loss(task.outputs(rows, seeds), task.targets(seeds))
        summed.backward()
        gradients.append((summed.detach(), rows.grad))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_metrics_do_not_depend_on_the_order_of_rows(named) -> None:
    _, task = named
    seeds = seeds_of(task, "train")
    output, targets = task.outputs(rows_for(task, seeds), seeds), task.targets(seeds)
    found = judge(task, output, targets)
    assert {LOSS, *task.metrics} == set(found.metrics)
    assert found.metrics[LOSS] == pytest.approx(float(task.loss_sum(output, targets)) / len(seeds), rel=1e-5)
    for _ in range(3):
        order = torch.randperm(len(seeds))
        other = judge(task, output[order], targets[order])
        assert other.metrics == pytest.approx(found.metrics, rel=1e-6)
        assert other.classes == found.classes
    if found.classes is not None:
        assert all(len(counts) == len(task.class_names) for counts in found.classes.values())
    assert set(judge(task, output[:0], targets[:0]).metrics) == {LOSS}


@pytest.mark.parametrize("metric", list(METRICS))
def test_a_metric_is_a_number_of_all_rows(stores, metric) -> None:
    names = [name for name in STORES if metric in (LOSS, *TASKS.find(name).metrics)]
    assert names, "no task reports it"
    task = made(names[0], stores[names[0]])
    task.metrics = tuple({*task.metrics, metric} - {LOSS})  # one is of links in time only
    seeds = seeds_of(task, "train")
    output, targets = task.outputs(rows_for(task, seeds), seeds), task.targets(seeds)
    found, order = judge(task, output, targets).metrics, torch.randperm(len(seeds))
    assert math.isfinite(found[metric])
    assert judge(task, output[order], targets[order]).metrics[metric] == pytest.approx(found[metric], rel=1e-6)


def test_what_is_known_is_best(named) -> None:
    """A model that has learned the targets by heart is better than chance by every metric."""
    name, task = named
    if name in OTHERS:
        pytest.skip("what it predicts best is known for the tasks of this file")
    seeds = seeds_of(task, "train")
    targets = task.targets(seeds)
    perfect = {
        "multilabel": lambda: targets.double() * 20 - 10,
        "regression": lambda: targets.double()[:, None],
        "poisson": lambda: targets.double().clamp(min=1e-6).log()[:, None],
        "links": lambda: torch.cat([torch.ones(len(seeds), 1), -torch.ones(len(seeds), 20)], dim=1).double() * 20,
    }.get(name, lambda: functional.one_hot(targets).double() * 20)()
    best = judge(task, perfect, targets).metrics
    chance = judge(task, task.outputs(rows_for(task, seeds), seeds), targets).metrics
    assert best.keys() == chance.keys()
    assert all(better(metric, best[metric], chance[metric]) for metric in best)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_predictions(stores, name, flat) -> None:
    task = TASKS.find(name)(stores[name])
    for count in (0, 1, 7):
        columns = task.columns(torch.randn(count, task.width), flat=flat)
        assert set(columns) == COLUMNS[name][flat]
        assert {len(column) for column in columns.values()} == {count}


SETTINGS = {
    "layers": 2, "hidden": 8, "fanout": (3, 2), "batch_size": 16, "epochs": 2, "precision": "float64", "threads": 1,
    "strategy": "gsplit", "seed_split": "even",
}  # fmt: skip


def through_the_public_api(context, store: str, out: str, name: str, predicts: bool) -> dict[str, Any]:
    """Train, evaluate and predict, on each of some workers that a user has started."""
    register()
    options = {**SETTINGS, "task": name, "workers": context.mesh.size}
    record = partita.Trainer(store, out=out, context=context, **options).fit().record
    found = partita.evaluate(out, split="val", context=context)
    if predicts:
        for ending in ("csv", "parquet"):
            partita.predict(out, out=f"{out}.{ending}", split="test", context=context)
    return {"record": record, "evaluated": found}


@pytest.mark.parametrize("name", ADDED)
def test_a_users_own_task_on_two_workers_is_that_of_one_process(stores, tmp_path, name) -> None:
    store, found = stores[name].path, {}
    partita.partition(store, tmp_path / "parts", parts=2, algorithm="random")
    predicts = name in COLUMNS
    for number, graph in ((1, store), (2, tmp_path / "parts")):
        found[number] = run_workers(
            through_the_public_api, number, graph, tmp_path / f"on{number}", name, predicts,
            purposes=PURPOSES, checked=False, ordered=None, timeout=200,
        )[0]  # fmt: skip
    records = [found[number]["record"] for number in found]
    assert [record["task"] for record in records] == [name, name]
    assert records[0]["best"]["metric"] == TASKS.find(name).metrics[0]
    weights = [load_file(latest(tmp_path / f"on{number}") / "model.safetensors") for number in found]
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=1e-9, atol=1e-12)
    kept = [
        {key: value for key, value in each["evaluated"].items() if key not in ("split", "checkpoint")}
        for each in found.values()
    ]
    assert kept[1] == pytest.approx(kept[0], rel=1e-6)
    if predicts:
        assert_same_predictions(tmp_path, stores[name])
    partita.write_report([tmp_path / "on1", tmp_path / "on2"], out=tmp_path / "report.html")
    assert name in (tmp_path / "report.html").read_text()


def latest(run: Path) -> Path:
    return sorted((run / "checkpoints").iterdir())[-1]


def assert_same_predictions(folder: Path, store: GraphStore) -> None:
    """Of both runs, in both kinds of files; those of the first are what the model says."""
    tables = [pyarrow.parquet.read_table(folder / f"on{number}.parquet").to_pydict() for number in (1, 2)]
    by_node = [dict(zip(table["node"], table["prediction"], strict=True)) for table in tables]
    assert by_node[1] == pytest.approx(by_node[0], rel=1e-6)
    with (folder / "on1.csv").open() as file:
        rows = {int(row["node"]): float(row["prediction"]) for row in csv.DictReader(file)}
    assert rows == pytest.approx(by_node[0], rel=1e-5)
    assert set(rows) == set(np.array(store.split("test")).tolist())
    assert min(rows.values()) > 0


def test_a_task_by_where_it_is_defined(stores, tmp_path) -> None:
    """As on the command line: ``--task package.module:Name``."""
    settings = {**SETTINGS, "strategy": "gdp", "task": "partita.tasks.nodes:Regression"}
    run = partita.Trainer(stores["poisson"], out=tmp_path / "run", **settings).fit()
    assert run.record["task"] == settings["task"]
    found = partita.evaluate(tmp_path / "run", split="test", trust="imports")
    assert {name: found[name] for name in ("loss", "mae", "rmse", "r2")} == pytest.approx(run.metrics["test"])


def test_what_is_known_of_a_seed_is_of_its_store_id(stores) -> None:
    task = Classes(stores["classes"])
    seeds = task.seeds("test").to(torch.int32)
    assert torch.equal(task.targets(seeds), as_tensor(stores["classes"].y)[seeds.long()])
