"""What a release states about itself follows from one place each."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import partita

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("update_licenses", ROOT / "docs/update_licenses.py")
assert _spec is not None
assert _spec.loader is not None
licenses = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(licenses)

FREE = {
    "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "HPND", "ISC", "LLVM-exception",
    "MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib", "Apache License",
}  # fmt: skip
"""Licenses that an Apache-2.0 project may depend on. GPL and "not stated" are not among them."""


def headings() -> list[str]:
    return re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_changelog_is_by_rule() -> None:
    first, *released = headings()
    assert first == "Unreleased" or re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", first)
    versions = [tuple(map(int, heading.split(" - ")[0].split("."))) for heading in released if heading != "Unreleased"]
    assert "Unreleased" not in released
    assert all(newer > older for newer, older in pairwise(versions))
    own = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", partita.__version__)
    assert own is not None
    assert not versions or tuple(map(int, own.groups())) >= versions[0]


def test_every_entry_of_the_changelog_is_one() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        assert not line or line.startswith(("#", "- ", "  ")), line


def test_the_version_is_stated_once() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert metadata.version("partita") == partita.__version__


def test_licenses_of_what_is_installed_are_listed_and_free() -> None:
    page = licenses.PAGE.read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| \**([\w-]+?)\** \| (.+) \|$", page, re.MULTILINE))
    assert set(re.findall(r"^\| \*\*([\w-]+)\*\* ", page, re.MULTILINE)) == {
        licenses.key(each.name) for each in licenses.direct()
    }
    found = licenses.closure()
    missing = {name: stated for name, stated in found.items() if listed.get(name) != stated}
    assert not missing, "run python docs/update_licenses.py"
    for name, stated in listed.items():
        words = set(re.split(r" (?:AND|OR|WITH) |[()]", stated)) - {""}
        assert name == "distribution" or name.startswith("---") or words <= FREE, (name, stated)
