"""Strategies: lists of placements, their names, and the engine of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from jaxtyping import Int64
from torch import Tensor

from partita.comm.axis import Axis, Workers, make_axis
from partita.core.errors import ConfigError, nearest
from partita.core.protocols import CacheTier, Estimator, FeatureTier, Inputs, Placement, Sampler, Topology
from partita.core.registry import Registry
from partita.features.host import HostRows
from partita.features.learnt import LearntRows, RowOwners
from partita.features.peers import Peers
from partita.features.rows import FeatureColumn
from partita.features.tiers import CACHE_LAYOUTS, NO_CACHE, CacheSettings, make_tiers, require_room, stack_tiers
from partita.features.typed import TypedColumns
from partita.nn.model import Model
from partita.nn.modules import ModuleModel
from partita.parallel.block_worker import BlockWorker
from partita.parallel.engine import Engine, WholeModelEngine
from partita.parallel.inputs import Direct, Tiered, columns_of
from partita.parallel.placements.kinds import INPUT_PLACEMENTS, PLACEMENTS, CacheRule, PlacementKind, goes_with
from partita.parallel.simulation import Simulation
from partita.parallel.typed_inputs import TypedInputs


@dataclass(frozen=True)
class Strategy:
    """What is placed how.

    Attributes:
        inputs: the input placement, a name from :data:`~partita.parallel.placements.kinds.INPUT_PLACEMENTS`.
        placements: names from :data:`~partita.parallel.placements.kinds.PLACEMENTS`, one per layer, layer 1 (input
            side) first.
        axis: the workers among whom they place, from :data:`~partita.core.mesh.AXES`; over the others every
            worker works on seeds of its own, as with ``data``.
    """

    inputs: str
    placements: tuple[str, ...]
    axis: str = "all"

    def __str__(self) -> str:
        text = ",".join((self.inputs, *self.placements))
        return text if self.axis == "all" else f"{text}@{self.axis}"

    @property
    def name(self) -> str:
        """Its name, or its list where it has none, as users write it."""
        for name in STRATEGIES:
            known = STRATEGIES.find(name).of(len(self.placements))
            if (known.inputs, known.placements) == (self.inputs, self.placements):
                other = {"workers": "hosts", "hosts": "workers"}.get(self.axis)
                return name if other is None else f"{name}@{self.axis}+data@{other}"
        return str(self).removeprefix("direct,")

    @property
    def is_named(self) -> bool:
        """Whether it has a name."""
        return self.name != str(self).removeprefix("direct,")

    @property
    def kinds(self) -> list[PlacementKind]:
        """Of the placement at each layer, layer 1 (input side) first."""
        return [PLACEMENTS.find(name) for name in self.placements]

    @property
    def sentences(self) -> list[str]:
        """Who reads the input rows, and who computes the rows of each layer, layer 1 (input side) first."""
        return [INPUT_PLACEMENTS.find(self.inputs).sentence, *(kind.sentence for kind in self.kinds)]

    @property
    def needs_owners(self) -> bool:
        """Whether it matters which worker owns a node."""
        return INPUT_PLACEMENTS.find(self.inputs).by_owner or any(kind.needs_owners for kind in self.kinds)

    @property
    def is_collective(self) -> bool:
        """Whether workers exchange anything before the gradients of the parameters."""
        return INPUT_PLACEMENTS.find(self.inputs).collective or any(kind.collective for kind in self.kinds)

    @property
    def cache_rule(self) -> CacheRule:
        """What a worker reads: as the input placement says where that decides, else as that of layer 1 does."""
        return INPUT_PLACEMENTS.find(self.inputs).cache_rule or self.kinds[0].cache_rule


@dataclass(frozen=True)
class StrategyPreset:
    """What the name of a strategy stands for, however many layers there are.

    Attributes:
        inputs: the input placement.
        first: the placement of layer 1 (input side).
        others: that of the other layers.
    """

    inputs: str
    first: str
    others: str

    def of(self, layers: int) -> Strategy:
        """The strategy for a model of so many layers."""
        return Strategy(self.inputs, (self.first, *[self.others] * (layers - 1)))


AUTO = "auto"
"""The planner finds out which strategy it is, before a run is made."""

PLAIN = "gdp"
"""What any store and any model allows, and what sends nothing but gradients."""

STRATEGIES: Registry[StrategyPreset] = Registry(
    "strategy",
    {
        PLAIN: StrategyPreset("direct", "data", "data"),
        "nfp": StrategyPreset("columns", "feature", "data"),
        "snp": StrategyPreset("direct", "source", "data"),
        "dnp": StrategyPreset("direct", "destination", "data"),
        "gsplit": StrategyPreset("by-owner", "destination", "destination"),
    },
)
"""Strategies by name."""


def parse_strategy(text: str, layers: int) -> Strategy:
    """Read a strategy.

    Args:
        text: a name from :data:`STRATEGIES` (``gsplit``); or a list with one placement per layer, whose FIRST entry is
            layer 1, the input side (``source,destination,data``), after the input placement where that is not
            ``direct`` (``by-owner,source,destination,data``); or one of these per axis of the mesh, of which all but
            one say ``data`` or ``gdp`` (``data@hosts+gsplit@workers``).
        layers: of the model, K.

    Raises:
        ConfigError: a name is not known, the list does not fit the model, or two axes both place layers.
    """
    if text == AUTO:
        raise ConfigError(
            "strategy 'auto' must be resolved before training starts",
            where=f"strategy '{text}'",
            fix="Train with partita train, or name the best strategy of partita.make_plan",
        )
    terms = [term.strip().partition("@") for term in text.split("+")]
    if len(terms) == 1 and not terms[0][1]:
        return _parse_list(terms[0][0], layers, "all")
    found = []
    for name, _, axis in terms:
        if axis not in ("hosts", "workers"):
            raise ConfigError(
                f"'{name}' is for no axis of the mesh" if not axis else f"unknown axis '{axis}'",
                where=f"strategy '{text}'",
                fix="Write STRATEGY@hosts+STRATEGY@workers",
            )
        exchanges_nothing = (
            name in PLACEMENTS and not PLACEMENTS.find(name).collective
        )  # so it may stand for all layers
        found.append(_parse_list(",".join([name] * layers) if exchanges_nothing else name, layers, axis))
    if len({strategy.axis for strategy in found}) < len(found):
        raise ConfigError("an axis is given twice", where=f"strategy '{text}'", fix="Give each axis one strategy")
    placing = [strategy for strategy in found if strategy.is_collective]
    if len(placing) > 1:
        raise ConfigError(
            f"both axes place layers among their workers ({' and '.join(map(str, placing))})",
            where=f"strategy '{text}'",
            fix="Use data for one of them",
        )
    return placing[0] if placing else Strategy("direct", ("data",) * layers)


def _parse_list(text: str, layers: int, axis: str) -> Strategy:
    names = [name.strip() for name in text.split(",")]
    where = f"strategy '{text}'"
    if len(names) == 1 and (names[0] in STRATEGIES):
        return replace(STRATEGIES.find(names[0]).of(layers), axis=axis)
    known = (*PLACEMENTS, *INPUT_PLACEMENTS) if len(names) > 1 or layers == 1 else tuple(STRATEGIES)
    for name in names:
        if name not in (*PLACEMENTS, *INPUT_PLACEMENTS) and ":" not in name:
            raise ConfigError(f"unknown strategy or placement '{name}'", where=where, fix=nearest(name, known))
    inputs = names.pop(0) if names[0] in INPUT_PLACEMENTS else ""
    misplaced = [name for name in names if name in INPUT_PLACEMENTS]
    if misplaced:
        raise ConfigError(f"'{misplaced[0]}' is for input rows", where=where, fix="Name it first, before layer 1")
    if len(names) != layers:
        raise ConfigError(
            f"{len(names)} placement{'' if len(names) == 1 else 's'} for {layers} layers",
            where=where,
            fix="Name one placement per layer, layer 1 (the input side) first",
        )
    implied = PLACEMENTS.find(names[0]).inputs
    if not goes_with(inputs or implied, names[0]):
        raise ConfigError(
            f"input placement '{inputs}' does not go with '{names[0]}' at layer 1", where=where, fix=f"Use '{implied}'"
        )
    return Strategy(inputs or implied, tuple(names), axis)


def build_engine(
    strategy: Strategy,
    model: Model,
    topology: Topology,
    column: FeatureColumn | HostRows | TypedColumns,
    sampler: Sampler | Sequence[int],
    dtype: torch.dtype,
    context: Workers,
    part_offsets: Int64[Tensor, "P_1"],
    cache: CacheSettings = NO_CACHE,
) -> Engine:
    """The engine of a strategy on this worker. Called by every worker, as groups may be made.

    A cache is empty until :func:`partita.parallel.caching.fill_caches`.

    Args:
        strategy: what is placed how.
        model: of K layers, the same parameters on every worker.
        topology: where neighbors are drawn.
        column: the input rows of all nodes, or those that this host holds; of a typed graph those of every type.
        sampler: what is drawn; fanouts, layer 1 (input side) first, -1 for all neighbors, stand for
            :class:`~partita.sample.samplers.NodeWise`.
        dtype: of the model and of edge coefficients.
        context: of this process.
        part_offsets: int64 (P+1) of the store.
        cache: which input rows every worker keeps copies of.

    Raises:
        ConfigError: the model, the strategy, the store and the workers do not fit each other.
    """
    check_model(model, context.mesh.size)
    if model.whole:
        check_strategy_of_module(strategy)
    check_encoder(model, column)
    _check_ages(model, topology)
    host = HostRows(column) if isinstance(column, FeatureColumn) else column
    source = None if model.encoder is None else model.encoder.source
    learnt = source if isinstance(source, LearntRows) else None
    inputs = _make_inputs(strategy, host, topology, context, part_offsets, cache, learnt)
    of_requests = part_offsets * topology.slots
    worker = BlockWorker(model, topology, inputs, sampler, dtype)

    def make(name: str, worker: BlockWorker, context: Workers) -> Placement:
        return make_placement(name, strategy, worker, context, host, of_requests)

    made = {name: make(name, worker, context) for name in strategy.placements}
    estimators = [
        each if isinstance(each := made[name], Estimator) else Simulation(worker, partial(make, name))
        for name in strategy.placements
    ]
    for layer, (name, kind) in enumerate(zip(strategy.placements, strategy.kinds, strict=True), start=1):
        if kind.first_layer_only and layer > 1:
            raise ConfigError(
                f"the placement '{name}' is for layer 1 (the first in the list) only",
                where=f"placements, layer {layer} ({worker.layer(layer).name})",
                fix="Use 'data', 'destination' or 'source' for this layer",
            )
        made[name].check(layer)
    engine = WholeModelEngine if model.whole else Engine
    return engine([made[name] for name in strategy.placements], worker, estimators)


def make_placement(
    name: str,
    strategy: Strategy,
    worker: BlockWorker,
    context: Workers,
    host: HostRows | TypedColumns,
    part_offsets: Int64[Tensor, "P_1"],
) -> Placement:
    """A placement of a strategy on this worker. Called by every worker, as groups may be made.

    Args:
        name: in the table of placements.
        strategy: which the placement is of.
        worker: draws and computes blocks.
        context: of this process.
        host: the input rows of this host.
        part_offsets: int64 (P+1): where parts begin in the ids of what the topology is asked for.
    """
    axis = _axis(strategy, context, part_offsets)
    # Where nothing of the strategy is collective there is no axis, and no placement looks for one.
    return PLACEMENTS.find(name).make(worker, cast(Axis, axis), _columns(strategy, host, axis))


def _axis(strategy: Strategy, context: Workers, part_offsets: Int64[Tensor, "P_1"]) -> Axis | None:
    """The workers among whom a strategy places; ``None`` where they exchange nothing."""
    if not strategy.is_collective:
        return None
    return make_axis(context, strategy.axis, part_offsets, owners=strategy.needs_owners)


def _columns(strategy: Strategy, host: HostRows | TypedColumns, axis: Axis | None) -> slice:
    """The feature columns that a worker reads."""
    if isinstance(host, TypedColumns):
        return slice(0, 0)  # of no meaning: types have other columns
    sliced = INPUT_PLACEMENTS.find(strategy.inputs).sliced and axis is not None
    return columns_of(host.home.width, axis.rank, axis.size) if sliced and axis is not None else host.columns


def _make_inputs(
    strategy: Strategy,
    host: HostRows | TypedColumns,
    topology: Topology,
    context: Workers,
    part_offsets: Int64[Tensor, "P_1"],
    cache: CacheSettings,
    learnt: LearntRows | None,
) -> Inputs:
    """The input placement of a strategy."""
    axis = _axis(strategy, context, part_offsets)
    if isinstance(host, TypedColumns):
        return _typed_inputs(strategy, host, topology.of_nodes, context, part_offsets, axis, cache, learnt)
    level, mesh = INPUT_PLACEMENTS.find(strategy.inputs), context.mesh
    if level.sliced and axis is not None:
        if not host.whole and strategy.axis != "workers" and mesh.hosts > 1:
            raise ConfigError(
                "every host holds the feature rows of its own nodes only, and the workers of other hosts, who could "
                "give the rest, read other columns",
                where=f"strategy '{strategy}'",
                fix="Slice columns within a host: nfp@workers+data@hosts",
            )
        host = host.sliced(_columns(strategy, host, axis))
    readable = host.home.readable_on(torch.device(cache.device))
    in_place = host.whole and cache.bytes == 0 and cache.memory is None
    if in_place and not level.collective and readable and topology.slots == 1:
        return Direct(host.home, topology.num_nodes)
    hosts = None if host.whole else make_axis(context, "hosts", part_offsets)
    workers = None
    # Workers who read different columns keep different bytes as it is, and none could give another a row.
    if cache.bytes and CACHE_LAYOUTS.find(cache.layout).shared and not (level.sliced and strategy.axis != "hosts"):
        workers = _holders(context, part_offsets, cache.layout)
    tier: FeatureTier
    tier, held = make_tiers(host, cache, hosts=hosts, workers=workers, per_host=mesh.workers)
    if level.by_owner and axis is not None:
        tier = Peers(axis, tier, axis.owner, mesh.workers)
    return Tiered(tier, host.home, host.columns, topology.of_nodes.original, held)


def _typed_inputs(
    strategy: Strategy,
    columns: TypedColumns,
    topology: Topology,
    context: Workers,
    part_offsets: Int64[Tensor, "P_1"],
    axis: Axis | None,
    cache: CacheSettings,
    learnt: LearntRows | None,
) -> TypedInputs:
    """The input placement of a strategy on a typed graph."""
    level = INPUT_PLACEMENTS.find(strategy.inputs)
    if level.sliced and axis is not None:
        raise ConfigError(
            f"input placement '{strategy.inputs}' deals out the columns of features, which every node type has other "
            "ones of, and which learnt rows have a map in front of",
            where=f"strategy '{strategy}'",
            fix="Use gdp, snp, dnp or gsplit for typed graphs and for learnt rows",
        )
    shared = cache.bytes and CACHE_LAYOUTS.find(cache.layout).shared
    holders = _holders(context, part_offsets, cache.layout) if shared else None
    between = None if columns.whole else make_axis(context, "hosts", part_offsets)
    keeping = list[FeatureTier | None]()

    def make(kind: int, host: HostRows) -> tuple[FeatureTier, CacheTier | None]:
        workers, hosts = (None if axis is None else _of_type(axis, columns, kind) for axis in (holders, between))
        tier, held = stack_tiers(
            host,
            cache.share(host, [rows for rows in columns.columns if rows is not None]),
            hosts=hosts,
            workers=workers,
            per_host=context.mesh.workers,
        )
        keeping.append(tier if cache.looks_ahead else held)
        if level.by_owner and axis is not None:
            of_type = _of_type(axis, columns, kind)
            tier = Peers(of_type, tier, of_type.owner, context.mesh.workers)
        return tier, held

    owners = None
    if any(columns.learnt) and context.mesh.size > 1:
        owners = RowOwners.of(columns.types, part_offsets, context.mesh.size)
    inputs = TypedInputs(columns, topology, make, owners, context.mesh.rank, learnt)
    require_room(cache.bytes, keeping)
    return inputs


def _of_type(axis: Axis, columns: TypedColumns, kind: int) -> Axis:
    """Who owns the rows of a type, by their numbers among those of the type."""
    bounds = columns.types.before(kind, axis.part_offsets.numpy())
    return replace(axis, part_offsets=torch.from_numpy(bounds), _copies={})


def _holders(context: Workers, part_offsets: Int64[Tensor, "P_1"], layout: str) -> Axis:
    """The workers of this host, who keep the rows of the nodes that they own."""
    try:
        return make_axis(context, "workers", part_offsets)
    except ConfigError as error:
        raise ConfigError(
            f"the workers of a host keep the rows of the nodes that they own, and {error.what}",
            where=f"cache_layout '{layout}'",
            fix="Partition the store into a part for every worker of a host, or of all hosts; or use the layout 'own'",
        ) from None


def check_encoder(model: Model, column: FeatureColumn | HostRows | TypedColumns) -> None:
    """Refuse a model that does not take the rows of a graph.

    Raises:
        ConfigError: the graph is typed and the model has no encoder for its types, or the other way round.
    """
    if isinstance(column, TypedColumns):
        if model.type_widths is None:
            raise ConfigError(
                "the graph is typed, and the model has no encoder to bring the rows of all node types to one width",
                where="model",
                fix="Give the model one: partita.Model.from_layers(layers, encoder=partita.Encoder(...))",
            )
        learnt = model.encoder.learnt if model.encoder is not None else ()
        if learnt != (column.learnt or (0,) * len(learnt)):
            raise ConfigError(
                f"the model takes learnt rows of {learnt} columns by node type, the setting embed gives "
                f"{column.learnt or 'none'}",
                where="embed",
                fix="Give Encoder(learnt=...) and embed the same widths",
            )
        if model.type_widths != column.widths:
            raise ConfigError(
                f"the model is for node types of {model.type_widths} feature columns, those of the store "
                f"have {column.widths}",
                where="model",
                fix="Make the model, or its encoder, for the node types of the store",
            )
    elif model.type_widths is not None:
        raise ConfigError(
            "the model is for node types, and the graph has none",
            where="model",
            fix="Leave its encoder out, use a typed graph, or learn rows of the nodes: embed",
        )


def _check_ages(model: Model, topology: Topology) -> None:
    if model.encoder is not None and model.encoder.ages is not None and topology.slots == 1:
        raise ConfigError(
            "the model reads how old rows are when a seed is asked about, and nothing is asked about at a time",
            where="model",
            fix="Sample by time, or leave dated out of the encoder",
        )


def check_model(model: Model, workers: int) -> None:
    """Refuse what several workers would not compute as one does.

    Raises:
        ConfigError: a layer mixes rows, or makes choices, that depend on which rows are computed together.
    """
    if workers == 1:
        return
    if isinstance(model, ModuleModel):
        _check_module(model)
    for number, stage in enumerate(model.stages, start=1):
        if not stage.row_wise:
            raise ConfigError(
                "batch normalization averages over the rows that one worker computes, so several workers would train "
                "another model",
                where=f"norm, layer {number}",
                fix="Use the normalization 'layer' or 'none', or one worker",
            )
        if stage.layer.draws_by_call:  # type: ignore[union-attr]
            raise ConfigError(
                "the convolution's dropout depends on which rows are computed together, so several "
                "workers would train another model",
                where=f"layer {number} ({stage.layer.name})",  # type: ignore[union-attr]
                fix="Set its dropout to 0 (dropout between the layers is exact), use one of Partita's own layers, or "
                "one worker",
            )


def check_strategy_of_module(strategy: Strategy) -> None:
    """Refuse to place the layers of a model that is computed as a whole.

    Raises:
        ConfigError: the strategy exchanges rows.
    """
    if strategy.is_collective:
        raise ConfigError(
            "the layers of a torch.nn.Module are not known, so the module is computed as a whole, by every worker for "
            "its own seeds",
            where=f"strategy '{strategy}'",
            fix="Use --strategy gdp (data), or make the model of layers: partita.Model.from_layers",
        )


def _check_module(model: ModuleModel) -> None:
    if model.mixes_rows:
        raise ConfigError(
            "in training, a row of the module depends on which rows are computed with it (batch normalization, for "
            "instance), so several workers would train another model",
            where="model",
            fix="Use layer normalization or none, or one worker",
        )
    if model.draws:
        raise ConfigError(
            "the module drops out with draws that depend on which rows are computed together, so several workers "
            "would train another model",
            where="model",
            fix="Set its dropout to 0, use one worker, or make the model of layers, between which dropout is exact",
        )
