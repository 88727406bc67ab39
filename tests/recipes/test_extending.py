"""The page on extending Partita: its examples, added from outside the package, pass the contract suites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
REGISTERED = re.compile(r'partita\.register\(\s*"(\w+)",\s*"([\w+-]+)"')
PASSED = re.compile(r"^PASSED (.+)$", re.MULTILINE)


def test_every_kind_has_an_example() -> None:
    from partita.registries import KINDS

    assert {kind for kind, _ in REGISTERED.findall(PAGE)} == set(KINDS)


@pytest.mark.timeout(600)
@pytest.mark.full
def test_examples_pass_the_contract_suites(tmp_path) -> None:
    (tmp_path / "my_extensions.py").write_text("\n".join(BLOCK.findall(PAGE)), encoding="utf-8")
    names = [name for _, name in REGISTERED.findall(PAGE)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "my_extensions",
        "-p",
        "few_cases",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rA",
        "--tb=short",
    ]
    support = str(ROOT / "tests" / "support")
    paths = os.pathsep.join([str(tmp_path), support, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "contract"), "-m", "not slow", "-k", " or ".join(names)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": paths, "PARTITA_NAMES": " ".join(names)}, capture_output=True,
        text=True, check=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = PASSED.findall(done.stdout)
    for name in names:
        assert any(re.search(rf"\[(.*-)?{re.escape(name)}(-.*)?\]", test) for test in passed), f"nothing tested {name}"
