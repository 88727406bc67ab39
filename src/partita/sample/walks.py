"""Random walks over a topology, and the neighborhoods that they make.

A walk is node-wise sampling with fan-out 1, repeated: where the topology is split among workers, each step is asked of
the owner of the node that the walk stands on (Cai et al., "DSP", PPoPP 2023, section 4.2).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int, Int32, Int64, Integer, Shaped
from torch import Tensor

from partita import kernels
from partita.comm.group import Group
from partita.core.errors import ConfigError
from partita.core.keys import Purpose, fold
from partita.core.protocols import Topology
from partita.core.records import RemoteDraws, Sampled
from partita.graph.store import GraphStore
from partita.sample.base import BaseSampler, SamplerSettings
from partita.sample.topology import ArrayTopology, LocalTopology

_WALK_BYTES = 16
_ENDED = -1


ANY = (None,)
"""As a metapath: a step along any edge."""


def step_by_step(
    topology: Topology, start: Int[Tensor, "n"], key: int, *, walks: int, length: int, restart: float,
    metapath: Sequence[int | None] = ANY,
) -> tuple[Int[Tensor, "nR columns"], RemoteDraws]:  # fmt: skip
    """The walks of :func:`partita.kernels.random_walks`, a step of all of them at a time.

    Along a metapath a walk takes a step for each relation in turn, and ``length`` counts traversals of it (Dong et al.,
    "metapath2vec", KDD 2017, section 3.2). A walk restarts before a traversal only, and goes back to its start from the
    middle of one where it cannot go on.

    Where the topology is collective, all workers take the same number of steps, also with nothing to ask.

    Args:
        topology, start, key, walks, length, restart: see :func:`partita.kernels.random_walks`.
        metapath: numbers of relations; ``None`` stands for any.

    Returns:
        Store ids, as :func:`partita.kernels.random_walks`; how many steps another worker took.
    """
    home = start.to(topology.id_dtype).repeat_interleave(walks)
    nodes = home.new_empty((home.shape[0], length + 1))
    nodes[:, 0] = home
    original, steps = topology.original(start), 0
    for s in range(length):
        here = nodes[:, s]
        after = torch.where(here < 0, here, home)
        draws, back = kernels.walk_draws(original, key, walks=walks, step=s * len(metapath), restart=restart)
        moving = ((here >= 0) & ~back).nonzero().flatten()
        stands = here[moving]
        for number, relation in enumerate(metapath):
            if number:
                draws, _ = kernels.walk_draws(original, key, walks=walks, step=s * len(metapath) + number)
            found = topology.at_owners(stands, _Step(relation), payload=draws[moving], one_each=True)
            steps += found.remote.destinations
            lost = found.indices < 0
            if number == 0:
                after[moving[lost & (stands == home[moving])]] = _ENDED
            moving, stands = moving[~lost], found.indices[~lost]
        after[moving] = stands
        nodes[:, s + 1] = after
    return nodes, RemoteDraws(steps=steps)


@dataclass(frozen=True)
class _Step:
    """The rule of a step: where walks go next from the nodes that they stand on, -1 where there is nowhere to go.

    Attributes:
        relation: to go along; ``None`` for any.
    """

    relation: int | None

    def __call__(self, held: ArrayTopology, ids: Int[Tensor, "n"], draws: Int64[Tensor, "n"]) -> Sampled:
        to = held.walk_step(ids, draws, self.relation)
        return Sampled(torch.arange(ids.shape[0] + 1, device=ids.device), to)


class WalkWise(BaseSampler):
    """As neighbors the nodes that random walks from a node visit most, each with its share of their visits.

    The importance neighborhoods and the importance pooling of PinSAGE (Ying et al., "Graph convolutional neural
    networks for web-scale recommender systems", KDD 2018, section 3.1), by walks along in-edges.

    Args:
        fanouts: neighbors per layer, layer 1 (input side) first.
        walks: from every node.
        length: steps of every walk.
        restart: probability, before every step, to go back to the start.
        key: of all walks, whatever the step and the layer; ``None``: that of the step and layer.
        metapath: of a typed graph, numbers of the relations that walks go along in turn; steps are then traversals of
            it. All neighbors are of relation 0, as if what the metapath leads to were the only relation.
    """

    settings = ("fanout", "walks", "walk_length", "walk_restart", "metapath")
    has_importance = True
    draws_relations = True
    draws_graph_edges = False
    plannable_in_parts = False

    def __init__(
        self, fanouts: Sequence[int], *, walks: int, length: int, restart: float, key: int | None = None,
        metapath: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.fanouts = tuple(fanouts)
        self.walks, self.length, self.restart = walks, length, restart
        self.metapath = tuple(metapath)
        self._key = key

    @classmethod
    def of(cls, settings: SamplerSettings, group: Group | None, key: int | None = None) -> WalkWise:
        """As the settings say."""
        once = settings.metapath_ends_elsewhere
        return cls(
            settings.numbers, walks=settings.walks, length=1 if once else settings.walk_length,
            restart=0.0 if once else settings.walk_restart, key=key, metapath=settings.metapath,
        )  # fmt: skip

    @classmethod
    def check(cls, settings: SamplerSettings) -> None:
        """Say how many nodes to take, and nothing of replacement; see :meth:`BaseSampler.check`."""
        if any(fanout < 1 for fanout in settings.numbers):
            raise ConfigError(
                f"fanout {','.join(map(str, settings.numbers[::-1]))}: the sampler 'walk' takes the nodes that its "
                "walks visit most, so say how many",
                where="fanout",
                fix="Give at least 1 for every layer",
            )
        if settings.replace:
            raise ConfigError(
                "replace is not for the sampler 'walk', whose walks may take an edge as often as they like",
                where="replace",
                fix="Leave replace out",
            )

    @classmethod
    def for_evaluation(cls, settings: SamplerSettings) -> WalkWise:
        """With walks that belong to the run and to no step: a node has one neighborhood, of which layers take more
        or fewer nodes."""
        return cls.of(settings, None, fold(int(Purpose.EVALUATION_WALK), settings.seed))

    def expected_edges(self, layer: int, destinations: int, degree: float, workers: int) -> float:
        """As many as the fanout allows."""
        return expected_neighbors(self.fanouts[layer - 1], destinations, degree)

    @property
    def most(self) -> int:
        """Neighbors of a node, at most, in any layer."""
        return min(max(self.fanouts), self.walks * self.length)

    @property
    def node_bytes(self) -> int:
        """Memory that walks from a node take."""
        return _WALK_BYTES * self.walks * (self.length + 1)

    def draw(self, topology: Topology, dst: Int[Tensor, "D"], key: int, layer: int) -> Sampled:
        """See :class:`partita.core.protocols.Sampler`."""
        return self._draw(topology, dst, key, self.fanouts[layer - 1])

    def widest(self, topology: Topology, dst: Int[Tensor, "D"]) -> Sampled:
        """The neighbors of any layer, where all layers take theirs from the same walks."""
        assert self._key is not None
        return self._draw(topology, dst, self._key, self.most)

    def estimate(self, layer: int, topology: Topology) -> RemoteDraws:
        """Nothing.

        Raises:
            ConfigError: other workers take steps of a worker's walks: how many is only known of walks that are walked.
        """
        if topology.collective:
            raise ConfigError(
                "what walks cost among workers that hold parts of the edges cannot be estimated",
                where="sampler 'walk'",
                fix="Use --topology replicated, or name a strategy yourself",
            )
        return RemoteDraws()

    def _draw(self, topology: Topology, dst: Int[Tensor, "D"], key: int, count: int) -> Sampled:
        key = key if self._key is None else self._key
        dst = dst.to(topology.id_dtype)
        options: dict[str, Any] = {"walks": self.walks, "length": self.length, "restart": self.restart}
        typed = topology.node_types is not None
        if typed and topology.num_relations > 1 and not self.metapath:
            raise ValueError("walks in a graph of several relations go along a metapath")
        if not topology.collective and not self.metapath:  # whole walks at once, where all edges are at hand
            found = topology.at_owners(
                dst, lambda held, start: _most_visited(held.random_walks(start, key, **options), start, count)
            )
            return _of_one_relation(found) if typed else found
        start = dst.cpu()  # there are no kernels for walks on a device
        nodes, remote = step_by_step(topology, start, key, metapath=self.metapath or ANY, **options)
        found = _most_visited(nodes, start, count).mapped(lambda column: column.to(dst.device))
        found = replace(found, indptr=found.indptr.to(dst.device), remote=remote)
        return _of_one_relation(found) if typed else found


def _of_one_relation(found: Sampled) -> Sampled:
    return replace(found, edge_type=torch.zeros_like(found.indices, dtype=torch.int32))


def _most_visited(nodes: Int[Tensor, "nR columns"], start: Int[Tensor, "n"], count: int) -> Sampled:
    """The nodes that the walks of each start visit most, with their shares."""
    indptr, indices, visits = kernels.top_visits(nodes, start, count)
    return Sampled(indptr, indices, visit_weight=_shares(indptr, visits))


def expected_neighbors(fanout: int | Sequence[int], destinations: int, degree: float) -> float:
    """About how many neighbors are taken by nodes of a mean in-degree; -1 for all. Several are of relations."""
    if not isinstance(fanout, int):  # a node may have edges of every relation
        fanout = -1 if min(fanout) < 0 else sum(fanout)
    return destinations * (degree if fanout < 0 else min(fanout, degree))


def _shares(indptr: Int64[Tensor, "D_1"], visits: Int32[Tensor, "E"]) -> Float64[Tensor, "E"]:
    """Each number divided by the sum of its row."""
    running = torch.cat([indptr.new_zeros(1), visits.long().cumsum(0)])
    totals = running[indptr].diff()
    return visits.double() / torch.repeat_interleave(totals, indptr.diff())


def random_walks(
    store: GraphStore | str | os.PathLike[str],
    nodes: Sequence[Any] | Shaped[np.ndarray, "..."],
    *,
    length: int,
    walks: int = 1,
    restart: float = 0.0,
    weighted: bool = False,
    seed: int = 0,
) -> Integer[np.ndarray, "n R columns"]:
    """Walk at random from some nodes of a graph, along in-edges: from a node to one of its in-neighbors.

    Walks are a function of ``seed`` and of the nodes' positions at ingest: whatever other nodes are asked for, with any
    number of threads, and however the store was partitioned, they are the same.

    Args:
        store: a store or its path.
        nodes: ids in the store, from 0 on, repeated or not; :meth:`partita.GraphStore.names` gives the ids that the
            user knows.
        length: steps of every walk.
        walks: from every node.
        restart: probability, before every step, to go back to the start instead of moving.
        weighted: move in proportion to the edge weights.
        seed: another one gives other walks.

    Returns:
        Ids in the store, (nodes, walks, length + 1), each walk's first one its start. A walk that cannot go on goes
        back to its start; from a start that has no in-neighbors it ends, and -1 follows.

    Raises:
        StoreError: the store cannot be opened, or is a shard.
        ConfigError: a number is out of range, there is no such node, or there are no edge weights.
    """
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    store.require_whole("a random walk")
    start = _as_nodes(nodes, store)
    for name, value, least in (("length", length, 1), ("walks", walks, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}", where="random_walks")
    if not 0 <= restart < 1:
        raise ConfigError(f"restart must be at least 0 and below 1, not {restart}", where="random_walks")
    found = LocalTopology(store, weighted=weighted).random_walks(
        torch.from_numpy(start), fold(int(Purpose.WALK), seed), walks=walks, length=length, restart=restart
    )
    return found.numpy().reshape(len(start), walks, length + 1)


def _as_nodes(nodes: Sequence[Any] | Shaped[np.ndarray, "..."], store: GraphStore) -> Int64[np.ndarray, "n"]:
    ids = np.asarray(nodes)
    if ids.size == 0:
        return np.zeros(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ConfigError(
            f"nodes must be a list of whole numbers, not {ids.dtype} of shape {ids.shape}", where="random_walks"
        )
    wrong = ids[(ids < 0) | (ids >= store.num_nodes)]
    if len(wrong):
        raise ConfigError(
            f"there is no node {wrong[0]}",
            where=str(store.path),
            fix=f"Give ids in the store, from 0 to {store.num_nodes - 1}",
        )
    return ids.astype(np.int64)
