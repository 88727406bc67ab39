"""PyTorch Geometric as a contender: as its documentation writes it, and faster variants. Started by ``compare.py``."""

from __future__ import annotations

import platform
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from contender import Contender, Result, Settings, autocast, load, load_blocks, median_seconds, serve
from torch.nn import functional
from torch_geometric import EdgeIndex
from torch_geometric import typing as available
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GCN, GraphSAGE, SimpleConv
from torch_geometric.typing import SparseTensor

warnings.filterwarnings("ignore")
MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}
WORKERS = ("", ", 2 workers")
DOCUMENTED = "edge_index"


class PyG(Contender):
    """Mini-batches of ``NeighborLoader``.

    Variants: the adjacency as ``edge_index`` or as a ``SparseTensor``; *trimmed*, where every layer computes only the
    rows that later layers want (PyG's ``trim_to_layer``; the numbers per hop that it needs are worked out here where
    the sampler does not tell them); and two processes that sample.
    """

    name = "PyG"
    variants = {  # noqa: RUF012
        "sample": tuple(f"edge_index{workers}" for workers in WORKERS),
        "gather": ("index",),
        "aggregate": (DOCUMENTED, "SparseTensor", "torch.sparse CSR", "EdgeIndex"),
        "dense": ("",),
        "epoch": tuple(
            f"{adjacency}{trimmed}{workers}"
            for adjacency in (DOCUMENTED, "SparseTensor")
            for trimmed in ("", ", trimmed")
            for workers in WORKERS
        ),
        "inference": (
            "edge_index, batches of 1024", "edge_index, batches of 16384", "SparseTensor, batches of 16384",
            "SparseTensor, batches of 16384, 2 workers", "SparseTensor, all at once",
        ),
    }  # fmt: skip

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.sampler = "pyg-lib" if available.WITH_PYG_LIB else "torch-sparse" if available.WITH_TORCH_SPARSE else ""
        kept = {}
        for stage, variants in self.variants.items():
            if not self.sampler:  # no sampler, no NeighborLoader, no SparseTensor
                variants = tuple(each for each in variants if "SparseTensor" not in each)
            if self.sampler or stage not in ("sample", "epoch", "inference"):
                kept[stage] = variants
        self.variants = kept

    def versions(self) -> dict[str, str]:
        found = {"torch-geometric": torch_geometric.__version__, "torch": torch.__version__}
        found["python"] = platform.python_version()
        if available.WITH_PYG_LIB:
            found["pyg-lib"] = available.pyg_lib.__version__
        if available.WITH_TORCH_SPARSE:
            found["torch-sparse"] = available.torch_sparse.__version__
        return found | {"sampler": self.sampler or "none could be installed"}

    def open(self, folder: Path) -> None:
        self.graph = {}
        indptr, indices = load(folder, "indptr"), load(folder, "indices").long()
        num_nodes = len(indptr) - 1
        dst = torch.repeat_interleave(torch.arange(num_nodes), indptr.diff())
        self.graph = {"x": load(folder, "x"), "y": load(folder, "y").long(), "train": load(folder, "train").long()}
        self.graph |= {"edge_index": torch.stack([indices, dst]), "indptr": indptr}
        self.classes = int(self.graph["y"].max()) + 1

    def data(self, variant: str, features: bool = True) -> Data:
        graph = self.graph
        data = Data(num_nodes=len(graph["x"]))
        if features:
            data.x, data.y = graph["x"], graph["y"]
        if variant.startswith("SparseTensor"):
            size = (len(graph["x"]),) * 2
            data.adj_t = SparseTensor(
                rowptr=graph["indptr"], col=graph["edge_index"][0], sparse_sizes=size, is_sorted=True, trust_data=True
            )
        else:
            data.edge_index = graph["edge_index"]
        return data

    def loader(self, variant: str, settings: Settings, features: bool = True, **options: Any) -> NeighborLoader:
        config = settings["configuration"]
        workers = 2 if "2 workers" in variant else 0
        given = {"num_neighbors": list(config["fanout"]), "batch_size": config["batch_size"], "shuffle": True}
        given |= {"input_nodes": self.graph["train"], "num_workers": workers, "persistent_workers": workers > 0}
        return NeighborLoader(self.data(variant, features), is_sorted=True, **given | options)

    def model(self, settings: Settings) -> torch.nn.Module:
        config = settings["configuration"]
        options = {"heads": config["heads"]} if config["model"] == "gat" else {}
        torch.manual_seed(0)
        return MODELS[config["model"]](
            self.graph["x"].shape[1], config["hidden"], len(config["fanout"]), self.classes, dropout=0.5,
            norm="layer_norm", norm_kwargs={"mode": "node"}, **options,
        )  # fmt: skip

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches without their features."""
        loader = self.loader(variant, settings, features=False)
        edges = steps = 0
        for _ in _first(loader, 2):
            pass  # starts the processes
        started = time.perf_counter()
        for batch in _first(loader, settings.get("steps")):
            edges += batch.edge_index.shape[1]
            steps += 1
        return {"seconds": time.perf_counter() - started, "edges": edges, "steps": steps}

    def aggregate(self, variant: str, settings: Settings) -> Result:
        """PyG's convolution without parameters: the mean over the neighbors, and its gradient."""
        found, width = load_blocks(settings["blocks"])[settings["layer"] - 1], settings["width"]
        backward = settings["backward"]
        indptr, indices, size = found["indptr"], found["indices"], (found["num_src"], len(found["indptr"]) - 1)
        dst = torch.repeat_interleave(torch.arange(size[1]), indptr.diff())
        x, grad = torch.rand(size[0], width, requires_grad=backward), torch.rand(size[1], width)
        edge_index, ones = torch.stack([indices, dst]), torch.ones(len(indices))
        conv = SimpleConv(aggr="mean")

        def adjacency() -> Any:
            # Made anew every time, as every batch has another one.
            if variant == "SparseTensor":
                return SparseTensor(
                    rowptr=indptr, col=indices, sparse_sizes=size[::-1], is_sorted=True, trust_data=True
                )
            if variant == "torch.sparse CSR":
                return torch.sparse_csr_tensor(indptr, indices, ones, size[::-1], check_invariants=False)
            if variant == "EdgeIndex":
                return EdgeIndex(edge_index, sparse_size=size, sort_order="col")
            return edge_index

        def work() -> None:
            out = conv((x, x[: size[1]]), adjacency(), size=size)
            if backward:
                out.backward(grad)
                x.grad = None

        return {"seconds": median_seconds(work), "edges": len(indices)}

    def epoch(self, variant: str, settings: Settings) -> Result:
        """Epochs of the documentation's loop; the first one does not count."""
        model, loader = self.model(settings), self.loader(variant, settings)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
        precision, trimmed = settings["configuration"]["precision"], "trimmed" in variant
        hops = len(settings["configuration"]["fanout"])
        seconds, losses, edges, steps = [], [], 0, 0
        model.train()
        for _ in range(settings["epochs"]):
            started, total, seeds, edges, steps = time.perf_counter(), 0.0, 0, 0, 0
            for batch in _first(loader, settings.get("steps")):
                adjacency = batch.adj_t if "adj_t" in batch else batch.edge_index
                counts = _counts(batch, hops) if trimmed else {}
                optimizer.zero_grad()
                with autocast(precision):
                    out = model(batch.x, adjacency, **counts)[: batch.batch_size].float()
                    loss = functional.cross_entropy(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
                total += float(loss) * batch.batch_size
                seeds += batch.batch_size
                edges += batch.adj_t.nnz() if "adj_t" in batch else batch.edge_index.shape[1]
                steps += 1
            seconds.append(time.perf_counter() - started)
            losses.append(total / seeds)
        counted = seconds[1:] or seconds
        return {"seconds": statistics.median(counted), "losses": losses, "edges": edges, "steps": steps}

    def inference(self, variant: str, settings: Settings) -> Result:
        """The model's output for all nodes, over all neighbors: ``BasicGNN.inference``, or one call for all."""
        model = self.model(settings).eval()
        if "all at once" in variant:
            data = self.data(variant)
            started = time.perf_counter()
            with torch.no_grad(), autocast(settings["configuration"]["precision"]):
                out = model(data.x, data.adj_t)
        else:
            size = int(variant.split("batches of ")[1].split(",")[0])
            loader = self.loader(
                variant, settings, input_nodes=None, num_neighbors=[-1], batch_size=size, shuffle=False
            )
            started = time.perf_counter()
            with autocast(settings["configuration"]["precision"]):
                out = model.inference(loader)
        return {"seconds": time.perf_counter() - started, "nodes": len(out)}


def _first(loader: NeighborLoader, steps: int | None) -> Iterator[Data]:
    """The first batches, or all."""
    for step, batch in enumerate(loader):
        if steps is not None and step == steps:
            return
        yield batch


def _counts(batch: Data, hops: int) -> dict[str, list[int]]:
    """Sampled nodes and edges per hop.

    torch-sparse does not tell them, but it numbers nodes by first appearance and lists edges by destination.
    """
    if batch.get("num_sampled_nodes") is not None:
        return {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
    if "adj_t" in batch:
        rowptr, src, _ = batch.adj_t.csr()
    else:
        src, dst = batch.edge_index
        rowptr = torch.searchsorted(dst, torch.arange(len(batch.x) + 1))
    nodes, edges, known, seen = [batch.batch_size], [], batch.batch_size, 0
    for _ in range(hops):
        end = int(rowptr[known])
        found = max(known, int(src[seen:end].max()) + 1) if end > seen else known
        edges.append(end - seen)
        nodes.append(found - known)
        seen, known = end, found
    return {"num_sampled_nodes_per_hop": nodes, "num_sampled_edges_per_hop": edges}


if __name__ == "__main__":
    serve(PyG)
