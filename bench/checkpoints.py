"""What checkpoints cost: epochs of one run without any, with those written in a thread, and with those waited for.

    python bench/checkpoints.py [--scale 16] [--steps 24] [--every 6] [--rounds 12] [--hidden 256]

One run, whose epochs take turns: nothing is saved; a checkpoint is written every ``--every`` steps and at the end of
the epoch, in a thread beside training, as in any run; or the same, and training waits until each is on the disk. The
time of an epoch is that from one epoch event to the next; processor time is that of all threads, which other work on
the machine hardly changes; ``waits`` is the share of the time that training spends in saving. The first round warms up
and does not count.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import platform
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

import partita

WAYS = ("none", "in a thread", "waited for")
BATCH = 1024


class Epoch(NamedTuple):
    """Seconds by the clock, seconds of processors, and the share of the former that was spent in saving."""

    wall: float
    processor: float
    waits: float


class Turns:
    """Lets the epochs of a run take turns, as a callback of its trainer, and notes how long each of them took."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self._begin()

    def _begin(self) -> None:
        self._wall, self._processor, self._saving = time.perf_counter(), time.process_time(), 0.0

    @property
    def way(self) -> str:
        """That of the epoch that is going on; also of the checkpoint that is made when the event of one is out."""
        return WAYS[len(self.epochs) % len(WAYS)]

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            wall, processor = time.perf_counter() - self._wall, time.process_time() - self._processor
            self.epochs.append(Epoch(wall, processor, self._saving / wall))
            self._begin()

    def attach(self, trainer: partita.Trainer) -> None:
        """Let the trainer save as the way of the epoch says."""
        recorder = trainer.recorder
        save = recorder.save

        def turned(*arguments: Any) -> None:
            if self.way == "none":
                recorder._saved_at, recorder._steps = time.monotonic(), 0
                return
            begun = time.perf_counter()
            save(*arguments)
            if self.way == "waited for":
                recorder.is_saved()
            self._saving += time.perf_counter() - begun

        recorder.save = turned  # type: ignore[method-assign]
        self._begin()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=16, help="the graph has 2^scale nodes")
    parser.add_argument("--steps", type=int, default=24, help="of an epoch")
    parser.add_argument("--every", type=int, default=6, help="steps from one checkpoint to the next")
    parser.add_argument("--rounds", type=int, default=12, help="epochs of each way that count")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model")
    options = parser.parse_args()
    turns, before = Turns(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="partita-checkpoints-") as folder:
        share = options.steps * BATCH / 2**options.scale
        store = partita.generate_rmat(
            Path(folder, "store"), scale=options.scale, num_features=128, num_classes=32, undirected=True,
            split=(share, 1e-3, 1e-3),
        )  # fmt: skip
        trainer = partita.Trainer(
            store, out=Path(folder, "run"), layers=3, hidden=options.hidden, fanout="15,10,5", batch_size=BATCH,
            epochs=len(WAYS) * (1 + options.rounds), eval_every=0, matmul="torch", checkpoint_minutes=1e6,
            checkpoint_steps=options.every, callbacks=[turns],
        )  # fmt: skip
        turns.attach(trainer)
        trainer.fit()
        latest = max(Path(folder, "run", "checkpoints").glob("epoch-*"))
        size = sum(path.stat().st_size for path in latest.iterdir())
    counted = turns.epochs[len(WAYS) :]
    by_way = {way: counted[place :: len(WAYS)] for place, way in enumerate(WAYS)}
    print(
        f"`python {' '.join(sys.argv)}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, load average "
        f"{before:.1f} before and {os.getloadavg()[0]:.1f} after; Python {platform.python_version()}, "
        f"torch {torch.__version__}; a checkpoint of {size / 2**20:.1f} MiB every {options.every} of {options.steps} "
        f"steps\n"
    )
    print("| checkpoints | epochs | median s | min to max | to none | processor s | to none | waits |")
    print("|---|---|---|---|---|---|---|---|")
    for way, epochs in by_way.items():
        cells = [way, str(len(epochs))]
        for kind in ("wall", "processor"):
            seconds, others = ([getattr(epoch, kind) for epoch in each] for each in (epochs, by_way["none"]))
            ratio = statistics.median(mine / other for mine, other in zip(seconds, others))
            shown = f"{min(seconds):.2f} to {max(seconds):.2f} | " if kind == "wall" else ""
            cells.append(f"{statistics.median(seconds):.2f} | {shown}{ratio:.3f}")
        cells.append(f"{statistics.median(epoch.waits for epoch in epochs):.2%}")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
