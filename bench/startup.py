"""How long a user waits: for help, for the first training step, and for kernels to be compiled the first time.

Beside it, what the libraries alone take: nothing that trains can begin before torch is imported.

    python bench/startup.py [--runs 5]

Every figure is the wall time of a fresh process, from its start; medians, minimum and maximum over the runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TORCH = "import torch"
NUMBA = "import torch; from numba.core.registry import cpu_target as cpu; cpu.target_context.refresh()"
HELP = "from partita.cli import main; main(['--help'])"
FIRST_STEP = """
import sys, time
import partita
class FirstStep(partita.Trainer):
    def _step(self, *given):
        super()._step(*given)
        print(time.time())
        sys.stdout.flush()
        sys.exit(0)
FirstStep(sys.argv[1], out=sys.argv[2], model=sys.argv[3]).fit()
"""


def seconds(code: str, *arguments: str, cache: str | None = None) -> float:
    """Seconds from the start of a process to its end, or to the time that it prints."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = cache
    started = time.time()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    ended = time.time()
    try:
        return float(done.stdout) - started
    except ValueError:
        return ended - started


def command_seconds(*arguments: str) -> tuple[float, float]:
    """Seconds until a command has written its first line, and until it has ended."""
    started = time.time()
    process = subprocess.Popen(
        [sys.executable, "-c", "from partita.cli import main; main()", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()
    line = time.time() - started
    process.communicate()
    assert process.returncode == 0
    return line, time.time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
        import partita

        graph = Path(folder) / "graph"
        partita.generate_sbm(graph, num_nodes=20_000)
        count = iter(range(10**6))

        def run_folder() -> str:
            return f"{folder}/run-{next(count)}"

        rows = {"partita --help": [seconds(HELP) for _ in range(runs)]}
        rows["import torch"] = [seconds(TORCH) for _ in range(runs)]
        rows["import torch and numba"] = [seconds(NUMBA) for _ in range(runs)]
        for model in ("sage", "gat"):
            cold = [
                seconds(FIRST_STEP, str(graph), run_folder(), model, cache=f"{folder}/cold-{model}-{number}")
                for number in range(max(1, runs))
            ]
            cache = f"{folder}/cold-{model}-0"
            warm = [seconds(FIRST_STEP, str(graph), run_folder(), model, cache=cache) for _ in range(runs)]
            rows[f"first training step, {model}, kernels cached"] = warm
            rows[f"first training step, {model}, nothing cached"] = cold
        train = ("train", str(graph), "--epochs", "1", "--strategy", "gdp", "--out")
        for workers in (1, 2):
            command_seconds(*train, run_folder(), "--workers", str(workers))  # compiles
            times = [command_seconds(*train, run_folder(), "--workers", str(workers)) for _ in range(runs)]
            said = f"partita train --workers {workers}, one short epoch"
            if workers > 1:
                rows[f"{said}: first line"] = [line for line, _ in times]
            rows[f"{said}: all"] = [total for _, total in times]
    print("| from the start of the process | median s | min | max | runs |\n|---|---|---|---|---|")
    for name, times in rows.items():
        print(f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} | {max(times):.2f} | {len(times)} |")


if __name__ == "__main__":
    main()
