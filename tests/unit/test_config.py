"""The configuration: one record, the same in YAML, CLI and Python; nothing wrong passes."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from partita.config import PRESETS, Config, field_help, parse_bytes, read_yaml
from partita.core.errors import ConfigError


def test_yaml_round_trip(tmp_path) -> None:
    config = Config.make({"model": "gat", "layers": 2, "fanout": "10,-1", "memory_limit": "1.5GiB", "lr": 0.01})
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    assert Config.load(tmp_path / "run.yaml") == config


def test_overrides_win_over_the_file_and_none_does_not_count(tmp_path) -> None:
    (tmp_path / "run.yaml").write_text("epochs: 3\nlr: 0.5\n")
    config = Config.load(tmp_path / "run.yaml", {"epochs": 7, "lr": None})
    assert (config.epochs, config.lr) == (7, 0.5)


def test_a_preset_lies_under_what_is_given_and_over_the_file(tmp_path) -> None:
    assert Config.make({"preset": "gsplit"}).strategy == "gsplit"
    assert Config.make({"preset": "gsplit", "strategy": "dnp"}).strategy == "dnp"
    (tmp_path / "run.yaml").write_text("strategy: gdp\ndeal: even\nepochs: 3\n")
    config = Config.load(tmp_path / "run.yaml", {"preset": "gsplit"})
    assert (config.strategy, config.seed_split, config.epochs) == ("gsplit", "owner", 3)
    assert Config.make(yaml.safe_load(config.to_yaml())) == config


def test_settings_by_their_old_names_are_taken_and_said(tmp_path) -> None:
    notes: list[str] = []
    (tmp_path / "run.yaml").write_text("deal: even\nproducts: torch\nepochs: 3\n")
    config = Config.load(tmp_path / "run.yaml", notes=notes)
    assert (config.seed_split, config.matmul, config.epochs) == ("even", "torch", 3)
    assert [note.removeprefix(str(tmp_path)) for note in notes] == [
        "/run.yaml: the setting deal is called seed_split",
        "/run.yaml: the setting products is called matmul",
    ]
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    assert Config.load(tmp_path / "run.yaml", notes=notes) == config
    assert len(notes) == 2


def test_options_are_values_of_yaml() -> None:
    config = Config.make({"options": ["depth=3", "share=0.5", "kind=a=b"]})
    assert config.options == {"depth": 3, "share": 0.5, "kind": "a=b"}
    assert Config.make(yaml.safe_load(config.to_yaml())) == config


def test_a_preset_of_ones_own() -> None:
    PRESETS.register("mine", {"strategy": "nfp", "lr": 0.5})
    try:
        assert (
            Config.make({"preset": "mine", "lr": 0.25}).model_dump().items() >= {"strategy": "nfp", "lr": 0.25}.items()
        )
    finally:
        PRESETS.remove("mine")


def test_placements_are_a_strategy(tmp_path) -> None:
    assert Config.make({"placements": ["source", "data", "data"]}).strategy == "source,data,data"
    (tmp_path / "run.yaml").write_text("placements: source,data,data\n")
    assert Config.load(tmp_path / "run.yaml").strategy == "source,data,data"
    assert Config.load(tmp_path / "run.yaml", {"strategy": "nfp"}).strategy == "nfp"


@pytest.mark.parametrize(
    ("fanout", "layers", "resolved"),
    [
        (None, 3, (15, 10, 5)),
        (None, 2, (15, 10)),
        (None, 5, (15, 10, 5, 5, 5)),
        (-1, 3, (-1, -1, -1)),
        ("4,3", 2, (4, 3)),
        ([7], 2, (7, 7)),
    ],
)
def test_fanout_fits_the_layers(fanout, layers, resolved) -> None:
    assert Config.make({"fanout": fanout, "layers": layers}).fanout == resolved


def test_layer_budgets_fit_the_layers_and_leave_no_fanout() -> None:
    config = Config.make({"sampler": "layer", "layer_budget": "512,256,128"})
    assert config.layer_budget == (512, 256, 128)
    assert config.fanout == ()
    assert Config.make({"sampler": "layer", "layer_budget": 64, "layers": 2}).layer_budget == (64, 64)
    assert Config.make(config.model_dump(mode="json")) == config
    assert Config.make(yaml.safe_load(config.to_yaml())) == config


def test_walks_keep_their_settings() -> None:
    config = Config.make({"sampler": "walk", "fanout": "8,4", "layers": 2, "walks": 20, "walk_restart": 0.25})
    assert (config.fanout, config.walks, config.walk_length, config.walk_restart) == ((8, 4), 20, 3, 0.25)
    assert Config.make({"sampler": "walk"}).fanout == (15, 10, 5)
    assert Config.make(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fanuot": 5}, ["fanuot", "'fanout'"]),
        ({"fanout": "5,5"}, ["fanout has 2 entries", "layers is 3"]),
        ({"fanout": "5,0,5"}, ["fanout", ">= 1", "-1"]),
        ({"fanout": "a,b,c"}, ["fanout", "15,10,5"]),
        ({"lr": -1}, ["lr = -1", "greater than 0"]),
        ({"layers": "two"}, ["layers", "integer"]),
        ({"dropout": 1.0}, ["dropout", "less than 1"]),
        ({"memory_limit": "3 parsecs"}, ["memory_limit", "512MiB"]),
        ({"preset": "gspilt"}, ["gspilt", "gsplit"]),
        ({"strategy": "gdp", "placements": "data,data,data"}, ["strategy and placements", "one of them"]),
        ({"options": "depth"}, ["options"]),
        ({"options": ["depth"]}, ["options", "name=value"]),
        ({"topology": "split"}, ["topology", "'partitioned'"]),
        ({"cache": "some"}, ["cache", "512MiB"]),
        ({"sampler": "layer", "layer_budget": "9,0,9"}, ["layer_budget 9,0,9", ">= 1"]),
        ({"sampler": "layer", "layer_budget": -1}, ["layer_budget -1,-1,-1", ">= 1"]),
        ({"sampler": "layer", "layer_budget": "9,9"}, ["layer_budget has 2 entries", "layers is 3"]),
        ({"sampler": "walk", "walks": 0}, ["walks = 0", "greater than or equal to 1"]),
        ({"sampler": "walk", "walk_length": 0}, ["walk_length = 0", "greater than or equal to 1"]),
        ({"sampler": "walk", "walk_restart": 1}, ["walk_restart", "less than 1"]),
    ],
)
def test_a_bad_setting_is_one_clear_message(settings, words) -> None:
    with pytest.raises(ConfigError) as error:
        Config.make(settings, where="run.yaml")
    assert "\n" not in str(error.value)
    for word in ["run.yaml", *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: [1\n", "not valid YAML"),
        ("- 1\n- 2\n", "mapping"),
        ("1: 2\n", "mapping"),
        ("!!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("model:\n", "model has no value"),
        (10_000 * "[", "nested too deeply"),
    ],
)
def test_a_bad_file_is_one_clear_message(tmp_path, text, words) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        Config.load(path)
    assert str(path) in str(error.value)


def test_missing_file(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Config.load(tmp_path / "absent.yaml")


def test_an_empty_file_means_defaults(tmp_path) -> None:
    (tmp_path / "run.yaml").write_text("")
    assert read_yaml(tmp_path / "run.yaml") == {}


@given(st.text(max_size=40))
def test_any_text_as_yaml_is_settings_or_a_config_error(tmp_path_factory, text) -> None:
    path = tmp_path_factory.mktemp("yaml") / "run.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        Config.load(path)
    except ConfigError:
        return
    assert yaml.safe_load(path.read_text(encoding="utf-8")) in (None, {})


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("512MiB", 2**29), ("2 GiB", 2**31), ("1.5kib", 1536), ("3GB", 3 * 10**9)]
)
def test_sizes(text, count) -> None:
    assert parse_bytes(text) == count


def test_every_setting_is_explained() -> None:
    assert all(field_help().values())
