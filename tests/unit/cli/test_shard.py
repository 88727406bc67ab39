"""``partita shard``, and the verbs that show or check what it made."""

from __future__ import annotations

import json

import pytest

from partita.cli.main import main
from partita.graph.store import GraphStore
from partita.testing.graphs import formula_store


def run(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


def test_shard_inspect_verify(tmp_path, capsys):
    store = formula_store(tmp_path / "graph4", num_parts=4)
    code, out, _ = run(
        capsys, "shard", store.path, tmp_path / "s1", "--host", 1, "--hosts", 2, "--hot", "0.1KiB", "--json"
    )
    assert code == 0
    summary = json.loads(out)
    made = GraphStore.open(tmp_path / "s1")
    assert summary == {
        "path": str(tmp_path / "s1"), "host": 1, "hosts": 2, "topology": "partitioned",
        "nodes": 30, "edges": len(made.held("indices")[0]), "hot": 102 // 24,
        "bytes": sum(record.bytes for record in made.metadata.columns.values()),
    }  # fmt: skip
    code, out, _ = run(capsys, "inspect", tmp_path / "s1", "--json")
    assert (code, json.loads(out)["shard"]["host"]) == (0, 1)
    code, out, _ = run(capsys, "verify", tmp_path / "s1")
    assert code == 0
    assert "the shard of host 1 of 2" in out


def test_a_table_for_people_and_overwriting(tmp_path, capsys):
    store = formula_store(tmp_path / "graph2", num_parts=2)
    arguments = ["shard", store.path, tmp_path / "s0", "--host", 0, "--hosts", 2]
    code, out, _ = run(capsys, *arguments, "--topology", "replicated")
    assert code == 0
    assert "replicated" in out
    code, _, err = run(capsys, *arguments)
    assert (code, "--overwrite" in err) == (2, True)
    assert run(capsys, *arguments, "--overwrite")[0] == 0
    assert GraphStore.open(tmp_path / "s0").shard.topology == "partitioned"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", 2, "--hosts", 2], "no host 2 of 2"),
        (["--host", 0, "--hosts", 3], "--parts 3xWORKERS"),
        (["--host", 0, "--hosts", 2, "--hot", "much"], "--hot: 'much' is not a size"),
        (["--host", 0, "--hosts", 2, "--hot", "1KiB", "--hot-policy", "degree"], "invalid ranking"),
        (["--host", 0, "--hosts", 2, "--hot", "1KiB", "--hot-policy", "presample"], "partita presample"),
        (["--host", 0], "--hosts"),
    ],
)
def test_messages(tmp_path, capsys, options, message):
    store = formula_store(tmp_path / "graph4", num_parts=4)
    code, _, err = run(capsys, "shard", store.path, tmp_path / "out", *options)
    assert (code, message in err) == (2, True), err
    assert not (tmp_path / "out").exists()


def test_a_shard_is_no_store_to_partition(tmp_path, capsys):
    store = formula_store(tmp_path / "graph4", num_parts=4)
    assert run(capsys, "shard", store.path, tmp_path / "s0", "--host", 0, "--hosts", 2)[0] == 0
    code, _, err = run(capsys, "partition", tmp_path / "s0", tmp_path / "out", "--parts", 2)
    assert code == 2
    assert "the shard of host 0 of 2" in err
    assert "torchrun --nnodes 2" in err
