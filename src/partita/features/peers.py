"""The tier that gets rows from other workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped, UInt64
from torch import Tensor

from partita import kernels
from partita.comm.axis import Axis
from partita.comm.routing import Route, first_appearance
from partita.core.errors import ConfigError
from partita.core.estimates import AskedRows, ReadEstimate
from partita.core.mesh import Mesh
from partita.core.protocols import FeatureTier, TierWork
from partita.core.rank_masks import RankMasks
from partita.core.records import TIERS
from partita.features.forwarding import Forwarding
from partita.features.host import HostRows
from partita.kernels import rank_masks

Place = Callable[[Int[Tensor, "n"]], Int64[Tensor, "n"]]
"""Position on an axis of the worker that gives the row of each node; the own one for rows from the tiers below."""


@dataclass(frozen=True, slots=True)
class PeersWork:
    """Rows that come from others, and rows to read for them; see :class:`partita.core.protocols.TierWork`.

    Attributes:
        near: positions of the ids whose rows come from below.
        far: positions of the others.
        route: of these.
        answers: which of the rows from below goes to each who asked; the own ones are the first of them.
        below: those rows: the own and those asked for by others, each once.
        given: rows that others give, by tier.
    """

    near: Int64[Tensor, "m"]
    far: Int64[Tensor, "k"]
    route: Route
    answers: Int64[Tensor, "a"]
    below: TierWork
    given: tuple[int, ...]

    @property
    def hits(self) -> tuple[int, ...]:
        """Those of the tiers below, and what others give."""
        return tuple(map(sum, zip(self.below.hits, self.given, strict=True)))

    @property
    def remote(self) -> int:
        """Rows from others, here and further below."""
        return len(self.far) + self.below.remote

    @property
    def reads(self) -> Int[Tensor, "r"]:
        """Store ids that are looked up in this worker's own tiers."""
        return self.below.reads


class Peers(Forwarding):
    """Asks another worker for a row, by all-to-all, where :data:`Place` says so; all other rows come from below.

    A worker that is asked by several for the same row reads it once. Ids travel while sampling, or late, as rows do:
    while loading.

    Args:
        axis: the workers.
        below: the tiers that a worker reads from, for itself and for others.
        place: who gives which row. It must send every worker's request for a row to a worker whose tiers below have
            the row.
        per_host: workers of a host; ``None``: all of the axis are on one.
        late: :meth:`ask` is called while rows are loaded, by the thread that loads them.

    Attributes:
        width: columns of a row.
        dtype: of a row, also on its way.
        collective: whether anything is exchanged here or below.
    """

    def __init__(
        self, axis: Axis, below: FeatureTier, place: Place, per_host: int | None = None, *, late: bool = False
    ) -> None:
        self.axis = axis
        self._asking = axis.loading if late else axis.sampling
        self.below = below
        self.width = below.width
        self.dtype = below.dtype
        self.collective = axis.size > 1 or below.collective
        self.look_ahead = below.look_ahead
        self._place = place
        workers = axis.sampling.workers
        hosts = [0 if per_host is None else rank // per_host for rank in workers]
        self._tier_of = [TIERS.index("peers" if host == hosts[axis.rank] else "hosts") for host in hosts]

    def ask(self, ids: Int[Tensor, "n"]) -> PeersWork:
        """See :class:`partita.core.protocols.FeatureTier`."""
        place, rank = self._place(ids), self.axis.rank
        is_far = place != rank
        near, far = (~is_far).nonzero().flatten(), is_far.nonzero().flatten()
        route, asked = Route.ask(self._asking, place[far], ids[far])
        # The own ids are distinct, so in order of first appearance they stay where they are.
        distinct, index = first_appearance(torch.cat([ids[near], asked]))
        given = [0] * len(TIERS)
        for tier, count in zip(self._tier_of, route.send, strict=True):
            given[tier] += count
        return PeersWork(near, far, route, index[len(near) :], self.below.ask(distinct), tuple(given))

    def estimate(
        self, batches: Sequence[AskedRows], mesh: Mesh, given: Sequence[UInt64[np.ndarray, "_"]] | None = None
    ) -> list[ReadEstimate]:
        """Who gives a row reads it for all of its group who ask; see :class:`partita.core.protocols.FeatureTier`.

        Args:
            batches, mesh: see there.
            given: of each batch, for each row the workers who would get it from its owner; ``None``: as
                :data:`Place` says.

        Raises:
            ConfigError: who gives a row cannot be told of other workers.
        """
        given = [self._given(batch, mesh) for batch in batches] if given is None else given
        ranks = RankMasks.of(mesh, self.axis.sampling.workers)
        homes = [ranks.at_position(self.axis.owner(batch.ids)) for batch in batches]
        moving = [batch.by & of_batch for batch, of_batch in zip(batches, given, strict=True)]
        found = self.below.estimate(
            [
                replace(batch, by=batch.by & ~moves | ranks.whole_groups(moves) & home)
                for batch, moves, home in zip(batches, moving, homes, strict=True)
            ],
            mesh,
        )
        return [self._with_given(*each, mesh) for each in zip(found, moving, homes, strict=True)]

    def _given(self, batch: AskedRows, mesh: Mesh) -> UInt64[np.ndarray, "n"]:
        if isinstance(self._place, ByOwnerUnlessHeld):
            return ~self._place.host.held_by(batch.ids, mesh)
        if self._place != self.axis.owner:
            raise ConfigError(
                "which rows other workers ask others for is not known here",
                where="feature tiers",
                fix="Plan with the whole store that the shards were made of",
            )
        return batch.by

    @staticmethod
    def _with_given(
        below: ReadEstimate, moving: UInt64[np.ndarray, "n"], home: UInt64[np.ndarray, "n"], mesh: Mesh
    ) -> ReadEstimate:
        """The rows that others give besides those from below.

        Args:
            below: of these.
            moving: who gets each row from its owner.
            home: the owners.
        """
        away, hits = moving & ~home, below.hits.copy()
        on_host = RankMasks.of(mesh, mesh.members("workers")[0]).whole_hosts(home)
        for tier, there in (("peers", away & on_host), ("hosts", away & ~on_host)):
            hits[:, TIERS.index(tier)] += rank_masks.count(there, mesh.size)
        return replace(below, hits=hits, remote=rank_masks.count(away, mesh.size) + below.remote)

    def read(self, work: PeersWork) -> Shaped[Tensor, "n F"]:
        """See :class:`partita.core.protocols.FeatureTier`."""
        own, received = self._gathered(work)
        if not len(work.far):
            return own
        out = own.new_empty(len(work.near) + len(work.far), self.width)
        for rows, at in ((own, work.near), (received, work.far)):
            kernels.move_rows(rows, None, out, at.to(out.device))
        return out

    def read_into(self, work: PeersWork, out: Shaped[Tensor, "m F"], at: Int64[Tensor, "n"]) -> None:
        """As :meth:`read`, to some rows of ``out``."""
        for rows, places in zip(self._gathered(work), (work.near, work.far), strict=True):
            kernels.move_rows(rows, None, out, at[places])

    def _gathered(self, work: PeersWork) -> tuple[Shaped[Tensor, "a F"], Shaped[Tensor, "b F"]]:
        """Rows from below, and rows of others."""
        rows = self.below.read(work.below)
        received = work.route.answer_inputs(self.axis.loading, rows.index_select(0, work.answers.to(rows.device)))
        return rows[: len(work.near)], received


@dataclass(frozen=True)
class ByOwnerUnlessHeld:
    """A :data:`Place`: rows that this host holds come from below, all others from their owner.

    Attributes:
        axis: the workers.
        host: what this host holds.
    """

    axis: Axis
    host: HostRows

    def __call__(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Position of the worker that gives the row of each node."""
        return torch.where(self.host.holds(ids), self.axis.rank, self.axis.owner(ids))
