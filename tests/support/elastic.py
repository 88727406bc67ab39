"""Elastic jobs of torchrun on this machine: each launcher stands for a host with one worker, and may come and go.

As a program it is the ``partita`` command whose training steps take half a second while the file that the variable
``ELASTIC_HOLD`` names is there: so that losses and arrivals fall into training, and what is left of it is done at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

STEP_SECONDS = 0.5
CONF = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=120"


class Job:
    """A job of launchers; a context manager that ends all of its processes.

    Args:
        folder: for logs.
        run: the run folder.
        arguments: of ``partita``.
        hosts: most launchers at a time.
    """

    def __init__(self, folder: Path, run: Path, arguments: list[object], hosts: int) -> None:
        self.folder, self.run, self._arguments, self._hosts = folder, run, [*map(str, arguments)], hosts
        self.hold = folder / "hold"
        self.hold.touch()
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.started = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for launcher in list(self.launchers):
            self.lose(launcher)

    def arrive(self) -> subprocess.Popen[bytes]:
        """Start a launcher; the first one keeps what the others meet through, and must stay."""
        command = [
            sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-id", "elastic",
            "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-conf", CONF, "--nnodes", f"1:{self._hosts}",
            "--nproc-per-node", "1", "--max-restarts", "100", "--monitor-interval", "0.2",
            __file__, *self._arguments,
        ]  # fmt: skip
        environment = {
            **os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE", "ELASTIC_HOLD": str(self.hold),
        }  # fmt: skip
        with (self.folder / f"launcher-{self.started}.txt").open("wb") as log:
            launcher = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.started += 1
        self.launchers.append(launcher)
        return launcher

    def lose(self, launcher: subprocess.Popen[bytes]) -> None:
        """Kill a launcher and its worker, as when a host is lost."""
        self.launchers.remove(launcher)
        victims = [psutil.Process(launcher.pid)] if launcher.poll() is None else []
        victims += [child for each in victims for child in each.children(recursive=True)]
        for victim in victims:
            _kill(victim)
        launcher.wait(30)

    def kill_worker(self, launcher: subprocess.Popen[bytes]) -> bool:
        """Kill the worker of a launcher; ``False`` where it has none at the moment."""
        workers = psutil.Process(launcher.pid).children()
        for worker in workers:
            _kill(worker)
        return bool(workers)

    @property
    def attempts(self) -> int:
        """How many have gone on with the run so far."""
        record = self.run / "run.json"
        return len(json.loads(record.read_text())["resumed"]) if record.exists() else 0

    def wait_for_progress(self, attempts: int = 0, timeout: float = 180) -> None:
        """Until so many attempts have gone on with the run, and then until there is another checkpoint."""
        until = time.monotonic() + timeout
        self._wait(until, lambda: self.attempts >= attempts)
        before = self._latest()
        self._wait(until, lambda: self._latest() != before)

    def _wait(self, until: float, reached: Callable[[], bool]) -> None:
        while not reached():
            assert time.monotonic() < until, self.said()
            assert self.launchers[0].poll() is None, self.said()
            time.sleep(0.05)

    def finish(self, timeout: float = 240) -> dict[str, Any]:
        """Let the steps that are left take no longer than they must; ``run.json`` when the run is finished."""
        self.hold.unlink()
        until = time.monotonic() + timeout
        while True:
            if (self.run / "run.json").exists():
                record = json.loads((self.run / "run.json").read_text())
                if record["status"] == "finished":
                    return record
            assert time.monotonic() < until, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        """The last lines of all launchers."""
        logs = sorted(self.folder.glob("launcher-*.txt"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def _latest(self) -> str:
        folder = self.run / "checkpoints"
        return max((path.name for path in folder.glob("epoch-*")), default="") if folder.is_dir() else ""


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


def main() -> None:
    """The command, with slow steps."""
    from partita.cli.main import main
    from partita.train.trainer import Trainer

    hold, step = Path(os.environ["ELASTIC_HOLD"]), Trainer._step

    def slow(self: Trainer, *arguments: Any) -> Any:
        if hold.exists():
            time.sleep(STEP_SECONDS)
        return step(self, *arguments)

    Trainer._step = slow  # type: ignore[method-assign]
    main(sys.argv[1:])


if __name__ == "__main__":
    main()
