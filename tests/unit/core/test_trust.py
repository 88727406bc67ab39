"""Files hold values: one that names code is refused, wherever it stands, unless the user says otherwise."""

from __future__ import annotations

import pytest

from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.plan import Plan
from partita.core.registry import imported
from partita.core.trust import IMPORTS, names_code, refuse_code

CODE = [
    "os:system", "builtins:exec", "subprocess:Popen", "sys:exit", "partita.nn:Model", "a.b.c:d.e",
    "torch_geometric.nn:GATConv",
    "pyg:conv.message_passing.os.system", "source,os:system,data", "gdp@workers+os:system@hosts", " os:system ",
    "é:ü",
]  # fmt: skip
NO_CODE = [
    "",
    "sage",
    "pyg:GATv2Conv",
    "512MiB",
    "15,10,5",
    "12:30",
    "localhost:29500",
    "http://x",
    "a: b",
    "gdp@workers",
    3,
    None,
    True,
]


@pytest.mark.parametrize("value", CODE)
def test_names_of_code(value) -> None:
    assert names_code(value)
    for values in ({"a": value}, {"a": {"b": [1, {"c": value}]}}, {"a": [value]}):
        with pytest.raises(ConfigError, match=r"names code.*--trust imports"):
            refuse_code(values, "file", None)
        refuse_code(values, "file", IMPORTS)


@pytest.mark.parametrize("value", NO_CODE)
def test_what_names_no_code(value) -> None:
    assert not names_code(value)
    refuse_code({"a": value}, "file", None)


def test_the_place_and_the_word_are_said() -> None:
    with pytest.raises(ConfigError, match=r"run\.json: model\.stages: 'os:system' names code"):
        refuse_code({"model": {"stages": [{"x": 1}, "os:system"]}}, "run.json", None)
    with pytest.raises(ConfigError, match=r"'yes' is nothing that a file can be trusted with.*Say imports"):
        refuse_code({}, "file", "yes")


def test_names_of_relations_are_no_code() -> None:
    """Those of knowledge graphs look like it."""
    relation = ["entity", "concept:agent", "entity"]
    refuse_code({"metapath": "concept:agent", "layer": {"metadata": [["entity"], [relation]]}}, "run.json", None)
    with pytest.raises(ConfigError, match=r"layer: 'concept:agent' names code"):
        refuse_code({"layer": relation}, "run.json", None)


@pytest.mark.parametrize(
    "setting", ["views", "sync", "coverage", "model", "loss", "metric", "sampler", "strategy", "norm"]
)
def test_a_file_of_settings(tmp_path, setting, monkeypatch) -> None:
    """Refused before anything is imported; the command line may say the same."""
    evil = tmp_path / f"evil_{setting}.py"
    evil.write_text("raise SystemExit('the file has run code')\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(f"{setting}: evil_{setting}:go\n")
    with pytest.raises(ConfigError, match=rf"run\.yaml: {setting}: 'evil_{setting}:go' names code"):
        Config.load(file)
    assert Config.load(file, trust=IMPORTS) is not None
    assert Config.make({setting: f"evil_{setting}:go"}) is not None


def test_a_plan(tmp_path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"format": 2, "candidates": [{"name": "gdp", "settings": {"views": "os:system"}}]}')
    with pytest.raises(ConfigError, match=r"plan\.json: candidates\.settings\.views: 'os:system' names code"):
        Plan.load(file)


def test_pyg_names_convolutions_only() -> None:
    with pytest.raises(ConfigError, match="not the name of a convolution"):
        imported("pyg:conv.message_passing.os.system", "model")
