"""The documentation says what the program does: generated parts are fresh, links lead somewhere, nothing is missing."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from partita.config import Config

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"])
OTHER_PROGRAMS = {
    "--repetitions", "--patience",
    "--extra-index-url", "--index-url", "--dest", "--no-deps", "--wheel-dir", "--no-index", "--find-links", "--scope",
}  # fmt: skip
NEWCOMERS = ("index", "installation", "quickstart", "preparing_data", "coming_from_pyg", "tuning", "troubleshooting")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


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


def test_the_readme_is_short_and_shows_the_picture_of_the_landing_page() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 120
    assert "](docs/images/overview.svg)" in readme
    assert "](images/overview.svg)" in (DOCS / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*(f"docs/{name}.md" for name in NEWCOMERS), "docs/big_graph.md", "README.md"])
def test_options_on_the_pages_for_newcomers_exist(page) -> None:
    known = set(re.findall(r"--[a-z][a-z-]*", (DOCS / "command_line.md").read_text(encoding="utf-8")))
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - known - OTHER_PROGRAMS == set()


def test_messages_on_the_page_about_trouble_are_those_of_the_program() -> None:
    source = "\n".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for path in sorted((DOCS.parent / "src").rglob("*.py"))
    )
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([a-zA-Z][^`]* [^`]*)`", page, re.MULTILINE)
    assert len(messages) > 5
    for message in messages:
        assert message in source, message


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_fit_the_width_of_a_page(page) -> None:
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in ("sh", "bash"):
            assert [line for line in block.splitlines() if len(line) > 88] == []


def test_what_the_commands_of_the_readme_need_is_installed_with_it() -> None:
    """`partita partition` uses METIS unless another algorithm is named."""
    with (DOCS.parent / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert any(need.startswith("pymetis") for need in project["dependencies"])
    assert "--algorithm" not in (DOCS.parent / "README.md").read_text(encoding="utf-8")
