"""Help shows what everybody needs first and the rest on request; completion, ``help VERB`` and ``-V`` work."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from partita.cli import app, main
from partita.cli.overview import COMMANDS
from partita.config import Config


def output(capsys, *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == code
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def plain(monkeypatch) -> None:
    for name, value in {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_the_usual_options_first_and_all_on_request(capsys, verb) -> None:
    short, long = output(capsys, verb, "--help"), output(capsys, verb, "--help-all")
    usual = ["Model", "Optimization", "Sampling", "Run", "Workers"]
    groups = re.findall(r"─ (\w+(?: \w+)?) ─", short)
    assert [group for group in groups if group in usual] == usual
    assert re.findall(r"─ (\w+(?: \w+)?) ─", long)[-1] == "Isolated training"
    for option in ("--epochs", "--lr", "--batch-size", "--workers", "--help-all"):
        assert f"{option} " in short
    assert "--halo" not in short
    assert not re.search(r"--deal(?![\w-])", long)
    for name in set(Config.model_fields) - {"options", "strategy", "preset"}:
        assert f"--{name.replace('_', '-')} " in long
    assert len(short.splitlines()) < 0.6 * len(long.splitlines())


def test_defaults_are_said_without_brackets(capsys) -> None:
    for verb in ("train", "ingest", "partition", "predict", "generate sbm"):
        text = output(capsys, *verb.split(), "--help")
        assert "[default" not in text
        assert "Default: " in text


def test_help_of_a_verb_and_the_version(capsys) -> None:
    assert output(capsys, "help", "inspect") == output(capsys, "inspect", "--help")
    assert output(capsys, "help") == output(capsys, "--help")
    assert output(capsys, "-V") == output(capsys, "--version")


def test_the_overview_names_every_command_with_the_first_line_of_its_help(capsys) -> None:
    shown = {name: text for rows in COMMANDS.values() for name, text in rows.items()}
    commands = app.command().commands
    assert shown.keys() == commands.keys()
    for name, command in commands.items():
        assert shown[name] == command.help.split("\n\n")[0].replace("\n", " ")
    text = output(capsys, "--help")
    assert all(f"  {name} " in text for name in shown)
    assert output(capsys, "-h") == text
    assert output(capsys, code=2) == text


def test_the_overview_imports_no_library_of_options() -> None:
    code = "import sys; from partita.cli import main\ntry: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"typer", "rich", "pydantic", "numpy", "torch"} & set(loaded)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys, monkeypatch, shell) -> None:
    assert "_PARTITA_COMPLETE" in output(capsys, "completion", shell)
    words = {"COMP_WORDS": "partita pred", "COMP_CWORD": "1"}
    words |= {"_TYPER_COMPLETE_ARGS": "partita pred", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for name, value in {**words, "_PARTITA_COMPLETE": f"complete_{shell}"}.items():
        monkeypatch.setenv(name, value)
    assert "predict" in output(capsys)


def test_debug_shows_the_traceback_and_keeps_the_exit_code(capsys, tmp_path) -> None:
    for flags, traced in (([], False), (["--debug"], True)):
        with pytest.raises(SystemExit) as ended:
            main(["inspect", str(tmp_path / "none"), *flags])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert ("Traceback" in error) == traced
        assert "partita: " in error


def test_no_line_is_wrapped_where_nobody_looks(capsys, tmp_path) -> None:
    store = tmp_path / ("a-long-name" * 12)
    text = output(capsys, "generate", "sbm", str(store), "--nodes", "50", "--features", "4")
    assert f"path {store}" in re.sub(r" +", " ", text)
    assert "classification" in text
