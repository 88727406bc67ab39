"""Runs with models of users: trained, resumed, evaluated and predicted from the command line, by name."""

from __future__ import annotations

import builtins
import csv
import json
import re
from pathlib import Path
from typing import Any

import own_models
import pytest
import torch
from safetensors.torch import load_file

import partita
from partita.cli.main import main
from partita.core.errors import ConfigError, RunError
from partita.graph.store import GraphStore
from partita.nn.layers import SAGE
from partita.testing.graphs import small_random_store

pyg = pytest.importorskip("torch_geometric.nn")

SETTINGS: dict[str, Any] = {"hidden": 8, "fanout": -1, "batch_size": 30, "epochs": 2, "lr": 0.01, "seed": 5}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 120, 600)


def weights(run: Path) -> dict[str, torch.Tensor]:
    latest = sorted(path for path in (run / "checkpoints").iterdir() if not path.name.startswith("."))[-1]
    return load_file(latest / "model.safetensors")


def command(*arguments: object) -> None:
    """Run the command line in this process."""
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    assert not ended.value.code


NAMED = {
    "convolution": ["--model", "pyg:GATv2Conv", "--model-options", "heads=2"],
    "module over blocks": ["--model", "own_models:BlocksNet", "--model-options", "scale=0.5"],
    "module over edges": ["--model", "pyg:GCN", "--dropout", "0.3"],
}


@pytest.mark.parametrize("kind", NAMED)
def test_a_named_model_is_resumed_evaluated_and_predicted_from_the_command_line(tmp_path, store, kind, capsys) -> None:
    common = ["--layers", 2, "--hidden", 8, "--fanout", "4,3", "--batch-size", 30, "--threads", 1]
    for name, epochs in (("whole", 3), ("cut", 2)):
        command("train", store.path, "--out", tmp_path / name, *NAMED[kind], *common, "--epochs", epochs)
    trust = ["--trust", "imports"] if NAMED[kind][1].startswith("own_models:") else []
    command("train", "--resume", tmp_path / "cut", "--epochs", 3, *trust)
    resumed, whole = weights(tmp_path / "cut"), weights(tmp_path / "whole")
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    capsys.readouterr()
    command("evaluate", tmp_path / "whole", "--split", "val", "--json", *trust)
    found = json.loads(capsys.readouterr().out)
    record = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert found["accuracy"] == pytest.approx(record["metrics"]["val"]["accuracy"])
    command("predict", tmp_path / "whole", "--out", tmp_path / "p.csv", "--split", "val", *trust)
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    y, val = store.y, store.split("val")
    assert y is not None
    right = [int(row["prediction"]) == int(y[int(node)]) for row, node in zip(rows, val, strict=True)]
    assert sum(right) / len(right) == pytest.approx(found["accuracy"])


MODULES = {
    "module": lambda: own_models.ConvNet(8, 16, 4).double(),
    "gcn": lambda: pyg.GCN(8, 16, 2, 4).double(),
    "sage": lambda: pyg.GraphSAGE(8, 16, 3, 4).double(),
}


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_trains_as_in_a_plain_script(tmp_path, store, kind) -> None:
    torch.manual_seed(1)
    own = MODULES[kind]()
    plain = MODULES[kind]()
    plain.load_state_dict(own.state_dict())
    settings = {**SETTINGS, "batch_size": 0, "epochs": 4, "precision": "float64", "eval_every": 0}
    partita.Trainer(store, out=tmp_path / "run", model=own, **settings).fit()
    data = partita.to_pyg(store)
    data.x = data.x.double()
    optimizer = torch.optim.Adam(plain.parameters(), lr=SETTINGS["lr"])
    for _ in range(4):
        optimizer.zero_grad()
        out = plain(data.x, data.edge_index)[data.train_mask]
        torch.nn.functional.cross_entropy(out, data.y[data.train_mask]).backward()
        optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], value, rtol=1e-6, atol=1e-8)


def test_a_module_given_as_an_object(tmp_path, store) -> None:
    torch.manual_seed(1)
    trainer = partita.Trainer(store, out=tmp_path / "run", model=own_models.ConvNet(8, 16, 4), **SETTINGS)
    assert trainer.job.config.layers == 2
    trainer.fit()
    with pytest.raises(RunError, match=r"model of your own.*partita.evaluate\(.*model=.*--model own_models:ConvNet"):
        partita.evaluate(tmp_path / "run")
    assert "accuracy" in partita.evaluate(tmp_path / "run", model=own_models.ConvNet(8, 16, 4))
    with pytest.raises(RunError, match="holds the weights of a different model"):
        partita.evaluate(tmp_path / "run", model=own_models.ConvNet(8, 12, 4))
    with pytest.raises(RunError, match="model of your own"):
        partita.Trainer.resume(tmp_path / "run", epochs=3)
    partita.Trainer.resume(tmp_path / "run", epochs=3, model=own_models.ConvNet(8, 16, 4)).fit()


def test_a_model_of_known_layers_is_kept_in_the_run(tmp_path, store) -> None:
    model = partita.Model.from_layers([SAGE(8, 6), SAGE(6, 4)], norm="none")
    partita.Trainer(store, out=tmp_path / "run", model=model, **SETTINGS).fit()
    assert "accuracy" in partita.evaluate(tmp_path / "run")
    partita.Trainer.resume(tmp_path / "run", epochs=3).fit()
    assert "accuracy" in partita.evaluate(tmp_path / "run")


def test_layers_need_not_be_repeated(tmp_path, store) -> None:
    trainer = partita.Trainer(store, out=tmp_path / "a", model=pyg.GraphSAGE(8, 16, 2, 4), fanout=[4, 3])
    assert trainer.job.config.fanout == (4, 3)
    with pytest.raises(ConfigError, match="Set layers=2"):
        partita.Trainer(store, out=tmp_path / "b", model=own_models.ConvNet(8, 16, 4), layers=3)
    with pytest.raises(ConfigError, match="how many hops of neighbors a Whole looks at is not known"):
        partita.Trainer(store, out=tmp_path / "c", model=own_models.Whole())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "gsplit"}, r"layers of a torch.nn.Module are not known.*gdp"),
        ({"strategy": "destination,data"}, r"layers of a torch.nn.Module are not known"),
        ({"views": "cyclic"}, "trains on the whole graph only"),
    ],
)
def test_other_strategies_are_refused_in_words(tmp_path, store, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        partita.Trainer(store, out=tmp_path / "r", model=own_models.ConvNet(8, 16, 4), **SETTINGS, **settings)


def test_a_whole_model_has_no_embeddings_and_nothing_to_plan(tmp_path, store) -> None:
    settings = {**SETTINGS, "layers": 2, "model": "own_models:ConvNet", "dropout": 0.0}
    partita.Trainer(store, out=tmp_path / "run", **settings).fit()
    with pytest.raises(ConfigError, match="computed as a whole, so there are no rows before its last layer"):
        partita.predict(tmp_path / "run", out=tmp_path / "p.csv", embeddings=True, trust="imports")
    with pytest.raises(ConfigError, match="no strategy to choose"):
        partita.make_plan(store.path, partita.Config.make(settings))


def test_a_run_that_names_code_is_not_believed(tmp_path, store, monkeypatch, capsys) -> None:
    """Neither its settings nor its record import anything, whoever reads them."""
    (tmp_path / "evil_of_a_run.py").write_text("import builtins\nbuiltins.evil_has_run = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = partita.Trainer(store, out=tmp_path / "run", **SETTINGS, layers=2).fit().path
    config, record = run / "config.yaml", run / "run.json"
    whole = {config: config.read_text(), record: record.read_text()}
    made = json.loads(whole[record])
    damage = {
        config: re.sub(r"(?m)^views: .*$", "views: evil_of_a_run:go", whole[config]),
        record: json.dumps({**made, "model": {**made["model"], "module": "evil_of_a_run:go"}}),
    }
    for file, text in damage.items():
        file.write_text(text)
        for use in (
            lambda: partita.evaluate(run),
            lambda: partita.predict(run, out=tmp_path / "p.csv"),
            lambda: partita.Trainer.resume(run, epochs=3),
            lambda: partita.export_model(run, tmp_path / "exported"),
        ):
            with pytest.raises(ConfigError, match=rf"{file.name}: .*'evil_of_a_run:go' names code.*--trust imports"):
                use()
        for words in (["evaluate", run], ["predict", run, "--out", tmp_path / "p.csv"], ["train", "--resume", run]):
            with pytest.raises(SystemExit) as ended:
                main([str(word) for word in words])
            assert ended.value.code == 2
            assert "names code" in capsys.readouterr().err
        file.write_text(whole[file])
    assert not hasattr(builtins, "evil_has_run")
    assert "accuracy" in partita.evaluate(run)
