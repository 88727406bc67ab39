"""What every worker of tests/multihost runs: several whole runs, one after the other, with what they have sent.

    torchrun ... train_all.py STORE FOLDER SETTINGS STRATEGY...

For every strategy a run of 2 epochs, ``FOLDER/STRATEGY``, and one of 6 epochs. The first worker writes
``FOLDER/sent.json``: for every run the bytes on the interface of each host, and what the meters counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import partita
from partita.comm.context import Context
from partita.train.team import PURPOSES

EPOCHS = (2, 6)


def interface_bytes() -> int:
    """Bytes that have left this host."""
    time.sleep(0.1)  # the last acknowledgements
    queues = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True, check=True
    )
    return sum(queue["bytes"] for queue in json.loads(queues.stdout))


def train(context: Context, store: Path, out: Path, settings: dict[str, Any]) -> dict[str, int]:
    """Train; returns bytes that this worker has counted, and, by the first worker of a host, those of its host."""
    group = context.group()

    def look() -> tuple[int, int]:
        # What this very exchange sends is in both, before and after.
        group.gather(0)
        counted = sum(links["other_host"] for links in context.meter.snapshot().values())
        return counted, interface_bytes() if context.mesh.worker == 0 else 0

    before = look()
    partita.Trainer(store, out=out, context=context, **settings).fit()
    after = look()
    return {"meter": after[0] - before[0], "interface": after[1] - before[1]}


def main(store: Path, folder: Path, settings: dict[str, Any], strategies: list[str]) -> None:
    found: dict[str, list[dict[str, int]]] = {}
    with Context.from_environment(purposes=PURPOSES) as context:
        for strategy in strategies:
            for epochs in EPOCHS:
                out = folder / (strategy if epochs == EPOCHS[0] else f"{strategy}-long")
                sent = train(context, store, out, {**settings, "strategy": strategy, "epochs": epochs})
                workers = context.group().gather(sent)
                totals = {"epochs": epochs} | {name: sum(each[name] for each in workers) for name in sent}
                found.setdefault(strategy, []).append(totals)
        if context.mesh.rank == 0:
            (folder / "sent.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:])
