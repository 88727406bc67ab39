"""``partita report`` as a user runs it, and its page in a real browser."""

from __future__ import annotations

import base64
import itertools
import json

import pytest
from browser import chromium, shown_at
from commands import as_json, partita

from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = ["--layers", "2", "--hidden", "8", "--fanout", "5,5", "--batch-size", "64", "--epochs", "2"]
MARKS = ".scatterlayer .js-line, .scatterlayer .point, .barlayer .point path, .heatmaplayer image"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, one of two workers that have planned and traced; their store; and a report of all."""
    folder = tmp_path_factory.mktemp("report")
    small_random_store(folder / "whole", 400, 3000, undirected=True)
    as_json("partition", folder / "whole", folder / "two", "--parts", "2")
    as_json("train", folder / "two", "--out", folder / "apt", *SETTINGS, "--workers", "2", "--trace")
    as_json("train", folder / "two", "--out", folder / "alone", *SETTINGS, "--memory-per-worker", "1GiB")
    said = as_json("report", folder / "apt", folder / "alone", folder / "two", "--out", folder / "report.html")
    assert said["bytes"] == (folder / "report.html").stat().st_size
    return folder


@pytest.fixture
def driver(tmp_path):
    with chromium(tmp_path / "browser") as found:
        yield found


def test_a_browser_shows_it(made, driver):
    for width, scheme in itertools.product((400, 1400), ("light", "dark")):
        check(made, driver, width, scheme)


def check(made, driver, width, scheme):
    shown_at(driver, width, scheme=scheme)
    driver.get((made / "report.html").as_uri())
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    plots = driver.execute_script(
        "return [...document.querySelectorAll('.plot')].map(plot => "
        "[plot.parentElement.firstChild.firstChild.textContent,"
        f" plot.querySelectorAll('{MARKS}').length, plot.getBoundingClientRect().right])"
    )
    titles = [title for title, _, _ in plots]
    assert len(titles) >= 10
    assert "Thread timeline: apt" in titles
    assert "Rows computed: apt" in titles
    for title, marks, right in plots:
        assert marks, title
        assert right <= width, title
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    # Text and ground differ enough to read, in the page and in the plots.
    ground, page, plot = driver.execute_script(
        "const of = (at, name) => getComputedStyle(document.querySelector(at))[name];"
        "return [of('body', 'backgroundColor'), of('body', 'color'), of('.xtick text', 'fill')]"
    )
    assert contrast(page, ground) > 7
    assert contrast(plot, ground) > 4.5


def test_two_workers_answer_alike(made):
    """The model is the same on any number of workers, and so is what is recorded of its answers."""
    apt, alone = (json.loads((made / run / "analysis.json").read_text()) for run in ("apt", "alone"))
    assert apt["labels"] == alone["labels"]
    for split in ("val", "test"):
        one, two = apt["splits"][split], alone["splits"][split]
        for key in ("nodes", "correct", "confusion", "by_degree", "by_homophily", "baseline"):
            assert one[key] == two[key], key
        assert one["map"]["nodes"] == two["map"]["nodes"]
        assert one["map"]["variance"] == pytest.approx(two["map"]["variance"], abs=1e-4)


def test_tables_that_go_on_say_so(made, driver):
    shown_at(driver, 400)
    driver.get((made / "report.html").as_uri())
    cues = driver.execute_script(
        "return [...document.querySelectorAll('.scroll')].map(box => ["
        "box.scrollWidth > box.clientWidth + 4 || box.scrollHeight > box.clientHeight + 4,"
        "box.nextElementSibling.checkVisibility()])"
    )
    assert any(needed for needed, _ in cues)
    assert all(needed == shown for needed, shown in cues)
    names = driver.execute_script(
        "const saved = []; URL.createObjectURL = blob => (saved.push(blob.size), 'blob:x');"
        "HTMLAnchorElement.prototype.click = () => {};"
        "document.querySelectorAll('button').forEach(button => button.click()); return saved"
    )
    assert len(names) == driver.execute_script("return document.querySelectorAll('figure').length") + 1
    assert min(names) > 10


def test_it_can_be_printed(made, driver):
    shown_at(driver, 1400)
    driver.get((made / "report.html").as_uri())
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    shown_at(driver, 700, scheme="dark", media="print")
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert contrast(ground, "rgb(0, 0, 0)") > 20  # paper is white for those who like it dark, too


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["nothing"], "is not a run folder"),
        (["apt", "apt"], "the same run twice"),
        ([], "Missing argument"),
    ],
)
def test_bad_input(made, tmp_path, paths, said):
    done = partita("report", *(made / path for path in paths), "--out", tmp_path / "report.html", code=2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "report.html").exists()


def contrast(one: str, other: str) -> float:
    """Of two colors, as WCAG 2 defines it: 1 to 21."""
    lights = sorted(map(_luminance, (one, other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(color: str) -> float:
    parts = [int(part) / 255 for part in color[color.index("(") + 1 :].rstrip(")").split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
