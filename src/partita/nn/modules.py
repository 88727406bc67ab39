"""Models of others: any ``torch.nn.Module`` whose forward takes blocks, ``x`` and ``edge_index``, or of typed graphs
dictionaries of these.

Such a module is computed as a whole, from the seeds' neighborhoods to the seeds' rows: Partita does not know its
layers, so it cannot place them one by one, nor evaluate them one after the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey, fold
from partita.core.records import Block, RowsByType
from partita.core.registry import imported
from partita.core.typed import fitting
from partita.nn.decoders import from_description as decoder_from
from partita.nn.layers import LAYERS, Layer
from partita.nn.layers.convolutions import as_layer_type, is_convolution
from partita.nn.layers.pyg import seeded
from partita.nn.layers.residual import Residual
from partita.nn.model import Model
from partita.nn.ops import Rows
from partita.nn.stage import Stage
from partita.nn.typed_calls import SIGNATURE as TYPED_SIGNATURE
from partita.nn.typed_calls import GraphTypes, TypedCall, layers_of_typed
from partita.nn.untyped_calls import SIGNATURES, Style, by_layer, set_coefficients, small_blocks, style_of, watched

_PROBE_SEED = 7


class ModuleModel(Model):
    """A model whose layers are inside a module of others.

    Args:
        module: its forward takes ``(blocks, x)`` or ``(x, edge_index)`` and returns a row per destination of the last
            block, (D, out_width); or it is for a typed graph, see ``types``.
        layers: hops K: so many blocks are drawn.
        in_width: columns of the input features.
        out_width: columns of the result.
        name: ``package.module:Name``, where it was made from that; else empty.
        arguments: with which it was made, JSON-able.
        types: of a typed graph, for a module whose forward takes dictionaries; see
            :mod:`partita.nn.typed_calls`. ``in_width`` is of no meaning then.

    Attributes:
        module, name, types: as given.
        mixes_rows: a row depends in training on which other rows are computed with it (batch normalization).
        draws: training draws something (dropout), from torch's generator.

    Raises:
        ConfigError: the forward takes something else, or does not return such rows, or a row depends on others in
            evaluation too.
    """

    whole = True

    def __init__(
        self,
        module: nn.Module,
        layers: int,
        in_width: int,
        out_width: int,
        *,
        name: str = "",
        arguments: Mapping[str, Any] | None = None,
        types: GraphTypes | None = None,
    ) -> None:
        widths = [max(1, in_width)] * layers + [out_width]
        super().__init__([_Hop(below, above) for below, above in pairwise(widths)])
        self.module, self.name, self._arguments, self.types = module, name, dict(arguments or {}), types
        self._typed = None if types is None else TypedCall(module, types, self._where)
        if types is None:
            self.style: Style = style_of(module)
        else:
            for layer in self.layers:
                layer.reads_relations, layer.relations = True, types.ends
                if self._typed is not None and self._typed.reads_edges:
                    layer.edge_columns, layer.edge_width = ("edge_attr",), types.edge_width
        if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
            self._try(module.eval(), 2)  # sizes its lazy layers
            module.train()
        with seeded(_PROBE_SEED):
            self._probe()

    def forward(
        self, blocks: Sequence[Block], h: Rows | RowsByType, step_key: StepKey | None = None
    ) -> Float[Tensor, "D out"]:
        """Rows of the seed nodes; see :meth:`Model.forward`. What the module draws is a function of the step's key.

        Raises:
            ConfigError: the module calls more or fewer convolutions than there are layers, or returns other rows.
            ValueError: the rows are of several types, and the module takes others; or the other way round.
        """
        if isinstance(h, RowsByType) != (self._typed is not None):
            raise ValueError("a module of a typed graph takes rows of all types, and no other one does")
        with ExitStack() as stack:
            if step_key is not None and self.training:
                stack.enter_context(seeded(step_key.at(Purpose.DROPOUT, 0)))
            out = self._typed_out(blocks, h) if isinstance(h, RowsByType) else self._untyped_out(blocks, h, stack)
        wanted = blocks[-1].num_dst, self.widths[-1]
        if not isinstance(out, Tensor) or tuple(out.shape) != wanted:
            found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"the model returned {found} for {wanted[0]} seeds and {wanted[1]} outputs",
                where=self._where,
                fix="Return a row per destination of the last block, with a column per class",
            )
        return self.stages[-1].scaled(out)  # type: ignore[operator]

    def _typed_out(self, blocks: Sequence[Block], rows: RowsByType) -> Tensor:
        assert self._typed is not None
        return self._typed(self.module, blocks, rows)

    def _untyped_out(self, blocks: Sequence[Block], h: Rows, stack: ExitStack) -> Tensor:
        x = h if isinstance(h, Tensor) else h.all()
        if self.style == "blocks":
            return self.module(list(blocks), x)
        calls = stack.enter_context(by_layer(self.module, blocks))
        out = self.module(x, blocks[0].edge_index())
        self._check_calls(len(calls))
        return out

    @property
    def type_widths(self) -> tuple[int, ...] | None:
        """See :attr:`Model.type_widths`."""
        return None if self.types is None else self.types.widths

    def _check_calls(self, calls: int) -> None:
        if calls != len(self.stages):
            raise ConfigError(
                f"the model calls {calls} convolutions, but layers is {len(self.stages)}",
                where=self._where,
                fix=f"Set layers={calls}" if calls else f"Its convolutions must be PyG's. Or write {SIGNATURES}",
            )

    @property
    def _where(self) -> str:
        return f"model {self.name or type(self.module).__name__}"

    def _probe(self) -> None:
        """Run the module on a few made-up rows: complain of what cannot work, and find out what it draws or mixes."""
        trial = deepcopy(self.module)
        both, calls = self._try(trial.eval(), 2)
        alone, _ = self._try(trial, 1)
        if not torch.allclose(both[:1], alone, rtol=1e-4, atol=1e-5):
            raise ConfigError(
                "the row of a seed depends on which other seeds are computed with it, so its predictions would change "
                "with the batch size",
                where=self._where,
                fix="Let every row depend on its own in-edges only",
            )
        if self._typed is None:
            set_coefficients(self.stages, calls)
        else:
            self._check_whole(both, trial)
        trial.train()
        first, _ = self._try(trial, 2)
        with seeded(_PROBE_SEED + 1):
            self.draws = not torch.equal(first, self._try(trial, 2)[0])
        normalized = any(isinstance(each, nn.modules.batchnorm._NormBase) for each in trial.modules())
        self.mixes_rows = normalized
        if not self.draws and not normalized:
            self.mixes_rows = not torch.allclose(first[:1], self._try(trial, 1)[0], rtol=1e-4, atol=1e-5)

    def _check_whole(self, rows: Tensor, module: nn.Module) -> None:
        """See that rows of a typed graph from the edges of each layer are those that PyG computes from all edges."""
        assert self._typed is not None
        *_, everyone = self._typed.small(2, len(self.stages), rows.dtype)
        with torch.no_grad():
            wanted = self._typed.whole(module, *everyone, len(rows))
        if not torch.allclose(rows, wanted, rtol=1e-4, atol=1e-5):
            raise ConfigError(
                "the row of a seed depends on more than its in-edges of so many layers, so that it is another one in a "
                "sampled batch than in the whole graph",
                where=self._where,
                fix="Use convolutions that look at in-edges only, as SAGEConv, GraphConv, GATv2Conv and "
                f"TransformerConv, one after the other; not GCNConv. layers is {len(self.stages)}",
            )

    def _inputs(self, seeds: int, dtype: torch.dtype) -> tuple[list[Block], Tensor | RowsByType]:
        """A few blocks, and rows for them."""
        layers = len(self.stages)
        if self._typed is not None:
            return self._typed.small(seeds, layers, dtype)[:2]
        blocks, nodes = small_blocks(seeds, layers)
        x = torch.randn(5 * layers + 2, self.widths[0], generator=torch.Generator().manual_seed(1))
        return blocks, x[nodes].to(dtype)

    def _try(self, module: nn.Module, seeds: int) -> tuple[Tensor, list[nn.Module]]:
        own, self.module = self.module, module
        with seeded(None), torch.no_grad():
            dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32)
            try:
                with watched(module) as calls:
                    return Model.__call__(self, *self._inputs(seeds, dtype)), calls
            except ConfigError:
                raise
            except Exception as error:  # whatever a module of others says of what it is given
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise ConfigError(
                    f"cannot be computed on sampled {'graphs' if self._typed else 'blocks'}: {reason}",
                    where=self._where,
                    fix=f"Write {TYPED_SIGNATURE}. Every type that a later layer reads must be the end of a relation"
                    if self._typed
                    else f"Write {SIGNATURES}. A layer has fewer rows after it than before it: add x[: len(h)] to its "
                    "result h, not x",
                ) from error
            finally:
                self.module = own

    def reset(self, seed: int) -> None:
        """Nothing: the module was initialized when it was made."""

    def describe(self) -> dict[str, Any]:
        """See :meth:`Model.describe`."""
        kind = type(self.module)
        return {
            "module": self.name or f"{kind.__module__}:{kind.__qualname__}",
            "arguments": self._arguments,
            "layers": len(self.stages),
            "widths": [self.widths[0], self.widths[-1]],
            **({} if self.types is None else {"types": self.types.to_json()}),
        }


class _Hop(Layer):
    """Stands for a layer inside a module: says what its blocks must have."""

    name = "module"


class ModuleType:
    """A class of modules, or a function that makes one, by name: what ``--model package.module:Name`` may be.

    Args:
        name: ``package.module:Name``.
        make: returns the module.
    """

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name, self._make = name, make
        self._parameters = inspect.signature(make).parameters
        self._takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in self._parameters.values())

    @property
    def options(self) -> frozenset[str] | None:
        """The names of its arguments; ``None``: it takes any."""
        return None if self._takes_all else frozenset(self._parameters)

    def model(
        self,
        *,
        in_width: int,
        out_width: int,
        layers: int,
        seed: int,
        given: Mapping[str, Any],
        types: GraphTypes | None = None,
        **settings: Any,
    ) -> ModuleModel:
        """The model of a run.

        Args:
            in_width, out_width, layers: widths of features and result, and hops, for arguments of the usual names, such
                as ``in_channels``, ``out_channels``, ``num_layers``.
            seed: of its initialization.
            given: arguments, which come first.
            types: of a typed graph: an argument ``metadata`` is that of PyG's ``HeteroData``, and ``in_channels`` is
                -1, which PyG's convolutions fill in when they first see rows.
            settings: ``hidden`` and ``dropout``, for arguments of the usual names.

        Raises:
            ConfigError: an argument is missing, or the module cannot be made or used.
        """
        values = {"in": in_width if types is None else -1, "out": out_width, "layers": layers, **settings}
        arguments = {
            name: values[what] for what, names in _USUAL.items() for name in names if name in self._parameters
        } | dict(given)
        missing = [
            name
            for name, each in self._parameters.items()
            if name not in arguments
            and (types is None or name != _METADATA)
            and each.default is each.empty
            and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        if missing:
            raise ConfigError(
                f"{', '.join(missing)} must be given",
                where=f"model '{self.name}'",
                fix=f"Write --model-options {missing[0]}=VALUE",
            )
        return self.again(arguments, layers, in_width, out_width, seed, types)

    def again(
        self,
        arguments: Mapping[str, Any],
        layers: int,
        in_width: int,
        out_width: int,
        seed: int = 0,
        types: GraphTypes | None = None,
    ) -> ModuleModel:
        """The model with exactly these arguments, and the metadata of a typed graph."""
        more = {_METADATA: types.metadata} if types is not None and _METADATA in self._parameters else {}
        where = f"model '{self.name}'"
        with seeded(fold(int(Purpose.INITIALISE), seed) >> 1):
            try:
                module = self._make(**{**more, **arguments})
            except Exception as error:  # whatever a constructor of others says of its arguments
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise ConfigError(f"cannot be made: {reason}", where=where, fix="Change --model-options") from error
            if not isinstance(module, nn.Module):
                kind = type(module).__name__
                raise ConfigError(f"makes a {kind}", where=where, fix="Let it return a torch.nn.Module")
            if isinstance(module, Model):
                raise ConfigError("makes a partita.Model", where=where, fix="Give it in Python, as Trainer(model=...)")
            return ModuleModel(module, layers, in_width, out_width, name=self.name, arguments=arguments, types=types)


_METADATA = "metadata"
"""The argument that is given the names of node types and relations."""

_USUAL = {
    "in": ("in_channels", "in_features", "in_feats", "in_width", "in_dim", "in_size", "num_features"),
    "out": ("out_channels", "out_features", "out_feats", "out_width", "out_dim", "out_size", "num_classes"),
    "hidden": ("hidden_channels", "hidden_features", "hidden_feats", "hidden", "hidden_dim", "hidden_size"),
    "layers": ("num_layers", "layers", "n_layers"),
    "dropout": ("dropout",),
}
"""What arguments of the usual names stand for."""


def layers_of(module: nn.Module) -> int | None:
    """The number of hops that a module says it has, or the number of its PyG convolutions; ``None``: it is not said."""
    if isinstance(module, Model):
        return len(module.stages)
    said = getattr(module, "num_layers", None)
    if isinstance(said, int) and not isinstance(said, bool) and said > 0:
        return said
    return layers_of_typed(module) or None


def find_model(name: str) -> type[Layer] | ModuleType:
    """What a name of a model stands for.

    Args:
        name: of a layer; ``pyg:Name`` or ``package.module:Name`` of a layer, a convolution of PyG, or what makes a
            module.

    Raises:
        ConfigError: it is none of these.
    """
    if name in LAYERS or ":" not in name:
        return LAYERS.find(name)
    found = imported(name, "model")
    is_layer = isinstance(found, type) and issubclass(found, Layer)
    if is_layer or is_convolution(found) or not callable(found) or isinstance(found, nn.Module):
        return as_layer_type(name, found)
    if isinstance(found, type) and not issubclass(found, nn.Module):
        return as_layer_type(name, found)
    return ModuleType(name, found)


def model_from(description: Mapping[str, Any]) -> Model:
    """The model that ``describe`` described, made anew by name; its weights are others.

    Raises:
        ConfigError: a name stands for nothing any more.
    """
    model = _model_from(description)
    if "decoder" in description:
        with fitting("model", ConfigError, "Train again: the description of the model in run.json is damaged"):
            model.decoder = decoder_from(description["decoder"])
    return model


def _model_from(description: Mapping[str, Any]) -> Model:
    if "module" not in description:
        return Model.from_description(description)
    kind = find_model(description["module"])
    if not isinstance(kind, ModuleType):
        raise ConfigError(f"'{description['module']}' makes no module any more", where="model")
    with fitting("model", ConfigError, "Train again: the description of the model in run.json is damaged"):
        in_width, out_width = map(int, description["widths"])
        arguments, layers = dict(description["arguments"]), int(description["layers"])
        types = GraphTypes.of_json(description["types"]) if "types" in description else None
    return kind.again(arguments, layers, in_width, out_width, types=types)


def as_model(module: object, layers: int, in_width: int, out_width: int, types: GraphTypes | None = None) -> Model:
    """A user's model as Partita's: as it is, or a module in a :class:`ModuleModel`; of a typed graph with its types.

    Raises:
        ConfigError: see :class:`ModuleModel`.
    """
    if isinstance(module, Model):
        return module
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"a {type(module).__name__} is no model", where="model", fix=f"Give a torch.nn.Module with {SIGNATURES}"
        )
    return ModuleModel(module, layers, in_width, out_width, types=types)


def can_be_made_again(model: Model) -> bool:
    """Whether :func:`model_from` makes a model like this one from what it says of itself."""
    if isinstance(model, ModuleModel):
        return bool(model.name)
    return all(_is_named(stage.layer) for stage in model.stages if isinstance(stage, Stage))


def _is_named(layer: Layer) -> bool:
    try:
        layer = layer.inner if isinstance(layer, Residual) else layer
        return type(layer) is LAYERS.find(layer.name)
    except ConfigError:
        return False
