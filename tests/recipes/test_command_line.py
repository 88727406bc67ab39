"""Every verb as a user runs it: exit codes, what is on standard output, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
from commands import as_json, partita

from partita.core.progress import shown_by
from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

ROOT = Path(__file__).parents[2]
TOPICS = ROOT / "examples" / "topics"
SMALL = ["--layers", "2", "--hidden", "16", "--fanout", "5,5", "--batch-size", "64", "--lr", "0.03", "--epochs", "2"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("topics") / "graph"
    summary = as_json(
        "ingest", TOPICS / "citations.csv", path, "--nodes", TOPICS / "articles.csv",
        "--label-column", "topic", "--split-column", "split", "--undirected",
    )  # fmt: skip
    assert (summary["nodes"], summary["edges"], summary["classes"]) == (1500, 12000, 5)
    return path


@pytest.fixture(scope="module")
def run(graph) -> Path:
    path = graph.parent / "run"
    record = as_json("train", graph, "--out", path, *SMALL)
    assert record["status"] == "finished"
    assert record["run"] == str(path)
    return path


def test_the_demo_runs(tmp_path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", ROOT / "examples" / "demo.sh", tmp_path / "demo"],
        capture_output=True, text=True, env=environment, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "What to try next" in done.stdout
    lines = (tmp_path / "demo" / "predictions.csv").read_text().splitlines()
    assert len(lines) == 1501


def test_inspect_and_verify(graph) -> None:
    summary = as_json("inspect", graph)
    assert summary["splits"] == {"train": 300, "val": 300, "test": 900}
    assert as_json("verify", graph)["sound"] is True
    assert "1,500" in partita("inspect", graph).stdout


def test_evaluate(run) -> None:
    result = as_json("evaluate", run)
    assert result["split"] == "test"
    assert 0.5 < result["accuracy"] <= 1
    record = json.loads((run / "run.json").read_text())
    assert result["accuracy"] == record["metrics"]["test"]["accuracy"]
    assert as_json("evaluate", run, "--split", "val")["accuracy"] == record["best"]["value"]


def test_a_run_knows_its_store_from_anywhere_and_finds_a_moved_one(graph, run, tmp_path) -> None:
    shutil.copytree(graph, tmp_path / "here")
    relative = partita("train", "here", "--out", "run", *SMALL, "--json", cwd=tmp_path)
    assert json.loads(relative.stdout)["status"] == "finished"
    (tmp_path / "elsewhere").mkdir()
    partita("evaluate", tmp_path / "run", cwd=tmp_path / "elsewhere")
    (tmp_path / "here").rename(tmp_path / "there")
    partita("evaluate", tmp_path / "run", code=2)
    moved = as_json("evaluate", tmp_path / "run", "--store", tmp_path / "there")
    assert moved["accuracy"] == as_json("evaluate", run)["accuracy"]


def test_a_run_with_older_names_of_settings_is_evaluated_and_resumed(run, tmp_path) -> None:
    old = shutil.copytree(run, tmp_path / "old")
    text = (old / "config.yaml").read_text()
    for name, before in (("seed_split", "deal"), ("matmul", "products")):
        assert f"\n{name}: " in text
        text = text.replace(f"\n{name}: ", f"\n{before}: ")
    (old / "config.yaml").write_text(text)
    assert as_json("evaluate", old)["accuracy"] == as_json("evaluate", run)["accuracy"]
    assert as_json("train", "--resume", old, "--epochs", "3")["status"] == "finished"


def test_predict_by_the_users_ids(run, tmp_path) -> None:
    articles = pyarrow.csv.read_csv(TOPICS / "articles.csv").to_pydict()
    topic = dict(zip(articles["id"], articles["topic"]))
    tables = {}
    for name in ("p.csv", "p.parquet"):
        summary = as_json("predict", run, "--out", tmp_path / name)
        assert summary["nodes"] == 1500
    tables["csv"] = pyarrow.csv.read_csv(tmp_path / "p.csv").to_pydict()
    tables["parquet"] = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pydict()
    for table in tables.values():
        assert table["node"] == articles["id"]
        assert all(1 / 5 <= p <= 1 for p in table["probability"])
    assert tables["csv"]["prediction"] == tables["parquet"]["prediction"]
    test = {i for i, s in zip(articles["id"], articles["split"]) if s == "test"}
    right = sum(topic[n] == p for n, p in zip(tables["csv"]["node"], tables["csv"]["prediction"]) if n in test)
    assert right / len(test) == pytest.approx(as_json("evaluate", run)["accuracy"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "p.parquet"]


def test_predict_embeddings_of_a_split(run, tmp_path) -> None:
    partita("predict", run, "--out", tmp_path / "p.parquet", "--embeddings", "--split", "val")
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert table.num_rows == 300
    assert len(table["embedding"][0].as_py()) == 16
    partita("predict", run, "--out", tmp_path / "p.csv", "--embeddings", "--split", "val")
    assert "embedding_15" in pyarrow.csv.read_csv(tmp_path / "p.csv").column_names


def test_settings_from_a_file_and_options_win(graph, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text("layers: 2\nhidden: 8\nfanout: 3\nepochs: 1\nlr: 0.1\n")
    record = as_json("train", graph, "--out", tmp_path / "run", "--config", tmp_path / "run.yaml", "--lr", "0.01")
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "hidden: 8" in config
    assert "lr: 0.01" in config
    assert record["epoch"] == 1


def test_generate(tmp_path) -> None:
    sbm = as_json("generate", "sbm", tmp_path / "sbm", "--nodes", 2000, "--features", 16)
    assert (sbm["nodes"], sbm["features"], sbm["task"]) == (2000, 16, "classes")
    rmat = as_json("generate", "rmat", tmp_path / "rmat", "--scale", 10, "--memory-limit", "16MiB")
    assert (rmat["nodes"], rmat["edges"]) == (1024, 16384)
    assert as_json("verify", tmp_path / "rmat")["sound"]


def test_every_verb_explains_itself_quickly() -> None:
    for verb in [[], ["ingest"], ["generate", "sbm"], ["inspect"], ["verify"], ["train"], ["evaluate"], ["predict"]]:
        text = partita(*verb, "--help").stdout
        assert "partita" in text
        if verb:
            assert "Example" in text


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("partita", ("torch", "numba", "pyarrow", "numpy", "pydantic")),
        ("partita.cli.app", ("torch", "numba", "pyarrow", "numpy")),
        ("partita.sources.ingest", ("torch", "pydantic")),
        ("partita.graph.store", ("torch", "numba", "pyarrow")),
        ("partita.report.terminal", ("torch", "numba", "pyarrow", "numpy")),
        ("partita.train.trainer", ("numba", "torchmetrics", "tensorboard")),
    ],
)
def test_importing_loads_only_what_is_needed(module, heavy) -> None:
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "absent", "--out", "run"], ["absent", "partita ingest"]),
        (["train", "GRAPH", "--out", "run", "--fanout", "1,2"], ["fanout has 2 entries", "layers is 3"]),
        (["train", "GRAPH", "--out", "run", "--model", "sgae"], ["sgae", "'sage'"]),
        (["train", "GRAPH", "--out", "run", "--config", "bad.yaml"], ["bad.yaml", "epohcs", "'epochs'"]),
        (["train", "GRAPH"], ["--out is missing"]),
        (["train", "--resume", "absent"], ["absent", "not a run folder"]),
        (["evaluate", "RUN", "--split", "tset"], ["tset", "'test'"]),
        (["predict", "RUN", "--out", "p.txt"], [".txt", ".csv"]),
        (["predict", "RUN", "--out", "nowhere/p.csv"], ["nowhere", "no such directory"]),
        (["ingest", "absent.csv", "store"], ["absent.csv"]),
        (["ingest", "ragged.csv", "store"], ["ragged.csv", "line 3"]),
        (["ingest", "CITATIONS", "GRAPH"], ["already exists", "--overwrite"]),
        (["ingest", "CITATIONS", "store", "--memory-limit", "much"], ["--memory-limit", "512MiB"]),
        (["generate", "sbm", "store", "--split", "a,b"], ["--split", "0.6,0.2,0.2"]),
        (["generate", "rmat", "store", "--scale", "50"], ["scale"]),
        (["verify", "."], ["partita ingest"]),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(arguments, words, graph, run, tmp_path) -> None:
    (tmp_path / "bad.yaml").write_text("epohcs: 3\n")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n1\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    places = {"GRAPH": graph, "RUN": run, "CITATIONS": TOPICS / "citations.csv"}
    done = partita(*(places.get(a, a) for a in arguments), code=2, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_debug_shows_the_traceback(tmp_path) -> None:
    done = partita("verify", tmp_path / "absent", "--debug", code=2)
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_says_how_to_go_on_and_goes_on(graph, tmp_path, number) -> None:
    command = [sys.executable, "-c", "from partita.cli import main; main()"]
    options = [*SMALL[:-2], "--epochs", "100000", "--eval-every", "0"]
    arguments = ["train", str(graph), "--out", str(tmp_path / "run"), *options]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        log = tmp_path / "run" / "metrics.jsonl"
        for _ in range(600):
            if log.exists() and log.stat().st_size:
                break
            time.sleep(0.1)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert f"partita train --resume {tmp_path / 'run'}" in stderr
    assert "Traceback" not in stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "interrupted"
    epochs = record["epoch"] + 2
    assert as_json("train", "--resume", tmp_path / "run", "--epochs", epochs)["status"] == "finished"


def test_ctrl_c_while_generating_leaves_nothing(tmp_path) -> None:
    command = [sys.executable, "-c", "from partita.cli import main; main()", "generate", "rmat", tmp_path / "g"]
    process = subprocess.Popen([*command, "--scale", "22"], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            if any(path.stat().st_size for path in tmp_path.glob(".g*/scratch/*")):  # edges are being drawn
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_and_can_be_turned_off(tmp_path) -> None:
    class Seen:
        def __init__(self) -> None:
            self.amounts: dict[str, float] = {}

        def start(self, description, total, unit):
            seen, name = self, f"{description} ({unit})"
            self.amounts[name] = 0

            class Task:
                def advance(self, amount=1):
                    seen.amounts[name] += amount

            return Task()

        def stop(self, task) -> None:
            pass

    seen = Seen()
    with shown_by(seen):
        small_random_store(tmp_path / "g", 100, 1000)
    assert any(amount == 1000 and "edges" in name for name, amount in seen.amounts.items())


def test_partition_presample_quality_and_train_on_the_parts(graph, tmp_path) -> None:
    store = tmp_path / "store"
    shutil.copytree(graph, store)
    found = as_json("presample", store, "--fanout", "5,5", "--epochs", "2", "--batch-size", "64")
    assert found["steps"] == 10
    expected = as_json("partition", store, tmp_path / "parts", "--parts", "2x2", "--weights", "presample", "--dry-run")
    assert expected["path"] is None
    assert expected["expected"]["memory_bytes"] > 0
    assert not (tmp_path / "parts").exists()
    made = as_json("partition", store, tmp_path / "parts", "--parts", "2x2", "--weights", "presample")
    assert made["quality"] == expected["quality"]
    assert made["levels"] == [2, 2]
    measured = as_json("quality", tmp_path / "parts")
    assert measured["replication_factor"] == made["quality"]["replication_factor"]
    assert measured["cross_edge_share"] == made["quality"]["cross_edge_share"]
    as_json("partition", store, tmp_path / "parts.csv", "--parts", "3", "--algorithm", "spring", "--refine", "5")
    again = as_json("quality", store, "--assignment", tmp_path / "parts.csv", "--parts", "3")
    assert again["num_parts"] == 3
    record = as_json("train", tmp_path / "parts", "--out", tmp_path / "run", *SMALL)
    plain = as_json("train", store, "--out", tmp_path / "plain", *SMALL)
    assert record["metrics"]["test"]["accuracy"] == plain["metrics"]["test"]["accuracy"]
    shown = partita("partition", store, tmp_path / "shown", "--parts", "2", "--algorithm", "random")
    assert "replication factor" in shown.stdout
    assert "train nodes" in shown.stdout


def test_ones_own_partitioner_on_the_command_line(graph, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("def halves(stream, parts):\n    return [v % parts for v in range(1500)]\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "from partita.cli import main; main()", "partition", graph, tmp_path / "out"]
    command += ["--parts", "2", "--algorithm", "mine:halves", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["quality"]["nodes"]["counts"] == [750, 750]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--parts", "0"], "invalid number of parts"),
        (["--parts", "5000"], "more than the 1,500 nodes"),
        (["--parts", "2", "--algorithm", "metsi"], "Did you mean 'metis'"),
        (["--parts", "2", "--algorithm", "none:such"], "cannot be imported"),
        (["--parts", "2", "--weights", "presample"], "partita presample"),
        (["--parts", "2", "--option", "cap"], "'cap' is not an option"),
        (["--parts", "2", "--option", "aneal=3"], "Did you mean 'anneal'"),
        (["--parts", "2", "--option", "anneal=-1"], "Give 0 or more"),
        (["--parts", "2", "--algorithm", "dbh", "--option", "anneal=1"], "It has none"),
        (["--parts", "2", "--algorithm", "short.npy"], "does not fit 1,500 nodes"),
        (["--parts", "2", "--algorithm", "outside.npy"], "node 7 has part 9"),
    ],
)
def test_a_partition_that_cannot_be_made_is_one_message(graph, tmp_path, arguments, words) -> None:
    import numpy as np

    np.save(tmp_path / "short.npy", np.zeros(3, dtype=int))
    np.save(tmp_path / "outside.npy", np.where(np.arange(1500) == 7, 9, 0))
    done = partita("partition", graph, tmp_path / "out", *arguments, code=2, cwd=tmp_path)
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_gsplit_as_published_on_two_workers(graph, tmp_path) -> None:
    """Presample, partition by what was sampled, train with the preset, with a cache: to the model of one worker."""
    options = ["--layers", "2", "--hidden", "8", "--fanout", "5,5", "--batch-size", "64", "--epochs", "2"]
    options += ["--precision", "float64"]
    store = tmp_path / "graph"
    shutil.copytree(graph, store)
    as_json("presample", store, "--fanout", "5,5", "--batch-size", "64", "--epochs", "3")
    as_json("partition", store, tmp_path / "parts", "--parts", "2", "--algorithm", "metis", "--weights", "presample")
    record = as_json(
        "train", tmp_path / "parts", "--out", tmp_path / "run", "--workers", "2", "--preset", "gsplit",
        "--cache", "4KiB", *options,
    )  # fmt: skip
    assert record["counts"]["rows_from"]["cache"] > 0
    assert record["status"] == "finished"
    assert record["placements"] == "by-owner,destination,destination"
    assert record["traffic_bytes"]["features"] > 0
    assert (tmp_path / "run" / "run.json").exists()
    alone = as_json("train", graph, "--out", tmp_path / "alone", *options)
    assert record["metrics"]["test"] == pytest.approx(alone["metrics"]["test"])
    for run, workers in (("run", "2"), ("alone", "1")):
        as_json("predict", tmp_path / run, "--out", tmp_path / f"{run}.csv", "--workers", workers)
    here, there = (
        sorted(zip(*pyarrow.csv.read_csv(tmp_path / f"{run}.csv").select(["node", "prediction"]).to_pydict().values()))
        for run in ("run", "alone")
    )
    assert here == there
    listed = as_json(
        "train", tmp_path / "parts", "--out", tmp_path / "list", "--workers", "2", "--placements", "source,destination",
        "--topology", "partitioned", *options,
    )  # fmt: skip
    assert listed["placements"] == "direct,source,destination"
    assert listed["metrics"]["test"] == pytest.approx(alone["metrics"]["test"])
    done = partita("train", graph, "--out", tmp_path / "x", "--workers", "2", "--strategy", "gsplit", *options)
    assert f"partita partition {graph} OUT --parts 2" in " ".join(done.stderr.split())
    whole = json.loads((tmp_path / "x" / "run.json").read_text())
    assert whole["metrics"]["test"] == pytest.approx(alone["metrics"]["test"])


def test_dsp_as_published_on_two_workers(graph, tmp_path) -> None:
    """Partitioned topology, a cache shared by the workers, the pipeline with a trace: to the model of one worker."""
    options = ["--layers", "2", "--hidden", "8", "--fanout", "5,5", "--batch-size", "64", "--epochs", "2"]
    options += ["--precision", "float64"]
    as_json("partition", graph, tmp_path / "parts", "--parts", "2", "--algorithm", "metis")
    record = as_json(
        "train", tmp_path / "parts", "--out", tmp_path / "run", "--workers", "2", "--preset", "dsp", "--cache", "16KiB",
        "--trace", *options,
    )  # fmt: skip
    assert record["placements"] == "direct,data,data"
    rows = record["counts"]["rows_from"]
    assert rows["cache"] > 0
    assert rows["peers"] > 0
    assert rows["host"] > 0
    assert record["traffic_bytes"]["ids"] > 0
    assert record["pipeline"].keys() == {"sample", "load"}
    assert json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    alone = as_json("train", graph, "--out", tmp_path / "alone", *options)
    assert record["metrics"]["test"] == pytest.approx(alone["metrics"]["test"])
    done = partita(
        "train", tmp_path / "parts", "--out", tmp_path / "shown", "--workers", "2", "--preset", "dsp", *options
    )
    assert "prefetch" in done.stdout
