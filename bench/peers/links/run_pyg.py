"""PyTorch Geometric as a contender on batches of links, as its documentation writes it. Started by ``compare.py``."""

from __future__ import annotations

import platform
import resource
import sys
import time
import warnings
from pathlib import Path

import torch
import torch_geometric
from torch_geometric import typing as available
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contender import Contender, Result, Settings, load, serve

warnings.filterwarnings("ignore")


def processor_seconds() -> float:
    """Of this process, and of workers that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class PyG(Contender):
    """Mini-batches of ``LinkNeighborLoader``; the edges of a batch carry messages in it."""

    name = "PyG"
    variants = {"sample": ("with targets", "with targets, 2 workers")}  # noqa: RUF012

    def versions(self) -> dict[str, str]:
        found = {"torch-geometric": torch_geometric.__version__, "torch": torch.__version__}
        sampler = "pyg-lib" if available.WITH_PYG_LIB else "torch-sparse" if available.WITH_TORCH_SPARSE else "none"
        return found | {"python": platform.python_version(), "sampler": sampler}

    def open(self, folder: Path) -> None:
        indptr, indices = load(folder, "indptr"), load(folder, "indices")
        dst = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
        self.data = Data(edge_index=torch.stack([indices, dst]), num_nodes=len(indptr) - 1)
        self.seeds = load(folder, "seeds").t().contiguous()
        self.loaders: dict[str, LinkNeighborLoader] = {}

    def loader(self, variant: str, settings: Settings) -> LinkNeighborLoader:
        """Made once: it sorts the graph."""
        if variant not in self.loaders:
            self.loaders[variant] = LinkNeighborLoader(
                self.data, num_neighbors=settings["fanout"], edge_label_index=self.seeds, neg_sampling="binary",
                batch_size=settings["batch_size"], shuffle=True, num_workers=2 if "workers" in variant else 0,
            )  # fmt: skip
        return self.loaders[variant]

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches."""
        loader = self.loader(variant, settings)
        next(iter(loader))
        started, used, edges, steps = time.perf_counter(), processor_seconds(), 0, 0
        for batch in loader:
            edges += batch.edge_index.shape[1]
            steps += 1
        return {
            "seconds": time.perf_counter() - started, "processor_seconds": processor_seconds() - used,
            "edges": edges, "steps": steps,
        }  # fmt: skip


if __name__ == "__main__":
    serve(PyG)
