"""Measures how fast this machine does what a training step consists of, with all its workers busy."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from partita import kernels
from partita.comm.context import Context
from partita.comm.group import Group
from partita.comm.routing import RowPick, bucket, first_appearance
from partita.config import Config
from partita.core.keys import StepKey
from partita.core.protocols import Inputs
from partita.core.records import Block, RowsByType
from partita.features.host import HostRows
from partita.features.learnt import add_up
from partita.features.learnt_tables import MemoryTable
from partita.features.rows import FeatureColumn
from partita.graph.store import GraphStore
from partita.kernels import count_distinct, limited
from partita.nn import ops
from partita.nn.encoder import Encoder
from partita.nn.model import Model
from partita.parallel.block_worker import BlockWork, BlockWorker
from partita.parallel.inputs import Tiered
from partita.parallel.placements.data import Data
from partita.parallel.typed_inputs import TypedInputs
from partita.plan.processors import lasting, share_of_processor, watched
from partita.plan.rates import PerBlock, PerRow, Rates
from partita.plan.ways import Ways, measure_ways
from partita.setup.ages import attach_times
from partita.setup.inputs import DTYPES, is_encoded, open_columns, open_features, open_rows
from partita.setup.learnt import ROW_OPTIMIZERS
from partita.setup.model import named_model
from partita.setup.optim import make_optimizer
from partita.setup.runtime import precision
from partita.setup.sampler import make_sampler
from partita.setup.temporal import training_times, with_times
from partita.setup.topology import open_topology
from partita.tasks.task import key_of, make_task, seed_order, training_seeds
from partita.tasks.times import TaskTimes

REPEATS, LONG_SECONDS = 2, 0.1
"""So often something is measured, after one more to warm up; once, if it takes so long."""
MOST_REPEATS, ENOUGH_SECONDS = 5, 0.06
"""What is quick is measured more often: so often, or for so long."""
STEPS = 2
"""Steps whose blocks are computed; of the first one also those of some parts of a share."""
PARTS, BRIEF_PARTS, FEW = (1, 2), (2, 4), 16
"""Of a share of the first step: one over each, and over each where little is measured; and of the last blocks that are
computed, which tell what is fixed."""
KEPT = 4
"""One in so many edges, or sources, of blocks that are computed with fewer of these."""
HANDLED_IDS, HANDLED_ROWS, HANDLED_WIDTH, MOVED_ROWS = 1 << 16, 1 << 14, 128, 1 << 16
LEARNT_ROWS = 1 << 18
"""Of a table that learnt rows are looked up in, at most: far more than a processor's cache holds."""
FILE_ROWS = 512
"""Rows that are read from each file to see what that takes: a few seconds of the slowest disk."""


def measure_rates(
    context: Context, store: GraphStore, config: Config, model: Model | None = None, *, brief: bool = False
) -> Rates:
    """Measure on all workers at once, each of which calls this.

    Args:
        context: of this worker.
        store: a whole graph store; of an untyped graph also the shard of this host, with all edges.
        config: the settings of a run.
        model: a user's own; ``None``: the one that the settings name.
        brief: of the blocks of half a share of one step only, and everything once.
    """
    bench = _Bench(context, config, store, model, brief=brief)
    with limited(1):  # as samplers and loaders work
        works, sampled_edge = bench.works()
        read, handled_id, of_files = bench.read_rows(), bench.handled_id(), bench.file_byte(store)
    encoded = bench.encoded_rows()
    layers = [bench.layer(number, list(of_layer)) for number, of_layer in enumerate(zip(*works), start=1)]
    composed = bench.composed([of_step[0] for of_step in works])
    stages, kept = (tuple(each) for each in zip(*layers, strict=True))
    seconds, model_bytes = bench.optimizer()
    found = Rates(
        sampled_edge=sampled_edge,
        inputs=tuple(PerRow(*each) for each in zip(read, *zip(*encoded), *zip(*bench.learnt_rows()), strict=True)),
        handled_id=handled_id,
        handled_byte=bench.handled_byte(),
        stages=stages,
        kept=kept,
        together=bench.together(works, composed[:1] + stages[len(composed[:1]) :], [each for each, _ in encoded]),
        optimizer=seconds,
        model_bytes=model_bytes,
        composed=composed,
        file_byte=of_files[0],
        file_idle=of_files[1],
        ways=bench.ways(works[1]),
        moved_byte=bench.moved_byte(),
        tiered=bench.tiered([of_step[0] for of_step in works]),
    )
    everybodys = context.group().gather(found.to_json())
    return Rates.of_workers([Rates.from_json(values) for values in everybodys])


class _Bench:
    """What is measured on one worker. All workers call all methods, in the same order."""

    def __init__(
        self, context: Context, config: Config, store: GraphStore, model: Model | None, *, brief: bool
    ) -> None:
        self._steps, self._parts, self._repeats = (1, BRIEF_PARTS, 1) if brief else (STEPS, PARTS, REPEATS)
        self._config, self._mesh, self._group = config, context.mesh, context.group()
        self._num_nodes, self._share = store.num_nodes, share_of_processor(self._group)
        self._dtype = DTYPES[config.precision]
        typed = open_columns(store, store.schema, config) if is_encoded(store, config) else None
        task = make_task(config, store)
        self._typed, self._times = typed, TaskTimes.of_run(task, training_times(config, store))
        topology = with_times(open_topology(store, config), config, store)
        model = named_model(config, store, task.width) if model is None else deepcopy(model)
        attach_times(model, store)
        self._model = model.to(self._dtype).train()
        if typed is not None and any(typed.learnt):
            self._encoder.source = _AnyRows(typed.learnt, self._dtype)
        self._optimizer = make_optimizer(list(self._model.parameters()), config)
        sampler = make_sampler(config, Group.alone(), store.schema)
        inputs: Inputs | FeatureColumn
        lacks = store.shard is not None and store.shard.hosts > 1
        # Otherwise rows are read before layer 1: where seeds have times, once for a node.
        self._in_place = typed is None and self._times is None and not lacks
        self._in_place &= config.cache == 0 and config.feature_memory is None
        if typed is None:
            column = open_features(store, config)
            self._columns: list[FeatureColumn | None] = [column]
            host = HostRows(column)
            self._tiered = Tiered(host, column, host.columns, topology.of_nodes.original)
            inputs = column if self._in_place else self._tiered
        else:
            inputs = TypedInputs(typed, topology, lambda _, host: (host, None))
            self._columns = [None if host is None else host.home for host in typed.columns]
        self._data = Data(BlockWorker(self._model, topology, inputs, sampler, self._dtype))
        self._task, seeds = task, training_seeds(task)
        times = None if self._times is None else self._times.each(seeds)
        self._order = seed_order(task, seeds, config, times)

    def works(self) -> tuple[list[list[BlockWork]], float]:
        """Blocks of this worker's share of some steps, and of parts of the first one, layer 1 first, the smallest part
        last; seconds for a drawn edge."""
        works, per_edge = [], []
        steps = range(1, min(self._steps, self._order.num_steps))
        for step, part in (*((0, part) for part in self._parts), *((step, 1) for step in steps), (0, FEW)):
            key = key_of(self._task, self._order, StepKey(self._config.seed, 0, step))
            batch = self._order.batch(0, step)
            share, found = batch[self._mesh.rank :: part * self._mesh.size], list[BlockWork]()
            if self._times is None:
                requests = self._task.requests(share)
            else:
                times = self._times.of(share)
                key, requests = replace(key, times=times), self._times.requests(share, times)

            def draw(requests: Tensor = requests, key: StepKey = key, found: list[BlockWork] = found) -> None:
                for layer in range(self._config.layers, 0, -1):
                    work, requests = self._data.expand(layer, requests, key)
                    found.insert(0, work)
                self._given(found[0])

            seconds = self._seconds(draw)
            per_edge.append(seconds / max(1, sum(work.num_edges for work in found)))
            works.append(found)
        return works, statistics.median(per_edge[:-1])

    def composed(self, works: list[BlockWork]) -> tuple[PerBlock, ...]:
        """Seconds and bytes that layer 1 takes with the encoder, which it composes; empty where it does not."""
        return self.layer(1, works, encodes=True) if self._composes else ()

    def layer(
        self, number: int, works: list[BlockWork], *, encodes: bool = False, data: Data | None = None
    ) -> tuple[PerBlock, PerBlock]:
        """Seconds and bytes that a layer takes on its blocks, and on some of them with fewer edges or sources.

        Destinations, sources and edges of drawn blocks go together: from these alone it would be chance which of them
        is said to take the time, and workers that compute parts of the same layer have them in other proportions.
        """
        data = data or self._data
        blocks, seconds, kept = list[Float[np.ndarray, "3"]](), list[float](), list[int]()
        for which, work in enumerate(works):
            fewer = {0: _of_few_edges, 1: _of_few_sources}.get(which)
            for block in (work.block, *([] if fewer is None else [fewer(data, number, work.block)])):
                forward = self._forward(data, number, replace(work, block=block), encodes=encodes)

                def compute(forward: Callable[[], Tensor] = forward) -> None:
                    out = forward()
                    out.backward(torch.ones_like(out))

                def compute_first(forward: Callable[[], Tensor] = forward) -> None:
                    out, num_bytes = _kept_by(forward)
                    kept.append(num_bytes)
                    out.backward(torch.ones_like(out))

                # No later block is larger than the first one, so what that has touched is warm.
                seconds.append(self._median(compute, compute_first, warm=bool(blocks)))
                blocks.append(self._size(block))
        sizes = np.stack(blocks)
        return PerBlock.fitted(sizes, np.array(seconds)), PerBlock.fitted(sizes, np.array(kept, np.float64))

    def ways(self, works: Sequence[BlockWork]) -> Ways:
        """What layers take from parts."""
        worker = self._data.worker if self._typed is not None else self._given_rows.worker
        first = 1 if self._typed is None else min(2, self._config.layers)
        with precision(self._config, torch.device("cpu")):
            return measure_ways(worker, works, first, self._median)

    def tiered(self, works: list[BlockWork]) -> tuple[PerBlock, ...]:
        """Seconds and bytes that layer 1 takes if input rows are read before; empty where they always are."""
        if not self._in_place:
            return ()
        expanded = [self._given_rows.expand(1, work.block.dst, work.key)[0] for work in works]
        return self.layer(1, expanded, data=self._given_rows)

    @cached_property
    def _given_rows(self) -> Data:
        """Computes layer 1 from rows that were read before."""
        of = self._data.worker
        return Data(BlockWorker(of.model, of.topology, self._tiered, of.sampler, of.dtype))

    def together(self, works: list[list[BlockWork]], stages: Sequence[PerBlock], encoding: Sequence[float]) -> float:
        """What steps through all layers take, beside the sum of the layers; the median."""
        found, took, composes = list[float](), list[float](), self._composes
        whole = works[: -1 : 1 if self._steps > 1 else len(self._parts)]
        for of_step in (works[0], *itertools.islice(itertools.cycle(whole), max(len(whole), MOST_REPEATS))):
            if len(found) > len(whole) and not any(self._group.gather(_may_be_luck(took[1:]))):
                break
            nodes, given = self._given(of_step[0])
            rows = self._rows(of_step[0], nodes, in_place=self._in_place)

            def compute(rows: Any = rows, given: Any = given, of_step: list[BlockWork] = of_step) -> None:
                h = rows
                with precision(self._config, torch.device("cpu")):
                    if isinstance(rows, RowsByType):
                        h = self._encoder.over(rows) if composes else self._encoder(rows)
                    h = given(h)
                    for layer, work in enumerate(of_step, start=1):
                        h = self._data.forward(layer, work, h)
                h.sum().backward()

            took.append(seconds := self._seconds(compute))
            alone = sum(stage.of(self._size(work.block)) for stage, work in zip(stages, of_step, strict=True))
            if isinstance(rows, RowsByType) and not composes:
                alone += sum(each * len(at) for each, at in zip(encoding, rows.at, strict=True))
            found.append(seconds / alone)
        return statistics.median(found[1:])  # the first one warms up

    def _size(self, block: Block) -> Float[np.ndarray, "3"]:
        """Destinations, sources and edges."""
        ids = torch.cat([block.dst, block.indices]) if block.src is None else None
        sources = block.num_src if ids is None else count_distinct(ids, self._num_nodes)
        return np.array([block.num_dst, sources, block.num_edges], np.float64)

    def _forward(self, data: Data, layer: int, work: BlockWork, *, encodes: bool) -> Callable[[], Tensor]:
        width = self._model.widths[layer - 1]
        h: Any = None
        nodes, given = self._given(work) if layer == 1 else (work.block.src, _as_they_are)
        if encodes:
            assert self._typed is not None
            assert work.block.src is not None
            h = self._encoder.over(self._typed.read(work.block.src))
        elif layer > 1 or self._typed is not None:  # rows of types are encoded before
            assert nodes is not None
            h = torch.randn(len(nodes), width, dtype=self._dtype, requires_grad=True)
        else:
            h = self._rows(work, nodes, in_place=self._in_place and data is self._data)

        def forward() -> Tensor:
            with precision(self._config, torch.device("cpu")):
                return data.forward(layer, work, given(h))

        return forward

    def _given(self, work: BlockWork) -> tuple[Tensor | None, Callable[[Any], Any]]:
        """The nodes whose rows are read for layer 1; and what makes them those that it is given: where seeds have
        times, a row for each node at a time, with its age. ``None``: the layer reads the rows itself."""
        src, worker = work.block.src, self._data.worker
        if src is None:
            return None, _as_they_are
        nodes, places = worker.input_rows(src)
        if places is None:
            return nodes, _as_they_are
        ages = worker.row_ages(src, work.key)

        def given(rows: Tensor) -> Tensor:
            picked = ops.pick_rows(rows, places)
            if ages is None:
                return picked
            assert self._encoder.ages is not None
            return self._encoder.ages(picked, ages)

        return nodes, given

    def _rows(self, work: BlockWork, nodes: Tensor | None, *, in_place: bool) -> FeatureColumn | RowsByType | Tensor:
        """What layer 1 takes, of a typed graph before it is encoded; where seeds have times, the rows of nodes."""
        if self._typed is not None:
            assert nodes is not None
            return self._typed.read(nodes)
        if self._times is not None:
            assert nodes is not None
            inputs = self._data.worker.inputs
            found: Tensor = inputs.forward(inputs.expand(nodes, work.key))
            return found
        if not in_place:  # any will do: this host may not have all of them
            assert nodes is not None
            return torch.randn(len(nodes), self._model.widths[0], dtype=self._dtype)
        assert self._columns[0] is not None
        return self._columns[0]

    @property
    def _composes(self) -> bool:
        """Whether layer 1 may be given rows that are not encoded: where seeds have times, these are repeated after."""
        return self._model.composes_encoder and self._times is None

    @property
    def _encoder(self) -> Encoder:
        assert self._model.encoder is not None
        return self._model.encoder

    def read_rows(self) -> list[float]:
        """Seconds for a row of each node type, of some that are anywhere."""
        found = []
        for column in self._columns:
            if column is None or not len(column.x):
                found.append(0.0)
                continue
            ids = torch.randint(0, len(column.x), (min(len(column.x), 1 << 14),))
            found.append(self._median(partial(column.read, ids)) / len(ids))
        return found

    def encoded_rows(self) -> list[tuple[float, float]]:
        """Seconds and bytes for a row of each node type to be encoded; an untyped graph encodes nothing."""
        if self._typed is None:
            return [(0.0, 0.0)]
        found = []
        for kind in range(self._typed.types.count):
            ids = torch.from_numpy(self._typed.types.all_ids(kind))
            if not len(ids):
                found.append((0.0, 0.0))
                continue
            rows = self._typed.read(ids[torch.randint(0, len(ids), (HANDLED_ROWS,))])

            def forward(rows: RowsByType = rows) -> Tensor:
                with precision(self._config, torch.device("cpu")):
                    return self._encoder(rows)

            def compute(forward: Callable[[], Tensor] = forward) -> None:
                out = forward()
                out.backward(torch.ones_like(out))

            kept = _kept_by(forward)[1] / HANDLED_ROWS + 2 * self._learnt_width(kind) * self._dtype.itemsize
            found.append((self._median(compute) / HANDLED_ROWS, kept))
        return found

    def _learnt_width(self, kind: int) -> int:
        return self._typed.learnt[kind] if self._typed is not None and self._typed.learnt else 0

    def learnt_rows(self) -> list[tuple[float, float]]:
        """Seconds for a learnt row of each node type to be given, and to be moved, by its owner."""
        found, optimizer = list[tuple[float, float]](), ROW_OPTIMIZERS.find(self._config.embed_optimizer)
        for kind in range(1 if self._typed is None else self._typed.types.count):
            width = self._learnt_width(kind)
            if not width or self._typed is None:
                found.append((0.0, 0.0))
                continue
            size = min(LEARNT_ROWS, max(1, self._typed.types.size(kind) // self._mesh.size))
            table = MemoryTable(size, {"rows": width, **optimizer.slots(width)}, self._dtype)
            # Rows that nobody has written to would all be read from one page of zeros.
            table.put(0, {"rows": torch.ones(size, width, dtype=self._dtype)})
            at = torch.randperm(size)[:HANDLED_ROWS]
            gradient = torch.full((len(at), width), 1e-3, dtype=self._dtype)

            def give(table: MemoryTable = table, at: Tensor = at) -> None:
                add_up(at, table.read(at))

            def move(table: MemoryTable = table, at: Tensor = at, gradient: Tensor = gradient) -> None:
                table.move(optimizer, at, gradient, self._config.lr, 1)

            found.append((self._median(give) / len(at), self._median(move) / len(at)))
        return found

    def file_byte(self, store: GraphStore) -> tuple[float, float]:
        """Seconds for a byte, of reading rows that are anywhere in the files of the store, and what of them a processor
        is idle; 0 where rows are mapped."""
        if self._config.feature_memory is None:
            return 0.0, 0.0
        from partita.features.packing import read_cost  # imports numba, which runs without files have no need of

        rows = open_rows(store, self._config)
        hosts = [rows] if isinstance(rows, HostRows) else [each for each in rows.columns if each is not None]
        files = [file for host in hosts for file in host.files() if file.num_rows and file.width]
        generator, costs = np.random.default_rng(self._mesh.rank), list[int]()

        def read() -> None:
            costs.append(0)
            for file in files:
                # Others each time: where reads do not go past the system's cache of pages, these would be in it.
                wanted = np.unique(generator.integers(0, file.num_rows, FILE_ROWS))
                file.read(wanted, np.empty((len(wanted), file.width), np.uint8), np.arange(len(wanted)))
                costs[-1] += read_cost(file, wanted)

        self._group.gather(0)
        found = [watched(read) for _ in range(1 + self._repeats)]  # the first one warms up
        seconds, busy = (statistics.median(each) for each in zip(*found[1:], strict=True))
        cost = max(1.0, statistics.median(costs[1:]))
        return seconds / cost, max(0.0, seconds - busy / self._share) / cost

    def handled_id(self) -> float:
        """Seconds for an id, of some that are anywhere: sorted by owner, and the distinct ones found."""
        ids = torch.randint(0, self._num_nodes, (HANDLED_IDS,))

        def handle() -> None:
            order, _ = bucket(ids % self._mesh.size, self._mesh.size)
            first_appearance(ids[order])

        return self._median(handle) / HANDLED_IDS

    def handled_byte(self) -> float:
        """Seconds for a byte of some rows, of which half are picked, and half added up."""
        rows = torch.randn(HANDLED_ROWS, HANDLED_WIDTH, dtype=self._dtype, requires_grad=True)
        pick = RowPick.of(torch.randperm(HANDLED_ROWS), HANDLED_ROWS)

        def handle() -> None:
            out = pick(rows)
            out.backward(out.detach())

        return self._median(handle) / (2 * rows.nbytes)

    def moved_byte(self) -> float:
        """Seconds for a byte of some rows that are anywhere, copied to other places."""
        rows = torch.empty(MOVED_ROWS, HANDLED_WIDTH).fill_(1.0)
        out, ids, at = torch.empty_like(rows).fill_(0.0), torch.randperm(MOVED_ROWS), torch.randperm(MOVED_ROWS)
        with limited(1):
            return self._median(lambda: kernels.move_rows(rows, ids, out, at)) / rows.nbytes

    def optimizer(self) -> tuple[float, int]:
        """Seconds of a step; bytes of parameters, gradients and state."""
        parameters = list(self._model.parameters())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        seconds = self._median(self._optimizer.step)
        states = (each for state in self._optimizer.state.values() for each in state.values())
        held = [*parameters, *parameters, *(each for each in states if isinstance(each, Tensor))]
        return seconds, sum(each.nbytes for each in held)

    def _median(
        self, work: Callable[[], object], first: Callable[[], object] | None = None, *, warm: bool = False
    ) -> float:
        """Seconds, where all workers begin at the same time.

        Args:
            work: is done again and again.
            first: the same, done instead the first time, which warms up; ``None``: ``work``.
            warm: the first time counts as well where it takes long.
        """
        found = list[float]()
        self._group.gather(0)
        while len(found) <= self._repeats or _may_be_luck(found[1:]):
            found.append(lasting(*watched(work if found or first is None else first), self._share))
            if found[0] > LONG_SECONDS and (warm or len(found) > 1):
                return found[-1]
        return statistics.median(found[1:])

    def _seconds(self, work: Callable[[], object]) -> float:
        """What something takes that all workers begin at the same time."""
        self._group.gather(0)
        return lasting(*watched(work), self._share)


class _AnyRows:
    """Gives any rows in place of those that are learnt: looking these up is measured apart.

    Args:
        widths: columns of each node type, 0 of types without.
        dtype: of the rows.
    """

    def __init__(self, widths: Sequence[int], dtype: torch.dtype) -> None:
        self._rows = [torch.randn(0, width, dtype=dtype) for width in widths]

    def read(self, kind: int, numbers: Int64[Tensor, "n"], pull: Any = None) -> Float[Tensor, "n w"]:
        """See :class:`partita.nn.encoder.LearntSource`."""
        rows = self._rows[kind]
        if len(rows) < len(numbers):
            self._rows[kind] = rows = torch.randn(len(numbers), rows.shape[1], dtype=rows.dtype)
        found = rows[: len(numbers)].detach()
        return found.requires_grad_() if torch.is_grad_enabled() else found


def _of_few_edges(data: Data, layer: int, block: Block) -> Block:
    """A block of one edge in :data:`KEPT`; its sources stay, where they are numbered."""
    return _thinned(data, layer, block, torch.arange(block.num_edges) % KEPT == 0)


def _of_few_sources(data: Data, layer: int, block: Block) -> Block:
    """A block of one source in :data:`KEPT`, besides destinations, and of their edges."""
    if block.src is None:
        return _thinned(data, layer, block, block.indices % KEPT == 0)
    stays = torch.arange(block.num_src) % KEPT == 0
    stays[: block.num_dst] = True
    kept, places = stays[block.indices.long()], (stays.cumsum(0) - 1).to(block.indices.dtype)
    numbered = block.with_(src=block.src[stays], indices=places[block.indices.long()], src_original=None)
    return _thinned(data, layer, numbered, kept)


def _thinned(data: Data, layer: int, block: Block, kept: Bool[Tensor, "E"]) -> Block:
    """A block of some of its edges."""
    counts = torch.cat([torch.zeros(1, dtype=torch.int64), kept.long().cumsum(0)])
    columns = block.of_edges(kept)
    block = block.with_(indptr=counts[block.indptr], indices=block.indices[kept], transposed=None, **columns)
    return block if block.src is None else data.worker.prepared(layer, block)


def _may_be_luck(seconds: Sequence[float]) -> bool:
    """Whether it is worth to measure once more what took so long each time."""
    return len(seconds) < MOST_REPEATS and sum(seconds) < ENOUGH_SECONDS


def _as_they_are(rows: Any) -> Any:
    return rows


def _kept_by(forward: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """The result of a computation, and the bytes of it and of the tensors that autograd keeps."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf or not tensor.requires_grad:  # a parameter, or what the layer below has kept
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = forward()
    keep(out)
    return out, max(1, sum(kept.values()))
