"""Fills docs/command_line.md: the help of every verb, between the markers. Run it after an option has changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("command_line.md")
_LONG = ("train", "plan")
_MARK = re.compile(r"(<!-- help: (.+?) -->\n```text\n).*?(\n```\n<!-- end -->)", re.DOTALL)


def help_text(verb: str) -> str:
    """What ``partita VERB --help-all``, or ``--help``, prints on a plain terminal of 100 columns."""
    flag = "--help-all" if verb in _LONG else "--help"
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", "from partita.cli import main; main()", *verb.split(), flag],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    # Runs of blank lines carry nothing on a page.
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def filled(page: str) -> str:
    """The page with every marked block up to date."""
    return _MARK.sub(lambda match: match[1] + help_text(match[2]) + match[3], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
