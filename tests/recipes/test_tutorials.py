"""The pages for newcomers, run as they are written: every command, and every piece of Python."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import partita

import partita as partita_module
from partita.report.answers import by_time as answers_by_time
from partita.report.records import read_run

pytestmark = pytest.mark.usefixtures("libraries")

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    found = [text for kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if kind == language]
    assert found, page
    return found


def joined(page: str) -> list[str]:
    """The commands of a page, each on one line."""
    return [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]


def run_commands(page: str, folder: Path, start: int = 0, stop: int | None = None) -> None:
    """Run the commands of a page, or only some of them."""
    for line in joined(page)[start:stop]:
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "partita", line
            partita(*words[1:], cwd=folder)


def run_python(page: str, folder: Path) -> str:
    return run_script("\n".join(blocks(page, "python")), folder)


def run_script(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path) -> Path:
    """A directory with the files of the example."""
    for file in (ROOT / "examples" / "topics").iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path


def test_edge_weights_and_features(folder):
    """In the graph of the page, weights matter."""
    run_python("docs/edges.md", folder)
    run_commands("docs/edges.md", folder)
    record = json.loads((folder / "weighted" / "run.json").read_text(encoding="utf-8"))
    assert record["metrics"]["test"]["accuracy"] > 0.8


def test_time(folder):
    """The purchases before the question tell the answer, and earlier ones the next; all are predicted."""
    run_python("docs/time.md", folder)
    run_commands("docs/time.md", folder)
    record = json.loads((folder / "asked" / "run.json").read_text(encoding="utf-8"))
    assert record["metrics"]["test"]["accuracy"] > 0.75
    assert len((folder / "answers.csv").read_text(encoding="utf-8").splitlines()) == 2051
    record = json.loads((folder / "next" / "run.json").read_text(encoding="utf-8"))
    assert record["metrics"]["test"]["mrr"] > 0.5
    assert len((folder / "next.csv").read_text(encoding="utf-8").splitlines()) == 6001


@pytest.mark.timeout(900)
def test_databases(folder):
    """A model of what customers did tells who stays away; questions of one's own are a query."""
    page = "docs/databases.md"
    run_commands(page, folder, stop=9)
    answers, own = blocks(page, "python")
    assert len(run_script(answers, folder).splitlines()) == 3
    run_script(own, folder)
    run_commands(page, folder, start=9)
    record = json.loads((folder / "leaving" / "run.json").read_text(encoding="utf-8"))
    assert record["metrics"]["test"]["roc_auc"] > 0.66
    record = json.loads((folder / "buying" / "run.json").read_text(encoding="utf-8"))
    assert record["metrics"]["test"]["map@10"] > 0.14
    assert len((folder / "basket.csv").read_text(encoding="utf-8").splitlines()) > 10_000
    assert (folder / "staying").exists()
    by_time, known = answers_by_time(read_run(folder / "leaving"))
    assert {name: len(bars["x"]) for bars in by_time.data for name in [bars["name"]]} == {"val": 1, "test": 1}
    assert known.data[0]["x"] == ["2024-10-27", "2024-11-26"]


def test_typed_tables(folder):
    """The last piece of Python reads what the commands have written."""
    page = "docs/typed_tables.md"
    *before, after = blocks(page, "python")
    run_script("\n".join(before), folder)
    run_commands(page, folder)
    assert "papers" in run_script("\n".join([*before, after]), folder)


def test_links(folder):
    """Pieces of Python write what the commands read, the others read what they have written."""
    before, answers, candidates, after = blocks("docs/links.md", "python")
    run_script(f"{before}\n{candidates}", folder)
    run_commands("docs/links.md", folder)
    right, _, asked = run_script(f"{before}\n{answers}", folder).split()
    assert int(right) > 0.6 * int(asked)
    assert 0 < float(run_script(after, folder)) < 1
    assert partita_module.evaluate(folder / "cited")["auc"] > 0.6
    assert len((folder / "new.csv").read_text().splitlines()) == 3 * 1500 + 1
    assert (folder / "best.parquet").exists()


def test_recommendations(folder):
    """What is recommended is better than what is popular, which the page itself asserts."""
    before, after = blocks("docs/recommendation.md", "python")
    run_script(before, folder)
    run_commands("docs/recommendation.md", folder)
    assert "bought later" in run_script(f"{before}\n{after}", folder)


def test_typed_graphs(folder):
    """Both of its runs train the same model."""
    run_commands("docs/typed_graphs.md", folder)
    found = [partita_module.evaluate(folder / run, split="test") for run in ("run", "run2")]
    assert found[0]["accuracy"] == found[1]["accuracy"] > 0.3  # of 19 classes
    assert "(3570, 64)" in run_python("docs/typed_graphs.md", folder)


def test_learnt_rows(folder):
    run_commands("docs/learnt_rows.md", folder)
    for run, types in (("run", {"author", "institute"}), ("run2", {"author"})):
        assert set(json.loads((folder / run / "run.json").read_text(encoding="utf-8"))["learnt"]["types"]) == types


def test_from_an_edge_list_to_a_report(folder):
    run_commands("docs/quickstart.md", folder)
    assert len((folder / "predictions.csv").read_text().splitlines()) == 1501
    assert "<!doctype html>" in (folder / "report.html").read_text()
    run_python("docs/report.md", folder)
    run_commands("docs/report.md", folder)
    run_python("docs/sources.md", folder)
    run_commands("docs/sources.md", folder)
    shutil.rmtree(folder / "graph")
    run_commands("docs/preparing_data.md", folder)


def test_the_same_in_python(folder):
    assert float(run_python("docs/quickstart.md", folder)) > 0.9
    assert (folder / "predictions.csv").exists()


def test_the_readme_and_the_landing_page_show_what_the_quickstart_runs():
    commands = {" ".join(line.split()) for line in joined("docs/quickstart.md")}
    shown = [" ".join(line.split()) for line in joined("README.md") if line.startswith("partita ")]
    assert shown
    assert set(shown) <= commands
    assert blocks("README.md", "python") == blocks("docs/index.md", "python") == blocks("docs/quickstart.md", "python")


def test_from_pyg_and_back(folder):
    pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    assert 0 <= float(run_python("docs/coming_from_pyg.md", folder)) <= 1


def test_a_loop_and_a_model_of_ones_own(folder):
    pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    run_commands("docs/loaders.md", folder)
    printed = run_python("docs/loaders.md", folder)
    assert "epoch 15: val 0.9" in printed
    assert float(printed.rpartition("papers: test ")[2]) > 0.4  # 0.05 by guessing


def test_a_big_graph_on_a_small_machine(folder):
    run_commands("docs/big_graph.md", folder)
    assert (folder / "predictions.parquet").exists()
