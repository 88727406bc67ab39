"""The model that the settings name."""

from __future__ import annotations

from partita.config import Config
from partita.graph.store import GraphStore
from partita.nn.model import Model, build_model


def named_model(config: Config, store: GraphStore, out_width: int) -> Model:
    """The model that the settings name, as it is before training."""
    return build_model(
        config.model,
        in_width=store.num_features,
        hidden=config.hidden,
        out_width=out_width,
        layers=config.layers,
        heads=config.heads,
        norm=config.norm,
        activation=config.activation,
        dropout=config.dropout,
        attn_dropout=config.attn_dropout,
        aggregator=config.aggregator,
        seed=config.seed,
        options=config.options,
    )
