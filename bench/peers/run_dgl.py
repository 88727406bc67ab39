"""DGL as a contender: as its documentation writes it, and its other samplers. Started by ``compare.py``."""

from __future__ import annotations

import platform
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from contender import Contender, Result, Settings, autocast, load, load_blocks, median_seconds, serve

warnings.filterwarnings("ignore")
import dgl  # noqa: E402
import dgl.graphbolt as gb  # noqa: E402
from dgl import function as fn  # noqa: E402
from dgl.nn import GATConv, GraphConv, SAGEConv  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

DOCUMENTED = "DataLoader"
SAMPLERS = (
    DOCUMENTED,
    "DataLoader, not fused",
    "DataLoader, not fused, int32",
    "DataLoader, not fused, 2 workers",
    "GraphBolt",
    "GraphBolt, 2 workers",
)


class Model(nn.Module):
    """As in DGL's examples, with the normalization that all contenders have."""

    def __init__(self, config: dict[str, Any], features: int, classes: int) -> None:
        super().__init__()
        layers, hidden, heads = len(config["fanout"]), config["hidden"], config["heads"]
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for layer in range(layers):
            below, last = features if layer == 0 else hidden, layer == layers - 1
            above = classes if last else hidden
            if config["model"] == "sage":
                conv: nn.Module = SAGEConv(below, above, "mean")
            elif config["model"] == "gcn":
                conv = GraphConv(below, above, allow_zero_in_degree=True)
            else:
                conv = GATConv(below, above if last else above // heads, heads, allow_zero_in_degree=True)
            self.convs.append(conv)
            if not last:
                self.norms.append(nn.LayerNorm(hidden))

    def layer(self, number: int, graph: Any, h: torch.Tensor) -> torch.Tensor:
        """One layer with what comes after it."""
        h, last = self.convs[number](graph, h), number == len(self.norms)
        if h.dim() == 3:  # heads: averaged in the last layer, joined before
            h = h.mean(1) if last else h.flatten(1)
        return h if last else functional.dropout(functional.relu(self.norms[number](h)), 0.5, self.training)

    def forward(self, blocks: list[Any], h: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(blocks):
            h = self.layer(number, block, h)
        return h


class Dgl(Contender):
    """Mini-batches of DGL's loaders.

    Ids are int64 as in the documentation: on graphs of int32 DGL 2.1's fused sampler returns wrong blocks from the
    second batch on, so int32 goes with the sampler that is not fused. GCN and GAT get self loops in the graph, as
    DGL's documentation wants, and as PyG adds to a batch.
    """

    name = "DGL"
    variants = {  # noqa: RUF012
        "sample": SAMPLERS,
        "gather": ("index_select", "GraphBolt feature"),
        "aggregate": ("update_all",),
        "dense": ("",),
        "epoch": SAMPLERS,
        "inference": ("batches of 4096", "batches of 65536", "all at once"),
    }

    def versions(self) -> dict[str, str]:
        return {"dgl": dgl.__version__, "torch": torch.__version__, "python": platform.python_version()}

    def open(self, folder: Path) -> None:
        self.x = self.y = self.train = self.indptr = self.indices = None
        self.x, self.y, self.train = load(folder, "x"), load(folder, "y").long(), load(folder, "train").long()
        self.indptr, self.indices = load(folder, "indptr"), load(folder, "indices").long()
        self.classes = int(self.y.max()) + 1

    def csc(self, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of in-neighbors, with a self loop each where the model wants that."""
        if settings["configuration"]["model"] == "sage":
            return self.indptr, self.indices
        nodes = torch.arange(len(self.indptr) - 1)
        dst = torch.cat([torch.repeat_interleave(nodes, self.indptr.diff()), nodes])
        order = torch.argsort(dst, stable=True)
        return self.indptr + torch.arange(len(self.indptr)), torch.cat([self.indices, nodes])[order]

    def graph(self, settings: Settings, int32: bool = False) -> Any:
        graph = dgl.graph(("csc", (*self.csc(settings), torch.empty(0, dtype=torch.int64))))
        graph = graph.int() if int32 else graph
        graph.create_formats_()
        return graph

    def batches(self, variant: str, settings: Settings, features: bool) -> Any:
        """A loader of batches."""
        config = settings["configuration"]
        workers, size = 2 if "2 workers" in variant else 0, config["batch_size"]
        fanouts = config["fanout"][::-1]  # both of DGL's samplers list the input side first
        if variant.startswith("GraphBolt"):
            graph = gb.fused_csc_sampling_graph(*self.csc(settings))
            items = gb.ItemSet((self.train, self.y[self.train]), names=("seed_nodes", "labels"))
            pipe = gb.ItemSampler(items, batch_size=size, shuffle=True).sample_neighbor(graph, fanouts)
            if features:
                store = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(self.x)})
                pipe = pipe.fetch_feature(store, node_feature_keys=["feat"])
            return gb.DataLoader(pipe, num_workers=workers)
        int32 = "int32" in variant
        graph = self.graph(settings, int32)
        options: dict[str, Any] = {"fused": "not fused" not in variant}
        if features:
            graph.ndata["feat"], graph.ndata["label"] = self.x, self.y
            options |= {"prefetch_node_feats": ["feat"], "prefetch_labels": ["label"]}
        sampler = dgl.dataloading.NeighborSampler(fanouts, **options)
        seeds = self.train.int() if int32 else self.train
        return dgl.dataloading.DataLoader(
            graph, seeds, sampler, batch_size=size, shuffle=True, drop_last=False, num_workers=workers,
            persistent_workers=workers > 0,
        )  # fmt: skip

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches without their features."""
        loader = self.batches(variant, settings, features=False)
        for _ in _first(loader, 2):
            pass  # starts the processes
        edges = steps = 0
        started = time.perf_counter()
        for batch in _first(loader, settings.get("steps")):
            edges += sum(block.num_edges() for block in _blocks(batch))
            steps += 1
        return {"seconds": time.perf_counter() - started, "edges": edges, "steps": steps}

    def gather(self, variant: str, settings: Settings) -> Result:
        """See the base class; GraphBolt's features cannot be read into a tensor that is there."""
        self._gathers_by_bolt = variant == "GraphBolt feature"
        if self._gathers_by_bolt and settings["into"] == "reused":
            raise NotImplementedError("GraphBolt's features are read into new tensors only")
        return super().gather(variant, settings)

    def gather_rows(self, table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if self._gathers_by_bolt:
            return gb.TorchBasedFeature(table).read(ids)
        return super().gather_rows(table, ids, out)

    def aggregate(self, variant: str, settings: Settings) -> Result:
        """The mean over every destination's neighbors, and its gradient."""
        found, width = load_blocks(settings["blocks"])[settings["layer"] - 1], settings["width"]
        backward, dst = settings["backward"], len(found["indptr"]) - 1
        x = torch.rand(found["num_src"], width, requires_grad=backward)
        grad, none = torch.rand(dst, width), torch.empty(0, dtype=torch.int64)

        def work() -> None:
            # A new block every time: other formats that it needs are part of the work.
            block = dgl.create_block(
                ("csc", (found["indptr"], found["indices"], none)), num_src_nodes=found["num_src"], num_dst_nodes=dst
            )
            block.srcdata["h"] = x
            block.update_all(fn.copy_u("h", "m"), fn.mean("m", "out"))
            if backward:
                block.dstdata["out"].backward(grad)
                x.grad = None

        return {"seconds": median_seconds(work), "edges": len(found["indices"])}

    def epoch(self, variant: str, settings: Settings) -> Result:
        """Epochs of the documentation's loop; the first one does not count."""
        config = settings["configuration"]
        torch.manual_seed(0)
        model, loader = Model(config, self.x.shape[1], self.classes), self.batches(variant, settings, features=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
        seconds, losses, edges, steps = [], [], 0, 0
        model.train()
        for _ in range(settings["epochs"]):
            started, total, seeds, edges, steps = time.perf_counter(), 0.0, 0, 0, 0
            for batch in _first(loader, settings.get("steps")):
                blocks = _blocks(batch)
                if isinstance(batch, gb.MiniBatch):
                    x, y = batch.node_features["feat"], batch.labels
                else:
                    x, y = blocks[0].srcdata["feat"], blocks[-1].dstdata["label"]
                optimizer.zero_grad()
                with autocast(config["precision"]):
                    loss = functional.cross_entropy(model(blocks, x).float(), y)
                loss.backward()
                optimizer.step()
                total += loss.item() * len(y)
                seeds += len(y)
                edges += sum(block.num_edges() for block in blocks)
                steps += 1
            seconds.append(time.perf_counter() - started)
            losses.append(total / seeds)
        return {"seconds": statistics.median(seconds[1:] or seconds), "losses": losses, "edges": edges, "steps": steps}

    def inference(self, variant: str, settings: Settings) -> Result:
        """The model's output for all nodes, over all neighbors: the examples' loop, or one call for all."""
        config = settings["configuration"]
        graph, model = self.graph(settings), Model(config, self.x.shape[1], self.classes).eval()
        started = time.perf_counter()
        with torch.no_grad(), autocast(config["precision"]):
            if variant == "all at once":
                h = model([graph] * len(model.convs), self.x)
            else:
                h = self._layer_wise(model, graph, int(variant.split()[-1]))
        return {"seconds": time.perf_counter() - started, "nodes": len(h)}

    def _layer_wise(self, model: Model, graph: Any, size: int) -> torch.Tensor:
        h = self.x
        for number in range(len(model.convs)):
            graph.ndata["h"] = h
            sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1, prefetch_node_feats=["h"])
            loader = dgl.dataloading.DataLoader(
                graph, torch.arange(graph.num_nodes()), sampler, batch_size=size, shuffle=False, drop_last=False
            )
            out = None
            for _, outputs, blocks in loader:
                rows = model.layer(number, blocks[0], blocks[0].srcdata["h"])
                if out is None:
                    out = torch.empty(graph.num_nodes(), rows.shape[1], dtype=rows.dtype)
                out[outputs[0] : outputs[-1] + 1] = rows
            h = out
        return h


def _first(loader: Any, steps: int | None) -> Iterator[Any]:
    """The first batches, or all."""
    for step, batch in enumerate(loader):
        if steps is not None and step == steps:
            return
        yield batch


def _blocks(batch: Any) -> list[Any]:
    return batch.blocks if isinstance(batch, gb.MiniBatch) else batch[2]


if __name__ == "__main__":
    serve(Dgl)
