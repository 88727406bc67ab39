"""Rows that the workers of a host need of nodes that another host computes: which they are, and how they come."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from partita.comm.group import Group
from partita.features.rows import FeatureColumn
from partita.infer.ranges import Ranges
from partita.infer.row_table import RowTable
from partita.infer.scratch import Scratch

_CHUNK_BYTES = 16 * 2**20


def outside(
    neighbors: Iterable[Int[Tensor, "n"]], ranges: Ranges, scratch: Scratch, id_dtype: torch.dtype
) -> Int[Tensor, "M"]:
    """The distinct neighbors that lie on other hosts, over all workers of this host, who all call this.

    Args:
        neighbors: store ids that this worker's nodes have as neighbors, in pieces.
        ranges: of the workers.
        scratch: for a byte per node.
        id_dtype: of the result.

    Returns:
        Sorted store ids, the same on all workers of a host.
    """
    seen = scratch.of_host("nodes that are needed", ranges.bounds[-1], 1, torch.uint8)
    if ranges.mesh.workers == 1:
        seen.zero_()
    for ids in neighbors:
        seen[ids.long()] = 1
    scratch.barrier()
    first, last = ranges.host
    flat = seen.view(-1)
    found = [flat[:first].nonzero().view(-1), flat[last:].nonzero().view(-1) + last]
    return torch.cat(found).to(id_dtype)


class Halo:
    """Fetches rows of given nodes of other hosts, each once per host and layer.

    The workers of a host share the fetching. Each asks the worker at its own position on the other hosts, which
    reads what all workers of its host have written. Making one is collective: it sends the ids.

    Args:
        ids: sorted store ids of other hosts, the same on all workers of a host.
        known: sorted ids among them whose rows the host has already; ``None`` for none.
        ranges: of the workers.
        group: this worker's along the axis ``hosts``.
    """

    def __init__(self, ids: Int[Tensor, "M"], known: Int[Tensor, "H"] | None, ranges: Ranges, group: Group) -> None:
        self.ids = ids
        self._ranges = ranges
        self._group = group
        mesh = ranges.mesh
        self._start = len(ids) * mesh.worker // mesh.workers
        share = ids[self._start : len(ids) * (mesh.worker + 1) // mesh.workers]
        there = (
            torch.isin(share, known.to(share.dtype)) if known is not None else torch.zeros(len(share), dtype=torch.bool)
        )
        self._at_hand = there.nonzero().view(-1)
        self._missing = (~there).nonzero().view(-1)
        wanted = share[self._missing]
        # Hosts have ascending ranges, so sorted ids are sorted by host.
        self._receive = torch.bincount(ranges.hosts_of(wanted), minlength=mesh.hosts)
        send = group.exchange_counts(self._receive)
        asked = group.exchange(wanted, self._receive.tolist(), send.tolist(), "ids")
        self._asked = asked.split(send.tolist())
        self._longest = max(group.gather(int(torch.cat([send, self._receive]).max())))

    def fetch(self, table: RowTable, kind: str, scratch: Scratch, memory_limit: int) -> RowTable:
        """A table that has the rows of all nodes of the halo, too. All workers call this.

        Args:
            table: rows of this host's nodes, complete on all hosts.
            kind: of what is sent, ``"features"`` or ``"forward"``.
            scratch: for the rows.
            memory_limit: bytes, the same on all workers.
        """
        home, limit = table.home, min(memory_limit // 4, _CHUNK_BYTES)
        columns = [home.x] if home.scale is None else [home.x, home.scale[:, None]]
        known = [None] * 2 if table.extra is None else [table.extra.x, table.extra.scale]
        fetched = []
        for column, extra in zip(columns, known):
            rows = scratch.of_host("rows of other hosts", len(self.ids), column.shape[1], column.dtype)
            mine = rows[self._start :]
            if len(self._at_hand):
                assert extra is not None
                assert table.extra_ids is not None
                ids = self.ids[self._start :][self._at_hand].to(table.extra_ids.dtype)
                mine[self._at_hand] = extra.view(len(extra), -1)[torch.searchsorted(table.extra_ids, ids)]
            self._fill(mine, column, table.first, kind, limit)
            fetched.append(rows)
        scratch.barrier()
        scale = None if home.scale is None else fetched[1].view(-1)
        extra_rows = FeatureColumn(fetched[0], dtype=home.dtype, scale=scale, levels=home.levels)
        return RowTable(home, table.num_nodes, table.first, self.ids, extra_rows)

    def _fill(
        self, rows: Shaped[Tensor, "m F"], home: Shaped[Tensor, "n F"], first: int, kind: str, limit: int
    ) -> None:
        """Fetch the missing rows, in as many rounds as the longest list of any worker takes."""
        hosts = self._ranges.mesh.hosts
        step = max(1, limit // (hosts * home.shape[1] * home.element_size()))
        wanted = self._missing.split(self._receive.tolist())
        for start in range(0, self._longest, step):
            asked = [ids[start : start + step] for ids in self._asked]
            places = [at[start : start + step] for at in wanted]
            sent = home[torch.cat(asked).long() - first]
            rows[torch.cat(places)] = self._group.exchange(sent, [*map(len, asked)], [*map(len, places)], kind)
