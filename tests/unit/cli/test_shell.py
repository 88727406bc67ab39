"""What verbs share: who says that a command was interrupted."""

from __future__ import annotations

import pytest

from partita.cli.shell import INTERRUPTED, shown


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
