"""What samplers are made from, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from jaxtyping import Int
from torch import Tensor

from partita.comm.group import Group
from partita.core.errors import ConfigError
from partita.core.keys import StepKey
from partita.core.protocols import Sampler, Topology
from partita.core.records import RemoteDraws, Sampled, Traffic


@dataclass(frozen=True)
class SamplerSettings:
    """What a sampler may be told; see :class:`partita.Config` for what each means.

    Attributes:
        fanouts: per layer, layer 1 (input side) first; of a layer a number, or those of all relations of a typed graph.
        budgets: likewise, of a typed graph those of all relations; empty where none are given.
        metapath: of a typed graph, numbers of the relations that walks go along; empty for walks along any edge.
        metapath_ends_elsewhere: at another type than it begins at, so that it is traversed once.
        options: those of the sampler's own, by name.
    """

    fanouts: tuple[int | tuple[int, ...], ...] = ()
    budgets: tuple[int | tuple[int, ...], ...] = ()
    walks: int = 10
    walk_length: int = 3
    walk_restart: float = 0.5
    metapath: tuple[int, ...] = ()
    metapath_ends_elsewhere: bool = False
    batch_dependency: int = 1
    layer_dependency: bool = False
    replace: bool = False
    weighted: bool = False
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fanouts, for samplers that do not draw by relation.

        Raises:
            ConfigError: they are of relations.
        """
        found = tuple(fanout for fanout in self.fanouts if isinstance(fanout, int))
        if len(found) < len(self.fanouts):
            raise ConfigError(
                "fanouts are given for relations, by which this sampler does not draw",
                where="fanout",
                fix="Give a number for each layer, or use the sampler node",
            )
        return found


class EvaluationSampler(Sampler, Protocol):
    """Takes the neighbors that a model is evaluated with, whatever the step: those of a layer are among the widest.

    Attributes:
        most: neighbors of a node, at most, in any layer.
        node_bytes: memory that finding the neighbors of a node takes.
    """

    @property
    def most(self) -> int: ...  # noqa: D102

    @property
    def node_bytes(self) -> int: ...  # noqa: D102

    def widest(self, topology: Topology, dst: Int[Tensor, "D"]) -> Sampled:
        """The neighbors of any layer."""
        ...


class BaseSampler:
    """Implements :class:`partita.core.protocols.Sampler` but for ``draw``; what it says is right for most samplers.

    Attributes:
        settings: those of :class:`partita.Config` that only some samplers take, which this one does.
        options: the options of its own, see :attr:`SamplerSettings.options`.
        draws_on_device: on device cuda it can draw there; otherwise the device's edges are of no use to it.
        counts_neighbors: how many in-edges of a node are drawn is settled by that node alone, so that views of the
            graph can correct for those out of sight.
        may_draw_nothing: its fanouts may be 0, for models that read no neighbors.
        numbers_by_relation: its fanouts, or budgets, are numbers for each relation of a typed graph.
        draws_by_time: it can draw from the edges that are not later than the time of a seed.
        plannable_in_parts: what workers send to draw can be estimated where each has a part of the edges.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    draws_on_device: ClassVar[bool] = False
    counts_neighbors: ClassVar[bool] = False
    may_draw_nothing: ClassVar[bool] = False
    numbers_by_relation: ClassVar[bool] = False
    draws_by_time: ClassVar[bool] = False
    plannable_in_parts: ClassVar[bool] = True
    collective: bool = False
    has_importance: bool = False
    draws_graph_edges: bool = True
    draws_relations: bool = False

    @classmethod
    def of(cls, settings: SamplerSettings, group: Group) -> BaseSampler:
        """The sampler of a run.

        Args:
            settings: of the run.
            group: all workers, for what is sent while sampling.
        """
        return cls()

    @classmethod
    def check(cls, settings: SamplerSettings) -> None:
        """See that settings can be used.

        Raises:
            ConfigError: they cannot.
        """

    @classmethod
    def for_evaluation(cls, settings: SamplerSettings) -> EvaluationSampler | None:
        """What a model is evaluated with that was trained with this sampler; ``None``: all neighbors."""
        return None

    def takes_all(self, layer: int) -> bool:
        """Whether all neighbors are taken in a layer: then many destinations share each source."""
        return False

    def expected_edges(self, layer: int, destinations: int, degree: float, workers: int) -> float:
        """About how many edges a worker draws for a layer.

        Args:
            layer: 1 (input side) to K (seed side).
            destinations: of the worker.
            degree: mean in-degree of the graph.
            workers: which share the batch.
        """
        return destinations * degree

    def at_step(self, step: StepKey) -> Sampler:
        """Itself: its draws are a function of a layer's key alone."""
        return self

    def draw(self, topology: Topology, dst: Int[Tensor, "D"], key: int, layer: int) -> Sampled:
        """See :class:`partita.core.protocols.Sampler`."""
        raise NotImplementedError

    def estimate(self, layer: int, topology: Topology) -> RemoteDraws:
        """Nothing."""
        return RemoteDraws()

    def traffic(self, layer: int, remote: RemoteDraws) -> Traffic:
        """Nothing travels but what the topology sends."""
        return Traffic()
