"""The model: a chain of stages, its builder, and its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey, fold
from partita.core.records import Block, RowsByType
from partita.core.typed import fitting
from partita.nn.decoders import Decoder
from partita.nn.encoder import Encoder
from partita.nn.layers import LAYERS, Layer
from partita.nn.layers.residual import Residual
from partita.nn.ops import Rows
from partita.nn.stage import Stage


class Model(nn.Module):
    """A chain of stages, the input-side one first.

    Args:
        stages: the stages; a :class:`Layer` stands for a stage with nothing after the layer.
        encoder: brings the rows of all node types of a typed graph to the width that the first stage takes; ``None``
            for untyped graphs.

    Attributes:
        widths: columns before the first stage and after each stage, K+1 numbers.
        row_wise: no stage mixes rows other than over edges (false with batch normalization).
        decoder: what makes a score of an edge of the rows of its ends, where links are predicted; its parameters are
            the model's.
        whole: the model is computed as a whole, from the inputs to the seeds, because its layers are not known; see
            :class:`partita.nn.modules.ModuleModel`.

    Raises:
        ConfigError: there is no stage, or the widths of two neighboring stages do not fit.
    """

    whole = False

    def __init__(self, stages: Sequence[Stage | Layer], encoder: Encoder | None = None) -> None:
        super().__init__()
        if not stages:
            raise ConfigError("a model needs at least one layer", where="layers")
        self.encoder = encoder
        self.decoder: Decoder | None = None
        self.stages = nn.ModuleList(stage if isinstance(stage, Stage) else Stage(stage) for stage in stages)
        layers = self.layers
        for number, (below, above) in enumerate(pairwise(layers), start=1):
            if below.out_width != above.in_width:
                raise ConfigError(
                    f"layer {number} returns {below.out_width} columns, but layer {number + 1} takes {above.in_width}",
                    where="layers",
                )
        if encoder is not None and encoder.out_width != layers[0].in_width:
            raise ConfigError(
                f"the encoder returns {encoder.out_width} columns, but layer 1 takes {layers[0].in_width}",
                where="encoder",
            )
        self.widths = (layers[0].in_width, *(layer.out_width for layer in layers))
        self.row_wise = all(stage.row_wise for stage in self.stages)  # type: ignore[misc]

    @classmethod
    def from_layers(
        cls,
        layers: Sequence[Layer],
        *,
        norm: str = "layer",
        activation: str = "relu",
        dropout: float = 0.0,
        encoder: Encoder | None = None,
    ) -> Model:
        """A model with the same normalization, activation and dropout after each layer but the last."""
        hidden = [Stage(layer, norm=norm, activation=activation, dropout=dropout) for layer in layers[:-1]]
        return cls([*hidden, *layers[-1:]], encoder)

    @property
    def layers(self) -> list[Layer]:
        """The layers, the input-side one first."""
        return [stage.layer for stage in self.stages]  # type: ignore[misc]

    def forward(
        self, blocks: Sequence[Block], h: Rows | RowsByType, step_key: StepKey | None = None
    ) -> Float[Tensor, "D out"]:
        """Rows of the seed nodes, where one process computes everything.

        Args:
            blocks: one per layer, the input-side one first; each one's destinations are the next one's sources.
            h: rows of the first block's sources; of a typed graph those of every type, for the encoder.
            step_key: names the training step; ``None`` in evaluation (no dropout).
        """
        if len(blocks) != len(self.stages):
            raise ValueError(f"{len(self.stages)} blocks are needed, one per layer, not {len(blocks)}")
        if isinstance(h, RowsByType):
            if self.encoder is None:
                raise ValueError("rows of several types need an encoder")
            if self.encoder.ages is not None:
                raise ValueError("the model reads how old rows are at a time: encode them, and add what their ages say")
            h = self.encoder.over(h).rows(blocks[0]) if self.composes_encoder else self.encoder(h)
        for layer, (stage, block) in enumerate(zip(self.stages, blocks), start=1):
            h = stage(block, h, step_key, layer)
        return h  # type: ignore[return-value]

    @property
    def type_widths(self) -> tuple[int, ...] | None:
        """Feature columns of each node type that the model takes; ``None``: it is for untyped graphs."""
        return None if self.encoder is None else self.encoder.widths

    @property
    def composes_encoder(self) -> bool:
        """Whether there is an encoder, and the first layer can compose it with its own maps."""
        return self.encoder is not None and self.encoder.composable and self.layers[0].composes_encoder

    def reset(self, seed: int) -> None:
        """Initialize every parameter as a function of (seed, number of its layer, its name), and of nothing else.

        The encoder has number 0.
        """
        if self.encoder is not None:
            self.encoder.reset(fold(fold(int(Purpose.INITIALISE), seed), 0))
        for layer, stage in enumerate(self.stages, start=1):
            stage.reset(fold(fold(int(Purpose.INITIALISE), seed), layer))  # type: ignore[operator]

    def scale_output(self, mean: float, deviation: float) -> None:
        """Let the model predict ``mean + deviation * z``, where z is what its last layer computes.

        Args:
            mean: of the targets.
            deviation: their standard deviation, above 0.
        """
        self.stages[-1].output_scale = (mean, deviation)  # type: ignore[assignment]

    def describe(self) -> dict[str, Any]:
        """The model's architecture as JSON-able values, without its parameters; but for the decoder."""
        encoder = {} if self.encoder is None else {"encoder": self.encoder.describe()}
        return {**encoder, "stages": [stage.describe() for stage in self.stages]}  # type: ignore[operator]

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Model:
        """The model that :meth:`describe` described, its parameters initialized anew.

        Raises:
            ConfigError: a layer is not one of Partita's, so it can only be built by the code that built it; or the
                description is of something else.
        """
        with fitting("model", ConfigError, "Train again: the description of the model in run.json is damaged"):
            encoder = description.get("encoder")
            stages = [_stage(stage) for stage in description["stages"]]
            return cls(stages, None if encoder is None else Encoder.from_description(encoder))


def build_model(
    name: str,
    *,
    in_width: int,
    hidden: int,
    out_width: int,
    layers: int,
    heads: int = 1,
    norm: str = "layer",
    activation: str = "relu",
    dropout: float = 0.0,
    attn_dropout: float = 0.0,
    aggregator: str = "mean",
    edge_weights: bool = False,
    residual: bool = False,
    seed: int = 0,
    options: Mapping[str, Any] = {},
    encoder: Encoder | None = None,
) -> Model:
    """A model of equal layers.

    Args:
        name: of a layer in :data:`~partita.nn.layers.LAYERS`, or ``package.module:Name``.
        in_width: columns of the input features.
        hidden: columns between the layers (all heads together).
        out_width: columns of the result, for instance the number of classes.
        layers: number of layers K.
        heads: attention heads: concatenated in hidden layers, averaged in the last.
        norm: normalization after each layer but the last; a name from :data:`~partita.nn.stage.NORMS`.
        activation: after each layer but the last; a name from :data:`~partita.nn.stage.ACTIVATIONS`.
        dropout: after each layer but the last: probability with which an entry is set to 0 in training.
        attn_dropout: probability with which an attention coefficient is set to 0 in training.
        aggregator: a name from :data:`~partita.nn.layers.reductions.REDUCTIONS`.
        edge_weights: layers multiply the rows of neighbors by the weights of their edges.
        residual: hidden layers add their input to their output, see :class:`~partita.nn.layers.residual.Residual`.
        seed: of the initialization, see :meth:`Model.reset`.
        options: further ones, of a layer of one's own; those that the layer does not name are left out.
        encoder: for the node types of a typed graph; it returns ``in_width`` columns.

    Raises:
        ConfigError: a name is not known, a number is out of range, or an option is set that the layer does not have.
    """
    layer_type = LAYERS.find(name)
    if layers < 1:
        raise ConfigError(f"a model needs at least one layer, not {layers}", where="layers")
    defaults = {"heads": 1, "attn_dropout": 0.0, "aggregator": "mean", "edge_weights": False}
    given = {"heads": heads, "attn_dropout": attn_dropout, "aggregator": aggregator, "edge_weights": edge_weights}
    for option, value in given.items():
        if option not in layer_type.options and value != defaults[option]:
            raise ConfigError(f"the layer '{name}' has no option '{option}'", where=option, fix=f"Leave {option} out")
    given |= options
    own = {option: given[option] for option in sorted(layer_type.options & given.keys())}
    widths = [in_width, *[hidden] * (layers - 1), out_width]
    chain = [
        layer_type.for_model(below, above, last=number == layers, **own)
        for number, (below, above) in enumerate(pairwise(widths), start=1)
    ]
    for layer in chain:
        layer.name = name
    if residual:
        chain = [*map(Residual, chain[:-1]), chain[-1]]
    model = Model.from_layers(chain, norm=norm, activation=activation, dropout=dropout, encoder=encoder)
    model.reset(seed)
    return model


def _stage(description: Mapping[str, Any]) -> Stage:
    arguments = dict(description["layer"])
    name, residual = arguments.pop("name"), arguments.pop("residual", False)
    layer = LAYERS.find(name)(**arguments)
    layer.name = name
    layer = Residual(layer) if residual else layer
    stage = Stage(layer, **{key: value for key, value in description.items() if key not in ("layer", "output_scale")})
    if "output_scale" in description:
        mean, deviation = description["output_scale"]
        stage.output_scale = (mean, deviation)
    return stage
