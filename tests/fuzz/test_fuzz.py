"""Damaged inputs, with fixed seeds. What was found wrong with others has a test of its own beside what was mended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from judge import GOOD, Judge, judging
from kinds import KINDS

CASES = 90


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judging(tmp_path_factory.mktemp("fuzz")) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_inputs_are_refused_or_taken_as_they_are(judge: Judge, kind: str) -> None:
    for seed in range(CASES // len(KINDS) + 1):
        finding = judge.try_case(kind, seed)
        assert finding.outcome in GOOD, finding
