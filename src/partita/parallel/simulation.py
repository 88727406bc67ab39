"""What a placement will do on every worker, found out by letting it sample for all of them in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Int64, UInt64
from torch import Tensor

from partita.comm.axis import Workers
from partita.comm.routing import first_appearance
from partita.comm.threads import ThreadGroups
from partita.core.estimates import LayerEstimate, SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.core.protocols import Placement, Work
from partita.core.records import Block
from partita.parallel.block_worker import BlockWorker

_KEY = StepKey(0, 0, 0)
"""Of no meaning: nothing is drawn."""


def _finder(ids: Int[Tensor, "n"]) -> Callable[[Int[Tensor, "m"]], Int64[Tensor, "m"]]:
    """Finds the positions of some of these ids, which are distinct; a ValueError where one is not among them."""
    ordered, order = torch.sort(ids)

    def find(wanted: Int[Tensor, "m"]) -> Int64[Tensor, "m"]:
        place = torch.searchsorted(ordered, wanted.to(ordered.dtype)).clamp(max=max(0, len(ordered) - 1))
        if len(wanted) and (not len(ordered) or not bool((ordered[place] == wanted).all())):
            raise ValueError("a placement asks for rows that nothing which it was asked for needs")
        return order[place]

    return find


class _Replay(BlockWorker):
    """Gives out blocks of a sample that is there, in place of drawing them, and keeps in mind which."""

    def __init__(
        self, worker: BlockWorker, drawn: SampledLayer, find: Callable[[Int[Tensor, "m"]], Int64[Tensor, "m"]]
    ) -> None:
        vars(self).update(vars(worker))
        self._drawn, self._find = drawn, find
        self.given = torch.zeros(len(drawn.dst), dtype=torch.bool)

    def draw(self, layer: int, requests: Int[Tensor, "D"], key: StepKey, *, relabel: bool) -> Block:
        """The rows of the sample for the requests; the coefficients are zeros."""
        at, whole = self._find(requests), self._drawn.block
        self.given[at] = True
        counts = whole.indptr.diff()[at]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        edges = torch.repeat_interleave(whole.indptr[at] - indptr[:-1], counts) + torch.arange(int(indptr[-1]))
        dst, indices, src = self._drawn.dst[at], self._drawn.src[whole.indices[edges].long()], None
        if relabel:
            src, place = first_appearance(torch.cat([dst, indices]))
            indices = place[len(dst) :].int()
        weight, self_weight = (
            torch.zeros(n, dtype=self.dtype) if there else None
            for n, there in zip((len(indices), len(dst)), self.weights(layer), strict=True)
        )
        edge_attr, loop_attr = self.edge_features(layer, len(indices), len(dst))
        # Names of nodes at times follow from the times of a batch, which nobody has here; nothing is drawn by them.
        names = dst.long() if self.topology.slots > 1 else self.topology.original(dst)
        return Block(
            dst, src, indptr, indices, names, weight, self_weight,
            edge_type=whole.edge_type[edges] if whole.edge_type is not None and self.has_relations(layer) else None,
            node_types=whole.node_types, edge_attr=edge_attr, loop_attr=loop_attr,
        )  # fmt: skip

    def prepared(self, layer: int, block: Block) -> Block:
        """The block as it is: it is not computed."""
        return block


@dataclass(frozen=True)
class Simulation:
    """An :class:`~partita.core.protocols.Estimator` for a placement that is none itself.

    Every worker is a thread that expands its requests; what they draw is taken from the sample at hand. Exact, as far
    as the placement draws with its :class:`~partita.parallel.block_worker.BlockWorker`, but for
    :attr:`~partita.core.estimates.LayerEstimate.blocks`: a worker is taken to compute what it has drawn. It takes
    milliseconds for a layer, where the placements of Partita take a part of one.

    Attributes:
        worker: of the engine.
        make: the placement of a worker, from what gives out blocks.
    """

    worker: BlockWorker
    make: Callable[[BlockWorker, Workers], Placement]

    def estimate(self, layer: int, drawn: SampledLayer, asked: UInt64[np.ndarray, "D"], mesh: Mesh) -> LayerEstimate:
        """See :class:`partita.core.protocols.Estimator`.

        Raises:
            ValueError: the placement asks for rows that nothing which it was asked for needs.
        """
        in_dst, in_src = _finder(drawn.dst), _finder(drawn.src)

        def expand(context: Workers) -> tuple[Work, Int64[Tensor, "s"], Tensor]:
            replay, bit = _Replay(self.worker, drawn, in_dst), np.uint64(1 << context.mesh.rank)
            requests = drawn.dst[torch.from_numpy((asked & bit) != 0)]
            work, below = self.make(replay, context).expand(layer, requests, _KEY)
            return work, in_src(below), replay.given

        done = ThreadGroups(mesh.size, mesh.hosts).run(expand)
        drawing, below = np.zeros(len(drawn.dst), np.uint64), np.zeros(len(drawn.src), np.uint64)
        for rank, (_, needed, given) in enumerate(done):
            drawing[given.numpy()] |= np.uint64(1 << rank)
            below[np.unique(needed.numpy())] |= np.uint64(1 << rank)
        works = [work for work, _, _ in done]
        blocks = [[work.num_computed, len(needed.unique()), work.num_edges] for work, needed, _ in done]
        return LayerEstimate(
            traffic=[work.traffic for work in works],
            drawing=drawing,
            computed=np.array([work.num_computed for work in works], np.int64),
            blocks=np.array(blocks, np.int64),
            below=below,
            accesses=np.array([len(needed) for _, needed, _ in done]) if self.worker.by_id(layer) else None,
        )
