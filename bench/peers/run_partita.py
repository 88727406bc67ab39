"""Partita as a contender: public defaults only. Started by ``compare.py``."""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contender import Contender, Result, Settings, load_blocks, median_seconds, serve
from profiles import Profile

import partita
from partita import kernels
from partita.config import Config
from partita.core.keys import StepKey
from partita.core.memory import keeping_freed
from partita.core.records import Block
from partita.infer.layerwise import LayerwiseInference
from partita.nn import ops
from partita.nn.model import Model, build_model
from partita.parallel.block_worker import BlockWorker
from partita.sample.samplers import NodeWise
from partita.setup.inputs import open_features
from partita.setup.topology import mapped_topology


class Enough(Exception):
    """All epochs are measured; what comes after them is of no interest."""


class Partita(Contender):
    """Partita on a graph store.

    Sampling has two variants: as the trainer does it, where layer 1 of most models sums rows by id and so wants no
    list of distinct sources; and with such a list for every layer, as the peers do it.
    """

    name = "Partita"
    variants = {  # noqa: RUF012
        "sample": ("as trained", "all layers relabeled"),
        "gather": ("",),
        "aggregate": ("",),
        "dense": ("",),
        "epoch": ("",),
        "inference": ("",),
    }

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        kernels.load()

    def around(self, stage: str) -> AbstractContextManager[object]:
        """As its trainer does, for what are parts of training."""
        return contextlib.nullcontext() if stage == "inference" else keeping_freed()

    def versions(self) -> dict[str, str]:
        import numba

        return {
            "partita": partita.__version__,
            "torch": torch.__version__,
            "numba": numba.__version__,
            "python": platform.python_version(),
        }

    def open(self, folder: Path) -> None:
        self.store = partita.open(str(folder / "store"))

    def config(self, settings: Settings) -> Config:
        given = settings["configuration"]
        return Config.make({"layers": len(given["fanout"]), **given})

    def model(self, config: Config) -> Model:
        return build_model(
            config.model, in_width=self.store.num_features, hidden=config.hidden, out_width=self.store.num_classes,
            layers=config.layers, heads=config.heads, norm=config.norm, activation=config.activation,
            dropout=config.dropout,
        )  # fmt: skip

    def worker(self, config: Config) -> BlockWorker:
        fanouts = NodeWise(config.fanout[::-1])
        features = open_features(self.store, config)
        return BlockWorker(self.model(config), mapped_topology(self.store, config), features, fanouts)

    def batches(self, config: Config, steps: int | None) -> list[torch.Tensor]:
        seeds = torch.from_numpy(np.random.default_rng(0).permutation(self.store.split("train")))
        return list(seeds.split(config.batch_size))[:steps]

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches, several of them side by side as in the trainer."""
        config = self.config(settings)
        worker, batches = self.worker(config), self.batches(config, settings.get("steps"))

        def batch(step: int) -> int:
            requests, edges, key = batches[step], 0, StepKey(0, 0, step)
            with kernels.limited(1):
                for layer in range(config.layers, 0, -1):
                    block, requests = worker.whole(layer, requests, key, relabel=variant == "all layers relabeled")
                    edges += block.num_edges
            return edges

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(batch, range(min(2 * self.threads, len(batches)))))
            with self.steady():
                started = time.perf_counter()
                edges = sum(pool.map(batch, range(len(batches))))
                seconds = time.perf_counter() - started
            return {"seconds": seconds, "edges": edges, "steps": len(batches)}

    def blocks(self, variant: str, settings: Settings) -> Result:
        """Write the blocks of a batch to a file, for all contenders; tells their sizes."""
        config = self.config(settings)
        worker, requests = self.worker(config), self.batches(config, 1)[0]
        arrays: dict[str, Any] = {}
        rows = []
        for layer in range(config.layers, 0, -1):
            block, requests = worker.whole(layer, requests, StepKey(0, 0, 0), relabel=True)
            arrays |= {f"indptr{layer}": block.indptr.numpy(), f"indices{layer}": block.indices.numpy()}
            arrays[f"num_src{layer}"] = np.int64(block.num_src)
            rows.insert(0, (block.num_dst, block.num_src, block.num_edges))
        np.savez(settings["blocks"], **arrays)
        return {"rows": rows}

    def gather_rows(self, table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return kernels.gather_rows(table, ids, out=out)

    def aggregate(self, variant: str, settings: Settings) -> Result:
        """The mean over every destination's neighbors, and its gradient."""
        found, width = load_blocks(settings["blocks"])[settings["layer"] - 1], settings["width"]
        backward = settings["backward"]
        dst = torch.arange(len(found["indptr"]) - 1, dtype=torch.int32)
        src, indices = torch.arange(found["num_src"], dtype=torch.int32), found["indices"].int()
        x = torch.rand(found["num_src"], width, requires_grad=backward)
        grad = torch.rand(len(dst), width)

        def work() -> None:
            # A new block every time: its transpose is part of the work.
            block = Block(dst=dst, src=src, indptr=found["indptr"], indices=indices, dst_original=dst.long())
            out = ops.aggregate(block, x, "mean")
            if backward:
                out.backward(grad)
                x.grad = None

        return {"seconds": median_seconds(work, steady=self.steady), "edges": len(indices)}

    def epoch(self, variant: str, settings: Settings) -> Result:
        """Epochs of the trainer; the first one does not count."""
        config, epochs = settings["configuration"], settings["epochs"]
        events: list[dict[str, Any]] = []
        steady = contextlib.ExitStack()

        def note(event: dict[str, Any]) -> None:
            if event["event"] == "epoch":
                events.append(event)
                if len(events) == 1:
                    steady.enter_context(self.steady())
                if len(events) == epochs:
                    steady.close()
                    raise Enough

        with tempfile.TemporaryDirectory(prefix="partita-peers-") as folder, steady:
            run = Path(folder, "run")
            trainer = partita.Trainer(
                self.store, out=run, layers=len(config["fanout"]), epochs=epochs, eval_every=0, threads=self.threads,
                callbacks=[note], **config,
            )  # fmt: skip
            with contextlib.suppress(Enough):
                trainer.fit()
            counts = json.loads((run / "run.json").read_text())["counts"]
        return {
            "seconds": statistics.median(event["seconds"] for event in events[1:]),
            "losses": [event["loss"] for event in events],
            "edges": counts["sampled_edges"] // epochs,
            "steps": -(-len(self.store.split("train")) // config["batch_size"]),
        }

    def inference(self, variant: str, settings: Settings) -> Result:
        """The model's output for all nodes, over all neighbors."""
        config = self.config(settings)
        inference = LayerwiseInference(
            self.model(config), mapped_topology(self.store, config), open_features(self.store, config)
        )
        nodes = 0
        with self.steady():
            started = time.perf_counter()
            for rows in inference.run():
                nodes += len(rows.output)
            seconds = time.perf_counter() - started
        return {"seconds": seconds, "nodes": nodes}

    def profile(self, variant: str, settings: Settings) -> Result:
        """A stage once more, under PyTorch's profiler; of an epoch, the second one."""
        profile = Profile(Path(settings["trace"]))
        self.steady = profile.steady
        try:
            result = getattr(self, settings["profiled"])(variant, {**settings, "epochs": 2})
        finally:
            self.steady = contextlib.nullcontext
        return {**profile.found(), "steps": result.get("steps")}


if __name__ == "__main__":
    serve(Partita)
