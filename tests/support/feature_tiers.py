"""Makes every tier and composition of tiers on rows at hand: what the contract of feature tiers runs over."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from small_columns import small_column
from torch import Tensor

from partita.comm.axis import Axis, owners_of_parts
from partita.comm.threads import ThreadContext
from partita.core.files import map_array
from partita.core.protocols import CacheTier, FeatureTier
from partita.features import disk, look_ahead_cache  # noqa: F401 (here: Python 3.11 may fail where threads import)
from partita.features.cache import Cached
from partita.features.host import HostRows
from partita.features.peers import Peers
from partita.features.policies import best_first
from partita.features.rows import FeatureColumn
from partita.features.tiers import CACHE_LAYOUTS, CacheSettings, make_tiers
from partita.files.row_file import RowFile
from partita.train.team import PURPOSES

NUM_NODES = 70
WIDTH = 6
# Parts of uneven sizes; with three and four workers the second owns nothing.
PARTS = {1: (0, 70), 2: (0, 25, 70), 3: (0, 30, 30, 70), 4: (0, 10, 10, 37, 70)}
HOT = 4


FOLDER = tempfile.TemporaryDirectory(prefix="partita-tiers-")  # which goes when the process ends


def file_of(column: FeatureColumn) -> RowFile:
    """A file with the rows of a column."""
    path = Path(FOLDER.name) / f"{uuid.uuid4().hex}.npy"
    np.save(path, column.x.numpy())
    found = RowFile.of(map_array(path))
    assert found is not None
    return found


@dataclass(frozen=True)
class Rows:
    """Input rows, and how they are read."""

    stored: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32
    scaled: bool = False
    columns: slice | None = None

    small: str | None = None

    def column(self) -> FeatureColumn:
        x = torch.randn(NUM_NODES, WIDTH, generator=torch.Generator().manual_seed(0)).to(self.stored)
        scale = torch.linspace(0.5, 2, NUM_NODES) if self.scaled else None
        if self.small is not None:
            return small_column(x, self.small, dtype=self.dtype, scale=scale)
        return FeatureColumn(x, self.dtype, scale)

    def wanted(self, ids: Tensor) -> Tensor:
        """The rows of some nodes, as any tier must give them."""
        column = self.column()
        if column.levels is not None and self.scaled:
            return column.read(ids)[:, self.columns or slice(None)]
        columns = self.columns or slice(None)
        if self.small == "int4" and self.columns is not None:  # bytes, whose first may hold a neighbor
            columns = slice(columns.start // 2, -(-columns.stop // 2))
        rows = column.x[ids.long(), columns]
        return rows.to(self.dtype) * column.scale[ids.long()].to(self.dtype)[:, None] if self.scaled else rows

    def host(self) -> HostRows:
        """All rows."""
        column = self.column()
        return HostRows(column, columns=self.columns, files=[file_of(column)])

    def shard(self, context: ThreadContext) -> HostRows:
        """The rows of the host's own parts, and a few of other hosts."""
        whole, mesh = self.column(), context.mesh
        per_host = (len(PARTS[mesh.size]) - 1) // mesh.hosts
        first, last = (PARTS[mesh.size][(mesh.host + more) * per_host] for more in (0, 1))
        others = [v for v in range(0, NUM_NODES, 9) if not first <= v < last][:HOT]
        hot = torch.tensor(others)
        pick = [slice(first, last), hot]
        home, extra = (replace(whole, x=whole.x[p], scale=whole.scale[p] if self.scaled else None) for p in pick)
        files = [file_of(home), file_of(extra)]
        return HostRows(home, NUM_NODES, first, hot, extra, columns=self.columns, files=files)


def axis_of(context: ThreadContext, name: str) -> Axis:
    mesh, parts = context.mesh, PARTS[context.mesh.size]
    owners = owners_of_parts(len(parts) - 1, name, mesh.hosts, mesh.workers)
    return Axis(*(context.group(name, purpose) for purpose in dict.fromkeys(PURPOSES)), torch.tensor(parts), owners)


Maker = Callable[[ThreadContext, Rows], FeatureTier]
BUDGET = 700
FEW = 8 * NUM_NODES + 10 * (4 * WIDTH + 16)  # bytes: room for ten rows
AHEAD = CacheSettings(FEW, "look-ahead", window=2)
ODD = torch.arange(NUM_NODES) % 3  # a score that leaves some nodes out


def filled(tier: CacheTier) -> FeatureTier:
    tier.fill(best_first(ODD, tier.capacity, tier.allowed()))
    return tier


def chain(settings: CacheSettings, *, shard: bool) -> Maker:
    """As an engine makes it."""

    def make(context: ThreadContext, rows: Rows) -> FeatureTier:
        host = rows.shard(context) if shard else rows.host()
        hosts, workers = axis_of(context, "hosts"), axis_of(context, "workers")
        tier, cache = make_tiers(host, settings, hosts=hosts, workers=workers, per_host=context.mesh.workers)
        return tier if cache is None else filled(cache)

    return make


def owner_reads(inner: Maker, axis: str) -> Maker:
    """The owner of a node reads its row through other tiers."""

    def make(context: ThreadContext, rows: Rows) -> FeatureTier:
        found = axis_of(context, axis)
        return Peers(found, inner(context, rows), found.owner, context.mesh.workers)

    return make


ONE_HOST = [(1, 1), (2, 1), (3, 1), (4, 1)]
MORE_HOSTS = [(2, 2), (4, 2), (4, 4)]

MADE: dict[str, tuple[Maker, Sequence[tuple[int, int]]]] = {
    "host": (lambda context, rows: rows.host(), ONE_HOST),
    "empty cache": (lambda context, rows: Cached(rows.host(), NUM_NODES, BUDGET), ONE_HOST),
    "cache of everything": (lambda context, rows: filled(Cached(rows.host(), NUM_NODES, 10**6)), ONE_HOST),
    "owners": (owner_reads(chain(CacheSettings(), shard=False), "all"), [*ONE_HOST, *MORE_HOSTS]),
    "shards": (chain(CacheSettings(), shard=True), MORE_HOSTS),
    "files": (chain(CacheSettings(memory=FEW, window=2), shard=False), ONE_HOST),
    "owners on files": (owner_reads(chain(CacheSettings(memory=FEW, window=1), shard=False), "all"), ONE_HOST),
    "files of shards": (chain(CacheSettings(memory=FEW, window=3), shard=True), MORE_HOSTS),
    "caches on files": (chain(CacheSettings(BUDGET, memory=FEW, window=2), shard=False), ONE_HOST),
    "shards ahead": (chain(AHEAD, shard=True), MORE_HOSTS),
    "owners on shards ahead": (owner_reads(chain(AHEAD, shard=True), "workers"), MORE_HOSTS),
    "all shards kept ahead": (chain(CacheSettings(10**5, "look-ahead", window=3), shard=True), MORE_HOSTS),
    "files kept whole": (chain(CacheSettings(memory=10**5, window=2), shard=False), ONE_HOST),
}
for _name in CACHE_LAYOUTS:
    _settings = CacheSettings(BUDGET, layout=_name)
    MADE |= {
        f"caches-{_name}": (chain(_settings, shard=False), [*ONE_HOST, *MORE_HOSTS]),
        f"owners with caches-{_name}": (owner_reads(chain(_settings, shard=False), "all"), ONE_HOST),
        f"shards with caches-{_name}": (chain(_settings, shard=True), MORE_HOSTS),
        f"owners on shards with caches-{_name}": (owner_reads(chain(_settings, shard=True), "workers"), MORE_HOSTS),
    }
MADE["owners of all hosts on shards"] = (owner_reads(chain(CacheSettings(BUDGET), shard=True), "all"), MORE_HOSTS)
"""For each tier or chain of tiers, who makes it, and on which numbers of workers and hosts it is tried."""
