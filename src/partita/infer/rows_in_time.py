"""Rows of the model for nodes at times, dealt out to the workers, and scores of those that are there at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.graph.store import GraphStore
from partita.infer.known_answers import LinkQueries
from partita.infer.scratch import Scratch
from partita.infer.temporal import TemporalInference
from partita.nn.decoders import Decoder

_QUERIES = 512
"""Of a block: enough for products to be fast."""


@dataclass(frozen=True, eq=False)
class RowsInTime:
    """Rows of some nodes at some times, of which this worker has a piece, and the way to those of others.

    Attributes:
        inference: that has computed them.
        num_nodes: N.
        times: distinct, ascending.
        pairs: (n) ``place of the time * N + store id``, ascending: what there are rows of; the same on all workers.
        first: which of them the rows that are here begin with.
        rows: (m, d), in memory or mapped.
    """

    inference: TemporalInference
    num_nodes: int
    times: Int64[np.ndarray, "T"]
    pairs: Int64[np.ndarray, "n"]
    first: int
    rows: Float[Tensor, "m d"]

    @classmethod
    def of(
        cls, inference: TemporalInference, nodes: Int64[np.ndarray, "k"], times: Int64[np.ndarray, "k"]
    ) -> RowsInTime:
        """Compute them, each worker as many. All workers call this, with the same nodes and times."""
        mesh, num_nodes = inference.context.mesh, inference.topology.num_nodes
        distinct, place = np.unique(times, return_inverse=True)
        pairs = np.unique(place * num_nodes + nodes)
        first, last = (len(pairs) * (mesh.rank + more) // mesh.size for more in (0, 1))
        own = pairs[first:last]
        scratch = Scratch(inference.memory_limit, None, inference.context.group("workers"))
        rows = scratch.private("rows of nodes", len(own), inference.model.widths[-1], inference.dtype)
        wanted = torch.from_numpy(own % num_nodes), torch.from_numpy(distinct[own // num_nodes])
        for places, found in inference.rows_at(*wanted):
            rows[places] = found
        return cls(inference, num_nodes, distinct, pairs, first, rows)

    def places(self, nodes: Int64[np.ndarray, "k"], times: Int64[np.ndarray, "k"]) -> Int64[np.ndarray, "k"]:
        """Where among :attr:`pairs` nodes at times are, all of which must be there."""
        return np.searchsorted(self.pairs, np.searchsorted(self.times, times) * self.num_nodes + nodes)

    def at(self, nodes: Int64[np.ndarray, "k"], times: Int64[np.ndarray, "k"]) -> Float[Tensor, "k d"]:
        """Rows of any of them, the same ones on all workers. All workers call this."""
        places = torch.from_numpy(self.places(nodes, times)) - self.first
        if self.inference.context.mesh.size == 1:
            return self.rows.index_select(0, places)
        own = (places >= 0) & (places < len(self.rows))
        found = self.rows.new_zeros(len(places), self.rows.shape[1])
        found[own] = self.rows[places[own]]
        self.inference.context.group("all").sum_([found], kind="forward")  # zeros but for one worker
        return found

    def blocks(
        self, decoder: Decoder, queries: LinkQueries, given: Float[Tensor, "n d"], store: GraphStore, memory_limit: int
    ) -> Iterator[tuple[Int64[Tensor, "k"], Int64[np.ndarray, "c"], Float[Tensor, "k c"]]]:
        """Scores of queries against those rows that are here and have the type of their answers, in blocks.

        Args:
            decoder: gives the scores.
            queries: the queries, of the only time that there are rows of.
            given: rows of the given ends.
            store: the graph.
            memory_limit: bytes that a block may take, about.

        Yields:
            which queries, ascending; the store ids of the candidates, ascending; and the scores.
        """
        ids = self.pairs[self.first : self.first + len(self.rows)]  # of a single time, whose place is 0
        kinds, item, width = store.types(ids), given.element_size(), max(1, given.shape[1])
        score = decoder.scorer(queries.side, given, torch.from_numpy(queries.relations))
        for kind in np.unique(queries.types).tolist():
            members = torch.from_numpy(np.flatnonzero(queries.types == kind))
            mine = torch.from_numpy(np.flatnonzero(kinds == kind))
            pair = 2 * item + 8  # scores, their differences, and what is compared
            together = max(1, min(_QUERIES, len(members), memory_limit // 2 // (pair + width * item)))
            per_block = max(1, memory_limit // (together * pair + 2 * width * item))
            for places in mine.split(per_block) if len(mine) else ():
                candidates = self.rows[places].to(given)
                for some in members.split(together):
                    yield some, ids[places.numpy()], score(some, candidates)
