"""PyTorch Geometric as a contender on typed graphs, as its documentation writes it. Started by ``compare.py``."""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import typing as available
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contender import Contender, Result, Settings, load, serve

warnings.filterwarnings("ignore")


class Model(nn.Module):
    """R-GCN: ``HeteroConv`` of means plus a linear map of the own row; R-GAT: as MLPerf has it."""

    def __init__(self, settings: Settings, about: dict[str, Any], widths: dict[str, int]) -> None:
        super().__init__()
        hidden, heads, layers = settings["hidden"], settings["heads"], len(settings["fanout"])
        triples = [tuple(each) for each in about["relations"]]
        self.encoder = nn.ModuleDict({name: nn.Linear(width, hidden) for name, width in widths.items()})
        self.convs, self.own, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for layer in range(layers):
            last = layer == layers - 1
            out = about["classes"] if last else hidden
            if settings["model"] == "rgcn":
                make: Any = lambda out=out: SAGEConv((hidden, hidden), out, root_weight=False, bias=False)  # noqa: E731
            else:
                make = lambda out=out, last=last: GATConv(  # noqa: E731
                    (hidden, hidden), out if last else out // heads, heads, concat=not last, add_self_loops=False
                )
            self.convs.append(HeteroConv({triple: make() for triple in triples}, aggr="sum"))
            self.own.append(nn.Linear(hidden, out) if settings["model"] == "rgcn" else nn.Identity())
            self.norms.append(nn.LayerNorm(out))
        self.own_rows = settings["model"] == "rgcn"

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        h = {name: self.encoder[name](rows.float()) for name, rows in x.items()}
        for layer, (conv, own, norm) in enumerate(zip(self.convs, self.own, self.norms)):
            found = conv(h, edges)
            if self.own_rows:
                found = {name: rows + own(h[name]) for name, rows in found.items()}
            if layer == len(self.convs) - 1:
                return found
            h = {name: functional.relu(norm(rows)) for name, rows in found.items()}
        raise AssertionError


class PyG(Contender):
    """Mini-batches of ``NeighborLoader`` over ``HeteroData``."""

    name = "PyG"
    variants = {"sample": ("", "2 workers"), "epoch": ("", "2 workers")}  # noqa: RUF012

    def versions(self) -> dict[str, str]:
        found = {"torch-geometric": torch_geometric.__version__, "torch": torch.__version__}
        sampler = "pyg-lib" if available.WITH_PYG_LIB else "torch-sparse" if available.WITH_TORCH_SPARSE else "none"
        return found | {"python": platform.python_version(), "sampler": sampler}

    def open(self, folder: Path) -> None:
        """Nothing yet: what holds a graph in memory is counted with the first stage."""
        self.folder, self.loaded = folder, False

    def load(self) -> None:
        """Read the arrays, once."""
        if self.loaded:
            return
        folder, self.loaded = self.folder, True
        self.about = about = json.loads((folder / "about.json").read_text())
        indptr, indices, kinds = load(folder, "indptr"), load(folder, "indices").long(), load(folder, "edge_type")
        dst = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
        first = dict(zip(about["node_types"], [0, *torch.tensor(about["num_nodes"]).cumsum(0).tolist()]))
        self.data = HeteroData()
        y = load(folder, "y").long()
        for number, (name, count) in enumerate(zip(about["node_types"], about["num_nodes"])):
            self.data[name].x = load(folder, f"x_{number}")
            self.data[name].num_nodes = count
        papers = about["node_types"][0]
        self.data[papers].y = y[: about["num_nodes"][0]]
        for number, (source, name, target) in enumerate(about["relations"]):
            at = kinds == number
            ends = torch.stack([indices[at] - first[source], dst[at] - first[target]])
            self.data[source, name, target].edge_index = ends
        self.papers, self.train = papers, load(folder, "train").long()
        self.widths = {name: self.data[name].x.shape[1] for name in about["node_types"]}

    def loader(self, variant: str, settings: Settings, features: bool) -> NeighborLoader:
        data, workers = self.data, 2 if variant else 0
        if not features:
            data = HeteroData()
            for name in self.about["node_types"]:
                data[name].num_nodes = self.data[name].num_nodes
            for triple in self.data.edge_types:
                data[triple].edge_index = self.data[triple].edge_index
        return NeighborLoader(
            data, num_neighbors=list(settings["fanout"]), input_nodes=(self.papers, self.train), shuffle=True,
            batch_size=settings["batch_size"], num_workers=workers, persistent_workers=workers > 0,
        )  # fmt: skip

    def sample(self, variant: str, settings: Settings) -> Result:
        """An epoch's batches without their features."""
        self.load()
        loader = self.loader(variant, settings, features=False)
        next(iter(loader))
        started, edges, steps = time.perf_counter(), 0, 0
        for batch in loader:
            edges += sum(ends.shape[1] for ends in batch.edge_index_dict.values())
            steps += 1
        return {"seconds": time.perf_counter() - started, "edges": edges, "steps": steps}

    def epoch(self, variant: str, settings: Settings) -> Result:
        """Epochs of the documentation's loop; the first one does not count."""
        self.load()
        torch.manual_seed(0)
        loader, model = self.loader(variant, settings, features=True), Model(settings, self.about, self.widths)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
        seconds, losses, edges = [], [], 0
        for _ in range(settings["epochs"]):
            started, total, edges, steps = time.perf_counter(), 0.0, 0, 0
            for batch in loader:
                optimizer.zero_grad()
                size = batch[self.papers].batch_size
                out = model(batch.x_dict, batch.edge_index_dict)[self.papers][:size]
                loss = functional.cross_entropy(out, batch[self.papers].y[:size])
                loss.backward()
                optimizer.step()
                total += float(loss) * size
                edges += sum(ends.shape[1] for ends in batch.edge_index_dict.values())
                steps += 1
            seconds.append(time.perf_counter() - started)
            losses.append(total / len(self.train))
        return {"seconds": statistics.median(seconds[1:]), "losses": losses, "edges": edges, "steps": steps}


if __name__ == "__main__":
    serve(PyG)
