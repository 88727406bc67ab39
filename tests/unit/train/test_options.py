"""What training scripts have: class weights and target scaling beside PyG, clipping, plateau, baseline, going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import partita
from partita.core.errors import ConfigError, RunError
from partita.graph.store import GraphStore
from partita.nn.layers import SAGE
from partita.runs.checkpoint import latest_checkpoint, read_state
from partita.setup.model import named_model
from partita.tasks.metrics import judge
from partita.tasks.task import make_task
from partita.testing.graphs import small_random_store

EPOCHS = 40
WHOLE = {
    "layers": 2, "hidden": 16, "fanout": "-1", "batch_size": 0, "norm": "none", "dropout": 0.0, "epochs": EPOCHS,
    "lr": 0.02, "precision": "float64",
}  # fmt: skip
SHORT = {"layers": 2, "hidden": 16, "fanout": "4,3", "batch_size": 16, "epochs": 3}


def graph_of(task: str):
    """A PyG graph: 4 % of the nodes are positive, or targets of mean 1025 and deviation 17; both from 16 features and
    those of the neighbors."""
    from torch_geometric.data import Data
    from torch_geometric.nn import SAGEConv

    torch.manual_seed(1)
    nodes = 1500
    x, edges = torch.randn(nodes, 8), torch.randint(nodes, (2, 6 * nodes))
    value = SAGEConv(8, 1)(x, edges).detach().squeeze(1)
    value = (value - value.mean()) / value.std() + 0.1 * torch.randn(nodes)
    y = (value >= value.sort().values[-nodes // 25]).long() if task == "classes" else 1025 + 17 * value
    split = torch.arange(nodes) % 5
    return Data(x=x, edge_index=edges, y=y, train_mask=split < 3, val_mask=split == 3, test_mask=split == 4)


def plain_run(data, weights: dict[str, torch.Tensor], task: str) -> torch.Tensor:
    """A script with PyG alone: full batches, Adam; (N, C) outputs of the model after the last epoch."""
    from torch_geometric.nn import SAGEConv

    y, train = data.y, data.train_mask
    convs = nn.ModuleList([SAGEConv(8, 16), SAGEConv(16, 2 if task == "classes" else 1)]).double()
    convs.load_state_dict({name.replace("stages.", "").replace(".layer", ""): w for name, w in weights.items()})
    optimizer, x = torch.optim.Adam(convs.parameters(), lr=WHOLE["lr"]), data.x.double()
    if task == "classes":
        counts = y[train].bincount().double()
        loss = nn.CrossEntropyLoss(weight=int(train.sum()) / (2 * counts))
        target, mean, deviation = y, 0.0, 1.0
    else:
        known = y[train].double()
        mean, deviation = float(known.mean()), float(known.std(correction=0))
        target, loss = ((y.double() - mean) / deviation)[:, None], nn.MSELoss()
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss(convs[1](convs[0](x, data.edge_index).relu(), data.edge_index)[train], target[train]).backward()
        optimizer.step()
    with torch.no_grad():
        return convs[1](convs[0](x, data.edge_index).relu(), data.edge_index) * deviation + mean


@pytest.mark.parametrize(
    ("task", "settings"), [("classes", {"class_weights": "balanced", "metric": "roc_auc"}), ("regression", {})]
)
def test_same_model_as_a_script_with_pyg(tmp_path, task, settings) -> None:
    data = graph_of(task)
    store = GraphStore.open(partita.ingest(data, tmp_path / "store").path)
    config = partita.Config.make({**WHOLE, **settings, "eval_every": 0})
    width = make_task(config, store).width
    start = {name: value.double() for name, value in named_model(config, store, width).state_dict().items()}
    summary = partita.Trainer(store, out=tmp_path / "run", config=config).fit()
    output = plain_run(data, start, task)
    wanted = judge(make_task(config, store), output[data.test_mask], data.y[data.test_mask]).metrics
    found = summary.metrics["test"]
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name
    baseline = summary.record["baseline"]
    if task == "classes":
        assert found["roc_auc"] > 0.9
        assert found["macro_f1"] > baseline["metrics"]["test"]["macro_f1"] + 0.1
        assert baseline["prediction"] == 0
        assert baseline["train"]["nodes"] == data.y[data.train_mask].bincount().tolist()
    else:
        assert found["mae"] < 0.3 * baseline["metrics"]["test"]["mae"]
        assert baseline["prediction"] == pytest.approx(float(data.y[data.train_mask].mean()))
        table = tmp_path / "out.csv"
        partita.predict(tmp_path / "run", out=table)
        values = [float(line.split(",")[1]) for line in table.read_text().splitlines()[1:]]
        assert values == pytest.approx(output.squeeze(1).tolist(), abs=1e-3)
    assert partita.evaluate(tmp_path / "run")["loss"] == pytest.approx(found["loss"])
    assert summary.record["warnings"] == []
    saved = partita.Config.load(tmp_path / "run" / "config.yaml")
    assert not isinstance(saved.class_weights if task == "classes" else saved.target_scaling, str)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 200, 1200)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "r", 200, 1200, task="regression", num_classes=1)


def model_of(run: Path) -> dict[str, torch.Tensor]:
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    return load_file(latest / "model.safetensors")


def texts(run: Path, kind: str) -> list[str]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["text"] for event in events if event["event"] == kind]


def test_a_run_of_before_goes_on_as_it_was(tmp_path, numbers) -> None:
    """Older runs say nothing of target scaling."""
    partita.Trainer(numbers, out=tmp_path / "run", **{**SHORT, "epochs": 2, "target_scaling": "none"}).fit()
    config = tmp_path / "run" / "config.yaml"
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "target_scaling" not in line))
    assert partita.evaluate(tmp_path / "run")["mae"] > 0
    partita.Trainer.resume(tmp_path / "run", epochs=3).fit()
    partita.Trainer(numbers, out=tmp_path / "whole", **{**SHORT, "target_scaling": "none"}).fit()
    found, wanted = model_of(tmp_path / "run"), model_of(tmp_path / "whole")
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_a_model_of_ones_own_predicts_in_units_of_the_targets(tmp_path, numbers) -> None:
    def make() -> partita.Model:
        return partita.Model.from_layers([SAGE(8, 16), SAGE(16, 1)])

    model = make()
    summary = partita.Trainer(numbers, out=tmp_path / "run", model=model, **SHORT).fit()
    found = partita.evaluate(tmp_path / "run", model=make())
    assert found["mae"] == pytest.approx(summary.metrics["test"]["mae"])


def test_gradients_are_clipped_to_a_norm(tmp_path, store) -> None:
    """One step of SGD moves weights by at most lr times the norm."""
    base = {**SHORT, "optimizer": "sgd", "momentum": 0.0, "lr": 1.0, "batch_size": 0, "epochs": 1}
    for norm, name in [(0.0, "free"), (0.01, "clipped"), (1e6, "far")]:
        partita.Trainer(store, out=tmp_path / name, clip_norm=norm, **base).fit()
    start = named_model(partita.Config.make(base), store, 4).state_dict()
    moved = {
        name: torch.cat([(value - start[key]).ravel() for key, value in model_of(tmp_path / name).items()])
        for name in ("free", "clipped", "far")
    }
    assert torch.equal(moved["free"], moved["far"])
    assert moved["free"].norm() > 0.02
    assert float(moved["clipped"].norm()) == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(moved["clipped"] / 0.01, moved["free"] / moved["free"].norm(), atol=1e-4, rtol=1e-3)


def test_a_plateau_lowers_the_learning_rate_also_after_resuming(tmp_path, store) -> None:
    settings = {**SHORT, "schedule": "plateau", "lr_patience": 1, "lr_decay": 0.5, "lr": 0.02}
    partita.Trainer(store, out=tmp_path / "whole", **{**settings, "epochs": 9}).fit()
    lines = map(json.loads, (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
    epochs = [event for event in lines if event["event"] == "epoch"]
    rate, bad, best, rates = 0.02, 0, -1.0, []
    for event in epochs:
        rates.append(rate)
        bad = 0 if event["val_accuracy"] > best else bad + 1
        best = max(best, event["val_accuracy"])
        if bad > 1:
            rate, bad = rate / 2, 0
    assert [event["learning_rate"] for event in epochs] == pytest.approx(rates)
    assert rates[-1] < 0.02
    partita.Trainer(store, out=tmp_path / "parts", **{**settings, "epochs": 5}).fit()
    partita.Trainer.resume(tmp_path / "parts", epochs=9).fit()
    found, wanted = model_of(tmp_path / "parts"), model_of(tmp_path / "whole")
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    with pytest.raises(ConfigError, match="follows evaluations"):
        partita.Trainer(store, out=tmp_path / "none", eval_every=0, **settings)


def test_a_run_that_stopped_early_goes_on(tmp_path, store) -> None:
    run = tmp_path / "run"
    settings = {**SHORT, "epochs": 60, "patience": 2, "lr": 0.05}
    stopped = partita.Trainer(store, out=run, **settings).fit().record["epoch"]
    assert stopped < 60
    same = partita.Trainer.resume(run).fit()
    assert (same.record["epoch"], same.record["early_stopped"]) == (stopped, True)
    assert f"stopped early after epoch {stopped}: no better accuracy in 2 evaluations" in texts(run, "note")[-1]
    assert "to go on, give" in texts(run, "note")[-1]
    on = partita.Trainer.resume(run, epochs=stopped + 4, patience=0).fit()
    assert (on.record["epoch"], on.record["early_stopped"]) == (stopped + 4, False)
    assert f"goes on to epoch {stopped + 4}, without early stopping" in texts(run, "note")[-1]
    partita.Trainer(store, out=tmp_path / "whole", **{**settings, "epochs": stopped + 4, "patience": 0}).fit()
    found, wanted = model_of(run), model_of(tmp_path / "whole")
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    partita.Trainer.resume(run).fit()
    assert "all" in texts(run, "note")[-1]
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    assert read_state(latest).epoch == stopped + 4


def test_overwriting_replaces_a_run_and_nothing_else(tmp_path, store) -> None:
    run = tmp_path / "run"
    partita.Trainer(store, out=run, **SHORT).fit()
    (run / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="--overwrite"):
        partita.Trainer(store, out=run, **SHORT)
    partita.Trainer(store, out=run, overwrite=True, **{**SHORT, "epochs": 1}).fit()
    assert json.loads((run / "run.json").read_text())["epoch"] == 1
    assert (
        len([line for line in (run / "metrics.jsonl").read_text().splitlines() if '"epoch"' in line.split(",")[0]]) == 1
    )
    assert (run / "notes.txt").read_text() == "mine"
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    with pytest.raises(RunError, match="not a run folder"):
        partita.Trainer(store, out=other, overwrite=True, **SHORT)
    assert [path.name for path in other.iterdir()] == ["precious.txt"]


def test_a_model_of_one_class_is_warned_of(tmp_path) -> None:
    data = graph_of("classes")
    data.x = torch.ones_like(data.x)
    store = GraphStore.open(partita.ingest(data, tmp_path / "store").path)
    summary = partita.Trainer(store, out=tmp_path / "run", **{**SHORT, "batch_size": 64, "lr": 0.01}).fit()
    one_class, no_better = summary.record["warnings"][0], summary.record["warnings"][-1]
    assert "predicts only class 0" in one_class
    assert "balanced" in one_class
    assert "accuracy 0.9" in no_better
    assert "no better than predicting '0' for every node" in no_better
    assert texts(tmp_path / "run", "warning") == summary.record["warnings"]


def test_weights_that_are_not_used_and_nan_features_are_named(tmp_path) -> None:
    edges = "".join(f"{node},{(7 * node + 1) % 40},0.5\n" for node in range(40))
    (tmp_path / "e.csv").write_text("source,target,weight\n" + edges)
    (tmp_path / "n.csv").write_text("id,f,label\n" + "".join(f"{node},{node / 40},{node % 2}\n" for node in range(40)))
    tables = {"nodes": tmp_path / "n.csv", "weight_column": "weight"}
    partita.ingest(tmp_path / "e.csv", tmp_path / "weighted", **tables)
    partita.Trainer(tmp_path / "weighted", out=tmp_path / "run", **{**SHORT, "epochs": 1}).fit()
    assert any("edge weights are not used" in text for text in texts(tmp_path / "run", "note"))
    partita.Trainer(tmp_path / "weighted", out=tmp_path / "by", weighted=True, **{**SHORT, "epochs": 1}).fit()
    assert not any("edge weights" in text for text in texts(tmp_path / "by", "note"))

    (tmp_path / "n.csv").write_text((tmp_path / "n.csv").read_text().replace("\n3,0.075,", "\n3,,"))
    partita.ingest(tmp_path / "e.csv", tmp_path / "gaps", **tables, allow_nan=True)
    with pytest.raises(RunError, match=r"the loss is nan .*may hold NaN features .* --missing zero, mean or drop"):
        partita.Trainer(tmp_path / "gaps", out=tmp_path / "nan", **SHORT).fit()
