"""A graph that lacks some edges, made by taking them out of its arrays: what draws without them are compared with."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

from partita.core.records import TargetEdges
from partita.sample.topology import ArrayTopology


def some_edges(topology: ArrayTopology, every: int) -> TargetEdges:
    """One of so many edges and its reverse; of typed graphs the relations of some, and of others all relations."""
    arrays = topology.arrays()
    row = torch.repeat_interleave(torch.arange(topology.num_nodes), arrays["indptr"].diff())
    some = torch.arange(every // 2, len(row), every)
    dst, src = row[some], arrays["indices"][some].long()
    pairs = torch.cat([dst, src]), torch.cat([src, dst])
    if arrays["edge_type"] is None or every % 2:
        return TargetEdges(*pairs)
    return TargetEdges(*pairs, arrays["edge_type"][some].long().repeat(2))


def lacking(topology: ArrayTopology, targets: TargetEdges) -> ArrayTopology:
    """The same graph without all edges between these pairs, and with columns of nodes that are made anew."""
    arrays = topology.arrays()
    row = torch.repeat_interleave(torch.arange(topology.num_nodes), arrays["indptr"].diff())
    kinds = [-1] * len(targets.dst) if targets.edge_type is None else targets.edge_type.tolist()
    lost = set(zip(targets.dst.tolist(), targets.src.tolist(), kinds))
    edge_kinds = None if arrays["edge_type"] is None or targets.edge_type is None else arrays["edge_type"].tolist()
    edges = zip(row.tolist(), arrays["indices"].tolist(), edge_kinds or [-1] * len(row))
    left = torch.tensor([edge not in lost for edge in islice(edges, len(row))], dtype=torch.bool)
    kept = {
        name: None if arrays[name] is None else torch.from_numpy(arrays[name].numpy()[left.numpy()])
        for name in ("indices", "weights", "edge_type")
    }
    row, indices = row[left], kept["indices"]
    loops = row == indices
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), row.bincount(minlength=topology.num_nodes).cumsum(0)])
    rows = {name: column[left] for name, column in arrays["edge_rows"].items()}
    changed: dict[str, Any] = {**arrays, **kept, "indptr": indptr, "degree_offsets": indptr, "edge_rows": rows}
    changed["self_loops"] = row[loops].bincount(minlength=topology.num_nodes).int()
    if "edge_weight" in rows:
        weight = rows["edge_weight"].double()
        sums, own = torch.zeros(topology.num_nodes, dtype=torch.float64), torch.ones(topology.num_nodes).double()
        changed["weight_sums"] = sums.index_add_(0, row[~loops], weight[~loops])
        for node, each in zip(row[loops].tolist(), weight[loops].tolist()):
            own[node] = each
        changed["loop_weights"] = own
    return ArrayTopology(**changed)
