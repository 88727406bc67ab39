"""Contenders as processes: started in their environments, asked by lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 3600.0


class Process:
    """One contender, started anew where it has died.

    Args:
        script: in this folder.
        python: interpreter of its environment.
        threads: that it may use.
        log: file for what it prints.
        environment: variables for it alone.
    """

    def __init__(self, script: str, python: Path, threads: int, log: Path, environment: dict[str, str]) -> None:
        self._command = [str(python), str(HERE / script), "--threads", str(threads)]
        # Told of its backend, DGL prints nothing when it is imported for the first time.
        own = {"OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch"}
        self._environment = {**os.environ, **own, **environment}
        self._log = log
        self._child: subprocess.Popen[str] | None = None
        self.about = self._start()

    def _start(self) -> dict[str, Any]:
        with self._log.open("a") as log:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=self._environment,
            )  # fmt: skip
        return self._answer()

    def ask(self, **command: Any) -> dict[str, Any]:
        """The contender's answer; ``error`` where it has none."""
        if self._child is None:
            about = self._start()
            if "error" in about:
                return about
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            print(json.dumps(command), file=self._child.stdin, flush=True)
        except OSError as error:
            self.end()
            return {"error": f"cannot be asked: {error}"}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        child = self._child
        assert child is not None
        assert child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            in_time = selector.select(SECONDS)
        line = child.stdout.readline() if in_time else ""
        if line:
            return json.loads(line)
        self.end()
        why = f"ended with {child.returncode}" if in_time else f"no answer within {SECONDS:.0f} s"
        return {"error": f"{why}; see {self._log}"}

    def end(self) -> None:
        """End the process, if it runs."""
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
