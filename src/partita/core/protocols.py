"""The protocols of the engine on one page.

A ``layer`` is 1 (input side) to K (seed side). The ``mesh`` that estimates are made for may be that of any worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64, Shaped, UInt64
from torch import Tensor

from partita.core.estimates import AskedRows, InputEstimate, LayerEstimate, ReadEstimate, SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.node_types import NodeTypes
from partita.core.records import Block, DiskReads, RemoteDraws, Removed, Sampled, TargetEdges, Traffic

Rule = Callable[..., Sampled]
"""What is done with the edges of some nodes where these edges are, for instance to draw some of them.

It is called with the edges at hand (a :class:`partita.sample.topology.ArrayTopology`), the store ids of nodes, which
may repeat, and their payload where there is one. It returns the edges that it takes of each node, by store id.
"""


@runtime_checkable
class Topology(Protocol):
    """Where neighbors are drawn from. All implementations draw the same sample for the same key.

    Attributes:
        num_nodes: N.
        id_dtype: of store ids.
        collective: :meth:`at_owners` exchanges something, so that all workers must call it for the same layers of the
            same steps in the same order, each from one thread, also where they want nothing.
        frugal: threads that sample should do without tables of all nodes.
        degree_offsets: int64 (N+1), running sums of the in-degrees of all nodes.
        self_loops: int32 (N), self loops of every node; ``None`` where the graph has none.
        weight_sums: float64 (N), sum of the weights of every node's in-edges but self loops; ``None`` without weights.
        loop_weights: float64 (N), weight of every node's last self loop, 1 where it has none; ``None`` without weights.
        node_types: which type every node has; ``None`` where the graph is untyped.
        num_relations: R; 1 where the graph is untyped.
        slots: what is asked for is a node at one of so many times of a batch, as ``node * slots + slot``; 1: a node. Of
            requests are ``num_nodes``, ``id_dtype``, ``node_types`` and all ids.
    """

    num_nodes: int
    id_dtype: torch.dtype
    collective: bool
    frugal: bool
    degree_offsets: Int64[Tensor, "N_1"]
    self_loops: Int32[Tensor, "N"] | None
    weight_sums: Float64[Tensor, "N"] | None
    loop_weights: Float64[Tensor, "N"] | None
    node_types: NodeTypes | None
    num_relations: int
    slots: int

    def at_owners(
        self, ids: Int[Tensor, "n"], rule: Rule, *, payload: Tensor | None = None, one_each: bool = False
    ) -> Sampled:
        """Apply a rule where the edges of some nodes are, and bring what it takes back in the order of the nodes.

        Args:
            ids: store ids, repeated or not.
            rule: called once, on every worker, also for no node.
            payload: (n) or (n, columns), what the rule is to know of each node.
            one_each: the rule takes one edge of every node, so that their number need not travel.

        Raises:
            IndexError: an id is no node, or its edges are not where they should be.
        """
        ...

    def drawing(self, columns: Sequence[str]) -> Topology:
        """The same one, whose samples have columns of the edges: ``"edge_weight"``, ``"edge_attr"``.

        They are read where the edges are drawn, and travel with them.

        Raises:
            ConfigError: the graph does not have one of them.
        """
        ...

    @property
    def of_nodes(self) -> Topology:
        """What is known of nodes, by store id, whenever they are asked for: input rows belong to them."""
        ...

    def at_times(self, times: Int64[Tensor, "T"]) -> Topology:
        """The same one, which knows what time each slot of a batch stands for; itself where there is one slot.

        Args:
            times: the distinct times of the seeds of all workers, ascending.
        """
        ...

    def without(self, excluded: TargetEdges) -> Topology:
        """The same one, as if some edges were not in the graph: what it draws, and :meth:`degrees`.

        Columns of nodes remain those of the whole graph; :meth:`removed` says by what they differ. Nothing travels: all
        workers know the edges, and each one leaves out those of its own rows.

        Raises:
            ConfigError: it does not know all edges of its nodes.
        """
        ...

    def removed(self) -> Removed | None:
        """What nodes lose of their in-edges to :meth:`without`; ``None`` where it was not called.

        Where the topology is collective, all workers ask in the same layer of a step: the first time, owners say it.
        """
        ...

    def original(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Original indices of store ids, int64; of any node, without an exchange."""
        ...

    def degrees(self, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """In-degrees of store ids, int64; of any node, without an exchange but that of :meth:`removed`."""
        ...

    def estimate(self, drawn: SampledLayer, drawing: UInt64[np.ndarray, "D"], mesh: Mesh) -> list[RemoteDraws]:
        """For each worker what of a layer others draw for it.

        Args:
            drawn: for all workers.
            drawing: who draws, or has drawn, the neighbors of each destination.
        """
        ...

    def traffic(self, remote: RemoteDraws) -> Traffic:
        """Bytes that leave one worker for another so that others draw so much."""
        ...


@runtime_checkable
class EdgeCoefficients(Protocol):
    """The weights that a layer wants on the edges of its blocks, where they follow from the graph.

    Attributes:
        has_self_weight: they include weights of the destinations' own rows.
    """

    has_self_weight: bool

    def __call__(
        self, topology: Topology, block: Block, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "E"], Float[Tensor, "D"] | None]:
        """``weight`` and ``self_weight`` of a block, without an exchange.

        Of a destination with d in-edges, of which k were drawn, the weights are those for a uniform draw: d / k times
        those of a full neighborhood.

        Args:
            topology: that the block was drawn from.
            block: sources de-duplicated or not. Its ``weight`` is that of the edges in the graph, where the layer has
                ``"edge_weight"`` among its edge columns.
            dtype: of the result, float32 or float64; computed in float64.
        """
        ...


@runtime_checkable
class Sampler(Protocol):
    """Which in-edges of a layer's destinations make up a batch: a function of the key and of all workers' destinations.

    Attributes:
        collective: drawing exchanges more than the topology does, so that all workers must draw the same layers of the
            same steps in the same order, each from one thread, also where they want nothing.
        has_importance: its samples have an :attr:`~partita.core.records.Sampled.importance`, all of them, or all of
            them have :attr:`~partita.core.records.Sampled.visit_weight`.
        draws_relations: it draws from typed graphs, by relation.
        draws_graph_edges: what it draws are edges of the graph, so that :class:`EdgeCoefficients` are known of them.
    """

    collective: bool
    has_importance: bool
    draws_graph_edges: bool
    draws_relations: bool

    def takes_all(self, layer: int) -> bool:
        """Whether all neighbors are taken in a layer, 1 (input side) to K."""
        ...

    def at_step(self, step: StepKey) -> Sampler:
        """What draws a step's layers, where draws follow from more than the keys of the step and layer."""
        ...

    def draw(self, topology: Topology, dst: Int[Tensor, "D"], key: int, layer: int) -> Sampled:
        """Draw in-edges.

        Args:
            topology: where to draw.
            dst: distinct store ids.
            key: of the step and layer.
        """
        ...

    def estimate(self, layer: int, topology: Topology) -> RemoteDraws:
        """What each worker has others do to draw a layer, whatever it draws.

        Raises:
            ConfigError: that cannot be known from the sample alone.
        """
        ...

    def traffic(self, layer: int, remote: RemoteDraws) -> Traffic:
        """Bytes that leave one worker for another to draw one layer, beside those of the topology."""
        ...


@runtime_checkable
class TierWork(Protocol):
    """What a feature tier remembers of one batch between asking for rows and reading them."""

    @property
    def hits(self) -> tuple[int, ...]:
        """Rows that each of :data:`~partita.core.records.TIERS` gives this worker, those read for others included."""
        ...

    @property
    def remote(self) -> int:
        """Rows that this worker got from other workers: each an id asked for and a row received."""
        ...

    @property
    def reads(self) -> Int[Tensor, "r"]:
        """Distinct store ids that are looked up in this worker's own tiers, for itself or for others."""
        ...


@runtime_checkable
class FeatureTier(Protocol):
    """Input rows by store id: from one place, and from the tiers it wraps where it has none.

    Attributes:
        width: F, columns of a row.
        dtype: of the rows that :meth:`read` returns.
        collective: asking or reading exchanges something.
        look_ahead: before rows are prepared, those of so many batches behind them should be announced; 0: none need be
            announced, or prepared.
        exchanges_to_prepare: preparing exchanges something: the thread that reads does it, right before.
    """

    width: int
    dtype: torch.dtype
    collective: bool
    look_ahead: int

    @property
    def exchanges_to_prepare(self) -> bool:
        """See above."""
        ...

    def ask(self, ids: Int[Tensor, "n"]) -> TierWork:
        """Say which rows will be read; at sampling time.

        Args:
            ids: distinct store ids.
        """
        ...

    def read(self, work: Any) -> Shaped[Tensor, "n F"]:
        """The rows that were asked for, in the order of the ids; at loading time."""
        ...

    def announce(self, work: Any) -> None:
        """Say that the rows that were asked for will be read, behind those announced before, once each."""
        ...

    def prepare(self, work: Any) -> Any:
        """See to announced rows before they are read, in the order of announcements, perhaps in another thread.

        Returns:
            What is to be read then; the same, unless it was decided only now.
        """
        ...

    def restart(self) -> None:
        """Take back what was announced and not read."""
        ...

    def disk_reads(self) -> DiskReads:
        """What was read from files so far, here and in the tiers below; or kept of other rows, with a look ahead."""
        ...

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[ReadEstimate]:
        """Where all workers will find the rows of some batches.

        Args:
            batches: consecutive ones. Of rows that come and go none is kept before the first, and no batch comes
                after the last.

        Raises:
            ConfigError: that cannot be known from here.
        """
        ...


@runtime_checkable
class CacheTier(FeatureTier, Protocol):
    """A feature tier that keeps copies of chosen rows. It holds none until it is filled."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        ...

    @property
    def list_bytes(self) -> int:
        """Bytes that it takes to find rows, whatever is held."""
        ...

    @property
    def capacity(self) -> int:
        """Rows that the budget has room for, at most N."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows held."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        ...

    def allowed(self) -> Bool[Tensor, "N"] | None:
        """Nodes that may be cached; ``None`` for any."""
        ...

    def fill(self, ids: Int[Tensor, "m"]) -> None:
        """Forget what is held and keep the rows of other nodes. All workers call this where reading is collective.

        Args:
            ids: distinct store ids, best first; those beyond the capacity are left out.
        """
        ...

    def assume_contents(self, kept: UInt64[np.ndarray, "N"]) -> None:
        """Say which workers' caches hold each row, for :meth:`estimate`."""
        ...


@runtime_checkable
class Work(Protocol):
    """What a placement remembers of one layer of one batch between sampling and computing."""

    @property
    def num_edges(self) -> int:
        """Edges that this worker drew for the layer."""
        ...

    @property
    def num_computed(self) -> int:
        """Rows that this worker computes in the layer."""
        ...

    @property
    def remote(self) -> RemoteDraws:
        """What of the layer other workers drew for this one."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Bytes that leave one worker for another in a training step for the layer's rows that this one wants.

        Without those that :attr:`remote` stands for.
        """
        ...


@runtime_checkable
class Placement(Protocol):
    """Who computes the output rows of one layer.

    ``expand`` and ``forward`` are called once per layer and batch, by every worker and in the same order, also where
    a worker has nothing to ask for.

    Attributes:
        collective: they exchange something.
    """

    collective: bool

    def check(self, layer: int) -> None:
        """Refuse a layer that cannot be placed so.

        Raises:
            ConfigError: says which layer, why, and what would work.
        """
        ...

    def expand(self, layer: int, requests: Int[Tensor, "D"], key: StepKey) -> tuple[Work, Int[Tensor, "S"]]:
        """Sample one layer.

        Args:
            requests: distinct store ids whose output of ``layer`` this worker needs.
            key: names the step; the sample is a function of it.

        Returns:
            The work, and the store ids whose output of the layer below this worker needs in turn: distinct, except
            at layer 1 where the layer sums input rows by id and every access is listed.
        """
        ...

    def forward(self, layer: int, work: Any, h: Any) -> Float[Tensor, "D F"]:
        """Compute the layer.

        Args:
            work: the :class:`Work` that :meth:`expand` returned.
            h: rows for the requests of the layer below: (S, F); at layer 1 what :class:`Inputs` hands out.

        Returns:
            One row for each request, in their order.
        """
        ...


@runtime_checkable
class Estimator(Protocol):
    """What a :class:`Placement` may be besides: one that tells from a sample what every worker will do.

    For a placement that does not, :class:`partita.parallel.simulation.Simulation` finds the same out.
    """

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """What :meth:`Placement.expand` will come to on every worker.

        Args:
            drawn: for all that anybody asks for.
            asked: who asks for each destination's row.
        """
        ...


@runtime_checkable
class InputWork(Protocol):
    """What the input placement remembers of one batch between sampling and computing."""

    @property
    def num_read(self) -> int:
        """Distinct input rows that this worker reads."""
        ...

    @property
    def num_accesses(self) -> int:
        """Accesses of this worker to input rows."""
        ...

    @property
    def hits(self) -> tuple[int, ...]:
        """Rows that each of :data:`~partita.core.records.TIERS` gives this worker, those read for others included."""
        ...

    @property
    def reads(self) -> Int[Tensor, "r"]:
        """Store ids whose rows this worker reads, for itself or for others; possibly repeated."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Bytes that leave one worker for another for the input rows that this one wants."""
        ...


@runtime_checkable
class Inputs(Protocol):
    """The input placement: who reads the input rows. Called like a :class:`Placement`, before layer 1 computes.

    Attributes:
        dropout: probability of input dropout that is still to be applied by the layer that reads rows.
        collective: asking or reading exchanges something.
        prefetchable: :meth:`forward` reads rows, so it is worth doing ahead of time; otherwise the layer reads them.
        look_ahead, exchanges_to_prepare: see :class:`FeatureTier`.
    """

    dropout: float
    collective: bool
    prefetchable: bool
    look_ahead: int

    @property
    def exchanges_to_prepare(self) -> bool:
        """See above."""
        ...

    def sums_by_id(self, training: bool) -> bool:
        """Whether layer 1 may sum rows by store id, so that its sources need not be de-duplicated."""
        ...

    def expand(self, requests: Int[Tensor, "S"], key: StepKey) -> InputWork:
        """Say which rows this worker needs."""
        ...

    def forward(self, work: Any) -> Any:
        """The rows (S, F) in the order of the requests, or the feature column to read them from."""
        ...

    def announce(self, work: Any) -> None:
        """See :meth:`FeatureTier.announce`."""
        ...

    def prepare(self, work: Any) -> Any:
        """See :meth:`FeatureTier.prepare`."""
        ...

    def restart(self) -> None:
        """See :meth:`FeatureTier.restart`."""
        ...

    def disk_reads(self) -> DiskReads:
        """See :meth:`FeatureTier.disk_reads`."""
        ...

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[InputEstimate]:
        """What :meth:`expand` and :meth:`prepare` will come to on every worker; see :meth:`FeatureTier.estimate`."""
        ...
