"""Options of the command line: made from records and from the configuration, and their old names."""

from __future__ import annotations

import json

import pytest

from partita.cli.main import main
from partita.core.options import OLD_NAMES
from partita.testing.graphs import small_random_store


def run(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, " ".join(printed.err.split())


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "store"
    return small_random_store(path, 60, 300, num_features=4, num_classes=3).path


def test_old_names_are_taken_with_a_word(graph, tmp_path, capsys) -> None:
    small = ["--layers", 1, "--hidden", 4, "--fanout", 2, "--epochs", 1, "--strategy", "gdp", "--json"]
    code, out, err = run(
        capsys, "train", graph, "--out", tmp_path / "run", "--deal", "even", "--products", "torch", *small
    )
    assert code == 0, err
    assert err == "partita: --deal is now --seed-split partita: --products is now --matmul"
    assert json.loads(out)["status"] == "finished"
    settings = (tmp_path / "run" / "config.yaml").read_text()
    assert "seed_split: even" in settings
    assert "matmul: torch" in settings
    assert "deal:" not in settings


@pytest.mark.parametrize("verb", ["train", "plan"])
@pytest.mark.parametrize(("old", "name"), OLD_NAMES.items())
def test_old_names_are_hidden_and_not_given_beside_the_new_ones(verb, old, name, capsys) -> None:
    flag = f"--{name.replace('_', '-')}"
    code, _, err = run(capsys, verb, "graph", f"--{old}", "auto", flag, "auto")
    assert (code, f"{flag} and --{old} mean the same setting" in err) == (2, True), err
    code, out, _ = run(capsys, verb, "--help-all")
    assert (code, flag in out, f"--{old} " in out) == (0, True, False)


def test_options_are_read_as_values(tmp_path, capsys) -> None:
    (tmp_path / "edges.csv").write_text("w,b,a\n0.5,1,0\n0.25,2,1\n0.5,2,1\n")
    (tmp_path / "nodes.csv").write_text("id,kind,p,q\n0,x,1,2\n1,y,3,4\n2,x,5,6\n")
    code, out, err = run(
        capsys, "ingest", tmp_path / "edges.csv", tmp_path / "g", "--source-column", "a", "--target-column", 1,
        "--weight-column", "w", "--dedup", "--nodes", tmp_path / "nodes.csv", "--label-column", "kind",
        "--feature-columns", "q,2", "--split", "1,0,0", "--memory-limit", "16MiB", "--header", "--json",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert (found["edges"], found["duplicates_dropped"], found["features"]) == (2, 1, 2)
    assert (found["task"], found["splits"]["train"]) == ("classes", 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ingest", "edges.csv", "g", "--memory-limit", "much"], "--memory-limit: 'much' is not a size"),
        (["ingest", "edges.csv", "g", "--memory-limit", "0"], "0 is not a size in bytes"),
        (["ingest", "edges.csv", "g", "--self-loops", "kep"], "Did you mean 'keep'?"),
        (["generate", "sbm", "g", "--feature-dtype", "float64"], "Use float32 or float16"),
        (["generate", "sbm", "g", "--split", "a,b"], "--split: 'a,b' is not a list of fractions such as 0.6,0.2,0.2"),
        (["presample", "g", "--fanout", "5,five"], "--fanout: '5,five' is not a list of whole numbers"),
        (["partition", "g", "h", "--parts", 2, "--option", "cap"], "--option: 'cap' is not an option"),
        (["partition", "g", "h"], "--parts"),
    ],
)
def test_messages_name_the_option(tmp_path, monkeypatch, capsys, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n")
    code, _, err = run(capsys, *arguments)
    assert (code, message in err) == (2, True), err
