"""Holds edges of a graph out, for link prediction: writes a store without them, which lists them in columns."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Shaped, UInt8

from partita.core import progress
from partita.core.errors import ConfigError, StoreError
from partita.core.files import map_array
from partita.core.options import parse_bytes, takes
from partita.graph import build_loops, links, weight_sums
from partita.graph.column_specs import HELD, ColumnSpec, spec_by_shape
from partita.graph.columns import CHUNK_BYTES, PlacedColumn
from partita.graph.links import Chosen, Linking, choose
from partita.graph.metadata import DERIVED_PREFIX, HELD_PREFIX, HELD_TYPE_SUFFIX, StoreMetadata
from partita.graph.options import SplitLinksOptions
from partita.graph.schema import Schema
from partita.graph.soundness import rows_of
from partita.graph.store import GraphStore
from partita.graph.writer import NewColumn, StoreWriter

_FIX = "Give shares between 0 and 1 that leave edges to train on, for instance 0.05 and 0.1"


@takes(SplitLinksOptions)
def split_links(
    store: GraphStore | str | os.PathLike[str], out: str | os.PathLike[str], options: SplitLinksOptions
) -> GraphStore:
    """Write a store without some edges of a graph, which it lists for validation and tests instead.

    What is held out are *links*: all edges between two nodes of one relation and of its reverse (``rev_...``), parallel
    ones, and where both nodes are of one type those in either direction. None of them is an edge of the new store, so
    no message goes along them. Each link is listed once, by an edge in the direction of its relation; where there are
    edges in both directions, by the one from the lower original index to the higher. Self loops stay.

    Of the n links of each relation, ``floor(val * n)`` and ``floor(test * n)`` are held out: those with the smallest
    hashes of the seed, the relation and the original indices of their ends, whatever the order of the nodes. They are
    listed in the order of these hashes, so that any first ones are a sample. Of relations that are too small for an
    edge in each split all edges stay, unless they are named.

    Nodes with all that belongs to them, parts, and the other edges with their weights and features, in their order, are
    as they were; what was counted by ``presample`` is left out. The new store is written aside and renamed when it is
    complete. Memory, besides the limit: 24 bytes a node, a bit an edge, and at most 160 bytes for each held-out edge.

    Args:
        store: a whole graph without held-out edges.
        out: path of the new store.
        options: see :class:`~partita.graph.options.SplitLinksOptions`.

    Returns:
        The new store; :meth:`~partita.GraphStore.held_out_edges` gives the edges.

    Raises:
        ConfigError: the shares are impossible, or leave a split without an edge; a relation is not there, is the
            reverse of another, or is too small.
        StoreError: the store is a shard, has held-out edges, or is damaged; or ``out`` may not be replaced.
        ResourceError: the disk has no room.
    """
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    shares = _shares(options)
    store.require_whole("holding edges out")
    if store.held_out:
        held = ", ".join(f"{count:,} for {name}" for name, count in store.held_out.items())
        fix = "Ingest the graph again without them, or use the split that it has"
        raise StoreError(f"the store has held-out edges already ({held})", where=str(store.path), fix=fix)
    if Path(out).exists() and Path(out).resolve() == store.path.resolve():
        fix = "Give the new store another path"
        raise ConfigError("the new store would replace the one that has all edges", where=str(out), fix=fix)
    linking = Linking(store, _relations(store, options.relations), options.seed)
    limit = parse_bytes(options.memory_limit)
    assert isinstance(limit, int)
    store.require_sound()
    store.require_edges()
    with StoreWriter(out, overwrite=options.overwrite) as writer:
        chosen = choose(linking, sum(shares.values(), Fraction(0)), writer.scratch, limit)
        split = _Split.of(linking, chosen, shares, is_named=options.relations is not None)
        columns = _Columns(linking, split.chosen, writer)
        writer.fill({**columns.all(), **split.columns()})
        note: dict[str, Any] = {name: float(share) for name, share in shares.items()}
        note |= {"seed": options.seed, "of": store.fingerprint, **split.notes()}
        writer.finish_like(columns.metadata, {**columns.metadata.notes, "links": note})
    return GraphStore.open(writer.path)


def _shares(options: SplitLinksOptions) -> dict[str, Fraction]:
    """Exactly the numbers that were written, by split; without those of 0."""
    shares = {name: Fraction(repr(float(getattr(options, name)))) for name in HELD}
    if sum(shares.values()) >= 1:
        what = f"{options.val} for validation and {options.test} for tests leave no edge to train on"
        raise ConfigError(what, where="val, test", fix=_FIX)
    if not any(shares.values()):
        raise ConfigError("nothing would be held out: both shares are 0", where="val, test", fix=_FIX)
    return {name: share for name, share in shares.items() if share}


def _relations(store: GraphStore, names: Sequence[str] | str | None) -> Int64[np.ndarray, "R"]:
    """See :class:`Linking`.

    Raises:
        ConfigError: a relation is not there, or is the reverse of another.
    """
    schema = store.schema
    if schema is None:
        if names is not None:
            what = "relations are named, and the graph has none"
            raise ConfigError(what, where="relations", fix="Leave them out")
        return np.zeros(1, np.int64)
    numbers = np.arange(len(schema.relations))
    reverse_of = np.where([_is_reverse(schema, at) for at in numbers.tolist()], schema.reverses, -1)
    one_way = numbers[reverse_of < 0]
    if names is not None:
        listed = names.split() if isinstance(names, str) else names
        one_way = np.unique([at for name in listed for at in schema.relation_numbers(name, "relations")])
        if not len(one_way):
            raise ConfigError("no relation is named", where="relations", fix="Name one, or leave relations out")
    if turned := [at for at in one_way.tolist() if reverse_of[at] >= 0]:
        relation, other = (schema.relations[at] for at in (turned[0], reverse_of[turned[0]]))
        raise ConfigError(
            f"'{relation}' has the edges of '{other}' the other way round",
            where="relations",
            fix=f"Name '{other}': the edges of both are held out together",
        )
    found = np.full(len(numbers), -1)
    found[one_way] = one_way
    backward = schema.reverses[one_way]
    found[backward[backward >= 0]] = one_way[backward >= 0]
    return found


def _is_reverse(schema: Schema, number: int) -> bool:
    """Whether a relation is the one of two that is called the reverse of the other."""
    other = int(schema.reverses[number])
    return other >= 0 and schema.relations[other].reverse == schema.relations[number]


@dataclass(frozen=True)
class _Split:
    """The links that are held out.

    Attributes:
        linking: of the graph.
        chosen: all of them.
        numbers: int64 (S, R), how many of each split and relation there are.
        splits: their names.
        whole: relations that have links, none of which is held out.
    """

    linking: Linking
    chosen: Chosen
    numbers: Int64[np.ndarray, "S R"]
    splits: tuple[str, ...]
    whole: tuple[str, ...]

    @classmethod
    def of(cls, linking: Linking, chosen: Chosen, shares: dict[str, Fraction], *, is_named: bool) -> _Split:
        """Divide the links that were chosen among the splits; those of relations that are too small stay.

        Raises:
            ConfigError: nothing is left, or a relation is too small and was named.
        """
        counts, where = chosen.counts, str(linking.store.path)
        numbers = np.array([[int(share * n) for n in counts.tolist()] for share in shares.values()])
        ours = np.unique(linking.relation_of[linking.relation_of >= 0])
        small = ours[(numbers[:, ours] == 0).any(axis=0)]
        names = _names(linking.store)
        if not counts.any():
            raise ConfigError("there are no edges to hold out but self loops", where=where, fix="Give another graph")
        if len(small) and (is_named or len(small) == len(ours)):
            at = int(small[np.argmax(counts[small])])
            name = next(name for name, row in zip(shares, numbers) if not row[at])
            of = f" of relation '{names[at]}'" if linking.store.schema is not None else ""
            fix = "Give a larger share, or 0 for no such split" + ("; or leave the relation out" if is_named else "")
            raise ConfigError(
                f"{float(shares[name])} of the {counts[at]:,} links{of} are none, so there is no edge for {name}",
                where=where,
                fix=fix,
            )
        numbers[:, small] = 0
        among = chosen.rank < numbers.sum(axis=0)[chosen.links["relation"]]
        kept = Chosen(counts, chosen.links[among], chosen.rank[among])
        return cls(linking, kept, numbers, tuple(shares), tuple(names[at] for at in small if counts[at]))

    def columns(self) -> dict[str, NewColumn]:
        """The columns that list them."""
        found, schema = dict[str, NewColumn](), self.linking.store.schema
        relation, before = self.chosen.links["relation"], np.zeros(len(self.chosen.counts), np.int64)
        for name, numbers in zip(self.splits, self.numbers):
            mine = (self.chosen.rank >= before[relation]) & (self.chosen.rank < (before + numbers)[relation])
            links, before = self.chosen.links[mine], before + numbers
            found[HELD_PREFIX + name] = _whole(self.linking.ends(links))
            if schema is not None:
                found[HELD_PREFIX + name + HELD_TYPE_SUFFIX] = _whole(links["relation"].astype(schema.edge_dtype))
        return found

    def notes(self) -> dict[str, Any]:
        """For the metadata."""
        if self.linking.store.schema is None:
            return {}
        names = _names(self.linking.store)
        held = [names[at] for at in np.flatnonzero(self.numbers.any(axis=0))]
        return {"relations": held, **({"whole": list(self.whole)} if self.whole else {})}


def _names(store: GraphStore) -> list[str]:
    return [""] if store.schema is None else [str(each) for each in store.schema.relations]


@dataclass(frozen=True)
class _Columns:
    """The columns of the new store but those of held-out edges."""

    linking: Linking
    chosen: Chosen
    writer: StoreWriter

    @cached_property
    def kept(self) -> UInt8[np.ndarray, "bytes"]:
        """A bit for every edge: whether it stays."""
        pieces = [np.empty(0, np.uint8)]
        number = self.linking.store.num_edges
        for first, found, at in self.linking.batches("leave edges out"):
            stays = np.ones(min(links.EDGES_AT_ONCE, number - first), bool)
            stays[at[self.chosen.has(found)]] = False
            pieces.append(np.packbits(stays))
        return np.concatenate(pieces)

    @cached_property
    def indptr(self) -> Int64[np.ndarray, "N_1"]:
        """Of the new store."""
        store = self.linking.store
        removed = np.zeros(store.num_nodes + 1, np.int64)
        for first in range(0, store.num_edges, links.EDGES_AT_ONCE):
            stays = self._stays(first, first + links.EDGES_AT_ONCE)
            rows = rows_of(store.indptr, first, first + len(stays))[~stays]
            np.add.at(removed, rows + 1, 1)
        return store.indptr - np.cumsum(removed)

    @cached_property
    def metadata(self) -> StoreMetadata:
        """Of the new store, as far as the old one says them: the sizes, and what was noted but of counts of edges."""
        old = self.linking.store.metadata
        schema, counts = old.schema, None
        if schema is not None and self.linking.store.edge_type is not None:
            counts = np.array(schema.num_edges)
            for first in range(0, old.num_edges, links.EDGES_AT_ONCE):
                stays = self._stays(first, first + links.EDGES_AT_ONCE)
                kinds = self.linking.store.edge_type[first : first + len(stays)][~stays]
                counts -= np.bincount(kinds, minlength=len(counts))
            schema = dataclasses.replace(schema, num_edges=tuple(counts.tolist()))
        notes = {name: note for name, note in old.notes.items() if name != DERIVED_PREFIX.rstrip("_")}
        return dataclasses.replace(old, num_edges=int(self.indptr[-1]), schema=schema, notes=notes)

    def all(self) -> dict[str, NewColumn]:
        """Those that follow from others come last."""
        store = self.linking.store
        specs = {
            name: spec_by_shape(name, store.metadata, str(store.path))
            for name in store.columns
            if not name.startswith(DERIVED_PREFIX)
        }
        columns = {name: self._column(name, spec) for name, spec in specs.items()}
        columns["indptr"] = _whole(self.indptr)
        if store.has("edge_weight_quantised"):
            columns["edge_weight_quantised"] = self._quantized
        for name in weight_sums.NAMES:
            if store.has(name):
                columns.pop(name)
        if all(map(store.has, weight_sums.NAMES)):
            columns |= self._weight_sums
        return dict(sorted(columns.items(), key=lambda item: item[0] in _FOLLOW))

    def _column(self, name: str, spec: ColumnSpec) -> NewColumn:
        data = self.linking.store.column(name)
        row_bytes = max(1, data.itemsize * int(np.prod(data.shape[1:], dtype=np.int64)))
        at_once = max(8, min(links.EDGES_AT_ONCE, CHUNK_BYTES // row_bytes) // 8 * 8)
        of_edges = spec.of == "edges"

        def fill(column: PlacedColumn, task: progress.Bar) -> None:
            place = 0
            for first in range(0, len(data), at_once):
                rows = data[first : first + at_once]
                rows = rows[self._stays(first, first + len(rows))] if of_edges else rows
                column.put(place, rows)
                place += len(rows)
                task.advance(len(rows))

        count = int(self.indptr[-1]) if of_edges else len(data)
        return NewColumn((count, *data.shape[1:]), data.dtype, "edges" if of_edges else "rows", fill)

    def _stays(self, first: int, stop: int) -> Bool[np.ndarray, "n"]:
        """Which of the edges ``first:stop`` stay; ``first`` is a multiple of 8, and ``stop`` may lie behind the end."""
        count = min(stop, self.linking.store.num_edges) - first
        return np.unpackbits(self.kept[first // 8 : -(-stop // 8)], count=count).view(bool)

    @property
    def _quantized(self) -> NewColumn:
        """Weights are scaled by the largest of the row, which may be gone."""

        def fill(column: PlacedColumn, task: progress.Bar) -> None:
            weight = self._written("edge_weight")
            largest = weight_sums.largest_weights(self.indptr, weight)
            for first in range(0, len(weight), links.EDGES_AT_ONCE):
                part = np.array(weight[first : first + links.EDGES_AT_ONCE])
                room = np.empty(len(part), np.uint32)
                build_loops.quantize(part, first, self.indptr, largest, room)
                column.put(first, room)
                task.advance(len(part))

        return NewColumn((int(self.indptr[-1]),), np.dtype(np.uint32), "edges", fill)

    @property
    def _weight_sums(self) -> dict[str, NewColumn]:
        made = dict[str, Shaped[np.ndarray, "N"]]()

        def fill(name: str, column: PlacedColumn, task: progress.Bar) -> None:
            if not made:
                sums = weight_sums.weight_sums(self.indptr, self._written("indices"), self._written("edge_weight"))
                made.update(zip(weight_sums.NAMES, sums))
            column.put(0, made[name])

        shape, dtype = (len(self.indptr) - 1,), np.dtype(np.float64)
        return {name: NewColumn(shape, dtype, "nodes", partial(fill, name)) for name in weight_sums.NAMES}

    def _written(self, name: str) -> Any:
        return map_array(self.writer.directory / f"{name}.npy")


_FOLLOW = ("edge_weight_quantised", *weight_sums.NAMES)
"""Columns that are computed from others of the new store."""


def _whole(array: Shaped[np.ndarray, "n ..."]) -> NewColumn:
    return NewColumn(array.shape, array.dtype, "rows", lambda column, task: column.put(0, array))
