"""The pages about strategies show what the engine does: their pictures, counts and refusals are fresh."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted((DOCS / "strategies").glob("*.md"))
IMAGES = sorted((DOCS / "images" / "strategies").glob("*.svg"))


@pytest.fixture
def draw(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("draw_strategies")


def test_every_picture_is_drawn_and_shown(draw) -> None:
    assert {image.stem for image in IMAGES} == set(draw.PICTURES)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for image in IMAGES:
        assert f"../images/strategies/{image.name}" in text, image.name


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_a_picture_is_what_the_engine_does(draw, image) -> None:
    fresh = draw.picture(*draw.PICTURES[image.stem])
    assert fresh == image.read_text(encoding="utf-8"), "run: python docs/draw_strategies.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_counts_and_refusals_on_a_page_are_the_engines(draw, page) -> None:
    example = importlib.import_module("strategy_example")
    text = page.read_text(encoding="utf-8")
    assert example.filled(text) == text, "run: python docs/strategy_example.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_somewhere(page) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
