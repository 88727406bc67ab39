"""The model that the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from partita.config import NO_LAYERS, Config
from partita.core.errors import ConfigError
from partita.core.memory_need import MemoryNeed
from partita.graph.store import GraphStore
from partita.nn.encoder import Encoder
from partita.nn.layers import LAYERS, Layer
from partita.nn.model import Model, build_model
from partita.nn.modules import ModuleType, as_model, find_model, layers_of
from partita.nn.stage import Stage
from partita.nn.typed_calls import GraphTypes
from partita.setup.ages import age_unit, dated_types, reads_ages
from partita.setup.inputs import is_encoded, learnt_widths, node_type_names
from partita.setup.sampler import reads_neighbors

MODEL_COPIES = 8
"""Of the parameters: gradients, two of the optimizer, two to sum gradients among workers, three in a checkpoint."""
FIX = (
    "1. Lower --batch-size or --fanout; 2. lower --hidden or --layers; 3. lower --prefetch, --cache or --memory-limit; "
    "4. use fewer --workers, or raise the limit"
)
"""What helps where memory does not suffice for training."""


def require_room(config: Config, store: GraphStore, out_width: int) -> None:
    """See that training has room for the model that the settings name, before it is made.

    Layers of a user's own are made as they are: what their code does is not known.

    Raises:
        ConfigError: it cannot be made with the settings.
        ResourceError: there is not enough memory for its parameters; with numbers.
    """
    if config.model in LAYERS.own:
        with torch.device("meta"):
            parameters = sum(each.nbytes for each in named_model(config, store, out_width).parameters())
        MemoryNeed.of({"model": MODEL_COPIES * parameters}, threads=0).require("training", FIX)


def named_model(config: Config, store: GraphStore, out_width: int) -> Model:
    """The model that the settings name, as it is before training.

    Raises:
        ConfigError: it cannot be made with the settings, or not be computed on sampled blocks.
    """
    kind = find_model(config.model)
    if isinstance(kind, ModuleType):
        if config.embed is not None:
            raise ConfigError(
                f"'{config.model}' is computed as a whole, from features only, without learnt rows",
                where="embed",
                fix="Leave embed out, or use one of Partita's layers",
            )
        if config.residual:
            raise ConfigError(
                f"'{config.model}' is a model of its own, whose layers have no residual connections added",
                where="residual",
                fix="Leave residual out, and add them in the model",
            )
        return kind.model(
            in_width=store.num_features,
            out_width=out_width,
            layers=config.layers,
            seed=config.seed,
            given=config.model_options,
            types=graph_types(store),
            hidden=config.hidden,
            dropout=config.dropout,
        )
    if isinstance(kind, type) and kind.needs_edge_features and not store.num_edge_features:
        raise ConfigError(
            f"the model '{config.model}' reads the features of edges, and the store has none",
            where="model",
            fix="Ingest the graph with edge features, or use another model",
        )
    encoder, of_graph, in_width = None, dict[str, Any](edge_width=store.num_edge_features), store.num_features
    if is_encoded(store, config):
        in_width, widths = config.hidden, store.type_widths if store.schema is not None else (store.num_features,)
        dated = dated_types(store) if reads_ages(config, store) else ()
        encoder = Encoder(
            widths, in_width, node_type_names(store), learnt_widths(store, config),
            dated=dated, age_unit=age_unit(store) if dated else 1.0,
        )  # fmt: skip
    if store.schema is not None:
        of_graph |= {"num_types": len(store.schema.node_types), "relations": store.schema.ends.tolist()}
        of_graph["metadata"] = store.schema.metadata
    if config.model == NO_LAYERS and in_width != out_width:
        raise ConfigError(
            f"model {NO_LAYERS} gives the input rows, of {in_width} columns, and {out_width} are wanted",
            where="model",
            fix=f"Set hidden {in_width}, or leave embed out, so that rows of that width are learnt",
        )
    return build_model(
        config.model,
        in_width=in_width,
        hidden=config.hidden,
        out_width=out_width,
        layers=config.layers,
        heads=config.heads,
        norm=config.norm,
        activation=config.activation,
        dropout=config.dropout,
        attn_dropout=config.attn_dropout,
        aggregator=config.aggregator,
        edge_weights=config.edge_weights,
        residual=config.residual,
        seed=config.seed,
        options={**config.options, **config.model_options, **of_graph},
        encoder=encoder,
    )


def check_edge_columns(model: Model, store: GraphStore) -> None:
    """See that a store has what the layers of a model read of its edges.

    Raises:
        ConfigError: it has not; names it.
    """
    for number, layer in enumerate(_layers(model), start=1):
        where = f"layer {number} ({layer.name})"
        if "edge_weight" in layer.edge_columns and not store.has("edge_weight"):
            raise ConfigError(
                "the layer multiplies by edge weights, and the store has none",
                where=where,
                fix="Ingest the graph again with --weight-column, or leave edge_weights out",
            )
        if "edge_attr" in layer.edge_columns and layer.edge_width != store.num_edge_features:
            there = store.num_edge_features
            raise ConfigError(
                f"the layer reads {layer.edge_width} features of every edge, and the store has {there}",
                where=where,
                fix="Use a graph with the same edge features",
            )


def unread_columns(model: Model, store: GraphStore, config: Config) -> list[str]:
    """What of a store's edges nothing looks at, in sentences."""
    notes = []
    if store.has("edge_weight") and not (config.weighted or config.edge_weights):
        notes.append("edge weights are not used: --edge-weights multiplies by them, --weighted samples by them")
    if store.num_edge_features and not any("edge_attr" in layer.edge_columns for layer in _layers(model)):
        able = [name for name in LAYERS.own if "edge_width" in LAYERS.find(name).options]
        notes.append(f"edge features are not used: the models {', '.join(able)} read them")
    return notes


def unreached(store: GraphStore, nodes: Int[Tensor, "n"], layers: int) -> list[str]:
    """What of a typed graph the layers do not get to see from the nodes of the seeds, as notes."""
    if store.schema is None:
        return []
    kinds = np.unique(store.types(nodes.cpu().numpy())).tolist()
    seeds = " and ".join(f"'{store.schema.node_types[kind]}'" for kind in kinds)
    types, relations = store.schema.unreached(kinds, layers)
    reach = f"{layers} layers do not reach" if layers > 1 else "1 layer does not reach"
    return [
        f"{what} that {reach} from seeds of type {seeds}, so nothing is learned of them: {', '.join(names[:8])}"
        + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        for what, names in (("node types", types), ("relations", relations))
        if names
    ]


def _layers(model: Model) -> list[Layer]:
    return [stage.layer for stage in model.stages if isinstance(stage, Stage)]


def is_whole(config: Config, model: Model | None = None) -> bool:
    """Whether the model of a run, the one that is given or else named, is computed as a whole."""
    return model.whole if model is not None else isinstance(find_model(config.model), ModuleType)


def of_model(model: nn.Module, config: Config | None, settings: Mapping[str, Any]) -> Config:
    """The settings of a run with a model of a user's own: ``layers`` is the model's, unless it is given.

    Args:
        model: the user's.
        config: all settings at once, or
        settings: single ones.

    Raises:
        ConfigError: the model does not say how many layers it has, and neither do the settings; or one is bad.
    """
    given = dict(settings) if config is None else {name: getattr(config, name) for name in config.model_fields_set}
    if not reads_neighbors(Config.make({"model": given.get("model")})):
        raise ConfigError(
            f"a {type(model).__name__} is given, and model '{given['model']}' is set, which samples no neighbors",
            where="model",
            fix="Leave the setting model out",
        )
    if given.get("layers") is None:
        layers = layers_of(model)
        if layers is None:
            raise ConfigError(
                f"how many hops of neighbors a {type(model).__name__} looks at is not known",
                where="layers",
                fix="Set layers, or give the model an attribute num_layers",
            )
        given["layers"] = layers
    return Config.make(given, where="Trainer")


def given_model(model: nn.Module, config: Config, store: GraphStore, out_width: int) -> Model:
    """A user's model as Partita's, for the features of a store and a task of so many outputs.

    Raises:
        ConfigError: it cannot be computed on sampled blocks.
    """
    return as_model(model, config.layers, store.num_features, out_width, graph_types(store))


def graph_types(store: GraphStore) -> GraphTypes | None:
    """What a module that is computed as a whole must know of a typed graph; ``None`` of untyped ones."""
    if store.schema is None:
        return None
    kinds = np.unique(np.concatenate([np.empty(0, np.int64), *map(store.types, store.splits.values())])).tolist()
    return GraphTypes(
        node_types=store.schema.node_types,
        relations=tuple(store.schema.metadata[1]),
        widths=store.type_widths,
        edge_width=store.num_edge_features,
        seed_types=tuple(store.schema.node_types[kind] for kind in kinds or range(len(store.schema.node_types))),
    )
