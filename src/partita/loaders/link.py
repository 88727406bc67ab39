"""Mini-batches of links for a training loop of one's own."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Num, UInt64
from torch import Tensor

from partita.comm.routing import first_appearance
from partita.core.errors import ConfigError
from partita.core.keys import Purpose, StepKey
from partita.graph.schema import Relation
from partita.graph.store import GraphStore
from partita.kernels import Relabeller
from partita.kernels.reference.draws import below_all, fold_all
from partita.loaders.batch import Batch
from partita.loaders.neighbor import NeighborLoader, NumNeighbors
from partita.loaders.typed import EdgeType, TypedBatch
from partita.sample.targets import LinkPositions, TargetSide, target_edges
from partita.sample.topology import as_tensor

Links = Any
"""``(2, L)`` ids; an edge type; or both."""

NegativeSampling = str | Mapping[str, Any] | None

_SOURCE, _DESTINATION = 0, 1


@dataclass(repr=False)
class LinkBatch(Batch):
    """A sampled subgraph around the ends of some links. Names are those of PyG's ``LinkNeighborLoader``.

    Attributes:
        batch_size: B, how many links of the loader are in the batch; their ends, and those of negatives, are the first
            ``num_sampled_nodes[0]`` nodes.
        input_id: (B) which of the loader's links they are.
        edge_label_index: (2, B + negatives) ends of the links and then of negatives, as positions in ``n_id``; ``None``
            with triplets.
        edge_label: (B + negatives) labels: those that were given, one more where they began at 0 and there are
            negatives; or 1. Of negatives 0. ``None`` with triplets, and where there are neither labels nor negatives.
        src_index: (B) with triplets, sources of the links, as positions in ``n_id``.
        dst_pos_index: (B) with triplets, their destinations.
        dst_neg_index: (B), or (B, amount) where that is more than 1: with triplets, other destinations.
    """

    edge_label_index: Int64[Tensor, "2 m"] | None = None
    edge_label: Num[Tensor, "m ..."] | None = None
    src_index: Int64[Tensor, "B"] | None = None
    dst_pos_index: Int64[Tensor, "B"] | None = None
    dst_neg_index: Int64[Tensor, "B ..."] | None = None


@dataclass(repr=False)
class TypedLinkBatch(TypedBatch):
    """A sampled subgraph of a typed graph around the ends of links of one relation, as :class:`LinkBatch`.

    Names are those of PyG's ``HeteroData`` in batches of ``LinkNeighborLoader``: each of the dictionaries here has one
    element, of the relation of the links, or of the type of the ends.

    Attributes:
        input_type: the relation of the links.
        y_dict: empty.
        edge_label_index_dict: of the relation, positions in ``n_id_dict`` of the types of its ends.
        edge_label_dict: of the relation.
        src_index_dict: of the type of the sources.
        dst_pos_index_dict, dst_neg_index_dict: of the type of the destinations.
    """

    input_type: EdgeType  # type: ignore[assignment]
    edge_label_index_dict: dict[EdgeType, Int64[Tensor, "2 m"]] | None = None
    edge_label_dict: dict[EdgeType, Num[Tensor, "m ..."]] | None = None
    src_index_dict: dict[str, Int64[Tensor, "B"]] | None = None
    dst_pos_index_dict: dict[str, Int64[Tensor, "B"]] | None = None
    dst_neg_index_dict: dict[str, Int64[Tensor, "B ..."]] | None = None


class LinkNeighborLoader(NeighborLoader):
    """Iterates over mini-batches of links as PyG's ``LinkNeighborLoader`` does: pairs of nodes, negatives if wanted,
    and neighbors of all of them that are drawn hop by hop.

    Other than in PyG, the links of a batch and their reverses carry no messages in it: a model would see in its input
    what it is to predict. They are left out where neighbors are drawn, so that as many are drawn as without.

    Negatives are a function of ``seed``, the epoch, the step and the link. They are nodes drawn uniformly from those of
    the type, so that one may be a true edge, as in PyG.

    All that is said of :class:`NeighborLoader` holds here as well: threads, processes, states, typed graphs.

    Args:
        store: a graph store, or its path.
        num_neighbors: as of :class:`NeighborLoader`.
        edge_label_index: the links: (2, L) store ids of sources and destinations, ``None`` for all edges. Of a typed
            graph a relation, ``("user", "buys", "item")`` or its name, for all of its edges; or a relation with (2, L)
            rows of nodes among those of their types, as ``(("user", "buys", "item"), index)``.
        edge_label: (L, ...) labels of the links, whole numbers from 0 on where there are binary negatives.
        neg_sampling: ``"binary"``: as many random pairs as links; ``"triplet"``: a random destination for each link;
            ``{"mode": ..., "amount": ...}``: so many times as many. ``None``: no negatives.
        exclude_targets: links and their reverses carry no messages in their batch. With several processes, neither do
            those of the others.
        reverse_relations: of a typed graph, which relation has the reverses of a relation's edges. Where a relation is
            not among them, ``rev_`` before its name, if there is such a one; and between nodes of one type, itself.
        settings: ``batch_size``, ``shuffle``, ``replace``, ``weighted``, ``drop_last``, ``seed``, ``num_workers``,
            ``transform``, ``rank``, ``world_size``, ``pin_memory`` and arguments of PyG's loader, as of
            :class:`NeighborLoader`.

    Attributes:
        edge_label_index: int64 (2, L) store ids of the links.
        edge_label: as in batches; ``None`` where none were given.

    Raises:
        ConfigError: as of :class:`NeighborLoader`; or there is no such relation, a node is none, labels do not fit, or
            negatives are asked for in another way.
        StoreError: there is no such store, or it is the shard of a host.
    """

    _given = "edge_label_index"

    _draws_by_time = False

    def __init__(
        self,
        store: GraphStore | str | os.PathLike[str],
        num_neighbors: NumNeighbors,
        edge_label_index: Links = None,
        *,
        edge_label: Sequence[int] | np.ndarray | Tensor | None = None,
        neg_sampling: NegativeSampling = None,
        exclude_targets: bool = True,
        reverse_relations: Mapping[str | EdgeType, str | EdgeType] | None = None,
        **settings: Any,
    ) -> None:
        self._mode, self._amount = _negatives(neg_sampling)
        self._exclude = exclude_targets
        self._reverses = reverse_relations or {}
        self._relation: int | None = None
        super().__init__(store, num_neighbors, edge_label_index, **settings)
        self.edge_label_index = self._seeds.T
        self.edge_label = None if edge_label is None else self._labels(torch.as_tensor(edge_label))
        self._sides = self._sides_left_out()
        self._positions = LinkPositions(self.store, self._seeds, self._sides)
        self._order_of_type: dict[int, Tensor | None] = {}
        for side in (_SOURCE, _DESTINATION):
            if self._mode is not None:
                self._nodes_by_original(self._type_of(side))

    def _inputs(self, given: Any) -> tuple[Int64[Tensor, "m 2"], Int64[Tensor, "m"]]:
        schema, where = self.store.schema, f"{self._name}, edge_label_index"
        if schema is not None:
            name, index = (given, None) if _is_name(given) else given if _is_pair(given) else (None, None)
            if name is None:
                known = ", ".join(map(str, schema.relations[:3]))
                raise ConfigError(
                    "links of a typed graph are of one relation",
                    where=where,
                    fix=f"Give its name, or its name and (2, L) rows of nodes; relations are for instance {known}",
                )
            self._relation = self._number(name, where)
        else:
            index = given
        if index is None:
            links = self._all_edges()
        else:
            links = self._checked(torch.as_tensor(index), where)
        return links, torch.arange(len(links))

    def _all_edges(self) -> Int64[Tensor, "m 2"]:
        """The edges of the relation, in an order that does not depend on how the store is partitioned."""
        store = self.store
        nodes = np.argsort(store.to_original(np.arange(store.num_nodes)), kind="stable")
        counts = store.in_degree()[nodes]
        begins, ends = store.indptr[nodes], np.cumsum(counts)
        at = np.repeat(begins - (ends - counts), counts) + np.arange(len(store.indices))
        dst = np.repeat(nodes, counts)
        if self._relation is not None and store.edge_type is not None:
            chosen = store.edge_type[at] == self._relation
            at, dst = at[chosen], dst[chosen]
        return torch.from_numpy(np.stack([store.indices[at].astype(np.int64), dst], axis=1))

    def _checked(self, index: Tensor, where: str) -> Int64[Tensor, "m 2"]:
        if index.ndim != 2 or len(index) != 2 or index.is_floating_point() or index.dtype == torch.bool:
            raise ConfigError(
                f"{index.dtype} of shape {tuple(index.shape)}", where=where, fix="Give (2, L) sources and destinations"
            )
        sides = []
        for side, rows in enumerate(index.long()):
            count, kind = self._count(side), self._type_of(side)
            outside = (rows < 0) | (rows >= count)
            if bool(outside.any()):
                at = int(outside.nonzero()[0])
                raise ConfigError(
                    f"node {int(rows[at])} at position {at}: there are nodes 0 to {count - 1}", where=where
                )
            sides.append(rows if kind is None else torch.from_numpy(self.store.node_types.ids(kind, rows.numpy())))
        return torch.stack(sides, dim=1)

    def _labels(self, labels: Tensor) -> Tensor:
        where = f"{self._name}, edge_label"
        if self._mode == "triplet":
            raise ConfigError("links have labels, and triplets have none", where=where, fix="Leave edge_label out")
        if labels.shape[:1] != (len(self._seeds),):
            raise ConfigError(f"{len(labels):,} labels for {len(self._seeds):,} links", where=where)
        return labels + 1 if self._mode == "binary" and int(labels.min()) == 0 else labels

    def _number(self, name: str | EdgeType, where: str) -> int:
        assert self.store.schema is not None
        name = name if isinstance(name, str) else ":".join(name)
        found = self.store.schema.relation_numbers(name, where)
        if len(found) > 1:
            raise ConfigError(f"several relations are called '{name}'", where=where, fix="Give (source, name, target)")
        return found[0]

    @property
    def _ends(self) -> Relation:
        assert self.store.schema is not None
        assert self._relation is not None
        return self.store.schema.relations[self._relation]

    def _type_of(self, side: int) -> int | None:
        """Number of the type of sources or destinations; ``None`` in untyped graphs."""
        if self.store.schema is None:
            return None
        return self.store.schema.type_number(self._ends.target if side == _DESTINATION else self._ends.source)

    def _count(self, side: int) -> int:
        kind = self._type_of(side)
        return self.store.num_nodes if kind is None else self.store.node_types.size(kind)

    def _reverse_number(self) -> int | None:
        """The relation of the links' reverses."""
        schema, where = self.store.schema, f"{self._name}, reverse_relations"
        if schema is None:
            return None
        given = {self._number(one, where): self._number(other, where) for one, other in self._reverses.items()}
        given |= {other: one for one, other in given.items() if other not in given}
        if self._relation in given:
            assert self._relation is not None
            found = schema.relations[given[self._relation]]
            if (found.source, found.target) != (self._ends.target, self._ends.source):
                raise ConfigError(f"{found} does not lead from where {self._ends} leads to", where=where)
            return given[self._relation]
        for at, each in enumerate(schema.relations):
            if each == self._ends.reverse or each.reverse == self._ends:
                return at
        return self._relation if self._ends.source == self._ends.target else None

    def _sample(self, places: Int64[Tensor, "B"], key: StepKey, scratch: Relabeller) -> Batch | TypedBatch:
        """Places are those of all processes, whose links are left out."""
        if self._exclude:
            key = replace(key, excluded=target_edges(self._seeds[places], self._sides, self._positions.of(places)))
        places = places[self.rank :: self.world_size]
        src, dst = self._seeds[places].T
        drawn = {side: self._drawn(side, places, key) for side in self._drawn_sides}
        ends = torch.cat(
            [src, *([drawn[_SOURCE]] if _SOURCE in drawn else []), dst, *([drawn[_DESTINATION]] if drawn else [])]
        )
        nodes, at = first_appearance(ends)
        batch = self._around(nodes, places, key, scratch)
        if isinstance(batch, TypedBatch):
            at = self._within_types(nodes)[at]
        src_at, dst_at = at.tensor_split([len(src) + len(drawn.get(_SOURCE, ()))])
        found: dict[str, Any]
        if self._mode == "triplet":
            negatives = dst_at[len(dst) :].reshape(self._times, len(dst)).T.contiguous()
            found = {
                "src_index": src_at,
                "dst_pos_index": dst_at[: len(dst)],
                "dst_neg_index": negatives[:, 0] if self._times == 1 else negatives,
            }
        else:
            label = None if self.edge_label is None else self.edge_label[places]
            if self._mode == "binary":
                label = torch.ones(len(src)) if label is None else label
                label = torch.cat([label, label.new_zeros((len(src_at) - len(src), *label.shape[1:]))])
            found = {"edge_label_index": torch.stack([src_at, dst_at]), "edge_label": label}
        given: dict[str, Any] = {each.name: getattr(batch, each.name) for each in fields(batch)}
        if isinstance(batch, Batch):
            return LinkBatch(**given, **found)
        ends_of = self._ends
        triple = (ends_of.source, ends_of.name, ends_of.target)
        keys = {"src_index": ends_of.source, "dst_pos_index": ends_of.target, "dst_neg_index": ends_of.target}
        named: dict[str, Any] = {
            f"{name}_dict": {keys.get(name, triple): value} for name, value in found.items() if value is not None
        }
        return TypedLinkBatch(**{**given, "input_type": triple, "y_dict": {}}, **named)

    def _sides_left_out(self) -> list[TargetSide]:
        if self._relation is None:
            return [TargetSide(backward=False), TargetSide(backward=True)]
        sides = [(False, self._relation), (True, self._reverse_number())]
        return [TargetSide(backward, torch.tensor([kind])) for backward, kind in sides if kind is not None]

    @property
    def _drawn_sides(self) -> tuple[int, ...]:
        return {None: (), "binary": (_SOURCE, _DESTINATION), "triplet": (_DESTINATION,)}[self._mode]

    @property
    def _times(self) -> int:
        """Rounds of negatives, of which each has one for every link; of the last one some may be left out."""
        return math.ceil(self._amount)

    def _drawn(self, side: int, places: Int64[Tensor, "B"], key: StepKey) -> Int64[Tensor, "n"]:
        """Nodes on one side of negatives, round by round: draw number j of a link is for round j // 2, side j mod 2."""
        count = math.ceil(len(places) * self._amount)
        number = np.arange(count)
        step_key = np.full(count, key.at(Purpose.NEGATIVE, 0), np.uint64)
        of_link = fold_all(step_key, places.numpy()[number % max(len(places), 1)].astype(np.uint64))
        draws: UInt64[np.ndarray, "n"] = fold_all(
            of_link, (2 * (number // max(len(places), 1)) + side).astype(np.uint64)
        )
        rows = torch.from_numpy(below_all(draws, self._count(side)))
        order = self._nodes_by_original(self._type_of(side))
        return rows if order is None else order[rows]

    def _nodes_by_original(self, kind: int | None) -> Int64[Tensor, "n"] | None:
        """The nodes of a type in the order of ingest; ``None`` where that is the order of ids."""
        number = -1 if kind is None else kind
        if number not in self._order_of_type:
            store = self.store
            if store.original_index is None and kind is None:
                self._order_of_type[number] = None
            else:
                ids = np.arange(store.num_nodes) if kind is None else store.node_types.all_ids(kind)
                order = np.argsort(store.to_original(ids), kind="stable")
                self._order_of_type[number] = as_tensor(ids[order])
        return self._order_of_type[number]

    def _within_types(self, nodes: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Positions of the first nodes of a batch within their types."""
        kinds = torch.from_numpy(self.store.types(nodes.numpy()))
        found = torch.empty_like(kinds)
        for kind in kinds.unique():
            at = torch.nonzero(kinds == kind).reshape(-1)
            found[at] = torch.arange(len(at))
        return found


def _is_name(given: Any) -> bool:
    return isinstance(given, str) or (
        isinstance(given, tuple) and len(given) == 3 and all(isinstance(each, str) for each in given)
    )


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and _is_name(given[0])


def _negatives(given: NegativeSampling) -> tuple[str | None, float]:
    """Mode and amount."""
    if given is None:
        return None, 0
    known = {"mode": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    mode, amount = known.get("mode"), known.get("amount", 1)
    fits = mode in ("binary", "triplet") and set(known) <= {"mode", "amount"}
    fits = fits and isinstance(amount, int | float) and 0 < amount < math.inf
    if not fits or (mode == "triplet" and amount != int(amount)):
        raise ConfigError(
            f"negatives cannot be drawn as {given!r} says",
            where="LinkNeighborLoader, neg_sampling",
            fix='Give "binary", "triplet", or {"mode": "binary", "amount": 2}; of triplets a whole number',
        )
    return str(mode), float(amount)
