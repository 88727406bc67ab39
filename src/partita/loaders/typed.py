"""Mini-batches of typed graphs, as models of PyG take them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
from jaxtyping import Float, Int, Int64, Num
from torch import Tensor

from partita.graph.metadata import TYPE_PREFIX
from partita.graph.store import GraphStore
from partita.loaders.batch import as_shown, changed
from partita.loaders.columns import column_of
from partita.sample.topology import as_tensor

EdgeType = tuple[str, str, str]
"""Source type, name and destination type of a relation, as PyG names it."""


@dataclass(repr=False)
class TypedBatch:
    """A sampled subgraph of a typed graph. Nodes are numbered from 0 within their type; the seeds are the first nodes
    of theirs.

    Names are those of PyG's ``HeteroData`` in batches of ``NeighborLoader``. All relations are there, also where a
    batch has no edges of them; and all types of nodes.

    Attributes:
        n_id_dict: of each type (n) rows of the nodes among those of the type: row i is that of
            ``store.nodes_of(type)[i]``, and of ``store.x_of(type)[i]``.
        edge_index_dict: of each relation (2, e) from source to destination, as positions in ``n_id_dict`` of the types
            of its ends.
        e_id_dict: of each relation (e) positions of the edges in the store's ``indices``.
        input_type: the type of the seeds.
        batch_size: B, how many of the first nodes of that type are seeds.
        input_id: (B) positions of the seeds in the loader's ``input_nodes``.
        num_sampled_nodes_dict: of each type, seeds, then nodes that each hop found.
        num_sampled_edges_dict: of each relation, edges that each hop drew.
        x_dict: (n, F) features of the types that have some, F as the type has it.
        y_dict: (n, ...) labels of the seeds' type; empty where the store has none.
        edge_weight_dict: of each relation (e) float32; empty where the store has none.
        edge_attr_dict: of each relation (e, A) float32, features of the edges; empty where the store has none.
        seed_time: (B) when the seeds are asked about, where edges are drawn by time; else ``None``.
        time_dict: of each type (n) the time of the seeds that each node was found for, once for each such time; empty
            without times.
    """

    n_id_dict: dict[str, Int64[Tensor, "n"]]
    edge_index_dict: dict[EdgeType, Int64[Tensor, "2 e"]]
    e_id_dict: dict[EdgeType, Int64[Tensor, "e"]]
    input_type: str
    batch_size: int
    input_id: Int64[Tensor, "B"]
    num_sampled_nodes_dict: dict[str, list[int]]
    num_sampled_edges_dict: dict[EdgeType, list[int]]
    x_dict: dict[str, Float[Tensor, "n F"]]
    y_dict: dict[str, Num[Tensor, "n ..."]]
    edge_weight_dict: dict[EdgeType, Float[Tensor, "e"]]
    edge_attr_dict: dict[EdgeType, Float[Tensor, "e A"]]
    seed_time: Int64[Tensor, "B"] | None = None
    time_dict: dict[str, Int64[Tensor, "n"]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return as_shown(self)

    @property
    def num_nodes(self) -> int:
        """Of all types together."""
        return sum(map(len, self.n_id_dict.values()))

    @property
    def num_edges(self) -> int:
        """Of all relations together."""
        return sum(map(len, self.e_id_dict.values()))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The same batch with its tensors on a device, as in PyG: the batch itself is changed."""
        return changed(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch with its tensors in pinned memory, from which devices copy faster."""
        return changed(self, lambda tensor: tensor.pin_memory())


class TypedRows:
    """Puts the nodes and edges of a sample into those of each type and relation, with their features.

    Args:
        store: a typed graph.
    """

    def __init__(self, store: GraphStore) -> None:
        assert store.schema is not None
        self._store, self._schema = store, store.schema
        self._relations = [(each.source, each.name, each.target) for each in self._schema.relations]
        columns = {name: f"{TYPE_PREFIX}{number}" for number, name in enumerate(self._schema.node_types)}
        self._x = {name: column_of(store, column) for name, column in columns.items() if store.has(column)}
        y, weight, attr = store.y, store.edge_weight, store.edge_attr
        self._y = None if y is None else as_tensor(y)
        self._weight = None if weight is None else as_tensor(weight)
        self._attr = None if attr is None else as_tensor(attr)

    def batch(
        self,
        nodes: Int[Tensor, "n"],
        edge_index: Int64[Tensor, "2 e"],
        edge_type: Int[Tensor, "e"],
        e_id: Int64[Tensor, "e"],
        *,
        places: Int64[Tensor, "B"],
        hops_of_nodes: list[int],
        hops_of_edges: list[int],
        seed_time: Int64[Tensor, "B"] | None = None,
        time: Int64[Tensor, "n"] | None = None,
    ) -> TypedBatch:
        """A batch.

        Args:
            nodes: store ids, as they were found; the seeds first, all of one type.
            edge_index: positions in ``nodes``.
            edge_type: number of the relation of each edge.
            e_id: position of each edge in the store.
            places: of the seeds among all seeds.
            seed_time, time: of the seeds and of all nodes, where edges are drawn by time.
            hops_of_nodes, hops_of_edges: how many of the nodes and edges each hop has found; the seeds are the first.
        """
        ids, names = nodes.numpy(), self._schema.node_types
        kinds, rows = torch.from_numpy(self._store.types(ids)), torch.from_numpy(self._store.type_rows(ids))
        hop_of_node = torch.repeat_interleave(torch.tensor(hops_of_nodes))
        hop_of_edge = torch.repeat_interleave(torch.tensor(hops_of_edges))
        local, n_id, found, x = torch.empty_like(rows), dict[str, Tensor](), dict[str, list[int]](), dict[str, Tensor]()
        times = dict[str, Tensor]()
        for number, name in enumerate(names):
            at = torch.nonzero(kinds == number).reshape(-1)
            local[at] = torch.arange(len(at))
            n_id[name] = rows[at]
            found[name] = torch.bincount(hop_of_node[at], minlength=len(hops_of_nodes)).tolist()
            if time is not None:
                times[name] = time[at]
            if name in self._x:
                x[name] = self._x[name].read(rows[at])
        edges, of_store, drawn = dict[EdgeType, Tensor](), dict[EdgeType, Tensor](), dict[EdgeType, list[int]]()
        for number, triple in enumerate(self._relations):
            at = torch.nonzero(edge_type == number).reshape(-1)
            edges[triple], of_store[triple] = local[edge_index[:, at]], e_id[at]
            drawn[triple] = torch.bincount(hop_of_edge[at], minlength=len(hops_of_edges)).tolist()
        input_type = names[int(kinds[0])]
        seeds_type = nodes.long()[kinds == kinds[0]]
        return TypedBatch(
            n_id_dict=n_id,
            edge_index_dict=edges,
            e_id_dict=of_store,
            input_type=input_type,
            batch_size=len(places),
            input_id=places,
            num_sampled_nodes_dict=found,
            num_sampled_edges_dict=drawn,
            x_dict=x,
            y_dict={} if self._y is None else {input_type: self._y[seeds_type]},
            edge_weight_dict={}
            if self._weight is None
            else {triple: self._weight[at].float() for triple, at in of_store.items()},
            edge_attr_dict={}
            if self._attr is None
            else {triple: self._attr[at].float() for triple, at in of_store.items()},
            seed_time=seed_time,
            time_dict=times,
        )
