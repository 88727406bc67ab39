"""Level 0: who reads the input rows."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from partita import kernels
from partita.comm.axis import Axis
from partita.comm.routing import Route, first_appearance
from partita.core.keys import Purpose, StepKey
from partita.core.protocols import Topology
from partita.core.records import LayerRows, Traffic
from partita.features.columns import ColumnSlice
from partita.features.rows import FeatureColumn
from partita.kernels import count_distinct

ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Reads:
    """Which rows a worker reads of those it can address; see :class:`partita.core.protocols.InputWork`.

    Attributes:
        ids: store ids to read; empty where the layer reads by itself.
        key: names the step.
        num_read: distinct rows.
        num_accesses: accesses.
    """

    ids: Int[Tensor, "n"]
    key: StepKey
    num_read: int
    num_accesses: int

    @property
    def hits(self) -> tuple[int, ...]:
        """All rows are in the memory of the host."""
        return (0, self.num_read, 0, 0)

    @property
    def rows(self) -> LayerRows:
        """Nothing is asked of others."""
        return LayerRows()


class Direct:
    """Every worker reads what it asks for, from a column that it can address.

    Args:
        column: the rows.
        num_nodes: of the store.
    """

    collective = False

    def __init__(self, column: FeatureColumn, num_nodes: int) -> None:
        self.column = column
        self.num_nodes = num_nodes
        self.dropout = column.dropout

    def sums_by_id(self, training: bool) -> bool:
        """As the column says."""
        return self.column.sums_by_id(training)

    def expand(self, requests: Int[Tensor, "S"], key: StepKey) -> Reads:
        """Count; nothing is to be prepared."""
        return Reads(requests[:0], key, count_distinct(requests, self.num_nodes), requests.shape[0])

    def forward(self, work: Reads) -> FeatureColumn:
        """The column: the layer reads as far as it needs."""
        return self.column

    def traffic(self, rows: LayerRows) -> Traffic:
        """Nothing travels."""
        return Traffic()


@dataclass(frozen=True, slots=True)
class OwnerReads:
    """Rows to read for others, and the way of one's own requests; see :class:`partita.core.protocols.InputWork`.

    Attributes:
        ids: distinct store ids that this worker reads.
        repeats: which of them goes to each who asked.
        route: of this worker's own requests.
        original: original indices of the requests where rows are dropped out, else ``None``.
        key: names the step.
        rows: this worker's own requests.
    """

    ids: Int[Tensor, "n"]
    repeats: Int[Tensor, "m"] | None
    route: Route
    original: Int[Tensor, "S"] | None
    key: StepKey
    rows: LayerRows

    @property
    def num_read(self) -> int:
        """Distinct rows, each read once."""
        return self.ids.shape[0]

    @property
    def num_accesses(self) -> int:
        """The same: no row is read twice."""
        return self.ids.shape[0]

    @property
    def hits(self) -> tuple[int, ...]:
        """What is read here is in the memory of the host; the rest comes from others."""
        return (0, self.num_read, self.rows.remote_destinations, 0)


class ByOwner:
    """The owner of a node reads its row, once per step, and ships it to all who ask (GSplit).

    Rows travel as the store holds them (float16 stays float16) unless they are scaled.

    Args:
        column: the rows; a worker reads only those that it owns.
        axis: the workers, and who of them owns which node.
        topology: gives original indices, the key of input dropout.
    """

    dropout = 0.0  # applied here, not by the layer
    collective = True

    def __init__(self, column: FeatureColumn, axis: Axis, topology: Topology) -> None:
        self.column = column
        self.axis = axis
        self.topology = topology

    def sums_by_id(self, training: bool) -> bool:
        """No: rows that travel are de-duplicated."""
        return False

    def expand(self, requests: Int[Tensor, "S"], key: StepKey) -> OwnerReads:
        """Send the requests to their owners."""
        axis = self.axis
        route, asked = Route.ask(axis.sampling, axis.owner(requests), requests)
        repeats = None
        if axis.size > 1:
            asked, repeats = first_appearance(asked)
        original = self.topology.original(requests) if self.column.dropout > 0 else None
        rows = LayerRows(destinations=len(requests), remote_destinations=route.remote(axis.rank))
        return OwnerReads(asked, repeats, route, original, key, rows)

    def forward(self, work: OwnerReads) -> Float[Tensor, "S F"]:
        """Read and ship the rows."""
        column = self.column
        if column.scale is None and column.x.dtype != column.dtype and work.repeats is not None:
            rows = column.x.index_select(0, work.ids.long())
        else:
            rows = column.read(work.ids)
        if work.repeats is not None:
            rows = rows.index_select(0, work.repeats)
        rows = work.route.answer_inputs(self.axis.computing, rows).to(column.dtype)
        if work.original is None:
            return rows
        return kernels.dropout(rows, work.original, work.key.at(Purpose.INPUT_DROPOUT, 0), column.dropout)

    def traffic(self, rows: LayerRows) -> Traffic:
        """An id and a row for every remote request."""
        wire = self.column.x.dtype if self.column.scale is None else self.column.dtype
        sent = rows.remote_destinations
        return Traffic(ids=ID_BYTES * sent, features=self.column.width * wire.itemsize * sent)


class Columns:
    """Every worker reads its own columns of all rows that anybody needs; goes with ``Feature`` at layer 1.

    Args:
        column: the rows.
        columns: which of the columns this worker reads.
        topology: gives original indices, the key of input dropout.
    """

    dropout = 0.0  # applied here, not by the layer
    collective = False

    def __init__(self, column: FeatureColumn, columns: slice, topology: Topology) -> None:
        self.slice = ColumnSlice(column, columns.start, columns.stop)
        self.topology = topology

    def sums_by_id(self, training: bool) -> bool:
        """No: the rows of all workers are read together."""
        return False

    def expand(self, requests: Int[Tensor, "S"], key: StepKey) -> Reads:
        """Remember the rows."""
        return Reads(requests, key, requests.shape[0], requests.shape[0])

    def forward(self, work: Reads) -> Float[Tensor, "S F"]:
        """Read the slice of the rows."""
        if self.slice.column.dropout == 0:
            return self.slice.read(work.ids)
        key = work.key.at(Purpose.INPUT_DROPOUT, 0)
        return self.slice.read_dropped(work.ids, self.topology.original(work.ids), key)

    def traffic(self, rows: LayerRows) -> Traffic:
        """Nothing travels here; ``Feature`` counts what follows."""
        return Traffic()


def columns_of(width: int, rank: int, size: int) -> slice:
    """The feature columns of a worker: equal shares, the first ``width mod size`` workers have one more."""
    share, rest = divmod(width, size)
    start = rank * share + min(rank, rest)
    return slice(start, start + share + (rank < rest))
