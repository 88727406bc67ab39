"""What a user says about nodes: features, labels, splits, in tables joined by node id or in arrays by position."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int, Int64

from partita.core.arrow import as_numpy
from partita.core.errors import InputError, nearest
from partita.graph.times import ALWAYS
from partita.sources.batch import Cells, Kind
from partita.sources.edges import TableReader, find_column, find_columns, unused_columns
from partita.sources.encoding import ColumnReader
from partita.sources.ids import Ids, IndexIds
from partita.sources.labels import Labels
from partita.sources.options import ColumnName
from partita.sources.roles import ids_by_name, is_unnamed, masks_by_name
from partita.sources.times import TimeCells

SPLITS = ("train", "val", "test")
_SPLIT_WORDS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2}
_IN_MASK = frozenset(["1", "1.0", "true", "t", "yes"])
_NOT_IN_MASK = frozenset(["0", "0.0", "false", "f", "no", ""])
_NO_SPLIT = frozenset(["", "none", "nan", "na", "null"])
_NAMED_IN_MESSAGES = 5


Located = Callable[["NodeTable", Ids, Labels | None], Generator[tuple[Int[np.ndarray, "n"], Cells], None, None]]
"""Gives rows of a table, all columns but the ids, with the node of each row."""


@dataclass(frozen=True)
class NodeTable:
    """A table about nodes, and what its columns are.

    Attributes:
        table: the rows.
        id_column: position of the node ids.
        features: positions of the feature columns.
        labels: positions of the label columns.
        split: position of the split column; ``None`` without one.
        masks: positions of columns that say of one split which nodes are in it, with the split.
        times: positions of columns of times, by what the store calls them; they are read before all others.
        reader: of the feature columns; ``None``: there are none.
        id_said: the user said where the ids are.
    """

    table: TableReader
    id_column: int
    features: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    split: int | None = None
    masks: tuple[tuple[str, int], ...] = ()
    times: tuple[tuple[str, int], ...] = ()
    reader: ColumnReader | None = None
    id_said: bool = True

    @property
    def where(self) -> str:
        """The file."""
        return str(self.table.path)

    @property
    def columns(self) -> tuple[int, ...]:
        """Positions of all columns that are read besides the ids."""
        masks = tuple(column for _, column in self.masks)
        return self.features + self.labels + (() if self.split is None else (self.split,)) + masks

    @property
    def split_names(self) -> str:
        """Of the columns that say the splits; empty: none does."""
        columns = [column for _, column in self.masks] if self.split is None else [self.split]
        return ", ".join(self.table.names[column] for column in columns)

    def notes(self) -> list[str]:
        """Which column has the ids, where that is not the first, and which columns are not read."""
        found = [self.unused()] if self.unused() else []
        if self.id_column and not self.id_said:
            name = self.table.names[self.id_column]
            found.append(f"{self.where}: the node ids are in column {name}; --id-column names another")
        return found

    def unused(self) -> str:
        """Says which columns are not read; empty: all are."""
        return unused_columns(self.table, (self.id_column, *self.columns, *dict(self.times).values()))

    def batches(self, ids: Ids, labels: Labels | None, *, with_ids: bool) -> Generator[Cells, None, None]:
        """Rows: the ids first if asked for, then :attr:`columns`."""
        kinds: list[Kind] = list(self.reader.kinds) if self.features and self.reader else ["float"] * len(self.features)
        kinds += [labels.kind if labels is not None else "str"] * len(self.labels)
        kinds += ["str"] * ((self.split is not None) + len(self.masks))
        columns = self.columns
        if with_ids:
            columns, kinds = (self.id_column, *columns), [ids.kind, *kinds]
        return self.table.batches(columns, kinds, doing=f"read {self.table.path.name}")


def describe_table(
    table: TableReader,
    *,
    id_column: ColumnName | None,
    feature_columns: Sequence[ColumnName] | None,
    drop_columns: Sequence[ColumnName] | None = None,
    label_columns: Sequence[ColumnName] | None,
    split_column: ColumnName | None,
    time_columns: Mapping[str, ColumnName | None] = {},
    roles: str,
) -> NodeTable:
    """Decide what the columns of a table about nodes are.

    Args:
        table: the table.
        id_column: of the node ids; ``None``: that with a name for ids, else the first.
        feature_columns: ``None``: all that have a name and are nothing else. Patterns fit several.
        drop_columns: that are no features either way.
        label_columns: ``None``: in a table of labels all that are nothing else, else the column named "label", if any.
        split_column: ``None``: the column named "split", if any, or those named "train_mask" and so on; in a table of
            splits else the second.
        time_columns: by what the store calls them; ``None``: the column of that name, if any.
        roles: "nodes" (everything), "features", "labels" (which may hold a split too) or "splits".

    Raises:
        InputError: a named column is not there, or one column has two roles, or nothing is left to read.
    """
    by_name = ids_by_name(table.names) if table.has_header else 0
    ids = find_column(table, by_name if id_column is None else id_column, "node id")
    said = id_column is not None
    split: int | None = None
    masks: tuple[tuple[str, int], ...] = ()
    if roles != "features":
        if split_column is not None:
            split = find_column(table, split_column, "split")
        elif table.has_header and table.names.count("split") == 1:
            split = table.names.index("split")
        elif table.has_header and (by_mask := masks_by_name(table.names)):
            masks = tuple(by_mask.items())
        elif roles == "splits" and len(table.names) > 1:
            split = 1 if ids == 0 else 0
        if roles == "splits":
            return _checked(NodeTable(table, ids, split=split, masks=masks, id_said=said), "split column")
    labels: tuple[int, ...] = ()
    if roles in ("nodes", "labels"):
        if label_columns is not None:
            labels = tuple(find_column(table, name, "label") for name in label_columns)
        elif roles == "labels":
            labels = tuple(column for column in _others(table) if column not in (ids, split, *dict(masks).values()))
        elif table.has_header and table.names.count("label") == 1:
            labels = (table.names.index("label"),)
        if roles == "labels":
            found = NodeTable(table, ids, labels=labels, split=split, masks=masks, id_said=said)
            return _checked(found, "label column")
    times = dict[str, int]()
    for name, given in time_columns.items():
        if given is not None:
            times[name] = find_column(table, given, "time")
        elif table.has_header and table.names.count(name) == 1:
            times[name] = table.names.index(name)
    if feature_columns is None:
        taken = (ids, split, *labels, *dict(masks).values(), *times.values())
        features = tuple(column for column in _others(table) if column not in taken)
    else:
        features = tuple(find_columns(table, feature_columns, "feature"))
    dropped = find_columns(table, drop_columns or (), "drop_columns")
    features = tuple(column for column in features if column not in dropped)
    found = NodeTable(table, ids, features, labels, split, masks, tuple(times.items()), id_said=said)
    return _checked(found, "feature column" if roles == "features" else "column")


def times_of(nodes: NodeTable, ids: Ids, rows: Located, times: TimeCells) -> dict[str, Int64[np.ndarray, "N"]]:
    """Columns of times of all nodes, read in a pass of their own; nodes without a row were always there.

    Args:
        nodes: the table.
        ids: of all nodes.
        rows: gives rows of such a table with their nodes, see :func:`located`.
        times: reads cells.
    """
    found = {name: np.full(len(ids), ALWAYS) for name, _ in nodes.times}
    if found:
        only = replace(nodes, features=(), labels=(), split=None, masks=tuple(nodes.times), times=(), reader=None)
        with closing(rows(only, ids, None)) as batches:
            for numbers, batch in batches:
                for at, values in enumerate(found.values()):
                    values[numbers] = times.read(batch, at)
    return found


def _others(table: TableReader) -> list[int]:
    """The columns that may be features or labels where the user names none: those with a name, if any has one."""
    return [column for column, name in enumerate(table.names) if not (table.has_header and is_unnamed(name))]


def _checked(found: NodeTable, needed: str) -> NodeTable:
    used = (found.id_column, *found.columns, *set(dict(found.times).values()))
    if len(used) < 2 and needed != "column":
        what = f"has no {needed} apart from the node ids"
        raise InputError(what, where=found.where, fix="Name the columns, or the separator")
    for column in used:
        if used.count(column) > 1:
            what = f"column {found.table.names[column]} has two roles (id, feature, label, split, time)"
            raise InputError(what, where=found.where, fix="Name another column for one of them")
    return found


class Membership:
    """The nodes that a table names, in the order of its rows: the table that says which nodes there are.

    Args:
        nodes: the table.
        ids: receives the ids of its rows.

    Raises:
        InputError: an id twice, or ids=index and the ids are not 0..N-1.
    """

    def __init__(self, nodes: NodeTable, ids: Ids) -> None:
        self._nodes = nodes
        self._given: list[Int64[np.ndarray, "n"]] = []
        self._rank: Int64[np.ndarray, "N"] | None = None
        self.num_rows = 0
        only_ids = replace(nodes, features=(), labels=(), split=None, masks=(), times=())
        seen = np.zeros(0, bool)
        with closing(only_ids.batches(ids, None, with_ids=True)) as batches:
            for batch in batches:
                found = ids.add_nodes(batch, 0)
                if isinstance(ids, IndexIds):
                    ids.check_plausible(self.num_rows + len(batch))
                    seen = np.concatenate([seen, np.zeros(max(0, int(found.max()) + 1 - len(seen)), bool)])
                    again = seen[found] | repeated(found)
                    seen[found] = True
                    self._given.append(np.asarray(found, np.int64))
                else:  # the table comes first, so every row must have got the next number
                    again = found != np.arange(self.num_rows, self.num_rows + len(batch))
                batch.check(again, 0, "node {} has a row already", "Keep one row for every node")
                self.num_rows += len(batch)
        if isinstance(ids, IndexIds):
            needed = max(len(seen), len(ids))
            if needed != self.num_rows:
                missing = int(np.argmin(seen)) if not seen.all() else len(seen)
                raise InputError(
                    f"has {self.num_rows} rows, but needs {needed}, one for each of the ids 0..{needed - 1}; "
                    f"there is none for {missing}",
                    where=nodes.where,
                    fix="Add the missing rows, or use ids=int",
                )
            ids.set_num_nodes(self.num_rows, nodes.where)

    def freeze(self, ids: Ids, rank: Int64[np.ndarray, "N"] | None, *, gaps: bool = False) -> None:
        """Take over the final order of the nodes.

        Args:
            ids: of all nodes.
            rank: final number of every node by its provisional one; ``None``: the same.
            gaps: nodes may be without a row.

        Raises:
            InputError: there are features, and nodes of the edges without a row.
        """
        self._rank = rank
        lacking = len(ids) - self.num_rows
        if lacking > 0 and self._nodes.features and not gaps:
            without = np.arange(self.num_rows, len(ids)) if rank is None else np.sort(rank[self.num_rows :])
            names = ", ".join(ids.name(node) for node in without[:_NAMED_IN_MESSAGES].tolist())
            more = ", ..." if lacking > _NAMED_IN_MESSAGES else ""
            raise InputError(
                f"{lacking} node(s) of the edges have no row of features: {names}{more} "
                f"(need {len(ids)} rows, have {self.num_rows}; the ids of rows are in column "
                f"{self._nodes.table.names[self._nodes.id_column]})",
                where=self._nodes.where,
                fix="Add their rows, leave their edges out, or give --missing zero or mean, or drop",
            )

    def drop(self, ids: Ids) -> Int64[np.ndarray, "N"] | None:
        """Leave out the nodes without a row, and those whose row has an empty feature cell.

        Only after :meth:`freeze`, and before :meth:`located`.

        Args:
            ids: of all nodes; those that stay are numbered anew.

        Returns:
            The number of every node by its provisional one, -1 where it was left out; ``None`` if all stay.

        Raises:
            InputError: no node is left.
        """
        self.num_absent, self.num_incomplete = len(ids) - self.num_rows, 0
        rank = np.arange(len(ids)) if self._rank is None else self._rank
        kept = np.zeros(len(ids), bool)
        kept[rank[: self.num_rows]] = True
        if self._nodes.reader is not None:
            only_features, start = replace(self._nodes, labels=(), split=None), 0
            with closing(only_features.batches(ids, None, with_ids=False)) as batches:
                for batch in batches:
                    rows = start + np.flatnonzero(self._nodes.reader.incomplete(batch))
                    kept[rank[rows]] = False
                    self.num_incomplete += len(rows)
                    start += len(batch)
        if kept.all():
            return None
        if not kept.any():
            fix = "Give --missing zero or mean, or name the columns with --feature-columns"
            raise InputError("every row has an empty cell, so no node is left", where=self._nodes.where, fix=fix)
        ids.drop(kept)
        self._rank = np.where(kept, np.cumsum(kept) - 1, -1)[rank]
        return self._rank

    def located(
        self, ids: Ids, labels: Labels | None, nodes: NodeTable | None = None
    ) -> Generator[tuple[Int[np.ndarray, "n"], Cells], None, None]:
        """The rows once more, with all columns but the ids, and the node of each row; or other columns of them."""
        given = np.concatenate(self._given) if self._given else None
        start = 0
        for batch in (nodes or self._nodes).batches(ids, labels, with_ids=False):
            rows = np.arange(start, start + len(batch)) if given is None else given[start : start + len(batch)]
            yield _of_kept(rows if self._rank is None else self._rank[rows], batch)
            start += len(batch)


def located(
    nodes: NodeTable, ids: Ids, labels: Labels | None
) -> Generator[tuple[Int[np.ndarray, "n"], Cells], None, None]:
    """Rows of a table about nodes that are known already: all columns but the ids, and the node of each row.

    Raises:
        InputError: an unknown node, or a node twice.
    """
    seen = np.zeros(len(ids), bool)
    for batch in nodes.batches(ids, labels, with_ids=True):
        found = ids.find(batch, 0)
        fix = "Fix the id, add its edges, or delete the row"
        batch.check(found == -1, 0, "there is no node {}", fix)
        found, batch = _of_kept(found, batch)
        batch.check(seen[found] | repeated(found), 0, "node {} has a row already", "Keep one row for every node")
        seen[found] = True
        yield found, Cells(batch.columns[1:], batch.names[1:], batch.where)


def _of_kept(nodes: Int[np.ndarray, "n"], batch: Cells) -> tuple[Int[np.ndarray, "k"], Cells]:
    """Rows about nodes that were not left out, whose numbers are >= 0."""
    if (nodes >= 0).all():
        return nodes, batch
    import pyarrow as pa

    at = np.flatnonzero(nodes >= 0)
    columns = [column.take(pa.array(at)) for column in batch.columns]
    return nodes[at], Cells(columns, batch.names, lambda row: batch.where(int(at[row])))


def repeated(values: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Where a value has occurred earlier in the array."""
    again = np.ones(len(values), bool)
    again[np.unique(values, return_index=True)[1]] = False
    return again


NameOf = Callable[[int], str]
"""What the user calls a node (a final id)."""


class Splits:
    """Takes the split of every node: train, val or test, or none."""

    def __init__(self, num_nodes: int) -> None:
        self._codes = np.full(num_nodes, -1, np.int8)

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, column: int) -> None:
        """The splits of some nodes, as words.

        Raises:
            InputError: a word that is no split.
        """
        encoded = batch.strings(column, missing="").dictionary_encode()
        codes = as_numpy(encoded.indices)
        numbers = np.empty(len(encoded.dictionary), np.int8)
        for position, word in enumerate(encoded.dictionary.to_pylist()):
            plain = word.strip().lower()
            if plain not in _SPLIT_WORDS and plain not in _NO_SPLIT:
                batch.check(codes == position, column, "there is no split '{}'", nearest(plain, ["valid", *SPLITS]))
            numbers[position] = _SPLIT_WORDS.get(plain, -1)
        self._codes[nodes] = numbers[codes]

    def put_marks(self, name: str, nodes: Int[np.ndarray, "n"], batch: Cells, column: int) -> None:
        """Which of some nodes are in one split, as words for yes and no.

        Raises:
            InputError: another word, or a node is in another split already.
        """
        encoded = batch.strings(column, missing="").dictionary_encode()
        codes = as_numpy(encoded.indices)
        words = [word.strip().lower() for word in encoded.dictionary.to_pylist()]
        for position, word in enumerate(words):
            what = "'{}' says neither yes nor no"
            batch.check((codes == position) & (word not in _IN_MASK | _NOT_IN_MASK), column, what, "Write 1 or 0")
        mine = np.array([word in _IN_MASK for word in words], bool)[codes]
        batch.check(mine & (self._codes[nodes] >= 0), column, "the node is in another split too", "Leave it in one")
        self._codes[nodes[mine]] = SPLITS.index(name)

    def put_mask(self, name: str, mask: Bool[np.ndarray, "N"], where: str, name_of: NameOf) -> None:
        """All nodes of one split.

        Raises:
            InputError: a node is in another split already.
        """
        both = np.flatnonzero(mask & (self._codes >= 0))
        if len(both):
            other = SPLITS[self._codes[both[0]]]
            raise InputError(
                f"{len(both)} node(s) are in both {other} and {name}, the first is node {name_of(int(both[0]))}",
                where=where,
                fix="Put every node into one split",
            )
        self._codes[mask] = SPLITS.index(name)

    def leave_out(self, labeled: Bool[np.ndarray, "N"]) -> int:
        """Take nodes without a label out of their split; returns how many there were."""
        without = (self._codes >= 0) & ~labeled
        self._codes[without] = -1
        return int(np.count_nonzero(without))

    def nodes(self) -> dict[str, Int64[np.ndarray, "s"]]:
        """Ids of every split, ascending."""
        return {name: np.flatnonzero(self._codes == code) for code, name in enumerate(SPLITS)}
