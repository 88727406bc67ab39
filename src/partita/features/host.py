"""The tier at the bottom: rows in the memory of this host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, Shaped, UInt64
from torch import Tensor

from partita import kernels
from partita.core.errors import ConfigError
from partita.core.estimates import AskedRows, ReadEstimate
from partita.core.mesh import Mesh
from partita.core.records import TIERS, DiskReads, tier_rows
from partita.features.of_workers import OfWorkers
from partita.features.rank_bitmap import Positions
from partita.features.rows import FeatureColumn
from partita.files.row_file import RowFile
from partita.kernels import rank_masks
from partita.kernels.memory import to_device


@dataclass(frozen=True, slots=True)
class HostWork:
    """Rows to read from this host's memory; see :class:`partita.core.protocols.TierWork`.

    Attributes:
        reads: store ids.
        at: (m) positions in ``reads`` of the nodes among the host's own; ``None`` where all are.
        hot: positions in ``reads`` of the others, and their ranks among the hot rows.
        remote: nothing comes from other workers.
    """

    reads: Int[Tensor, "n"]
    at: Int64[Tensor, "m"] | None = None
    hot: tuple[Int64[Tensor, "k"], Int64[Tensor, "k"]] | None = None
    remote: int = 0

    @property
    def hits(self) -> tuple[int, ...]:
        """All rows come from the host."""
        return tier_rows(host=self.reads.shape[0])


class HostRows(OfWorkers):
    """Rows in this host's memory, usually mapped from a store: of all nodes, or of those that a shard holds.

    Rows are read as they are stored (float16 stays float16, small integers stay so), unless they are scaled: then in
    the dtype that is computed in. :meth:`values` gives the numbers of small integers.

    Args:
        home: rows of the nodes ``first``, ``first + 1``, ...; dtype, scale and dropout are those of all rows.
        num_nodes: N, where hosts hold shares of the rows; ``None`` where every host has all.
        first: store id of the first row of ``home``.
        hot_ids: ascending store ids of other nodes whose rows are at hand too.
        hot: their rows.
        columns: which columns are read; ``None`` for all.
        files: that the rows of ``home`` and of ``hot`` are in, for who reads them from there.

    Attributes:
        home: as given.
        num_nodes: N.
        whole: every host has the rows of all nodes.
        columns: a slice with a start and a stop.
        num_columns: how many they are.
        width: columns of a row as read, of small integers bytes.
        dtype: of a row as read.
        collective: no.
        look_ahead: none.

    Raises:
        ValueError: hot rows without their ids or factors, or of another shape or type.
    """

    collective = False
    look_ahead = 0
    exchanges_to_prepare = False

    def __init__(
        self,
        home: FeatureColumn,
        num_nodes: int | None = None,
        first: int = 0,
        hot_ids: Int[Tensor, "M"] | None = None,
        hot: FeatureColumn | None = None,
        *,
        columns: slice | None = None,
        files: Sequence[RowFile] = (),
    ) -> None:
        if (hot is None) != (hot_ids is None) or (hot is not None and not _alike(home, hot, len(hot_ids))):  # type: ignore[arg-type]
            raise ValueError("hot rows need an id and a factor each, and the columns and the type of the other rows")
        self.home = home
        self.num_nodes = home.x.shape[0] if num_nodes is None else num_nodes
        self.whole = num_nodes is None
        self.columns = columns or slice(0, home.width)
        self.num_columns = self.columns.stop - self.columns.start
        self._stored = home.stored_columns(self.columns)
        self.width = self._stored.stop - self._stored.start
        self.dtype = home.stored_dtype
        self._first = first
        self._hot_ids, self._hot = hot_ids, hot
        self._hot_ranks = None if hot_ids is None else Positions(hot_ids, self.num_nodes)
        self._files = tuple(files)

    @property
    def bytes_of_all(self) -> int:
        """Of the rows of all nodes, wherever they are."""
        return self.num_nodes * self.width * self.home.x.element_size()

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows and their factors."""
        columns = [self.home] if self._hot is None else [self.home, self._hot]
        tensors = [tensor for column in columns for tensor in (column.x, column.scale) if tensor is not None]
        return sum(tensor.nbytes for tensor in tensors)

    def mapped(self, change: Callable[[FeatureColumn], FeatureColumn]) -> HostRows:
        """The same rows, with a change made to the columns that hold them."""
        hot = None if self._hot is None else change(self._hot)
        return HostRows(change(self.home), self._share, self._first, self._hot_ids, hot, columns=self.columns)

    def files(self) -> list[RowFile]:
        """What the rows can be read from: their columns of the home rows, then of the hot ones.

        Raises:
            ConfigError: they are not in files.
        """
        if not self._files:
            raise ConfigError(
                "feature rows that are in no file cannot be read from there",
                where="feature_memory",
                fix="Save the graph as a store, or leave feature_memory out",
            )
        stored = self.columns if self.home.levels is None else self.home.levels.stored(self.columns)
        begin, end = (each * self.home.x.element_size() for each in (stored.start, stored.stop))
        return [file.columns(begin, end - begin) for file in self._files]

    def numbers(self, work: HostWork) -> Int64[Tensor, "n"]:
        """Of rows that were asked for, where they are among the home rows, and behind these the hot ones."""
        found = work.reads.long() - self._first
        if work.hot is not None:
            found[work.hot[0]] = self.home.x.shape[0] + work.hot[1]
        return found

    def values(self, rows: Shaped[Tensor, "n B"]) -> Float[Tensor, "n F"]:
        """Numbers of rows as :meth:`read` gives them: what small integers stand for, and any others as they are."""
        return self.home.values(rows, self.columns)

    def scaled(self, rows: Shaped[Tensor, "n B"], numbers: Int64[Tensor, "n"]) -> Shaped[Tensor, "n F"]:
        """Rows as :meth:`read` gives them, from rows as they are stored and their numbers."""
        scales = [column.scale for column in (self.home, self._hot) if column is not None and column.scale is not None]
        if not scales:
            return rows
        scale = (scales[0] if len(scales) == 1 else torch.cat(scales))[numbers]
        at, levels = torch.arange(len(rows)), self.home.levels
        if levels is not None:
            return levels.expand(rows, at, self.columns, levels.stored(self.columns).start, scale, self.dtype)
        return kernels.gather_rows(rows, at, scale=scale, dtype=self.dtype)

    def sliced(self, columns: slice) -> HostRows:
        """The same rows, of which only some columns are read."""
        return HostRows(
            self.home, self._share, self._first, self._hot_ids, self._hot, columns=columns, files=self._files
        )

    @property
    def _share(self) -> int | None:
        return None if self.whole else self.num_nodes

    def holds(self, ids: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether the row of each node is here."""
        held = self._own(ids)
        return held if self._hot_ranks is None else held | self._hot_ranks.contains(ids)

    def ask(self, ids: Int[Tensor, "n"]) -> HostWork:
        """See :class:`partita.core.protocols.FeatureTier`.

        Raises:
            ValueError: the row of a node is not here.
        """
        own = self._own(ids)
        if bool(own.all()):
            return HostWork(ids)
        away = (~own).nonzero().flatten()
        ranks = torch.full_like(away, -1) if self._hot_ranks is None else self._hot_ranks.find(ids[away])
        missing = ids[away[ranks < 0]]
        if len(missing):
            raise ValueError(
                f"this host does not hold the rows of {len(missing)} of {len(ids)} nodes: {missing[:5].tolist()}"
            )
        return HostWork(ids, own.nonzero().flatten(), (away, ranks))

    def held_by(self, ids: Int[Tensor, "n"], mesh: Mesh) -> UInt64[np.ndarray, "n"]:
        """The workers whose hosts hold the row of each node.

        Raises:
            ConfigError: what other hosts hold is not known here.
        """
        found = np.zeros(len(ids), np.uint64)
        for rank, host in enumerate(self.of_workers(mesh)):
            found[host.holds(ids).numpy()] |= np.uint64(1 << rank)
        return found

    def estimate(self, batches: Sequence[AskedRows], mesh: Mesh) -> list[ReadEstimate]:
        """All rows come from the host, which must hold them; see :class:`partita.core.protocols.FeatureTier`."""
        estimates = list[ReadEstimate]()
        for batch in batches:
            found = rank_masks.count(batch.by, mesh.size)
            hits = np.zeros((mesh.size, len(TIERS)), np.int64)
            hits[:, TIERS.index("host")] = found
            estimates.append(ReadEstimate(hits, np.zeros_like(found), batch.by))
        return estimates

    def of_range(self, rows: slice) -> HostRows:
        """Of the rows of all nodes those of some, as a shard has them; in no file.

        Args:
            rows: with a start and a stop.
        """
        scale = None if self.home.scale is None else self.home.scale[rows]
        home = replace(self.home, x=self.home.x[rows], scale=scale)
        return HostRows(home, self.num_nodes, rows.start, columns=self.columns)

    def of_another(self, rows: slice, hot_ids: Int[Tensor, "M"] | None = None) -> HostRows:
        """What another host holds, to tell who has which row: there are none to be read.

        Args:
            rows: store ids of its own nodes, with a start and a stop.
            hot_ids: as of this class.
        """

        def imagined(count: int) -> FeatureColumn:
            x, scale = self.home.x, self.home.scale
            scale = None if scale is None else scale.new_ones(1).expand(count)
            return replace(self.home, x=x.new_zeros(1, x.shape[1]).expand(count, -1), scale=scale)

        hot = None if hot_ids is None else imagined(len(hot_ids))
        home = imagined(rows.stop - rows.start)
        return HostRows(home, self.num_nodes, rows.start, hot_ids, hot, columns=self.columns)

    def announce(self, work: HostWork) -> None:
        """Nothing: rows are where they are read from."""

    def prepare(self, work: HostWork) -> HostWork:
        """Nothing."""
        return work

    def restart(self) -> None:
        """Nothing."""

    def disk_reads(self) -> DiskReads:
        """None: rows are mapped."""
        return DiskReads()

    def read(self, work: HostWork) -> Shaped[Tensor, "n B"]:
        """See :class:`partita.core.protocols.FeatureTier`."""
        at = work.reads.long() - self._first
        if work.at is None or work.hot is None:
            return self._from(self.home, at)
        assert self._hot is not None
        rows = torch.empty(len(at), self.width, dtype=self.dtype, device=at.device)
        rows[work.at] = self._from(self.home, at[work.at])
        rows[work.hot[0]] = self._from(self._hot, work.hot[1])
        return rows

    def _own(self, ids: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
        at = ids.long() - self._first
        return (at >= 0) & (at < self.home.x.shape[0])

    def _from(self, column: FeatureColumn, at: Int64[Tensor, "n"]) -> Shaped[Tensor, "n B"]:
        if self.num_columns == column.width and column.readable_on(at.device):
            return column.read_stored(at)
        if at.device != column.x.device:
            return to_device(self._from(column, at.to(column.x.device)), at.device)
        if column.levels is not None and column.scale is not None:
            return column.levels.expand(column.x, at, self.columns, 0, column.scale, self.dtype)
        rows = column.x[:, self._stored].index_select(0, at).to(self.dtype)
        return rows if column.scale is None else rows * column.scale[at].to(self.dtype).unsqueeze(1)


def _alike(home: FeatureColumn, hot: FeatureColumn, num_rows: int) -> bool:
    """Whether the hot rows can be read as the others are."""
    factors = num_rows if hot.scale is None else hot.scale.shape[0]
    same = hot.x.dtype == home.x.dtype and hot.width == home.width and (hot.scale is None) == (home.scale is None)
    same &= (hot.levels is None) == (home.levels is None)
    return same and hot.x.shape[0] == num_rows == factors
