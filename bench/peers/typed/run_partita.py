"""Partita as a contender on typed graphs: public defaults only. Started by ``compare.py``."""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contender import Contender, Result, Settings, serve

import partita
from partita import kernels
from partita.core.keys import StepKey
from partita.kernels import Relabeller
from partita.sample.blocks import sample_block
from partita.sample.samplers import NodeWise
from partita.sample.topology import ArrayTopology, LocalTopology, as_tensor


class Enough(Exception):
    """All epochs are measured; what comes after them is of no interest."""


class Partita(Contender):
    """Partita on a graph store. *types removed*: about as many neighbors of every node, whatever their relation."""

    name = "Partita"
    variants = {"sample": ("", "types removed"), "epoch": ("",)}  # noqa: RUF012

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        kernels.load()

    def versions(self) -> dict[str, str]:
        return {"partita": partita.__version__, "torch": torch.__version__, "python": platform.python_version()}

    def open(self, folder: Path) -> None:
        self.folder, self.store = folder, partita.open(str(folder / "store"))
        self.train = torch.from_numpy(np.load(folder / "train.npy"))

    def batches(self, settings: Settings) -> list[torch.Tensor]:
        order = np.random.default_rng(0).permutation(len(self.train))
        return list(self.train[order].split(settings["batch_size"]))

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches, several of them side by side as in the trainer."""
        fanouts, layers = settings["fanout"], len(settings["fanout"])
        topology: Any = LocalTopology(self.store, types=True)
        if variant:
            topology = ArrayTopology(as_tensor(self.store.indptr), as_tensor(self.store.indices))
            fanouts = [2 * number for number in fanouts]
        sampler, batches = NodeWise(fanouts[::-1]), self.batches(settings)
        scratch = [Relabeller(self.store.num_nodes) for _ in range(self.threads)]

        def batch(step: int) -> int:
            requests, edges, key = batches[step], 0, StepKey(0, 0, step)
            mine = scratch.pop()
            with kernels.limited(1):
                for layer in range(layers, 0, -1):
                    block = sample_block(topology, requests, key, layer, sampler, relabel=mine)
                    requests, edges = block.src, edges + block.num_edges
            scratch.append(mine)
            return edges

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(batch, range(min(2 * self.threads, len(batches)))))
            started = time.perf_counter()
            edges = sum(pool.map(batch, range(len(batches))))
            return {"seconds": time.perf_counter() - started, "edges": edges, "steps": len(batches)}

    def epoch(self, variant: str, settings: Settings) -> Result:
        """Epochs of the trainer; the first one does not count."""
        events: list[dict[str, Any]] = []

        def note(event: dict[str, Any]) -> None:
            if event["event"] == "epoch":
                events.append(event)
                if len(events) == settings["epochs"]:
                    raise Enough

        with tempfile.TemporaryDirectory(prefix="partita-typed-") as folder:
            run = Path(folder, "run")
            more = {"heads": settings["heads"]} if settings["model"] == "rgat" else {}
            trainer = partita.Trainer(
                self.store, out=run, model=settings["model"], layers=len(settings["fanout"]), epochs=settings["epochs"],
                hidden=settings["hidden"], fanout=tuple(settings["fanout"]), batch_size=settings["batch_size"],
                lr=settings["lr"], eval_every=0, threads=self.threads, callbacks=[note], **more,
            )  # fmt: skip
            with contextlib.suppress(Enough):
                trainer.fit()
            counts = json.loads((run / "run.json").read_text())["counts"]
        return {
            "seconds": statistics.median(event["seconds"] for event in events[1:]),
            "losses": [event["loss"] for event in events],
            "edges": counts["sampled_edges"] // settings["epochs"],
            "steps": -(-len(self.train) // settings["batch_size"]),
        }


if __name__ == "__main__":
    serve(Partita)
