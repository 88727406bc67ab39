"""What verbs share: who says that a command was interrupted."""

from __future__ import annotations

import pytest

from partita.cli.main import main
from partita.cli.shell import INTERRUPTED, shown
from partita.testing.graphs import small_random_store


@pytest.mark.parametrize("quiet", [False, True])
def test_ctrl_c_ends_the_command_with_a_word(capsys, quiet) -> None:
    with pytest.raises(SystemExit) as ended, shown(quiet=quiet):
        raise KeyboardInterrupt
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr().err == "partita: interrupted. No partial files are left\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_a_worker_leaves_the_word_to_who_started_it(capsys, quiet) -> None:
    with pytest.raises(KeyboardInterrupt), shown(quiet=quiet, terminal=False):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


def test_a_report_replaces_no_file_unasked(tmp_path, capsys) -> None:
    store = small_random_store(tmp_path / "g", 30, 90)
    for options, code in (([], 0), ([], 2), (["--overwrite"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(store.path), "--out", str(tmp_path / "r.html"), *options])
        assert int(ended.value.code or 0) == code
    assert "r.html: already exists" in capsys.readouterr().err
