"""Samplers, and the table of their names: which in-edges of a layer's destinations make up a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Int, Int64
from torch import Tensor

from partita import kernels
from partita.comm.group import Group
from partita.comm.routing import to_all
from partita.core.errors import ConfigError
from partita.core.protocols import Sampler, Topology
from partita.core.records import RemoteDraws, Sampled, Traffic
from partita.core.registry import Registry
from partita.kernels.layer_sampling import MOST_EDGES
from partita.kernels.reference.draws import NEVER
from partita.sample.base import BaseSampler, SamplerSettings
from partita.sample.labor import LaborWise
from partita.sample.topology import ArrayTopology
from partita.sample.walks import WalkWise, expected_neighbors

_TIME_BYTES = 8
_WEIGHT_BYTES = 4


@dataclass(frozen=True)
class Fanout:
    """A rule: draw a number of in-edges of every node, whoever else is in the batch.

    Attributes:
        key: of the step and layer; a node's draws are a function of it and of the node's original index.
        fanout: edges per node, and in typed graphs per relation; or those of each relation. -1 for all.
        positions: say where in the store's ``indices`` every edge is.
    """

    key: int
    fanout: int | tuple[int, ...]
    positions: bool = False

    def __call__(self, held: ArrayTopology, ids: Int[Tensor, "n"]) -> Sampled:
        """Draw; see :attr:`partita.core.protocols.Rule`."""
        return held.sample(ids, self.key, self.fanout, positions=self.positions)


class NodeWise(BaseSampler):
    """A number of in-edges for every node, whoever else is in the batch.

    Args:
        fanouts: neighbors per layer, layer 1 (input side) first; -1 for all. In typed graphs they are per relation: the
            same for all, or a number for each.
    """

    settings = ("fanout",)
    draws_on_device = True
    draws_by_time = True
    counts_neighbors = True
    may_draw_nothing = True
    draws_relations = True
    numbers_by_relation = True

    def __init__(self, fanouts: Sequence[int | tuple[int, ...]]) -> None:
        self.fanouts = tuple(fanouts)

    @classmethod
    def of(cls, settings: SamplerSettings, group: Group) -> NodeWise:
        """As the settings say."""
        return cls(settings.fanouts)

    def takes_all(self, layer: int) -> bool:
        """Whether the fanout is -1, or that of every relation."""
        fanout = self.fanouts[layer - 1]
        return all(each == -1 for each in ((fanout,) if isinstance(fanout, int) else fanout))

    def expected_edges(self, layer: int, destinations: int, degree: float, workers: int) -> float:
        """As many as the fanout allows."""
        return expected_neighbors(self.fanouts[layer - 1], destinations, degree)

    def draw(self, topology: Topology, dst: Int[Tensor, "D"], key: int, layer: int) -> Sampled:
        """See :class:`partita.core.protocols.Sampler`."""
        return topology.at_owners(dst, Fanout(key, self.fanouts[layer - 1]))


class LayerWise(BaseSampler):
    """A number of in-edges for a layer as a whole, over the union of what all workers ask for; by relation if typed.

    The layer-wise form of DSP's collective sampling primitive (Cai et al., PPoPP 2023, section 4.1), with one
    difference: there, every worker draws for its own part of the batch; here the budget is for the batch, so that any
    number of workers draw what one draws. All edges of the union arrive at times that are functions of the key and of
    the node (:mod:`partita.kernels.reference`). Every worker finds the first times among its own edges, all exchange
    them, and then know the time before which an edge must have arrived.

    Samples have an importance, by which sums over the drawn edges estimate those over all edges without bias.

    In typed graphs every relation has a budget, and times, of its own: of each one sums are estimated without bias.

    Args:
        budgets: edges per layer, layer 1 (input side) first. In typed graphs they are per relation: the same for all,
            or a number for each; 0 draws none.
        group: all workers of the run.
        weighted: the topology draws in proportion to edge weights. Then weights travel with the edges that another
            worker draws, as importances follow from them.

    Attributes:
        collective: there are several workers.
    """

    settings = ("layer_budget",)
    has_importance = True
    draws_relations = True
    numbers_by_relation = True

    def __init__(self, budgets: Sequence[int | tuple[int, ...]], group: Group, *, weighted: bool = False) -> None:
        self.budgets = tuple(budgets)
        self.weighted = weighted
        self.collective = group.size > 1
        self._group = group

    @classmethod
    def of(cls, settings: SamplerSettings, group: Group) -> LayerWise:
        """As the settings say."""
        return cls(settings.budgets, group, weighted=settings.weighted)

    @classmethod
    def check(cls, settings: SamplerSettings) -> None:
        """A budget is needed that is not too large; see :meth:`BaseSampler.check`."""
        if not settings.budgets:
            raise ConfigError(
                "the sampler 'layer' needs a layer_budget", where="layer_budget", fix="Give for instance 512,256,128"
            )
        most = max(budget if isinstance(budget, int) else max(budget) for budget in settings.budgets)
        if most > MOST_EDGES:
            raise ConfigError(
                f"at most {MOST_EDGES:,} edges are drawn for a layer, not {most:,}",
                where="layer_budget",
                fix="Draw fewer edges, or use the sampler node",
            )

    def expected_edges(self, layer: int, destinations: int, degree: float, workers: int) -> float:
        """A share of the budget."""
        budget = self.budgets[layer - 1]
        return (budget if isinstance(budget, int) else sum(budget)) / workers

    def draw(self, topology: Topology, dst: Int[Tensor, "D"], key: int, layer: int) -> Sampled:
        """See :class:`partita.core.protocols.Sampler`. All workers of the run call this, each once per layer and step.

        Raises:
            ValueError: the topology is weighted and the sampler was not told so, or the other way round; or the graph
                has another number of relations.
        """
        rule = _FirstArrivals(self, key, self._wanted(layer, topology))
        found = topology.at_owners(dst, rule)
        importance = kernels.importance(
            rule.before, found.indices.shape[0], found.weights, rule.replace,
            edge_type=found.edge_type, device=found.indices.device,
        )  # fmt: skip
        return replace(found, remote=found.remote + self.estimate(layer, topology), weights=None, importance=importance)

    def estimate(self, layer: int, topology: Topology) -> RemoteDraws:
        """Its times, to all others."""
        return RemoteDraws(times=sum(self._wanted(layer, topology)) * (self._group.size - 1))

    def traffic(self, layer: int, remote: RemoteDraws) -> Traffic:
        """The times that a worker sends to the others, and the weights of edges that another worker has drawn."""
        weights = _WEIGHT_BYTES * remote.edges if self.weighted else 0
        return Traffic(ids=_TIME_BYTES * remote.times + weights)

    def agree(self, times: Int64[Tensor, "wanted"]) -> Int64[Tensor, "W wanted"]:
        """All workers' times."""
        group = self._group
        return to_all(group, times, [times.shape[0]] * group.size, "ids").reshape(group.size, -1)

    def _wanted(self, layer: int, topology: Topology) -> list[int]:
        """Times to find for each relation: one more than the edges that are drawn, if any are."""
        budget = self.budgets[layer - 1]
        budgets = (budget,) * topology.num_relations if isinstance(budget, int) else budget
        return [number + 1 if number else 0 for number in budgets]


class _FirstArrivals:
    """One layer of one step: the rule by which its edges are drawn.

    Attributes:
        wanted: times to find for each relation.
        before: of each relation the time before which an edge must have arrived.
        replace: the topology draws with replacement.
    """

    def __init__(self, sampler: LayerWise, key: int, wanted: list[int]) -> None:
        self.wanted = wanted
        self.before: list[int] = []
        self.replace = False
        self._sampler, self._key = sampler, key

    def __call__(self, held: ArrayTopology, dst: Int[Tensor, "n"]) -> Sampled:
        if held.weighted != self._sampler.weighted:
            raise ValueError(f"weighted: {held.weighted} for the topology, {self._sampler.weighted} for the sampler")
        times = self._sampler.agree(held.arrival_times(dst, self._key, self.wanted))
        for number, found in zip(self.wanted, times.split(self.wanted, dim=1), strict=True):
            distinct = found.unique()[:number]
            loser = int(distinct[-1]) if number else 0
            self.before.append(loser if distinct.shape[0] == number else NEVER)
        self.replace = held.replace
        return held.arrivals(dst, self._key, self.before)


SAMPLERS: Registry[type[BaseSampler]] = Registry(
    "sampler", {"node": NodeWise, "labor": LaborWise, "layer": LayerWise, "walk": WalkWise}
)
"""By name."""


def as_sampler(sampler: Sampler | Sequence[int | tuple[int, ...]]) -> Sampler:
    """A sampler; fanouts stand for :class:`NodeWise`."""
    return sampler if isinstance(sampler, Sampler) else NodeWise(sampler)
