"""DGL as a contender on typed graphs: GraphBolt, and the loader before it. Started by ``compare.py``."""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

warnings.filterwarnings("ignore")
import dgl  # noqa: E402
import dgl.graphbolt as gb  # noqa: E402
from dgl.nn import GATConv, GraphConv, HeteroGraphConv  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contender import Contender, Result, Settings, load, serve  # noqa: E402


class Model(nn.Module):
    """R-GCN: ``HeteroGraphConv`` of means plus a linear map of the own row; R-GAT: as MLPerf has it."""

    def __init__(self, settings: Settings, about: dict[str, Any], widths: dict[str, int]) -> None:
        super().__init__()
        hidden, heads, layers = settings["hidden"], settings["heads"], len(settings["fanout"])
        names = [name for _, name, _ in about["relations"]]
        self.encoder = nn.ModuleDict({name: nn.Linear(width, hidden) for name, width in widths.items()})
        self.convs, self.own, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.is_gcn = settings["model"] == "rgcn"
        for layer in range(layers):
            last = layer == layers - 1
            out = about["classes"] if last else hidden
            convs = {
                name: GraphConv(hidden, out, norm="right", bias=False, allow_zero_in_degree=True)
                if self.is_gcn
                else GATConv(hidden, out if last else out // heads, heads, allow_zero_in_degree=True)
                for name in names
            }
            self.convs.append(HeteroGraphConv(convs, aggregate="sum"))
            self.own.append(nn.Linear(hidden, out) if self.is_gcn else nn.Identity())
            self.norms.append(nn.LayerNorm(out))

    def forward(self, blocks: list[Any], x: dict[str, Tensor]) -> dict[str, Tensor]:
        h = {name: self.encoder[name](rows.float()) for name, rows in x.items()}
        for layer, (block, conv, own, norm) in enumerate(zip(blocks, self.convs, self.own, self.norms)):
            last = layer == len(self.convs) - 1
            of_dst = {name: rows[: block.num_dst_nodes(name)] for name, rows in h.items()}
            found = conv(block, (h, of_dst))
            if self.is_gcn:
                found = {name: rows + own(of_dst[name]) for name, rows in found.items()}
            else:
                found = {name: rows.mean(1) if last else rows.flatten(1) for name, rows in found.items()}
            h = found if last else {name: functional.relu(norm(rows)) for name, rows in found.items()}
        return h


class Dgl(Contender):
    """Mini-batches of GraphBolt over a fused graph, and of ``DataLoader`` over a heterograph."""

    name = "DGL"
    variants = {"sample": ("GraphBolt", "DataLoader"), "epoch": ("GraphBolt", "DataLoader")}  # noqa: RUF012

    def versions(self) -> dict[str, str]:
        return {"dgl": dgl.__version__, "torch": torch.__version__, "python": platform.python_version()}

    def open(self, folder: Path) -> None:
        """Nothing yet: what holds a graph in memory is counted with the first stage."""
        self.folder, self.loaded = folder, False

    def load(self) -> None:
        """Read the arrays, once."""
        if self.loaded:
            return
        folder, self.loaded = self.folder, True
        self.about = about = json.loads((folder / "about.json").read_text())
        self.names, self.triples = about["node_types"], [tuple(each) for each in about["relations"]]
        self.offsets = torch.tensor([0, *about["num_nodes"]]).cumsum(0)
        self.indptr, self.indices = load(folder, "indptr"), load(folder, "indices").long()
        self.kinds, self.train = load(folder, "edge_type"), load(folder, "train").long()
        self.x = {name: load(folder, f"x_{number}") for number, name in enumerate(self.names)}
        self.y, self.papers = load(folder, "y").long()[: about["num_nodes"][0]], self.names[0]
        self.widths = {name: rows.shape[1] for name, rows in self.x.items()}
        self._graphs: dict[str, Any] = {}

    def graph(self, variant: str) -> Any:
        """Made once."""
        if variant not in self._graphs:
            self._graphs.clear()
            self._graphs[variant] = self.fused() if variant == "GraphBolt" else self.heterograph()
        return self._graphs[variant]

    def fused(self) -> Any:
        types = {":".join(triple): at for at, triple in enumerate(self.triples)}
        return gb.fused_csc_sampling_graph(
            self.indptr, self.indices, node_type_offset=self.offsets, type_per_edge=self.kinds,
            node_type_to_id={name: at for at, name in enumerate(self.names)}, edge_type_to_id=types,
        )  # fmt: skip

    def heterograph(self) -> Any:
        dst = torch.repeat_interleave(torch.arange(len(self.indptr) - 1), self.indptr.diff())
        first = dict(zip(self.names, self.offsets.tolist()))
        edges = {}
        for number, (source, name, target) in enumerate(self.triples):
            at = self.kinds == number
            edges[source, name, target] = (self.indices[at] - first[source], dst[at] - first[target])
        graph = dgl.heterograph(edges, dict(zip(self.names, self.about["num_nodes"])))
        graph.create_formats_()
        return graph

    def batches(self, variant: str, settings: Settings, features: bool) -> Iterator[tuple[list[Any], Any, Tensor]]:
        """Blocks, features and labels of every batch."""
        graph, fanouts = self.graph(variant), settings["fanout"][::-1]
        if variant == "GraphBolt":
            items = gb.ItemSetDict(
                {self.papers: gb.ItemSet((self.train, self.y[self.train]), names=("seed_nodes", "labels"))}
            )
            each = [torch.full((len(self.triples),), number) for number in fanouts]
            pipe = gb.ItemSampler(items, batch_size=settings["batch_size"], shuffle=True).sample_neighbor(graph, each)
            if features:
                store = gb.BasicFeatureStore(
                    {("node", name, "feat"): gb.TorchBasedFeature(rows) for name, rows in self.x.items()}
                )
                pipe = pipe.fetch_feature(store, node_feature_keys={name: ["feat"] for name in self.names})
            for batch in gb.DataLoader(pipe, num_workers=0):
                x = {name: batch.node_features[name, "feat"] for name in self.names} if features else None
                labels = batch.labels[self.papers] if isinstance(batch.labels, dict) else batch.labels
                yield batch.blocks if features else batch.sampled_subgraphs, x, labels
            return
        sampler = dgl.dataloading.NeighborSampler(fanouts)
        loader = dgl.dataloading.DataLoader(
            graph, {self.papers: self.train}, sampler, batch_size=settings["batch_size"], shuffle=True, drop_last=False,
            num_workers=0,
        )  # fmt: skip
        for sources, seeds, blocks in loader:
            x = {name: self.x[name][ids] for name, ids in sources.items()} if features else None
            yield blocks, x, self.y[seeds[self.papers]]

    def edges(self, blocks: list[Any]) -> int:
        """Sampled edges, of GraphBolt's subgraphs or of blocks."""
        return sum(
            sum(len(each.indices) for each in block.sampled_csc.values())
            if hasattr(block, "sampled_csc")
            else block.num_edges()
            for block in blocks
        )

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches without their features."""
        self.load()
        next(iter(self.batches(variant, settings, features=False)))
        started, edges, steps = time.perf_counter(), 0, 0
        for blocks, _, _ in self.batches(variant, settings, features=False):
            edges += self.edges(blocks)
            steps += 1
        return {"seconds": time.perf_counter() - started, "edges": edges, "steps": steps}

    def epoch(self, variant: str, settings: Settings) -> Result:
        """Epochs of the documentation's loop; the first one does not count."""
        self.load()
        torch.manual_seed(0)
        model = Model(settings, self.about, self.widths)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
        seconds, losses, edges = [], [], 0
        self.graph(variant)
        for _ in range(settings["epochs"]):
            started, total, edges, steps = time.perf_counter(), 0.0, 0, 0
            for blocks, x, y in self.batches(variant, settings, features=True):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(blocks, x)[self.papers], y)
                loss.backward()
                optimizer.step()
                total += float(loss) * len(y)
                edges += self.edges(blocks)
                steps += 1
            seconds.append(time.perf_counter() - started)
            losses.append(total / len(self.train))
        return {"seconds": statistics.median(seconds[1:]), "losses": losses, "edges": edges, "steps": steps}


if __name__ == "__main__":
    serve(Dgl)
