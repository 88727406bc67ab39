"""DGL's GraphBolt as a contender on batches of links, as its documentation writes it. Started by ``compare.py``."""

from __future__ import annotations

import platform
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

warnings.filterwarnings("ignore")
import dgl  # noqa: E402
import dgl.graphbolt as gb  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contender import Contender, Result, Settings, load, serve  # noqa: E402


class Dgl(Contender):
    """Mini-batches of GraphBolt."""

    name = "DGL"
    variants = {"sample": ("without targets", "with targets")}  # noqa: RUF012

    def versions(self) -> dict[str, str]:
        return {"dgl": dgl.__version__, "torch": torch.__version__, "python": platform.python_version()}

    def open(self, folder: Path) -> None:
        self.graph = gb.fused_csc_sampling_graph(load(folder, "indptr"), load(folder, "indices"))
        self.seeds = load(folder, "seeds")

    def batches(self, variant: str, settings: Settings) -> Iterator[Any]:
        """An epoch."""
        items = gb.ItemSet(self.seeds, names="node_pairs")
        pipe = gb.ItemSampler(items, batch_size=settings["batch_size"], shuffle=True)
        pipe = pipe.sample_uniform_negative(self.graph, 1)
        # GraphBolt counts layers from the input side.
        pipe = pipe.sample_neighbor(self.graph, [torch.tensor([number]) for number in settings["fanout"][::-1]])
        if variant == "without targets":
            pipe = pipe.transform(partial(gb.exclude_seed_edges, include_reverse_edges=True))
        yield from gb.DataLoader(pipe, num_workers=0)

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches."""
        next(iter(self.batches(variant, settings)))
        started, used, edges, steps = time.perf_counter(), time.process_time(), 0, 0
        for batch in self.batches(variant, settings):
            edges += sum(len(each.sampled_csc.indices) for each in batch.sampled_subgraphs)
            steps += 1
        return {
            "seconds": time.perf_counter() - started, "processor_seconds": time.process_time() - used,
            "edges": edges, "steps": steps,
        }  # fmt: skip


if __name__ == "__main__":
    serve(Dgl)
