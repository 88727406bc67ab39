"""Every number that a user gives has a range: of all settings, keywords of functions and options of verbs."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import partita
from partita.cli.app import app
from partita.cli.main import main
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.options import MOST_SEED, OptionField, Options, fields_of, record_of

HUGE = 10**12
ODD = (math.nan, math.inf, -math.inf, -1, HUGE)
SIZES = {
    "cache",
    "topology_cache",
    "memory_per_worker",
    "memory_limit",
    "hot_bytes",
    "embed_memory",
    "feature_memory",
    "topology_memory",
}
"""A size of 10**12 bytes is a limit like any other, and a cache takes no more than there is to keep."""
TAKEN = {(name, HUGE) for name in (*SIZES, "hot", "seed", "split_seed")} | {("fanout", -1)}
"""What is taken (``--hot`` is ``hot_bytes``), as the help says: any seed up to 2**63 - 1, and -1 for all neighbors."""


def numbers_of(kind: Any) -> set[type]:
    """The types of numbers in an annotation."""
    if kind in (int, float):
        return {kind}
    return set().union(*(numbers_of(each) for each in typing.get_args(kind))) if typing.get_args(kind) else set()


def records() -> Iterator[type[Options]]:
    for module in pkgutil.walk_packages(partita.__path__, "partita."):
        if module.name.endswith(".options"):
            importlib.import_module(module.name)
    found = [Options]
    for record in found:
        found += record.__subclasses__()
    yield from (record for record in found[1:] if record.__module__.startswith("partita."))


SETTINGS = [name for name, field in Config.model_fields.items() if numbers_of(field.annotation)]
FIELDS = [
    (record, name, field)
    for record in records()
    for name, field in fields_of(record).items()
    if {int, float} & set(field.kinds) and name != "parts" and "column" not in name
]


def test_there_are_numbers_of_every_kind() -> None:
    assert {"hidden", "lr", "fanout", "cache", "class_weights", "prefetch", "threads"} <= set(SETTINGS)
    assert len(SETTINGS) >= 39
    assert {name for _, name, _ in FIELDS} >= {"average_degree", "epsilon", "memory_limit", "host", "split_seed"}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_in_its_range(name: str) -> None:
    for value in ODD:
        for given in (value, str(value)):
            if (name, value) in TAKEN:
                Config.make({name: given})
            else:
                with pytest.raises(ConfigError, match=name):
                    Config.make({name: given})
    if name == "seed":
        assert Config.make({"seed": MOST_SEED}).seed == MOST_SEED


@pytest.mark.parametrize(("record", "name", "field"), FIELDS)
def test_a_keyword_of_a_function_is_in_its_range(record: type[Options], name: str, field: OptionField) -> None:
    needed = {other: 1 for other, of in fields_of(record).items() if of.required}
    assert field.range is not None
    for value in ODD:
        if (name, value) in TAKEN:
            record_of(record, {**needed, name: value}, "here")
        else:
            with pytest.raises(ConfigError, match=rf"{name}: .* is not between"):
                record_of(record, {**needed, name: value}, "here")


def options() -> Iterator[tuple[tuple[str, ...], str, list[str]]]:
    """Every option of a verb that is a number on the command line: verb, flag, arguments that must be given."""

    def of(app: typer.Typer, verb: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, list[str]]]:
        for group in app.registered_groups:
            yield from of(group.typer_instance, (*verb, group.name or group.typer_instance.info.name))
        for each in app.registered_commands:
            yield from of_verb(each.callback, (*verb, each.name or each.callback.__name__))

    def of_verb(callback: Any, verb: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, list[str]]]:
        found: dict[str, str] = {}
        arguments, needed = [], dict[str, list[str]]()
        for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
            kind, info = (*typing.get_args(parameter.annotation), None, None)[:2]
            # In an annotation the first flag is where a default would be otherwise.
            flags = [getattr(info, "default", None), *(getattr(info, "param_decls", None) or ())]
            written = [each for each in flags if isinstance(each, str) and each.startswith("--")]
            flag = written[0].partition("/")[0] if written else f"--{name}".replace("_", "-")
            if isinstance(info, typer.models.ArgumentInfo):
                arguments += ["nowhere"] * (parameter.default is parameter.empty)
                continue
            if parameter.default is parameter.empty:
                needed[name] = [flag, "1"]
            if name in NUMBERS or {int, float} & {kind, *typing.get_args(kind)}:
                found[name] = flag
        for name, flag in found.items():
            others = [text for other, texts in needed.items() if other != name for text in texts]
            yield verb, flag, [*arguments, *others]

    yield from of(app, ())


NUMBERS = {*SETTINGS, *(name for _, name, _ in FIELDS), "split", "split_option"} - {"class_weights", "target_scaling"}
SPLITS_BY_NAME = {"evaluate", "predict", "presample"}
OPTIONS = sorted(each for each in options() if each[1] != "--split" or each[0][0] not in SPLITS_BY_NAME)
TRAIN = {("train",): ("nowhere", "--out", "out")}


def test_verbs_have_such_options() -> None:
    assert len(OPTIONS) > 100
    assert {verb for verb, _, _ in OPTIONS} >= {
        ("train",), ("evaluate",), ("predict",), ("ingest",), ("partition",), ("generate", "sbm"), ("measure",),
        ("plan",), ("presample",), ("shard",), ("quality",), ("split",),
    }  # fmt: skip


@pytest.mark.parametrize(("verb", "flag", "others"), OPTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_option_of_a_verb_is_in_its_range(verb, flag, others, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = flag[2:].replace("-", "_")
    for value in ODD:
        if (name, value) in TAKEN:
            continue
        with pytest.raises(SystemExit) as ended:
            main([*verb, *others, *TRAIN.get(verb, ()), flag, str(value)])
        said = " ".join(capsys.readouterr().err.split())
        assert ended.value.code == 2, (value, said)
        assert "internal error" not in said
        assert "No such option" not in said
        assert name in said.replace("-", "_"), (value, said)
    assert list(tmp_path.iterdir()) == []
