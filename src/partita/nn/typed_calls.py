"""Modules of typed graphs: their forward takes dictionaries by type and relation, as PyG's ``HeteroData`` has them.

PyG is not imported: what a module calls is recognized by its class.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.fx
from jaxtyping import Float
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.node_types import NodeTypes
from partita.core.records import Block, RowsByType
from partita.nn.layers.convolutions import is_convolution
from partita.nn.layers.hetero import EdgeType, edge_width_of, places
from partita.nn.relations import Groups, relations_of

SIGNATURE = "forward(self, x_dict, edge_index_dict) or forward(self, x_dict, edge_index_dict, edge_attr_dict)"


@dataclass(frozen=True)
class GraphTypes:
    """What a module of a typed graph must know of the graph.

    Attributes:
        node_types: their names, by number.
        relations: source type, name and destination type of each, by number.
        widths: feature columns of each node type; 0 of types without features.
        edge_width: columns of the features of edges; 0: there are none.
        seed_types: names of the types whose rows are asked for.
    """

    node_types: tuple[str, ...]
    relations: tuple[EdgeType, ...]
    widths: tuple[int, ...]
    edge_width: int
    seed_types: tuple[str, ...]

    @property
    def metadata(self) -> tuple[list[str], list[EdgeType]]:
        """As PyG's ``HeteroData.metadata()``."""
        return list(self.node_types), list(self.relations)

    @property
    def ends(self) -> list[list[int]]:
        """Numbers of the types that each relation comes from and leads to."""
        return [[self.node_types.index(source), self.node_types.index(to)] for source, _, to in self.relations]

    def x_dict(self, rows: RowsByType) -> dict[str, Float[Tensor, "n F"]]:
        """Rows by type; a column of ones of types without features."""
        return {
            name: of_type if of_type.shape[1] else of_type.new_ones(of_type.shape[0], 1)
            for name, of_type in zip(self.node_types, rows.rows, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> GraphTypes:
        """The inverse of :meth:`to_json`."""
        relations = tuple((str(source), str(name), str(to)) for source, name, to in values["relations"])
        names, seeds = tuple(map(str, values["node_types"])), tuple(map(str, values["seed_types"]))
        return cls(names, relations, tuple(map(int, values["widths"])), int(values["edge_width"]), seeds)


class TypedCall:
    """Calls a module with dictionaries, and puts the edges of each layer before its convolutions.

    The module computes the rows of all nodes in every layer, as it does in PyG; but its n-th layer is given the edges
    of the n-th block, so only rows that later layers need are right, which are those of the seeds in the end.

    Args:
        module: its forward takes ``(x_dict, edge_index_dict)``, and ``edge_attr_dict`` where it wants that.
        types: of the graph.
        where: for messages.

    Attributes:
        types: as given.
        reads_edges: the module takes the features of edges.

    Raises:
        ConfigError: the forward takes something else, or features of edges that there are none of.
    """

    def __init__(self, module: nn.Module, types: GraphTypes, where: str) -> None:
        self.types, self._where = types, where
        taken = inspect.signature(module.forward).parameters
        names = list(taken)
        if names[1:2] == ["edge_index"] and not isinstance(module, torch.fx.GraphModule):  # as to_hetero makes them
            raise ConfigError(
                f"forward takes ({', '.join(names)}), as models of untyped graphs do, and the graph is typed",
                where=where,
                fix="Let a function return to_hetero(model, metadata), of torch_geometric.nn, and name that function",
            )
        if names[1:2] not in (["edge_index"], ["edge_index_dict"]):
            what = f"forward takes ({', '.join(names)}), which Partita cannot call on a typed graph"
            raise ConfigError(what, where=where, fix=f"Write {SIGNATURE}")
        self._edge_name = "edge_attr_dict" if "edge_attr_dict" in names else "edge_attr"
        edges = taken.get(self._edge_name)
        # PyG's own models take them, but do not need them.
        self.reads_edges = edges is not None and (edges.default is edges.empty or edge_width_of(module) > 0)
        if self.reads_edges and not types.edge_width:
            raise ConfigError(
                "the model reads the features of edges, and the graph has none",
                where=where,
                fix="Ingest the graph with edge features, or use another model",
            )

    def __call__(self, module: nn.Module, blocks: Sequence[Block], rows: RowsByType) -> Float[Tensor, "D out"]:
        """Rows of the destinations of the last block.

        Args:
            module: the module, or a copy of it.
            blocks: one per layer, the input-side one first.
            rows: of the sources of the first one.

        Raises:
            ConfigError: the module calls convolutions in another way, or returns other rows.
        """
        rows = _widened(rows, module)
        edges = [self._edges(block, rows) for block in blocks]
        with self._by_layer(module, edges) as used:
            found = self._forward(module, rows, *edges[0])
        layers = max(used.values(), default=0)
        if layers != len(blocks):
            raise ConfigError(
                f"the model has {layers} layers of convolutions, but layers is {len(blocks)}",
                where=self._where,
                fix=f"Set layers={layers}" if layers else f"Its convolutions must be PyG's, in {SIGNATURE}",
            )
        return self._of_seeds(found, rows, blocks[-1].num_dst)

    def whole(self, module: nn.Module, block: Block, rows: RowsByType, count: int) -> Float[Tensor, "D out"]:
        """Rows of the first so many nodes of a block with all nodes and edges of a graph, as PyG computes them."""
        return self._of_seeds(self._forward(module, rows, *self._edges(block, rows)), rows, count)

    def _forward(
        self, module: nn.Module, rows: RowsByType, index: dict[EdgeType, Tensor], attr: dict[EdgeType, Tensor]
    ) -> Any:
        more = {self._edge_name: attr} if self.reads_edges else {}
        return module(self.types.x_dict(rows), index, **more)

    def _edges(self, block: Block, rows: RowsByType) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
        """The edges of a block by relation, from places of sources to places of destinations, both among the nodes of
        their types; and their features."""
        relations, local = self.types.relations, places(rows.at)
        groups = Groups.of(relations_of(block), len(relations))
        ends = torch.stack([local[block.indices.long()], local[block.edge_dst()]])[:, groups.order]
        index = dict(zip(relations, ends.split(groups.sizes, dim=1), strict=True))
        if not self.reads_edges:
            return index, {}
        assert block.edge_attr is not None
        features = block.edge_attr[groups.order].to(rows.rows[0].dtype)
        return index, dict(zip(relations, features.split(groups.sizes), strict=True))

    @contextmanager
    def _by_layer(
        self, module: nn.Module, edges: Sequence[tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]]
    ) -> Iterator[dict[EdgeType, int]]:
        """Inside the block the n-th use of a relation takes its n-th edges; yields the uses of each so far."""
        used = dict[EdgeType, int]()
        relation_of = {id(index): relation for relation, index in edges[0][0].items()}
        feature_of = {id(attr): relation for relation, attr in edges[0][1].items()}

        def before(conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            there = [relation_of[id(each)] for each in _tensors((args, kwargs)) if id(each) in relation_of]
            if not there:
                raise ConfigError(
                    f"a {type(conv).__name__} of the model is not given edges of edge_index_dict as they are",
                    where=self._where,
                    fix="Give its convolutions edge_index_dict, or the edges of a relation in it, unchanged",
                )
            layer = max(used.get(relation, 0) for relation in there)
            if layer >= len(edges):
                what = f"the model has more layers of convolutions than layers={len(edges)}"
                raise ConfigError(what, where="layers", fix=f"Set layers={layer + 1} or more")
            used.update(dict.fromkeys(there, layer + 1))
            index, attr = edges[layer]

            def own(tensor: Tensor) -> Tensor:
                if id(tensor) in relation_of:
                    return index[relation_of[id(tensor)]]
                return attr[feature_of[id(tensor)]] if id(tensor) in feature_of else tensor

            return _replaced(args, own), _replaced(kwargs, own)

        hooks = [each.register_forward_pre_hook(before, with_kwargs=True) for each in convolutions(module)]
        try:
            yield used
        finally:
            for hook in hooks:
                hook.remove()

    def _of_seeds(self, found: Any, rows: RowsByType, count: int) -> Float[Tensor, "D out"]:
        """Rows of the first so many nodes, from what the module returned."""
        sizes = [int(torch.searchsorted(at, count)) for at in rows.at]
        names = self.types.node_types
        wanted = [kind for kind, size in enumerate(sizes) if size or names[kind] in self.types.seed_types]
        if isinstance(found, Tensor):
            asked = [kind for kind in wanted if sizes[kind]] or wanted[:1]
            if len(asked) != 1:
                raise self._refusal("rows of one node type, where seeds have several", "Return a dictionary of rows")
            found, wanted = {names[asked[0]]: found}, asked
        if not isinstance(found, Mapping):
            raise self._refusal(f"a {type(found).__name__}", "Return a dictionary of rows by node type, or those")
        pieces, order = list[Tensor](), list[Tensor]()
        for kind in wanted:
            of_type = found.get(names[kind])
            if not isinstance(of_type, Tensor) or of_type.dim() != 2 or of_type.shape[0] != len(rows.at[kind]):
                shape = tuple(of_type.shape) if isinstance(of_type, Tensor) else "nothing"
                what = f"{shape} for the {len(rows.at[kind])} nodes of type '{names[kind]}'"
                raise self._refusal(what, "Let it return a row for every node of the seeds' type, in their order")
            pieces.append(of_type[: sizes[kind]])
            order.append(rows.at[kind][: sizes[kind]])
        if len({piece.shape[1] for piece in pieces}) != 1:
            raise self._refusal("other columns for each of the seeds' types", "Return as many columns for all")
        place = torch.empty(count, dtype=torch.int64)
        place[torch.cat(order)] = torch.arange(count)
        return torch.cat(pieces)[place]

    def _refusal(self, what: str, fix: str) -> ConfigError:
        return ConfigError(f"the model returned {what}", where=self._where, fix=fix)

    def small(
        self, seeds: int, layers: int, dtype: torch.dtype
    ) -> tuple[list[Block], RowsByType, tuple[Block, RowsByType]]:
        """Blocks of a small graph with all neighbors, rows of their nodes; and all of the graph, seeds first.

        Every node v of a type has the in-neighbors v + 2 and v + 5 of every relation into the type.

        Args:
            seeds: how many, of the first type that seeds have.
            layers: so many blocks.
            dtype: of the rows.
        """
        types = self.types
        size, count = 5 * layers + 2, len(types.node_types)
        generator = torch.Generator().manual_seed(1)
        x = [torch.randn(size, width, generator=generator).to(dtype) for width in types.widths]
        attr = torch.randn(len(types.relations), size, 2, types.edge_width, generator=generator).to(dtype)
        target = types.node_types.index(types.seed_types[0])
        node_types, ends = NodeTypes(np.arange(count + 1) * size, count), types.ends

        def block(nodes: list[int]) -> tuple[Block, list[int]]:
            at = {node: place for place, node in enumerate(nodes)}
            indptr, indices, kinds, features = [0], list[int](), list[int](), list[Tensor]()
            for node in nodes:
                for number, (source, to) in enumerate(ends):
                    for place, step in enumerate((2, 5) if to == node // size else ()):
                        neighbor = source * size + (node % size + step) % size
                        indices.append(at.setdefault(neighbor, len(at)))
                        kinds.append(number)
                        features.append(attr[number, node % size, place])
                indptr.append(len(indices))
            dst = torch.tensor(nodes)
            made = Block(
                dst=dst,
                src=torch.tensor(list(at)),
                indptr=torch.tensor(indptr),
                indices=torch.tensor(indices, dtype=torch.int32),
                dst_original=dst,
                edge_type=torch.tensor(kinds, dtype=torch.int32),
                node_types=node_types,
                edge_attr=torch.stack(features) if self.reads_edges and features else None,
            )
            return made, list(at)

        def rows(nodes: list[int]) -> RowsByType:
            ids = torch.tensor(nodes)
            at = tuple(torch.nonzero(ids // size == kind).flatten() for kind in range(count))
            return RowsByType(at, tuple(x[kind][ids[each] % size] for kind, each in enumerate(at)), len(nodes))

        nodes, blocks = [target * size + seed for seed in range(seeds)], list[Block]()
        for _ in range(layers):
            made, nodes = block(nodes)
            blocks.insert(0, made)
        first = [target * size + seed for seed in range(seeds)]
        everyone = first + [node for node in range(count * size) if node not in first]
        all_nodes, _ = block(everyone)
        return blocks, rows(nodes), (all_nodes, rows(everyone))


def _widened(rows: RowsByType, module: nn.Module) -> RowsByType:
    """Rows in the dtype of the module's parameters, as stores may hold others."""
    dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32)
    return replace(rows, rows=tuple(each.to(dtype) for each in rows.rows))


def convolutions(module: nn.Module) -> list[nn.Module]:
    """PyG's convolutions in a module, also those of typed graphs; those inside another one left out."""
    if is_convolution(type(module)) or is_hetero_conv(module):
        return [module]
    return [found for child in module.children() for found in convolutions(child)]


def is_hetero_conv(module: nn.Module) -> bool:
    """Whether it is PyG's ``HeteroConv``. PyG is not imported for it."""
    return any(
        base.__name__ == "HeteroConv" and base.__module__.startswith("torch_geometric.")
        for base in type(module).__mro__
    )


def layers_of_typed(module: nn.Module) -> int:
    """The number of a module's layers of convolutions: those of one layer that ``to_hetero`` made are in one
    dictionary."""
    if is_convolution(type(module)) or is_hetero_conv(module):
        return 1
    if isinstance(module, nn.ModuleDict) and module and all("__" in name for name in module):
        return int(all(is_convolution(type(each)) for each in module.values()))
    return sum(map(layers_of_typed, module.children()))


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        for each in values.values():
            yield from _tensors(each)
    elif isinstance(values, (tuple, list)):
        for each in values:
            yield from _tensors(each)


def _replaced(values: Any, own: Any) -> Any:
    if isinstance(values, Tensor):
        return own(values)
    if isinstance(values, Mapping):
        return {name: _replaced(each, own) for name, each in values.items()}
    if isinstance(values, (tuple, list)):
        return type(values)(_replaced(each, own) for each in values)
    return values
