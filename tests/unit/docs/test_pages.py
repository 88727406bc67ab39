"""The documentation says what the program does: generated parts are fresh, links lead somewhere, nothing is missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from partita.config import Config

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted([*DOCS.glob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"])


def test_the_command_line_page_is_what_help_prints() -> None:
    spec = importlib.util.spec_from_file_location("update_command_line", DOCS / "update_command_line.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.filled(page) == page, "run: python docs/update_command_line.py"


def test_every_setting_is_on_the_page() -> None:
    page = (DOCS / "command_line.md").read_text(encoding="utf-8")
    for name in Config.model_fields:
        option = {"options": "option"}.get(name, name.replace("_", "-"))  # one at a time
        assert f"--{option} " in page, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
