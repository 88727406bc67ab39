"""What a relational database says of itself: its tables, and the keys that join them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from partita.sources.edges import TableReader


@dataclass(frozen=True)
class ForeignKey:
    """A column whose values are those of the primary key of a table.

    Attributes:
        column: that refers.
        table: that it refers to.
        to: the column of that table; ``None``: its primary key.
    """

    column: str
    table: str
    to: str | None = None


@dataclass(frozen=True)
class TableSchema:
    """A table, as the database declares it.

    Attributes:
        name: of the table.
        columns: their names, in order.
        primary_key: the columns of it; empty: none is declared.
        foreign_keys: of one column each.
        compound: columns of foreign keys of several columns, which no graph is made of.
        time: the column that says from when on a row is there, if the database tells.
        view: it is the result of a query, and not among the tables unless it is named.
    """

    name: str
    columns: tuple[str, ...]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    compound: tuple[tuple[str, ...], ...] = ()
    time: str | None = None
    view: bool = False


@runtime_checkable
class Database(Protocol):
    """Tables that can be read.

    Attributes:
        where: what to call it in messages.
        tables: by their names, in the order of the database.
    """

    where: str
    tables: Mapping[str, TableSchema]

    def read(self, table: str, without: Collection[str] = ()) -> TableReader:
        """The rows of a table, always in the same order.

        Args:
            table: its name.
            without: columns that are not to be looked at.

        Raises:
            InputError: the table cannot be read, or a column holds values of several kinds.
        """
        ...

    def close(self) -> None:
        """Close the files."""
        ...
