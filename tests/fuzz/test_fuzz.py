"""Damaged inputs, with fixed seeds, and those that something was wrong with once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from judge import GOOD, Judge, judging
from kinds import KINDS

CASES = 300
KEPT = [
    ("run records", 1030), ("run records", 1066), ("report", 1049), ("report", 1103), ("store signed", 1045),
    ("checkpoint unsigned", 1137), ("edges csv", 1036), ("edges snap", 1056), ("edges tsv", 1109),
    ("settings", 16), ("report", 6),
]  # fmt: skip
"""Kinds and seeds that ended as internal errors, or that the judge itself got wrong."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judging(tmp_path_factory.mktemp("fuzz")) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_inputs_are_refused_or_taken_as_they_are(judge: Judge, kind: str) -> None:
    for seed in range(CASES // len(KINDS) + 1):
        finding = judge.try_case(kind, seed)
        assert finding.outcome in GOOD, finding


@pytest.mark.parametrize(("kind", "seed"), KEPT)
def test_what_was_wrong_once(judge: Judge, kind: str, seed: int) -> None:
    finding = judge.try_case(kind, seed)
    assert finding.outcome in GOOD, finding
