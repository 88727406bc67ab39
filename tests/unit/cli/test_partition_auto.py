"""``partita partition --parts auto``."""

from __future__ import annotations

import json

import pytest

from partita.cli.main import main
from partita.graph.store import GraphStore
from partita.testing.graphs import small_random_store

AUTO = ["--parts", "auto", "--memory-per-worker", "60KiB", "--workers", 2, "--algorithm", "random"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "store"
    return small_random_store(path, 300, 1500, undirected=True, num_features=6).path


def run(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return ended.value.code, " ".join(printed.out.split()), " ".join(printed.err.split())


def test_as_many_parts_as_fit(graph, tmp_path, capsys) -> None:
    command = ["partition", graph, tmp_path / "out", *AUTO]
    code, out, err = run(capsys, *command)
    assert code == 0, err
    parts = GraphStore.open(tmp_path / "out").num_parts
    assert "a part takes about" in err
    assert f"{parts} parts for 2 workers: the largest part takes" in out
    code, out, err = run(capsys, *command, "--overwrite", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["num_parts"] == found["plan"]["parts"] == found["rounds"][-1]["parts"] == parts
    assert found["plan"]["part_bytes"] <= found["plan"]["room"] == 20480
    assert found["path"] == str(tmp_path / "out")


def test_a_dry_run_explains_and_writes_nothing(graph, tmp_path, capsys) -> None:
    code, out, err = run(capsys, "partition", graph, tmp_path / "out", *AUTO, "--dry-run")
    assert code == 0, err
    assert "a part takes about" in err
    assert "nothing (dry run)" in out
    code, out, _ = run(capsys, "partition", graph, tmp_path / "out", *AUTO, "--dry-run", "--json", "--halo", "none")
    found = json.loads(out)
    assert (code, found["path"], found["plan"]["replication"]) == (0, None, 1.0)
    assert found["plan"]["parts"] == found["num_parts"] == 2
    assert found["expected"]["disk_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--parts", "auto"],
            "--parts: auto needs the memory of a worker. Add for instance --memory-per-worker 4GiB",
        ),
        (["--parts", "4", "--memory-per-worker", "1GiB"], "--memory-per-worker: only for --parts auto"),
        (["--parts", "4", "--halo", "none"], "--halo: only for --parts auto, but --parts is 4"),
        (["--parts", "2x2", "--workers", 2], "write --parts auto"),
        (["--parts", "4", "--compute-share", 0.5], "--compute-share"),
        ([*AUTO, "--memory-per-worker", "much"], "'much' is not a size"),
        ([*AUTO, "--memory-per-worker", "2"], "leaves no memory for a part"),
        ([*AUTO, "--compute-share", 1], "Give at least 0 and less than 1"),
        ([*AUTO, "--halo", "onehop"], "Did you mean 'one-hop'?"),
        ([*AUTO, "--undirected"], "a store holds its own edges"),
        ([*AUTO, "--memory-per-worker", "6KiB"], "the largest part needs"),
    ],
)
def test_messages(graph, tmp_path, capsys, options, message) -> None:
    code, _, err = run(capsys, "partition", graph, tmp_path / "out", *options)
    assert (code, message in err) == (2, True), err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_only_stores_and_only_into_stores(graph, tmp_path, capsys, dry) -> None:
    code, _, err = run(capsys, "partition", graph, tmp_path / "parts.csv", *AUTO, *dry)
    assert (code, "OUT is an assignment file" in err) == (2, True), err
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n1,0\n")
    code, _, err = run(capsys, "partition", tmp_path / "edges.csv", tmp_path / "out", *AUTO, *dry)
    assert (code, "the source is a list of edges" in err) == (2, True), err
    assert [entry.name for entry in tmp_path.iterdir()] == ["edges.csv"]
