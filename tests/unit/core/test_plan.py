"""The file of a plan holds all of it, and nothing else is taken for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita.core.errors import ConfigError
from partita.core.plan import STAGES, Candidate, Plan, Seconds

PLAN = Plan(
    (Candidate("direct,data", "gdp", Seconds(sample=1.0), {"ids": 3}),), {"dnp": "too large"}, 10, 3, {"seed": 1}
)


def test_the_file_holds_it_all() -> None:
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def of_best(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values["candidates"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("steps"), "not a plan: 'steps' is missing"),
        (lambda values: values.update(format=99), "format 99"),
        (lambda values: values.update(candidates=[]), "no strategy"),
        (lambda values: values.update(steps="many"), "steps: Input should be a valid integer"),
        (lambda values: values.update(made_for=[]), "not a plan"),
        (lambda values: values.update(refused=[]), "refused: Input should be a valid dictionary"),
        (of_best(settings=[[]]), "settings: Input should be a valid dictionary"),
        (of_best(strategy=3), "strategy: Input should be a valid string"),
        (of_best(epoch=dict.fromkeys(STAGES, "nan")), "not a plan: 'nan' is not a finite number"),
        (of_best(epoch_bytes={"ids": "few"}), "epoch_bytes.ids: Input should be a valid integer"),
        (of_best(memory_bytes=None), "memory_bytes"),
        (of_best(extra=1), "not a plan: 'extra' is unknown"),
    ],
)
def test_a_file_that_holds_something_else(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    values = json.loads(json.dumps(PLAN.to_json()))
    change(values)
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=message) as error:
        Plan.load(tmp_path / "plan.json")
    assert "plan.json" in str(error.value)


def test_the_command_that_made_it_may_have_named_code(tmp_path: Path) -> None:
    """It is a record; elsewhere a name of code is refused."""
    machine = {"command": ["partita", "plan", "--model", "package.module:Name"]}
    values = {**PLAN.to_json(), "links": {"machine": machine}}
    (tmp_path / "plan.json").write_text(json.dumps(values))
    assert Plan.load(tmp_path / "plan.json").candidates == PLAN.candidates
    values["candidates"][0]["strategy"] = "package.module:Name,data"
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="names code"):
        Plan.load(tmp_path / "plan.json")
