"""PyG's ``HeteroConv`` as a layer of typed graphs. PyG itself is not imported: the convolutions are only called."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn import ops
from partita.nn.layers.pyg import PygLayer
from partita.nn.relations import Groups, relations_of

EdgeType = tuple[str, str, str]
"""Source type, name and destination type of a relation, as PyG names it."""
Metadata = Sequence[Any]
"""Names of node types, and relations of three names each, as of PyG's ``HeteroData.metadata()``, by number."""


class HeteroLayer(PygLayer):
    """Wraps a ``HeteroConv``: a convolution for every relation, whose rows of a destination are summed, averaged, ....

    A convolution of a relation is given the sources and the destinations of the types at its ends, and computes rows
    of all destinations of its type, also of those without an edge of the relation, as in PyG. Nodes of a type that no
    convolution leads to have rows of zeros; PyG leaves them out, and what reads them fails there.

    As for :class:`~partita.nn.layers.pyg.PygLayer`, every edge of a destination must be at one place.

    Args:
        conv: the ``HeteroConv``. Widths that its convolutions leave open (-1) are filled in with ``in_width``.
        in_width: columns of the input, for all types: those of the encoder, or of the layer below.
        out_width: columns of the result.
        metadata: node types and relations of the graph: ``store.schema.metadata``.

    Raises:
        ConfigError: a convolution is for a relation that there is not.
    """

    name = "hetero-conv"
    reads_relations = True

    def __init__(self, conv: nn.Module, in_width: int, out_width: int, metadata: Metadata) -> None:
        super().__init__(conv, in_width, out_width)
        self.names = Names(metadata)
        self.relations = self.names.ends
        self.edge_width = edge_width_of(conv)
        self.edge_columns: Sequence[str] = ("edge_attr",) if self.edge_width else ()
        unknown = [each for each in _convs(conv, self.names) if each not in self.names.relations]
        if unknown:
            raise ConfigError(
                f"a convolution is for the relation {':'.join(unknown[0])}, which the graph has not",
                where=repr(conv),
                fix=f"Relations are {', '.join(map(':'.join, self.names.relations))}",
            )
        fill_in(conv, in_width)

    def computed(self, block: Block, x: Float[Tensor, "S in"]) -> Float[Tensor, "D out"]:
        """See :meth:`PygLayer.computed`."""
        return rows_by_relation(self.conv, self.names, block, x, self.out_width)


class Names:
    """Names of node types and relations by number.

    Args:
        metadata: as lists.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.node_types = tuple(metadata[0])
        self.relations: tuple[EdgeType, ...] = tuple((s, name, t) for s, name, t in metadata[1])
        number = {name: at for at, name in enumerate(self.node_types)}
        self.ends = [[number[source], number[target]] for source, _, target in self.relations]

    def to_json(self) -> list[list[Any]]:
        """As lists."""
        return [list(self.node_types), [list(each) for each in self.relations]]


def rows_by_relation(
    conv: nn.Module, names: Names, block: Block, x: Float[Tensor, "S in"], out_width: int
) -> Float[Tensor, "D out"]:
    """What a ``HeteroConv`` returns for the destinations of a block, in their order.

    Args:
        conv: the ``HeteroConv``.
        names: of the graph.
        block: whole rows.
        x: of its sources.
        out_width: columns of the result.

    Raises:
        ConfigError: the convolutions return other columns.
        ValueError: the block does not say which type its nodes have.
    """
    if block.node_types is None or block.src is None:
        raise ValueError("a layer of typed graphs takes blocks with node types, whose sources are de-duplicated")
    kinds = torch.from_numpy(block.node_types.of(block.src.cpu().numpy()))
    at = [torch.nonzero(kinds == kind).flatten() for kind in range(len(names.node_types))]
    sizes = [int(torch.searchsorted(each, block.num_dst)) for each in at]
    local = places(at)
    groups = Groups.of(relations_of(block), len(names.relations))
    ends = torch.stack([local[block.indices.long()], local[block.edge_dst()]])[:, groups.order].split(groups.sizes, 1)
    attr = None if block.edge_attr is None else block.edge_attr[groups.order].to(x.dtype).split(groups.sizes)
    rows = [ops.pick_rows(x, each) for each in at]
    found: dict[int, list[Tensor]] = {}
    for relation, of_relation in _convs(conv, names).items():
        number = names.relations.index(relation)
        source, target = names.ends[number]
        more = {} if attr is None or not edge_width_of(of_relation) else {"edge_attr": attr[number]}
        out = of_relation((rows[source], rows[target][: sizes[target]]), ends[number], **more)
        found.setdefault(target, []).append(out)
    group = sys.modules[_hetero_conv(conv).__module__].group
    pieces = [
        group(found[kind], conv.aggr) if kind in found else x.new_zeros(size, out_width)
        for kind, size in enumerate(sizes)
    ]
    for kind, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
        if piece.shape != (size, out_width):
            raise ConfigError(
                f"the convolutions return rows of shape {tuple(piece.shape)} for nodes of type "
                f"'{names.node_types[kind]}', not {(size, out_width)}",
                where=repr(conv),
                fix="Give the layer the out_width that they return together",
            )
    order = torch.cat([each[:size] for each, size in zip(at, sizes, strict=True)])
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return ops.permute_rows(torch.cat(pieces), place, order)


def places(at: Sequence[Int64[Tensor, "_"]]) -> Int64[Tensor, "n"]:
    """Where each node is among those of its type.

    Args:
        at: of each type, which of the nodes have it.
    """
    local = torch.empty(sum(map(len, at)), dtype=torch.int64)
    for of_type in at:
        local[of_type] = torch.arange(len(of_type))
    return local


def edge_width_of(conv: nn.Module) -> int:
    """Columns of the features of edges that a convolution, or one inside it, reads: its ``edge_dim``; 0: none."""
    widths = (getattr(each, "edge_dim", None) for each in conv.modules())
    return next((width for width in widths if isinstance(width, int)), 0)


def fill_in(conv: nn.Module, in_width: int) -> None:
    """Let convolutions see rows, so that those that have left a width open get their parameters."""
    if not any(isinstance(each, UninitializedParameter) for each in conv.parameters()):
        return
    rows = torch.zeros(2, in_width)
    with torch.no_grad():
        for each in conv.convs.values():  # type: ignore[union-attr, operator]
            width = edge_width_of(each)
            more = {"edge_attr": torch.zeros(1, width)} if width else {}
            each((rows, rows), torch.zeros(2, 1, dtype=torch.int64), **more)


def _convs(conv: nn.Module, names: Names) -> Mapping[EdgeType, nn.Module]:
    """The convolutions by relation. PyG gives other names back than it was given where these hold ``#``."""
    convs: Any = conv.convs
    known = {convs.to_internal_key(each): each for each in names.relations}
    return {known.get(key, convs.to_external_key(key)): each for key, each in nn.ModuleDict.items(convs)}


def _hetero_conv(conv: nn.Module) -> type:
    """The class of PyG that it is, or is derived from."""
    for base in type(conv).__mro__:
        if base.__name__ == "HeteroConv" and base.__module__.startswith("torch_geometric."):
            return base
    raise ConfigError(f"a {type(conv).__name__} is no HeteroConv", where="HeteroLayer", fix="Give one of PyG")
