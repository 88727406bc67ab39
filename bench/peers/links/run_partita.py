"""Partita as a contender on batches of links: what its trainer does. Started by ``compare.py``."""

from __future__ import annotations

import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contender import Contender, Result, Settings, load, serve

import partita
from partita import kernels
from partita.config import Config
from partita.core.keys import StepKey
from partita.kernels import Relabeller
from partita.sample.blocks import sample_block
from partita.sample.topology import LocalTopology
from partita.tasks.links.task import LinkTask
from partita.tasks.task import key_of, seed_order


class Partita(Contender):
    """Batches of the task ``links``, several of them side by side as in the trainer."""

    name = "Partita"
    variants = {"sample": ("without targets", "with targets")}  # noqa: RUF012

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        kernels.load()

    def versions(self) -> dict[str, str]:
        return {"partita": partita.__version__, "torch": torch.__version__, "python": platform.python_version()}

    def open(self, folder: Path) -> None:
        self.store, self.seeds = partita.open(str(folder / "store")), load(folder, "seeds")
        self.topology = LocalTopology(self.store)

    def sample(self, variant: str, settings: Settings) -> Result:
        """Negatives, distinct ends, what carries no messages, and the blocks of all layers."""
        fanouts = settings["fanout"]
        config = Config.make(
            {"task": "links", "batch_size": settings["batch_size"], "exclude_targets": variant == "without targets"}
        )
        task = LinkTask(self.store)
        task.adjust(config)
        order = seed_order(task, self.seeds, config)
        scratch = [Relabeller(self.store.num_nodes) for _ in range(self.threads)]

        def batch(step: int) -> int:
            edges, key, mine = 0, key_of(task, order, StepKey(0, 0, step)), scratch.pop()
            with kernels.limited(1):
                requests = task.requests(order.batch(0, step))
                for layer, fanout in zip(range(len(fanouts), 0, -1), fanouts):
                    block = sample_block(self.topology, requests, key, layer, fanout, relabel=mine)
                    requests, edges = block.src, edges + block.num_edges
            scratch.append(mine)
            return edges

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(batch, range(min(2 * self.threads, order.num_steps))))
            started, used = time.perf_counter(), time.process_time()
            edges = sum(pool.map(batch, range(order.num_steps)))
            return {
                "seconds": time.perf_counter() - started, "processor_seconds": time.process_time() - used,
                "edges": edges, "steps": order.num_steps,
            }  # fmt: skip


if __name__ == "__main__":
    serve(Partita)
