"""Full-graph inference, one layer after the other, all neighbors, in node blocks within a memory budget.

A model that was trained on the nodes that random walks visit most is evaluated on such nodes.

Layer by layer every row is computed once, where sampling backwards from the seeds would compute most rows of a
small graph many times. Hidden layers that do not fit into the budget are spilled to disk and mapped back. Where such a
table, or that of the input rows, is larger than the memory there is for files, its rows are read in their order: see
:mod:`partita.infer.in_order`.

Several workers compute a contiguous range of nodes each. The workers of a host write into one memory-mapped file per
layer and read each other's rows there. Between hosts, each row that a host needs of another one travels once per
layer. One worker is the case in which nothing travels.

Results of any number of workers are equal up to rounding, not to the bit: matrix products treat the last rows of a
block in another order of sums than those before them, and blocks end elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from partita.comm.axis import Workers
from partita.comm.context import Context
from partita.core import progress
from partita.core.memory import keeping_freed
from partita.core.protocols import Topology
from partita.features.rows import FeatureColumn
from partita.features.typed import TypedColumns
from partita.infer.halo import Halo, outside
from partita.infer.in_order import LayerInOrder, OrderedTable, cut
from partita.infer.memory_need import BLOCK_BYTES, OrderedMemory, exceeds_cache, own_limit, stays_in_memory
from partita.infer.neighbors import neighbors_of
from partita.infer.ranges import Ranges
from partita.infer.row_table import RowTable, read_rows
from partita.infer.scratch import Scratch
from partita.kernels import Relabeller
from partita.nn.layers import Layer
from partita.nn.model import Model, Stage
from partita.sample.base import EvaluationSampler

# Results reach the first worker in pieces of so many bytes.
_PIECE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Rows of the last layer for some nodes.

    Attributes:
        ids: (R) store ids.
        output: (R, C) what the model says.
        embedding: (R, F) the rows of these nodes that went into the last layer; (R, 0) where they were not asked for.
    """

    ids: Int[Tensor, "R"]
    output: Float[Tensor, "R C"]
    embedding: Float[Tensor, "R F"]


class LayerwiseInference:
    """Computes a model's output for any nodes of a store, exactly.

    Args:
        model: in any mode; it is evaluated without dropout.
        topology: must hold all in-neighbors of all nodes that this worker computes; nothing is exchanged to sample.
        inputs: the input rows: of all nodes, or a table of those that this host holds; or those of every node type,
            which the model's encoder brings to one width.
        memory_limit: bytes of private memory of this worker, for hidden layers and node blocks together; ``None``: a
            quarter of what is available now, divided among the workers of this host.
        scratch: directory for files; default the system's.
        context: of this worker; ``None``: it is the only one.
        ranges: which worker computes which nodes; needed with several workers.
        sampler: takes the neighbors of a node, where not all of them are; see
            :meth:`partita.sample.base.BaseSampler.for_evaluation`.
        in_order: whether the sources of a layer that is split are read in the order in which they lie, see
            :mod:`partita.infer.in_order`; ``None``: where :func:`partita.infer.memory_need.exceeds_cache` says so of
            the files that they are in.

    Attributes:
        dtype: of rows.
        in_order: as given.
        tap: called with the ids of nodes that this worker has computed, and their rows that went into the last layer.
    """

    def __init__(
        self,
        model: Model,
        topology: Topology,
        inputs: FeatureColumn | RowTable | TypedColumns,
        *,
        memory_limit: int | None = None,
        scratch: Path | None = None,
        context: Workers | None = None,
        ranges: Ranges | None = None,
        sampler: EvaluationSampler | None = None,
        in_order: bool | None = None,
    ) -> None:
        self.model = model
        self.topology = topology
        self.neighbors = neighbors_of(topology, sampler)
        self.inputs = RowTable(inputs, topology.num_nodes) if isinstance(inputs, FeatureColumn) else inputs
        self.ranges = ranges or Ranges.whole(topology.num_nodes)
        self.context = context or Context.alone()
        if self.context.mesh != self.ranges.mesh:
            raise ValueError(f"ranges for {self.ranges.mesh}, but this worker is {self.context.mesh}")
        self.memory_limit = memory_limit or own_limit(self.ranges.mesh.workers)
        self.tap: Callable[[Tensor, Tensor], None] | None = None
        self._folder, self.in_order = scratch, in_order
        self.dtype = self.inputs.dtype
        self._relabeller = Relabeller(topology.num_nodes)

    def run(self, ids: Int[Tensor, "R"] | None = None) -> Iterator[OutputRows]:
        """Yield the output of those of the given nodes (default: all) that this worker computes, in the order given.

        Collective: every worker calls it with the same ids, and takes everything that it yields.

        Raises:
            ResourceError: no disk space for a layer that has to be spilled.
        """
        with self._evaluating():
            yield from self._run(ids)

    def collect(self, ids: Int[Tensor, "R"] | None = None, *, embeddings: bool = False) -> Iterator[OutputRows]:
        """Yield the output of all the given nodes (default: all) on the first worker, in the order given.

        Collective: every worker calls it with the same ids and iterates to the end; the others yield nothing. They
        keep their rows, in memory or spilled, until the first worker takes them, piece by piece.

        Args:
            ids: distinct store ids.
            embeddings: also the rows that went into the last layer.

        Raises:
            ResourceError: see :meth:`run`.
        """
        mesh = self.ranges.mesh
        if mesh.size == 1:
            for rows in self.run(ids):
                yield rows if embeddings else OutputRows(rows.ids, rows.output, rows.embedding[:, :0])
            return
        with self._evaluating():
            mine, at = len(self._own(ids)), 0
            last = cast("Stage", self.model.stages[-1]).layer
            output_width, width = last.out_width, last.out_width + (last.in_width if embeddings else 0)
            kept: Tensor | None = None
            for rows in self._run(ids):
                if kept is None:
                    kept = self._scratch.private("output", mine, width, self.dtype)
                piece = kept[at : at + len(rows.ids)]
                piece[:, :output_width] = rows.output
                if embeddings:
                    piece[:, output_width:] = rows.embedding
                at += len(rows.ids)
            if kept is None:
                kept = torch.empty((0, width), dtype=self.dtype)
            for where, both in self._to_first(ids, kept):
                yield OutputRows(where, both[:, :output_width], both[:, output_width:])

    def _to_first(self, ids: Tensor | None, kept: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Send every worker's rows to the first one, which yields them with their ids in the order of ``ids``."""
        group, rank = self.context.group("all"), self.ranges.mesh.rank
        step = max(1, min(self.memory_limit // 4, _PIECE_BYTES) // (kept.shape[1] * kept.element_size()))
        total, at = self.topology.num_nodes if ids is None else len(ids), 0
        nobody = [0] * group.size
        for start in range(0, total, step):
            stop = min(start + step, total)
            piece = torch.arange(start, stop) if ids is None else ids[start:stop]
            owner = self.ranges.workers_of(piece)
            counts = torch.bincount(owner, minlength=group.size).tolist()
            mine = kept[at : at + counts[rank]]
            at += counts[rank]
            send = [counts[rank], *nobody[1:]]
            rows = group.exchange(mine, send, counts if rank == 0 else nobody, "forward")
            if rank == 0:
                ordered = torch.empty_like(rows)
                ordered[torch.argsort(owner, stable=True)] = rows
                yield piece.to(self.topology.id_dtype), ordered

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        # All workers must cut exchanges alike.
        self.memory_limit = min(self.context.group("all").gather(self.memory_limit))
        self._scratch = Scratch(self.memory_limit, self._folder, self.context.group("workers"))
        self._outside: dict[bool, Tensor] = {}
        self._halos: dict[tuple[bool, bool], Halo] = {}
        try:
            with keeping_freed(), torch.inference_mode():
                yield
        finally:
            self._outside.clear()
            self._halos.clear()
            self.model.train(training)

    def _own(self, ids: Tensor | None) -> Tensor:
        """Those of the ids that this worker computes."""
        first, last = self.ranges.own
        if ids is None:
            return torch.arange(first, last, dtype=self.topology.id_dtype)
        ids = ids.to(self.topology.id_dtype)
        return ids if self.ranges.mesh.size == 1 else ids[(ids >= first) & (ids < last)]

    def _run(self, ids: Tensor | None) -> Iterator[OutputRows]:
        stages = cast("list[Stage]", list(self.model.stages))
        everyone, wanted = self._own(None), self._own(ids)
        self._wanted = wanted
        host_first, host_last = self.ranges.host
        offset = self.ranges.own[0] - host_first
        encoded = len(everyone) if isinstance(self.inputs, TypedColumns) else 0
        total = encoded + len(everyone) * (len(stages) - 1) + len(wanted)
        with progress.task("infer", total=total, unit="nodes") as task:
            table = self._encoded(self.inputs, task) if isinstance(self.inputs, TypedColumns) else self.inputs
            for number, stage in enumerate(stages[:-1], start=1):
                what = f"hidden layer {number}"
                hidden = self._scratch.of_host(what, host_last - host_first, stage.layer.out_width, self.dtype)
                for start, rows in self._layer(stage, number, table, everyone, everyone=True):
                    hidden[offset + start : offset + start + len(rows)] = rows
                    task.advance(len(rows))
                self._scratch.barrier()
                table = self._table(hidden)
            for start, rows in self._layer(stages[-1], len(stages), table, wanted, everyone=ids is None):
                part = wanted[start : start + len(rows)]
                task.advance(len(rows))
                embedding = read_rows(table.home, part.long() - table.first)
                if self.tap is not None:
                    self.tap(part, embedding)
                yield OutputRows(part, rows, embedding)

    def _encoded(self, columns: TypedColumns, task: progress.Bar) -> RowTable:
        """The input rows of all types, brought to one width."""
        encoder = self.model.encoder
        assert encoder is not None
        (first, last), (host_first, host_last) = self.ranges.own, self.ranges.host
        encoded = self._scratch.of_host("encoded features", host_last - host_first, encoder.out_width, self.dtype)
        widest = max(sum(both) for both in zip(columns.widths, encoder.learnt, strict=True))
        row_bytes = self.dtype.itemsize * (widest + max(encoder.learnt) + 2 * encoder.out_width) + 32
        step = max(1, min(self.memory_limit // 4, BLOCK_BYTES) // row_bytes)
        rounds = -(-(last - first) // step)
        if any(encoder.learnt):  # which all workers must ask each other for
            rounds = max(self.context.group("all").gather(rounds))
        for start in range(first, first + rounds * step, step):
            start, stop = min(start, last), min(start + step, last)
            encoded[start - host_first : stop - host_first] = encoder(columns.read(torch.arange(start, stop)))
            task.advance(stop - start)
        self._scratch.barrier()
        return self._table(encoded)

    def _table(self, rows: Tensor) -> RowTable:
        """A table of rows of this host's nodes."""
        return RowTable(FeatureColumn(rows, dtype=self.dtype), self.topology.num_nodes, self.ranges.host[0])

    def _layer(
        self, stage: Stage, number: int, table: RowTable, ids: Tensor, *, everyone: bool
    ) -> Iterator[tuple[int, Tensor]]:
        """Compute one layer for ``ids`` (``everyone``: all of this worker's); yields (position in ids, rows)."""
        layer = stage.layer
        messages = self._messages(layer, number, table)
        if messages is not None:
            messages = self._with_halo(messages, everyone)
        else:
            table = self._with_halo(table, everyone)
        split = layer.split
        if split is not None and layer.reads_neighbors and self._reads_in_order(messages or table):
            yield from self._layer_in_order(stage, number, table, messages).rows(ids)
            return
        sums = layer.starts_with_sum if messages is None or split is None else split.sums_messages
        by_id = sums and (messages or table).sums_by_id
        for start, stop in self._node_blocks(layer, table.width, ids, by_id):
            relabeller = None if by_id else self._relabeller
            block = self.neighbors.block(ids[start:stop], layer, number, relabeller, self.dtype)
            rows = table.rows(block)
            if messages is None or split is None:
                yield start, stage(block, rows, None, number)
                continue
            x_dst, payload = rows.of_destinations(), messages.rows(block)
            state = split.partial(payload if sums else payload.all(), split.query(x_dst, block), block)
            out = split.finish(state, split.self_term(x_dst, block), block)
            yield start, stage.post(out, block.dst_original, None, number)

    def _reads_in_order(self, table: RowTable) -> bool:
        """Whether the rows of a table are to be read in their order."""
        if self.in_order is not None:
            return self.in_order
        in_files = OrderedTable(table).num_bytes
        return in_files > 0 and exceeds_cache(in_files, self.memory_limit)

    def _layer_in_order(self, stage: Stage, number: int, table: RowTable, messages: RowTable | None) -> LayerInOrder:
        item, rows = self.dtype.itemsize, self.ranges.host[1] - self.ranges.host[0]
        split = stage.layer.split
        assert split is not None
        sizes = [
            item * rows * width for width in (stage.layer.in_width, split.message_width or 0, stage.layer.out_width)
        ]
        kept = sum(size for size in sizes if stays_in_memory(size, self.memory_limit))
        return LayerInOrder(
            stage, number, OrderedTable(table), None if messages is None else OrderedTable(messages), self.neighbors,
            self._scratch, OrderedMemory.of(stage.layer, item, self.memory_limit, kept), self.topology.num_nodes,
        )  # fmt: skip

    def _messages(self, layer: Layer, number: int, table: RowTable) -> RowTable | None:
        """What every node sends along its edges, where that is not simply its row: computed once per node."""
        split = layer.split
        if split is None or split.message_width is None:
            return None
        (first, last), (host_first, host_last) = self.ranges.own, self.ranges.host
        what = f"messages of layer {number}"
        messages = self._scratch.of_host(what, host_last - host_first, split.message_width, self.dtype)
        row_bytes = self.dtype.itemsize * (table.width + 2 * split.message_width)
        step = max(1, min(self.memory_limit // 4, BLOCK_BYTES) // row_bytes)
        ordered = OrderedTable(table) if self._reads_in_order(table) else None
        for start in range(first, last, step):
            ids = torch.arange(start, min(start + step, last), dtype=self.topology.id_dtype)
            if ordered is not None:
                ordered.ask(ids)
            rows = table.read(ids) if ordered is None else ordered.read(ids)
            messages[start - host_first : start - host_first + len(ids)] = split.message(rows)
        self._scratch.barrier()
        return self._table(messages)

    def _with_halo(self, table: RowTable, everyone: bool) -> RowTable:
        """The table with the rows of all sources of this host's nodes (``everyone``), or of those asked for."""
        if table.whole:
            return table
        known = table.extra_ids
        halo = self._halos.get((everyone, known is not None))
        if halo is None:
            if everyone not in self._outside:
                neighbors = self._neighbors(self._own(None) if everyone else self._wanted)
                ids = outside(neighbors, self.ranges, self._scratch, self.topology.id_dtype)
                self._outside[everyone] = ids
            halo = Halo(self._outside[everyone], known, self.ranges, self.context.group("hosts"))
            self._halos[everyone, known is not None] = halo
        kind = "features" if table is self.inputs else "forward"
        return halo.fetch(table, kind, self._scratch, self.memory_limit)

    def _neighbors(self, ids: Tensor) -> Iterator[Tensor]:
        """The neighbors of nodes, in pieces."""
        cost = self.neighbors.most(ids) * 24 + 24 + self.neighbors.node_bytes
        for start, stop in cut(torch.cumsum(cost, dim=0), BLOCK_BYTES // 4):
            yield self.neighbors.ids(ids[start:stop])

    def _node_blocks(self, layer: Layer, width: int, ids: Tensor, by_id: bool) -> Iterator[tuple[int, int]]:
        """Cut ``ids`` so that what one block needs stays within a quarter of the budget (hidden layers get half)."""
        item = self.dtype.itemsize
        # Own row, sum and their sum; then a handful of copies on the way through linear maps, norm and activation.
        row_bytes = item * (3 * width + 6 * layer.out_width) + self.neighbors.node_bytes
        split = layer.split
        columns = 3 * width if split is None else (split.message_width or width) + 2 * split.state_width
        columns += 0 if split is None else split.columns_per_edge
        edge_bytes = 24 if by_id else 24 + item * columns
        budget = self.memory_limit // 4
        if by_id:
            budget = min(budget, BLOCK_BYTES)  # others share more sources, and copy less, the larger a block is
        yield from cut(torch.cumsum(self.neighbors.most(ids) * edge_bytes + row_bytes, dim=0), budget)
