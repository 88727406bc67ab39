"""Mini-batches of sampled neighbors for a training loop of one's own."""

from __future__ import annotations

import inspect
import os
import queue
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import index
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from partita import kernels
from partita.core.errors import ConfigError, nearest
from partita.core.keys import Purpose, StepKey
from partita.graph.schema import Schema
from partita.graph.store import GraphStore
from partita.graph.times import ALWAYS, LATEST
from partita.kernels import Relabeller
from partita.loaders.batch import Batch
from partita.loaders.columns import column_of
from partita.loaders.typed import EdgeType, TypedBatch, TypedRows
from partita.sample.seeds import SeedOrder
from partita.sample.temporal import TemporalTopology, slots_for
from partita.sample.topology import ArrayTopology, LocalTopology, as_tensor

_IDLE = {
    "persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout", "is_sorted", "filter_per_worker",
}  # fmt: skip
"""Arguments of PyG's loader that say how something is done, not what: they change nothing here."""

_DEFAULTS: dict[str, Any] = {"disjoint": False, "directed": True, "subgraph_type": "directional"}
"""Arguments of PyG's loader of which one value is what this one does."""

_INSTEAD = {
    "weight_attr": "Ingest the edge weights with the graph (partita ingest --weight-column), and set weighted=True",
    "time_attr": "Times are those that the store has: leave it out, and give temporal_strategy",
    "sampler": "Give the seeds as input_nodes, and shuffle or not",
    "batch_sampler": "Give the seeds as input_nodes, and shuffle or not",
    "generator": "Give a seed: order and draws are a function of it",
    "worker_init_fn": "Batches are made by threads of this process; leave it out",
    "collate_fn": "Use transform, which is given every batch",
    "transform_sampler_output": "Use transform, which is given every batch",
}

TEMPORAL = ("uniform", "last")
"""How edges are drawn that are not later than the time of a seed."""

NumNeighbors = Sequence[int] | Mapping[str | EdgeType, Sequence[int]]
InputNodes = str | Sequence[int] | np.ndarray | Tensor | None


class NeighborLoader:
    """Iterates over mini-batches as PyG's ``NeighborLoader`` does: seeds, and neighbors that are drawn hop by hop.

    Needs neither PyG nor its compiled extensions. Features are read from the store's files as far as a batch needs
    them, so they may be larger than memory.

    What is drawn is a function of ``seed``, the epoch, the step, the hop and the node: it depends neither on
    ``num_workers`` nor on how the store is partitioned, and a loop that was stopped goes on with the batches that it
    would have seen (:meth:`state_dict`).

    Several processes that train together, for instance with PyTorch's ``DistributedDataParallel``, each give their
    ``rank`` and the ``world_size``. All get equally many batches of equally many seeds: if the last ones do not
    suffice for all, seeds from the beginning of the epoch are added.

    Batches of a typed graph are :class:`~partita.loaders.typed.TypedBatch`, with PyG's names of ``HeteroData``.

    Args:
        store: a graph store, or its path.
        num_neighbors: for each hop, from the seeds on, how many in-neighbors are drawn of each node that the hop
            before has found; -1 for all. Of a typed graph, so many of every relation; or by relation, as
            ``{"cites": [10, 5], ("paper", "topic", "fos"): [3, 3]}``, and none of relations that are left out.
        input_nodes: the seeds: the name of a split; of a typed graph, of a node type; store ids; a mask over all nodes;
            ``None``: all nodes. Those of a typed graph have one type.
        batch_size: seeds of a batch, in this process.
        shuffle: in another order in every epoch.
        replace: draw with replacement.
        weighted: draw in proportion to the edge weights.
        drop_last: leave out a last batch that is not full.
        seed: of order and draws.
        num_workers: so many threads make batches ahead; 0: each is made when it is asked for.
        transform: is given every batch; what it returns is handed out.
        rank, world_size: which of how many processes this is.
        pin_memory: put batches into pinned memory, where there is a CUDA device.
        temporal_strategy: in a store whose edges have times: ``"uniform"`` draws from those that are not later than the
            time of the seed, at every hop, ``"last"`` takes the last of these; ``"none"``: edges of all times are
            sampled.
        input_time: when each of the ``input_nodes`` is asked about, which may then be there at several times; ``None``:
            as the store says.
        others: arguments of PyG's loader. Those that have nothing to do here, such as ``persistent_workers`` (batches
            are made by threads), are taken and change nothing; all others are refused.

    Attributes:
        store: the opened store.
        epoch: of the next batch, 0-based.

    Raises:
        ConfigError: no hop, a number below -1, no seeds, a seed that is none or twice, fewer seeds than processes,
            weights that are not there.
        StoreError: there is no such store or split, or it is the shard of a host.
    """

    _given = "input_nodes"  # the argument that says what the seeds are

    _draws_by_time: ClassVar[bool] = True

    def __init__(
        self,
        store: GraphStore | str | os.PathLike[str],
        num_neighbors: NumNeighbors,
        input_nodes: InputNodes = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        replace: bool = False,
        weighted: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        num_workers: int = 0,
        transform: Callable[[Any], Any] | None = None,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        temporal_strategy: Literal["none", "uniform", "last"] | None = None,
        input_time: Sequence[int] | np.ndarray | Tensor | None = None,
        **others: Any,
    ) -> None:
        self._open(store, others)
        self._by_time, self._repeats = self._strategy_of(temporal_strategy, input_time), input_time is not None
        schema = self.store.schema
        self.num_neighbors = _fanouts(schema, num_neighbors, f"{self._name}, num_neighbors")
        self.batch_size, self.shuffle, self.drop_last, self.seed = batch_size, shuffle, drop_last, seed
        self.num_workers, self.transform = num_workers, transform
        self._pins = pin_memory and torch.cuda.is_available()
        self.rank, self.world_size = rank, world_size
        self._seeds, at = self._inputs(input_nodes)
        self._input_time = self._times_of_inputs(input_time) if self._by_time else None
        self._check()
        self._order = SeedOrder(at, seed, batch_size * world_size)
        local = LocalTopology(self.store, replace=replace, weighted=weighted, types=True)
        self._topology: ArrayTopology = local if not self._by_time else self._temporal(local, replace or weighted)
        self._typed = None if schema is None else TypedRows(self.store)
        x = self.store.x if schema is None else None
        y, weight, attr = self.store.y, self.store.edge_weight, self.store.edge_attr
        self._x = None if x is None else column_of(self.store, "x")
        self._y = None if y is None else as_tensor(y)
        self._weight = None if weight is None else as_tensor(weight)
        self._attr = None if attr is None else as_tensor(attr)
        self._scratch: queue.SimpleQueue[Relabeller] = queue.SimpleQueue()
        for _ in range(max(1, num_workers)):
            self._scratch.put(Relabeller(self._topology.num_nodes))
        self.epoch = self._done = 0
        self._begun = False

    def _open(self, store: GraphStore | str | os.PathLike[str], others: Mapping[str, Any]) -> None:
        _check_others(type(self), others)
        if not isinstance(store, (GraphStore, str, os.PathLike)):
            raise ConfigError(
                f"a {type(store).__name__} is not a graph store",
                where=f"{self._name}, store",
                fix='Make a store of it once, partita.ingest(data, "graph"), and give its path: '
                f'{self._name}("graph", ...). In a store of a Data object, nodes keep their numbers',
            )
        self.store = store if isinstance(store, GraphStore) else GraphStore.open(store)
        self.store.require_whole("a loader")

    def _strategy_of(self, given: str | None, input_time: object) -> str | None:
        """How edges are drawn by time; ``None``: times are ignored, which must be said where there are some."""
        where = f"{self._name}, temporal_strategy"
        if given not in (None, "none", *TEMPORAL):
            raise ConfigError(f"there is no {given!r}", where=where, fix=nearest(f"{given}", ["none", *TEMPORAL]))
        if given in (None, "none"):
            if input_time is not None:
                fix = "Give temporal_strategy, or leave input_time out"
                raise ConfigError("times of inputs are given, and none are looked at", where=where, fix=fix)
            if given is None and self.store.has("edge_time"):
                raise ConfigError(
                    "the edges have times, and it is not said how they are drawn",
                    where=where,
                    fix='Give "uniform" or "last" for edges not later than the time of each input; or "none": then '
                    "edges of all times are sampled",
                )
            return None
        if not self._draws_by_time:
            raise ConfigError("links are not sampled by time, so far", where=where, fix='Give "none"')
        if not self.store.has("edge_time"):
            fix = "Ingest the graph again with edge_time or node_time, or leave temporal_strategy out"
            raise ConfigError("the edges of the store have no times", where=where, fix=fix)
        return given

    def _times_of_inputs(self, given: Sequence[int] | np.ndarray | Tensor | None) -> Int64[Tensor, "S"]:
        where = f"{self._name}, input_time"
        if given is not None:
            times = torch.as_tensor(given)
            if times.shape != self._seeds.shape or times.is_floating_point():
                what = f"{times.dtype} of shape {tuple(times.shape)} for {len(self._seeds):,} input nodes"
                raise ConfigError(what, where=where, fix="Give one integer for each")
            times = times.long()
        elif self.store.seed_time is None:
            what = "it is not known when the inputs are asked about"
            raise ConfigError(what, where=where, fix="Give input_time, or ingest the graph with seed_time or node_time")
        else:
            times = as_tensor(self.store.seed_time)[self._seeds]
        if missing := int((times == ALWAYS).sum()):
            what = f"{missing:,} of the {len(times):,} input nodes have no time at which to ask about them"
            raise ConfigError(what, where=where, fix="Give input_time, or other input nodes")
        times = times.clamp(max=LATEST)  # what is never there is not seen then, either
        pairs = torch.stack([self._seeds, times], 1)
        if len(pairs.unique(dim=0)) < len(pairs):
            raise ConfigError("a node is there more than once at one time", where=where, fix="Give every pair once")
        return times

    def _temporal(self, local: LocalTopology, draws_otherwise: bool) -> TemporalTopology:
        last = self._by_time == "last"
        if last and draws_otherwise:
            fix = 'Leave out weighted and replace, or give "uniform"'
            what = "the last edges are taken, and none is drawn"
            raise ConfigError(what, where=f"{self._name}, temporal_strategy", fix=fix)
        times = self.store.edge_time
        assert times is not None
        return TemporalTopology(local, as_tensor(times), slots_for(self.batch_size), last=last)

    def _inputs(self, given: Any) -> tuple[Int64[Tensor, "S ..."], Int64[Tensor, "S"]]:
        """The seeds, and their places in an order that does not depend on how the store is partitioned."""
        seeds, at = _seeds(self.store, given, repeats=self._repeats)
        _check_one_type(self.store, seeds)
        return seeds, at

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _check(self) -> None:
        wrong = {
            "num_neighbors": (
                not self.num_neighbors or min(np.ravel(self.num_neighbors), default=0) < -1,
                "a number of at least -1 a hop",
            ),
            "batch_size": (self.batch_size < 1, "at least 1"),
            "num_workers": (self.num_workers < 0, "at least 0"),
            "rank": (not 0 <= self.rank < self.world_size, "from 0 to world_size - 1"),
            self._given: (len(self._seeds) < self.world_size, "at least one seed for every process"),
        }
        for name, (is_wrong, wanted) in wrong.items():
            if is_wrong:
                given = len(self._seeds) if name == self._given else getattr(self, name)
                raise ConfigError(f"{given}: must be {wanted}", where=f"{self._name}, {name}")

    def __len__(self) -> int:
        """Batches of an epoch."""
        all_seeds, of_step = len(self._seeds), self.batch_size * self.world_size
        return all_seeds // of_step if self.drop_last else -(-all_seeds // of_step)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch; of the one that a state was loaded from, those that are left.

        They are :class:`~partita.loaders.batch.Batch`, or what ``transform`` returns.
        """
        if self._begun and self._done:  # the epoch was left before its end
            self.epoch, self._done = self.epoch + 1, 0
        self._begun = True
        return self._batches(self.epoch, self._done)

    def _batches(self, epoch: int, first: int) -> Iterator[Batch | TypedBatch]:
        steps = range(first, len(self))
        made = self._ahead(epoch, steps) if self.num_workers else (self._make(epoch, step) for step in steps)
        for step, batch in zip(steps, made):
            # Not after the loop: who counts batches never asks for one more.
            self.epoch, self._done = (epoch, step + 1) if step + 1 < len(self) else (epoch + 1, 0)
            yield batch

    def _ahead(self, epoch: int, steps: range) -> Iterator[Batch | TypedBatch]:
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="partita-loader")
        waiting: deque[Future[Batch | TypedBatch]] = deque()
        try:
            for step in steps:
                waiting.append(pool.submit(self._make_alone, epoch, step))
                if len(waiting) > self.num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _make_alone(self, epoch: int, step: int) -> Batch | TypedBatch:
        with kernels.limited(1):  # the other threads are for the other batches
            return self._make(epoch, step)

    def _make(self, epoch: int, step: int) -> Batch | TypedBatch:
        places = self._places(epoch, step)
        scratch = self._scratch.get()
        try:
            batch = self._sample(places, StepKey(self.seed, epoch, step), scratch)
        finally:
            self._scratch.put(scratch)
        batch = batch if self.transform is None else self.transform(batch)
        return batch.pin_memory() if self._pins else batch

    def _places(self, epoch: int, step: int) -> Int64[Tensor, "B"]:
        """Of the seeds of a step, those of all processes: where among all seeds they are."""
        order, begin = self._order, step * self._order.batch_size
        end = min(begin + order.batch_size, len(self._seeds))
        places = self._between(epoch, begin, end)
        missing = -len(places) % self.world_size
        if missing:
            places = torch.cat([places, self._between(epoch, 0, missing)])
        return places

    def _between(self, epoch: int, begin: int, end: int) -> Int64[Tensor, "n"]:
        return self._order.between(epoch, begin, end) if self.shuffle else torch.arange(begin, end)

    def _sample(self, places: Int64[Tensor, "B"], key: StepKey, scratch: Relabeller) -> Batch | TypedBatch:
        places = places[self.rank :: self.world_size]
        return self._around(self._seeds[places], places, key, scratch)

    def _around(
        self, seeds: Int64[Tensor, "n"], places: Int64[Tensor, "B"], key: StepKey, scratch: Relabeller
    ) -> Batch | TypedBatch:
        """A batch of what is drawn around distinct nodes, for the inputs at these places."""
        hops = len(self.num_neighbors)
        topology, seed_time = self._topology, None if self._input_time is None else self._input_time[places]
        if key.excluded is not None:
            topology = topology.without(key.excluded)
        nodes = seeds.to(topology.id_dtype)
        if seed_time is not None:
            times = seed_time.unique()
            topology = topology.at_times(times)
            nodes = nodes * topology.slots + torch.searchsorted(times, seed_time)
        found, drawn, known = [len(nodes)], list[int](), 0
        sources, destinations, edges, kinds = [], [], [], []
        for hop, fanout in enumerate(self.num_neighbors):
            frontier = nodes[known:]
            # The first hop from the seed nodes is the last layer's, as in training.
            sampled = topology.sample(frontier, key.at(Purpose.SAMPLE, hops - hop), fanout, positions=True)
            destinations.append(known + torch.repeat_interleave(torch.arange(len(frontier)), sampled.indptr.diff()))
            known = len(nodes)
            nodes, local = kernels.relabel(nodes, sampled.indices, scratch)
            sources.append(local.long())
            assert sampled.positions is not None
            edges.append(sampled.positions)
            if sampled.edge_type is not None:
                kinds.append(sampled.edge_type)
            found.append(len(nodes) - known)
            drawn.append(len(local))
        time = None if seed_time is None else times[nodes % topology.slots]
        nodes = nodes if seed_time is None else nodes // topology.slots
        ids, e_id = nodes.long(), torch.cat(edges)
        edge_index = torch.stack([torch.cat(sources), torch.cat(destinations)])
        if self._typed is not None:
            return self._typed.batch(
                ids,
                edge_index,
                torch.cat(kinds),
                e_id,
                places=places,
                hops_of_nodes=found,
                hops_of_edges=drawn,
                seed_time=seed_time,
                time=time,
            )
        return Batch(
            n_id=ids,
            edge_index=edge_index,
            e_id=e_id,
            batch_size=len(places),
            input_id=places,
            num_sampled_nodes=found,
            num_sampled_edges=drawn,
            x=None if self._x is None else self._x.read(nodes),
            y=None if self._y is None else self._y[ids],
            edge_weight=None if self._weight is None else self._weight[e_id].float(),
            edge_attr=None if self._attr is None else self._attr[e_id].float(),
            seed_time=seed_time,
            time=time,
        )

    def state_dict(self) -> dict[str, int]:
        """Where the loop is: the epoch, and how many of its batches were handed out."""
        return {"epoch": self.epoch, "batches": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next loop go on where another one was; with the same settings it sees the same batches.

        Raises:
            ConfigError: an epoch has no so many batches.
        """
        if not 0 <= state["batches"] <= len(self):
            raise ConfigError(
                f"{state['batches']} batches of an epoch of {len(self)}",
                where=f"{self._name}, load_state_dict",
                fix="Make the loader with the settings that it had",
            )
        self.epoch, self._done, self._begun = state["epoch"], state["batches"], False


def _fanouts(schema: Schema | None, given: NumNeighbors, where: str) -> tuple[int | tuple[int, ...], ...]:
    """For each hop a number, or of a typed graph one for each relation."""
    if schema is None:
        if isinstance(given, Mapping):
            raise ConfigError("the graph has no relations", where=where, fix="Give a number for each hop, as [10, 5]")
        return tuple(map(index, given))
    if not isinstance(given, Mapping):
        return tuple((index(number),) * len(schema.relations) for number in given)
    named = {name if isinstance(name, str) else ":".join(name): numbers for name, numbers in given.items()}
    return schema.by_relation({name: tuple(map(index, numbers)) for name, numbers in named.items()}, where)


def _check_others(loader: type[NeighborLoader], others: Mapping[str, Any]) -> None:
    """Refuse arguments that would change what is drawn, or that nobody knows."""
    for name, value in others.items():
        if name in _IDLE or value is None or (name in _DEFAULTS and str(value) == str(_DEFAULTS[name])):
            continue
        own = [each for each in inspect.signature(loader.__init__).parameters if each not in ("self", "others")]
        if name in _DEFAULTS:
            fix: str = f"Leave it out: this loader does what {name}={_DEFAULTS[name]!r} says"
        else:
            fix = _INSTEAD.get(name) or nearest(name, own)
        raise ConfigError(f"there is no option '{name}'", where=f"{loader.__name__}, {name}={value!r}", fix=fix)


def _seeds(store: GraphStore, given: InputNodes, *, repeats: bool) -> tuple[Int64[Tensor, "S"], Int64[Tensor, "S"]]:
    """Store ids of the seeds, and their places in an order that does not depend on how the store is partitioned."""
    if store.schema is not None and isinstance(given, str) and given in store.schema.node_types:
        given = as_tensor(store.nodes_of(given))
        return given, torch.from_numpy(np.argsort(store.to_original(given.numpy()), kind="stable"))
    if isinstance(given, str):
        seeds = as_tensor(store.split(given))  # in ascending original index
        return seeds, torch.arange(len(seeds))
    if given is not None:
        given = torch.as_tensor(given)
        seeds = _ids(store, given, repeats=repeats)
        if given.dtype != torch.bool:
            return seeds, torch.arange(len(seeds))  # as the user has ordered them
    else:
        seeds = torch.arange(store.num_nodes)
    return seeds, torch.from_numpy(np.argsort(store.to_original(seeds.numpy()), kind="stable"))


def _check_one_type(store: GraphStore, seeds: Int64[Tensor, "S"]) -> None:
    """Refuse seeds of several types: a batch says of one type which of its nodes are seeds."""
    kinds = np.unique(store.types(seeds.numpy()))
    if store.schema is not None and len(kinds) > 1:
        names = " and ".join(f"'{store.schema.node_types[kind]}'" for kind in kinds[:2])
        raise ConfigError(
            f"seeds are of the types {names}",
            where="NeighborLoader, input_nodes",
            fix="Give the name of a split or of a node type, or nodes of one type: store.nodes_of(type)",
        )


def _ids(store: GraphStore, given: Int[Tensor, "S"] | Bool[Tensor, "N"], *, repeats: bool) -> Int64[Tensor, "S"]:
    where = "NeighborLoader, input_nodes"
    if given.ndim != 1 or given.is_floating_point() or given.is_complex():
        fix = "Give ids, a mask, or a split's name"
        raise ConfigError(f"{given.dtype} of shape {tuple(given.shape)}", where=where, fix=fix)
    if given.dtype == torch.bool:
        if len(given) != store.num_nodes:
            raise ConfigError(f"a mask of {len(given):,} for {store.num_nodes:,} nodes", where=where)
        return given.nonzero().flatten()
    given = given.long()
    outside = (given < 0) | (given >= store.num_nodes)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        what = f"node {int(given[at])} at position {at}: the store has nodes 0 to {store.num_nodes - 1}"
        raise ConfigError(what, where=where)
    distinct, counts = given.unique(return_counts=True)
    if len(distinct) < len(given) and not repeats:
        what = f"node {int(distinct[counts > 1][0])} is there more than once"
        raise ConfigError(what, where=where, fix="Give every node once")
    return given
