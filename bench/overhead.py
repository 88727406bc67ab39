"""What the engine for several workers costs: one worker against an older tree, and two workers against two threads.

    git worktree add /tmp/older 232ab53
    python bench/overhead.py trees --older /tmp/older [--scale 18] [--runs 7]
    python bench/overhead.py workers [--scale 18] [--runs 5]

``trees`` trains the same on both trees, each in processes of its own that import partita from that tree; ``workers``
trains with one worker of two threads and with two workers of one thread each. Runs alternate, and which comes first
changes; the first epoch of a run warms up and does not count. Wall time of an epoch is what its event says, processor
time what all threads of the process used, which other work on the machine hardly changes. Nothing is evaluated, and
the graph is made by each tree for itself.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "model": "sage", "layers": 3, "hidden": 256, "fanout": (15, 10, 5), "batch_size": 1024, "eval_every": 0,
    "checkpoint_minutes": 1e6,
}  # fmt: skip
FEATURES, CLASSES = 128, 32
THREADS = 2


# In processes of the tree that is measured; only what both trees have is used.


def make_store(path: str, scale: int, steps: int) -> None:
    """An R-MAT graph with so many training nodes that an epoch has ``steps`` steps."""
    import partita

    share = steps * SETTINGS["batch_size"] / 2**scale
    partita.generate_rmat(
        path, scale=scale, num_features=FEATURES, num_classes=CLASSES, undirected=True, split=(share, 1e-4, 1e-4)
    )


class Enough(Exception):
    """All epochs are measured; what comes after them is of no interest."""


class Clock:
    """A callback of the trainer that notes the time of every epoch.

    Args:
        last: number of the epoch after which the run is given up; ``None``: never.
    """

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.epochs: list[dict[str, float]] = []
        self.used = time.process_time()

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] != "epoch":
            return
        used = time.process_time()
        self.epochs.append({"wall": event["seconds"], "cpu": used - self.used, "loss": event["loss"]})
        self.used = used
        if len(self.epochs) == self.last:
            raise Enough


def train_alone(store: str, epochs: int) -> list[dict[str, float]]:
    """Wall and processor seconds of every epoch of one worker."""
    import partita

    clock = Clock(epochs)
    with tempfile.TemporaryDirectory(prefix="partita-overhead-") as folder:
        trainer = partita.Trainer(
            store, out=Path(folder, "run"), epochs=epochs, threads=THREADS, callbacks=[clock], **SETTINGS
        )
        try:
            trainer.fit()
        except Enough:
            return clock.epochs
    raise RuntimeError("the run ended too early")


def train_worker(context: Any, store: str, out: str, epochs: int, settings: dict[str, Any]) -> list[dict[str, float]]:
    """The same, as one of several workers; runs to its end, since all must leave together."""
    import partita

    seconds: list[float] = []

    class Timed(partita.Trainer):
        """Notes the processor time of every epoch on every worker; callbacks are called on the first one only."""

        def _train_epoch(self, *arguments: Any) -> None:
            before = time.process_time()
            super()._train_epoch(*arguments)
            seconds.append(time.process_time() - before)

    clock = Clock()
    Timed(store, out=out, epochs=epochs, callbacks=[clock], context=context, **SETTINGS, **settings).fit()
    if context.mesh.rank:
        return [{"cpu": used} for used in seconds]
    return [epoch | {"cpu": used} for epoch, used in zip(clock.epochs, seconds, strict=True)]


def child(arguments: list[str]) -> None:
    """What a process of a tree does: make STORE SCALE STEPS, or train STORE EPOCHS; prints JSON."""
    what, store, *numbers = arguments
    if what == "make":
        make_store(store, int(numbers[0]), int(numbers[1]))
    else:
        print(json.dumps(train_alone(store, int(numbers[0]))))


def in_tree(tree: Path, *arguments: object) -> str:
    """Run this script's child with the package of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": str(THREADS)}
    command = [sys.executable, "-P", __file__, "child", *map(str, arguments)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


# The two comparisons


def compare_trees(options: argparse.Namespace, folder: Path) -> list[str]:
    trees = {"older": options.older, "this": options.this}
    for name, tree in trees.items():
        in_tree(tree, "make", folder / name, options.scale, options.steps)
    ways = {
        name: lambda name=name, tree=tree: json.loads(in_tree(tree, "train", folder / name, 1 + options.epochs))
        for name, tree in trees.items()
    }
    found = alternate(ways, options.runs)
    return table(found, "older")


def compare_workers(options: argparse.Namespace, folder: Path) -> list[str]:
    import partita
    from partita.comm.local import run_local

    store = str(folder / "store")
    make_store(store, options.scale, options.steps)
    partita.partition(store, folder / "parts", parts=2, algorithm="spring+")

    def launched(strategy: str) -> Callable[[], list[dict[str, float]]]:
        def run() -> list[dict[str, float]]:
            out = folder / "run"
            arguments = [str(folder / "parts"), str(out), 1 + options.epochs, {"strategy": strategy, "threads": 1}]
            try:
                found = run_local(train_worker, 2, arguments, threads=1, purposes=("train", "sample", "load"))
            finally:
                shutil.rmtree(out, ignore_errors=True)
            # All pass an epoch together, so the first one's wall time is that of all; processor time adds up.
            return [first | {"cpu": sum(each["cpu"] for each in (first, *others))} for first, *others in zip(*found)]

        return run

    ways = {
        "1 worker, 2 threads": lambda: json.loads(in_tree(options.this, "train", store, 1 + options.epochs)),
        **{f"2 workers, 1 thread each, {strategy}": launched(strategy) for strategy in ("gdp", "gsplit")},
    }
    found = alternate(ways, options.runs)
    return table(found, "1 worker, 2 threads")


def alternate(
    ways: dict[str, Callable[[], list[dict[str, float]]]], runs: int
) -> dict[str, list[list[dict[str, float]]]]:
    """Measured epochs of every run, by way."""
    found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in ways}
    names = list(ways)
    for run in range(runs):
        for index in range(len(names)):
            name = names[(index + run) % len(names)]
            epochs = ways[name]()[1:]
            found[name].append(epochs)
            seconds = ", ".join(f"{epoch['wall']:.2f} ({epoch['cpu']:.2f})" for epoch in epochs)
            print(
                f"run {run + 1} {name}: {seconds} s wall (processor), load {os.getloadavg()[0]:.1f}, "
                f"loss {epochs[-1]['loss']:.6f}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    return found


def table(found: dict[str, list[list[dict[str, float]]]], base: str) -> list[str]:
    """Medians over the runs of the mean epoch; ratios of each run to the base of the same round, and their median."""
    kinds = {"wall": "wall", "cpu": "processor"}
    heads = [f"{kind} s per epoch | min to max | to '{base}'" for kind in kinds.values()]
    lines = [f"| | runs | epochs | {' | '.join(heads)} |", "|---|---|---|" + "---|---|---|" * len(kinds)]
    for name, runs in found.items():
        cells = [name, str(len(runs)), str(sum(map(len, runs)))]
        for kind in kinds:
            seconds, others = (
                [statistics.mean(epoch[kind] for epoch in run) for run in found[which]] for which in (name, base)
            )
            ratio = statistics.median(mine / other for mine, other in zip(seconds, others))
            cells += [f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}", f"{ratio:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("trees", "workers"))
    parser.add_argument("--older", type=Path, help="root of the other tree")
    parser.add_argument("--this", type=Path, default=Path(__file__).parents[1], help="root of this tree")
    parser.add_argument("--scale", type=int, default=18, help="the graph has 2^scale nodes")
    parser.add_argument("--steps", type=int, default=8, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=2, help="of a run that count")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    if options.what == "trees" and options.older is None:
        parser.error("trees needs --older")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="partita-overhead-") as folder:
        compare = {"trees": compare_trees, "workers": compare_workers}[options.what]
        lines = compare(options, Path(folder))
    import torch

    print(
        f"`python {' '.join(sys.argv)}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, load average "
        f"{before:.1f} before and {os.getloadavg()[0]:.1f} after; Python {platform.python_version()}, "
        f"torch {torch.__version__}\n"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
