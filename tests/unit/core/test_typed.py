"""Records that are read from files."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from partita.core.errors import ConfigError
from partita.core.typed import fitting, number, problem, typed


@dataclass(frozen=True)
class Record:
    count: int
    names: tuple[str, ...] = ()
    scale: float = 1.0


def test_values_of_the_right_types():
    assert typed(Record, {"count": 2, "names": ("a",), "scale": 3}) == Record(2, ("a",), 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": "2"}, "^count: Input should be a valid integer$"),
        ({"count": True}, "^count: Input should be a valid integer$"),
        ({"count": 2, "names": (1,)}, r"^names\.0: Input should be a valid string$"),
        ({"count": 2, "scale": "nan"}, "^scale: Input should be a valid number$"),
        ({"names": ()}, "^'count' is missing$"),
        ({"count": 2, "other": 1}, "^'other' is unknown$"),
    ],
)
def test_values_that_do_not_fit(values, message):
    with pytest.raises(ValueError, match=message):
        typed(Record, values)


def test_numbers():
    assert (number(2), number(0.5)) == (2.0, 0.5)
    for wrong in (True, "2", None, float("nan"), float("inf"), [1]):
        with pytest.raises(ValueError, match="is not a finite number"):
            number(wrong)


def test_what_python_raises_is_said_in_words():
    assert problem(KeyError("steps")) == "'steps' is missing"
    said = r"plan\.json: what it says does not fit together \('steps' is missing\)"
    with pytest.raises(ConfigError, match=said), fitting("plan.json", ConfigError, "Plan again"):
        {}["steps"]
