"""PyG's convolutions by name: what makes a layer of a class such as ``torch_geometric.nn.GATv2Conv``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.records import Block
from partita.nn.layers.base import Layer
from partita.nn.layers.hetero import Names, edge_width_of, rows_by_relation
from partita.nn.layers.pyg import PygLayer, seeded

_WIDTHS = ("in_channels", "out_channels")
_NOT_TAKEN = {"self", "args", "kwargs", "flow", "node_dim", "decomposed_layers", *_WIDTHS}
_SEED = 7
_ABLE = (
    "Use one that takes (x_src, x_dst), such as pyg:SAGEConv, pyg:GraphConv, pyg:GATv2Conv or pyg:TransformerConv, or "
    "one of Partita's own layers: sage, gcn, gat, gin"
)


def is_convolution(thing: object) -> bool:
    """Whether it is a class of PyG's convolutions. PyG is not imported for it."""
    bases = thing.__mro__ if isinstance(thing, type) else ()
    return any(base.__name__ == "MessagePassing" and base.__module__.startswith("torch_geometric.") for base in bases)


def as_layer_type(name: str, found: Any) -> type[Layer]:
    """The layer type of what a name imports.

    Args:
        name: ``pyg:Name`` or ``package.module:Name``.
        found: a layer type, or a class of convolutions.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(found, type) and issubclass(found, Layer):
        return found
    if is_convolution(found):
        return convolution_layer(name, found)
    raise ConfigError(
        f"'{name}' is neither a layer nor a convolution of PyG, nor does it make a module",
        where="model",
        fix="Name a subclass of Partita's Layer, of PyG's MessagePassing or of torch.nn.Module",
    )


@cache
def convolution_layer(name: str, conv: type[nn.Module]) -> type[Layer]:
    """The type of layers that wrap convolutions of a class.

    Args:
        name: by which the layer is found again.
        conv: a subclass of ``torch_geometric.nn.MessagePassing`` that takes ``in_channels`` and ``out_channels``.

    Raises:
        ConfigError: it does not take both.
    """
    taken = _parameters(conv)
    if not taken.keys() >= set(_WIDTHS):
        raise ConfigError(
            f"{conv.__name__} does not take in_channels and out_channels, so its widths cannot be filled in",
            where=f"model '{name}'",
            fix=f"Write a class of your own that makes one from both, and name it. {_ABLE}",
        )
    body = {"name": name, "convolution": conv, "options": frozenset(taken.keys() - _NOT_TAKEN) | {"metadata"}}
    return type(conv.__name__, (ConvolutionLayer,), body)


class ConvolutionLayer(PygLayer):
    """A convolution that is made from its widths and options, so that it can be made again from its description.

    Attention heads count as they do in :class:`~partita.nn.layers.gat.GAT`: hidden layers concatenate them, so each
    has the width divided by their number, the last layer averages them; ``concat`` overrides that in all layers.

    On a typed graph it is a ``HeteroConv`` of one such convolution for each relation, summed, see
    :class:`~partita.nn.layers.hetero.HeteroLayer`; loops are added only where ``add_self_loops`` is set. Where it is
    given ``edge_dim``, it reads the features of edges.

    Args:
        in_width: columns of the input.
        out_width: columns of the result (all heads together where they are concatenated).
        metadata: names of node types and relations of a typed graph; ``None`` of untyped ones.
        options: further arguments of the convolution.

    Raises:
        ConfigError: the convolution does not take the options, the heads do not divide the width, or it does not
            compute a row from the edges of that row.
    """

    convolution: ClassVar[type[nn.Module]]

    def __init__(self, in_width: int, out_width: int, *, metadata: Any = None, **options: Any) -> None:
        taken, where = _parameters(self.convolution), f"model '{self.name}'"
        heads = options.get("heads", taken.get("heads", 1)) if "concat" in taken else 1
        out_channels = out_width
        if "concat" in taken and options.get("concat", taken["concat"]):
            if not isinstance(heads, int) or heads < 1 or out_width % heads:
                raise ConfigError(
                    f"{heads} heads do not divide the width {out_width}",
                    where=where,
                    fix="Choose heads that divide --hidden; for the last layer leave concat out, or set concat=false",
                )
            out_channels //= heads
        self.names = None if metadata is None else Names(metadata)
        if self.names is not None and "add_self_loops" in taken:
            options = {"add_self_loops": False, **options}
        try:
            conv = self._made(in_width, out_channels, options)
        except Exception as error:  # whatever a constructor of others says of its arguments
            raise ConfigError(f"cannot be made: {error}", where=where, fix="Change --model-options") from error
        super().__init__(conv, in_width, out_width)
        self._made_with = options
        self.edge_width = edge_width_of(conv)
        self.edge_columns: Sequence[str] = ("edge_attr",) if self.edge_width else ()
        if self.names is None:
            _check_rows(conv, in_width, out_width, where)
        else:
            self.reads_relations, self.relations = True, self.names.ends
            _check_rows(next(iter(conv.convs.values())), in_width, out_width, where)  # type: ignore[union-attr, operator]

    def _made(self, in_width: int, out_channels: int, options: Mapping[str, Any]) -> nn.Module:
        if self.names is None:
            return self.convolution(in_width, out_channels, **options)
        from torch_geometric.nn import HeteroConv  # of which the convolution is

        with warnings.catch_warnings():  # of types that no relation leads to
            warnings.simplefilter("ignore")
            return HeteroConv(
                {each: self.convolution(in_width, out_channels, **options) for each in self.names.relations}
            )

    def computed(self, block: Block, x: Float[Tensor, "S in"]) -> Tensor:
        """See :meth:`PygLayer.computed`."""
        if self.names is None:
            return super().computed(block, x)
        return rows_by_relation(self.conv, self.names, block, x, self.out_width)

    @classmethod
    def for_model(cls, in_width: int, out_width: int, *, last: bool, **options: Any) -> Layer:
        """See :meth:`Layer.for_model`."""
        if "concat" in cls.options:
            options = {"concat": not last, **options}
        return cls(in_width, out_width, **options)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, JSON-able."""
        types = {} if self.names is None else {"metadata": self.names.to_json()}
        return {"in_width": self.in_width, "out_width": self.out_width, **types, **self._made_with}


def _parameters(conv: type[nn.Module]) -> Mapping[str, Any]:
    """What the constructors of a class and of its bases take, with the defaults."""
    found: dict[str, Any] = {}
    for base in conv.__mro__:
        if base is nn.Module:
            break
        if "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                found.setdefault(name, parameter.default)
    return found


def _check_rows(conv: nn.Module, in_width: int, out_width: int, where: str) -> None:
    """See on two small blocks that a row depends on its own edges, whichever other rows are computed with it.

    Raises:
        ConfigError: it does not, or the convolution takes no ``(x_src, x_dst)``.
    """
    with seeded(_SEED), torch.no_grad():
        rows, width = torch.randn(4, in_width), edge_width_of(conv)
        features = torch.randn(4, width)
        more = [{"edge_attr": features[:count]} if width else {} for count in (4, 2)]
        conv.eval()
        try:
            both = conv((rows, rows[:2]), torch.tensor([[2, 3, 0, 3], [0, 0, 1, 1]]), **more[0])
            alone = rows[[0, 2, 3]]
            one = conv((alone, alone[:1]), torch.tensor([[1, 2], [0, 0]]), **more[1])
            fits = both.shape == (2, out_width) and one.shape == (1, out_width)
        except Exception as error:  # whatever a convolution of others says of what it is given
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"{type(conv).__name__} cannot compute the rows of a sampled block: {reason}",
                where=where,
                fix=_ABLE,
            ) from error
        finally:
            conv.train()
    if not fits:
        raise ConfigError(
            f"{type(conv).__name__} returns rows of shape {tuple(both.shape)} where {(2, out_width)} was expected",
            where=where,
            fix="Change --model-options",
        )
    if not torch.allclose(both[:1], one, rtol=1e-4, atol=1e-5):
        raise ConfigError(
            f"a row of {type(conv).__name__} depends on which other rows are computed with it, so several "
            "workers would train another model",
            where=where,
            fix=_ABLE,
        )
