"""DGL as a contender on batches of links: GraphBolt, and the loader before it. Started by ``compare.py``."""

from __future__ import annotations

import platform
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

warnings.filterwarnings("ignore")
import dgl  # noqa: E402
import dgl.graphbolt as gb  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contender import Contender, Result, Settings, load, serve  # noqa: E402


class Dgl(Contender):
    """Mini-batches of GraphBolt over a fused graph, and of ``as_edge_prediction_sampler``, as documented."""

    name = "DGL"
    variants = {"sample": ("GraphBolt, without targets", "GraphBolt, with targets", "DataLoader, with targets")}  # noqa: RUF012

    def versions(self) -> dict[str, str]:
        return {"dgl": dgl.__version__, "torch": torch.__version__, "python": platform.python_version()}

    def open(self, folder: Path) -> None:
        indptr, indices = load(folder, "indptr"), load(folder, "indices")
        self.fused = gb.fused_csc_sampling_graph(indptr, indices)
        self.graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
        self.seeds, self.positions = load(folder, "seeds"), load(folder, "positions")

    def edges(self, variant: str, settings: Settings) -> Iterator[int]:
        """How many were sampled, of every batch of an epoch."""
        size, fanouts = settings["batch_size"], settings["fanout"][::-1]  # the input side comes first
        if variant.startswith("GraphBolt"):
            items = gb.ItemSet(self.seeds, names="node_pairs")
            pipe = gb.ItemSampler(items, batch_size=size, shuffle=True).sample_uniform_negative(self.fused, 1)
            pipe = pipe.sample_neighbor(self.fused, [torch.tensor([number]) for number in fanouts])
            if "without" in variant:
                pipe = pipe.transform(partial(gb.exclude_seed_edges, include_reverse_edges=True))
            for batch in gb.DataLoader(pipe, num_workers=0):
                yield sum(len(each.sampled_csc.indices) for each in batch.sampled_subgraphs)
            return
        sampler = dgl.dataloading.as_edge_prediction_sampler(
            dgl.dataloading.NeighborSampler(fanouts), negative_sampler=dgl.dataloading.negative_sampler.Uniform(1)
        )
        loader = dgl.dataloading.DataLoader(
            self.graph, self.positions, sampler, batch_size=size, shuffle=True, drop_last=False, num_workers=0
        )
        for _, _, _, blocks in loader:
            yield sum(block.num_edges() for block in blocks)

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches."""
        next(iter(self.edges(variant, settings)))
        started, used = time.perf_counter(), time.process_time()
        found = list(self.edges(variant, settings))
        return {
            "seconds": time.perf_counter() - started, "processor_seconds": time.process_time() - used,
            "edges": sum(found), "steps": len(found),
        }  # fmt: skip


if __name__ == "__main__":
    serve(Dgl)
