"""Draws of typed graphs made of those of untyped ones: edges of one relation are the row of a node of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int, Int64, Shaped, UInt32
from torch import Tensor

Drawn = tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "E"], Int[Tensor, "E"]]
"""Rows, ids, positions among the edges at hand, and relations."""

DrawnRuns = tuple[Int64[Tensor, "n"], Int64[Tensor, "n_1"], Int[Tensor, "e"], Int64[Tensor, "e"]]
"""Which runs were drawn from, and of these rows, ids and positions."""


class Runs(NamedTuple):
    """The edges of each relation in the rows of some destinations: those relations that have any.

    Attributes:
        bounds: int64 (n, 2), where in the store they begin and end.
        row: int64 (n), whose they are, as a position among the destinations, ascending.
        relation: int64 (n), ascending for every destination.
    """

    bounds: Int64[Tensor, "n 2"]
    row: Int64[Tensor, "n"]
    relation: Int64[Tensor, "n"]

    @classmethod
    def of(cls, bounds: Int[Tensor, "DC 2"], relations: Int[Tensor, "C"]) -> Runs:
        """From the bounds of some relations of every destination, empty ones too."""
        at = torch.nonzero(bounds[:, 1] > bounds[:, 0]).reshape(-1)
        count = max(1, relations.shape[0])
        return cls(bounds[at], at // count, relations[at % count])

    def keys(self, dst_original: Int[Tensor, "D"], num_relations: int) -> Int64[Tensor, "n"]:
        """The original index of the node whose row each of them is."""
        return dst_original[self.row] * num_relations + self.relation

    def store(self, runs: Int64[Tensor, "m"]) -> tuple[Int64[Tensor, "_"], Int64[Tensor, "m"]]:
        """Bounds of some of them as rows of a store, of which every second one is a run; and which rows these are."""
        return self.bounds[runs].reshape(-1), 2 * torch.arange(runs.shape[0], device=runs.device)

    def by_relation(self, num_relations: int) -> Iterator[Int64[Tensor, "_"]]:
        """Which of them are of each relation."""
        order = torch.argsort(self.relation, stable=True)
        yield from order.split(torch.bincount(self.relation, minlength=num_relations).tolist())

    def counts(self, drawn: Sequence[DrawnRuns]) -> Int64[Tensor, "n"]:
        """How many edges were drawn from each of them."""
        found = torch.zeros_like(self.row)
        for runs, rows, *_ in drawn:
            found[runs] = rows.diff()
        return found

    def in_order(self, num_dst: int, drawn: Sequence[DrawnRuns], dtype: torch.dtype) -> Drawn:
        """What was drawn from some of them at a time, by destination and relation.

        Args:
            num_dst: D.
            drawn: from none of them twice.
            dtype: of ids.
        """
        device, counts = self.row.device, self.counts(drawn)
        begin = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        num_edges = int(begin[-1])
        found = torch.empty(num_edges, dtype=dtype, device=device)
        where = torch.empty(num_edges, dtype=torch.int64, device=device)
        for runs, rows, ids, places in drawn:
            to = torch.arange(ids.shape[0], device=device)
            to += torch.repeat_interleave(begin[runs] - rows[:-1], rows.diff(), output_size=ids.shape[0])
            found[to], where[to] = ids, places
        of_dst = torch.zeros(num_dst + 1, dtype=torch.int64, device=device)
        of_dst[1:].index_add_(0, self.row, counts)
        kinds = torch.repeat_interleave(self.relation.to(torch.int32), counts, output_size=num_edges)
        return of_dst.cumsum(0), found, where, kinds


def drawn_by_run(
    bounds_of: Callable[..., Int[Tensor, "DC 2"]],
    draw: Callable[..., tuple[Tensor, Tensor, Tensor]],
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanouts: Sequence[int],
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    first_edge: int,
    excluded: Int[Tensor, "k"],
) -> Drawn:
    """Draw with an implementation's ``relation_bounds`` and ``sample_neighbors``: runs of one fanout together."""
    chosen = [relation for relation, fanout in enumerate(fanouts) if fanout]
    relations = torch.tensor(chosen, dtype=torch.int64, device=dst.device)
    found = Runs.of(bounds_of(indptr, edge_type, dst, relations, first_edge), relations)
    keys = found.keys(dst_original, len(fanouts))
    wanted = torch.tensor(list(fanouts), dtype=torch.int64, device=dst.device)[found.relation]
    drawn = list[DrawnRuns]()
    for fanout in sorted({fanouts[relation] for relation in chosen}):
        (runs,) = torch.nonzero(wanted == fanout, as_tuple=True)
        rows, every_second = found.store(runs)
        picked = draw(
            rows,
            indices,
            every_second.to(indices.dtype),
            keys[runs],
            key,
            fanout,
            replace,
            weights,
            first_edge,
            excluded,
        )
        drawn.append((runs, *picked))
    return found.in_order(dst.shape[0], drawn, indices.dtype)
