"""Names of parallelization strategies, and the lists of placements they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from partita.comm.axis import Axis, Workers, make_axis
from partita.core.errors import ConfigError, nearest
from partita.core.protocols import FeatureTier, Inputs, Placement, Sampler, Topology
from partita.features.host import HostRows
from partita.features.peers import Peers, by_owner
from partita.features.rows import FeatureColumn
from partita.features.tiers import NO_CACHE, CacheSettings, make_tiers
from partita.nn.model import Model
from partita.parallel.engine import Engine
from partita.parallel.inputs import Direct, Tiered, columns_of
from partita.parallel.placements.data import Data
from partita.parallel.placements.destination import Destination
from partita.parallel.placements.feature import Feature
from partita.parallel.placements.source import Source
from partita.sample.samplers import as_sampler

PLACEMENTS = ("data", "destination", "source", "feature")


@dataclass(frozen=True)
class InputPlacement:
    """How input rows are read.

    Attributes:
        by_owner: the owner of a node reads its row, once per step, and ships it to all who ask.
        sliced: every worker reads its own columns of all rows that anybody needs.
    """

    by_owner: bool = False
    sliced: bool = False


INPUT_PLACEMENTS = {
    "direct": InputPlacement(),
    "by-owner": InputPlacement(by_owner=True),
    "columns": InputPlacement(sliced=True),
}
INPUTS = tuple(INPUT_PLACEMENTS)


@dataclass(frozen=True)
class Strategy:
    """What is placed how.

    Attributes:
        inputs: level 0, a name from :data:`INPUTS`.
        placements: names from :data:`PLACEMENTS`, one per layer, layer 1 (input side) first.
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
    def needs_owners(self) -> bool:
        """Whether it matters which worker owns a node."""
        return self.inputs == "by-owner" or bool({"destination", "source"} & set(self.placements))

    @property
    def is_collective(self) -> bool:
        """Whether workers exchange anything before the gradients of the parameters."""
        return self.inputs != "direct" or set(self.placements) != {"data"}


AUTO = "auto"
"""The planner syncs_stats_at which strategy it is, before a run is made."""

STRATEGIES: dict[str, tuple[str, str, str]] = {
    "gdp": ("direct", "data", "data"),
    "nfp": ("columns", "feature", "data"),
    "snp": ("direct", "source", "data"),
    "dnp": ("direct", "destination", "data"),
    "gsplit": ("by-owner", "destination", "destination"),
}
"""For each name: level 0, layer 1, and the other layers."""


def parse_strategy(text: str, layers: int) -> Strategy:
    """Read a strategy.

    Args:
        text: a name from :data:`STRATEGIES` (``gsplit``); or a list with one placement per layer, whose FIRST entry is
            layer 1, the input side (``source,destination,data``), after level 0 where that is not ``direct``
            (``by-owner,source,destination,data``); or one of these per axis of the mesh, of which all but one say
            ``data`` or ``gdp`` (``data@hosts+gsplit@workers``).
        layers: of the model, K.

    Raises:
        ConfigError: a name is not known, the list does not fit the model, or two axes both place layers.
    """
    if text == AUTO:
        raise ConfigError(
            "which strategy is the fastest is to be found out before a run is made",
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
        found.append(_parse_list("gdp" if name == "data" else name, layers, axis))
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
    if len(names) == 1 and names[0] in STRATEGIES:
        inputs, first, others = STRATEGIES[names[0]]
        return Strategy(inputs, (first, *[others] * (layers - 1)), axis)
    known = (*PLACEMENTS, *INPUTS) if len(names) > 1 or layers == 1 else tuple(STRATEGIES)
    for name in names:
        if name not in (*PLACEMENTS, *INPUTS):
            raise ConfigError(f"unknown strategy or placement '{name}'", where=where, fix=nearest(name, known))
    inputs = names.pop(0) if names[0] in INPUTS else ""
    misplaced = [name for name in names if name in INPUTS]
    if misplaced:
        raise ConfigError(f"'{misplaced[0]}' is for input rows", where=where, fix="Name it first, before layer 1")
    if len(names) != layers:
        raise ConfigError(
            f"{len(names)} placement{'' if len(names) == 1 else 's'} for {layers} layers",
            where=where,
            fix="Name one placement per layer, layer 1 (the input side) first",
        )
    implied = "columns" if names[0] == "feature" else "direct"
    if (inputs or implied) != implied and "columns" in (inputs, implied):
        raise ConfigError(
            f"level 0 '{inputs}' does not go with '{names[0]}' at layer 1", where=where, fix=f"Use '{implied}'"
        )
    return Strategy(inputs or implied, tuple(names), axis)


def build_engine(
    strategy: Strategy,
    model: Model,
    topology: Topology,
    column: FeatureColumn | HostRows,
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
        column: the input rows of all nodes, or those that this host holds.
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
    axis = None
    if strategy.is_collective:
        axis = make_axis(context, strategy.axis, part_offsets, owners=strategy.needs_owners)
    host = column if isinstance(column, HostRows) else HostRows(column)
    inputs, columns = _make_inputs(strategy, host, topology, context, part_offsets, axis, cache)
    sampler = as_sampler(sampler)
    common = (model, topology, inputs, sampler, dtype)
    makers: dict[str, Callable[[Axis], Placement]] = {
        "destination": lambda axis: Destination(*common, axis),
        "source": lambda axis: Source(*common, axis),
        "feature": lambda axis: Feature(*common, axis, columns),
    }
    made: dict[str, Placement] = {"data": Data(*common)}
    if axis is not None:
        made |= {name: makers[name](axis) for name in dict.fromkeys(strategy.placements) if name in makers}
    placements = [made[name] for name in strategy.placements]
    for layer, placement in enumerate(placements, start=1):
        placement.check(layer)
    return Engine(placements, inputs, topology.num_nodes, topology, sampler)


def _make_inputs(
    strategy: Strategy,
    host: HostRows,
    topology: Topology,
    context: Workers,
    part_offsets: Int64[Tensor, "P_1"],
    axis: Axis | None,
    cache: CacheSettings,
) -> tuple[Inputs, slice]:
    """Level 0 of a strategy, and the columns that it reads."""
    level, mesh = INPUT_PLACEMENTS[strategy.inputs], context.mesh
    if level.sliced and axis is not None:
        if not host.whole and strategy.axis != "workers" and mesh.hosts > 1:
            raise ConfigError(
                "every host holds the feature rows of its own nodes only, and the workers of other hosts, who could "
                "give the rest, read other columns",
                where=f"strategy '{strategy}'",
                fix="Slice columns within a host: nfp@workers+data@hosts",
            )
        host = host.sliced(columns_of(host.home.width, axis.rank, axis.size))
    readable = host.home.readable_on(torch.device(cache.device))
    if host.whole and cache.bytes == 0 and level == InputPlacement() and readable:
        return Direct(host.home, topology.num_nodes), host.columns
    hosts = None if host.whole else make_axis(context, "hosts", part_offsets)
    workers = None
    # Workers who read different columns keep different bytes as it is, and none could give another a row.
    if cache.bytes and cache.layout == "partitioned" and not (level.sliced and strategy.axis != "hosts"):
        workers = _holders(context, part_offsets)
    tier: FeatureTier
    tier, held = make_tiers(host, cache, hosts=hosts, workers=workers, per_host=mesh.workers)
    if level.by_owner and axis is not None:
        tier = Peers(axis, tier, by_owner(axis), mesh.workers)
    return Tiered(tier, host.home, host.columns, topology, held), host.columns


def _holders(context: Workers, part_offsets: Int64[Tensor, "P_1"]) -> Axis:
    """The workers of this host, who keep the rows of the nodes that they own."""
    try:
        return make_axis(context, "workers", part_offsets)
    except ConfigError as error:
        raise ConfigError(
            f"the workers of a host keep the rows of the nodes that they own, and {error.what}",
            where="cache_layout 'partitioned'",
            fix="Partition the store into a part for every worker of a host, or of all hosts; or use the layout 'own'",
        ) from None


def check_model(model: Model, workers: int) -> None:
    """Refuse what several workers would not compute as one does.

    Raises:
        ConfigError: a layer mixes rows, or makes choices, that depend on which rows are computed together.
    """
    if workers == 1:
        return
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
                "the convolution drops out with draws that depend on which rows are computed together, so several "
                "workers would train another model",
                where=f"layer {number} ({stage.layer.name})",  # type: ignore[union-attr]
                fix="Set its dropout to 0 (dropout between the layers is exact), use one of Partita's own layers, or "
                "one worker",
            )
