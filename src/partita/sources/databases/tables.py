"""What every table of a database is in the graph, found before rows are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from partita.core.errors import InputError, nearest
from partita.sources.databases.columns import Encoder, Numbers, Words, columns_named, encoder_for, holds_dates
from partita.sources.databases.description import Description, TableSettings
from partita.sources.databases.schema import Database, ForeignKey, TableSchema
from partita.sources.edges import TableReader

SPLIT = "split"
"""A column of this name in the table of labels says which split a row is in."""

Role = Literal["rows", "questions", "targets"]


@dataclass
class Table:
    """A table of the graph.

    Attributes:
        name: of the table, and of the type of its rows.
        role: ``"rows"`` are nodes. ``"questions"`` are nodes that receive messages from what they ask about, and send
            none. ``"targets"`` are no nodes, but edges that are to be predicted, which carry no messages.
        reader: of its rows.
        key: places of the columns of its primary key; none: rows have their numbers.
        references: foreign keys to tables of the graph, by the places of their columns.
        time: place of the column of times; ``None``: rows were always there.
        label: place of the column of labels, if it has one.
        split: place of the column of splits, if it has one.
        encoders: what makes features of its columns, by their places.
        notes: what is worth saying.
    """

    name: str
    role: Role
    reader: TableReader
    key: tuple[int, ...]
    references: dict[int, ForeignKey]
    time: int | None = None
    label: int | None = None
    split: int | None = None
    encoders: dict[int, Encoder | Words] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """What to call it in messages."""
        return str(self.reader.path)

    def column(self, place: int) -> str:
        """Name of a column."""
        return self.reader.names[place]


def tables_of(
    database: Database, description: Description, encoders: Mapping[str, Sequence[Encoder]] | None = None
) -> dict[str, Table]:
    """The tables that make the graph, by name.

    Args:
        database: that they are in.
        description: what the user says of them.
        encoders: of the columns of each table, as another store has them; ``None``: they are chosen by types.

    Raises:
        InputError: keys, times or labels do not make a graph.
    """
    names = description.chosen(database)
    if not names:
        raise InputError("has no tables", where=database.where, fix="Name views with --tables, or another database")
    schemas = {name: _declared(database.tables[name], description.of(name), description.where) for name in names}
    labeled = [name for name in names if description.of(name).label is not None]
    if len(labeled) > 1:
        fix = "Name one label, and ingest again for another"
        raise InputError(f"labels of several tables: {', '.join(labeled)}", where=description.where, fix=fix)
    targets = [name for name in names if description.of(name).targets]
    asking = {schemas[name].foreign_keys[0].table for name in targets if schemas[name].foreign_keys}
    pointed = {
        key.table for name in names if name not in targets for key in schemas[name].foreign_keys if key.table != name
    }
    found = dict[str, Table]()
    for name in names:
        role: Role = "targets" if name in targets else "questions" if name in asking else "rows"
        known = None if encoders is None else encoders.get(name, ())
        may_ask = name in labeled and name not in pointed
        found[name] = _table(database, schemas[name], description.of(name), role, names, known, may_ask)
    _check(found, database, description)
    return found


def _declared(schema: TableSchema, settings: TableSettings, where: str) -> TableSchema:
    """A table with the keys that the user names in place of those that the database declares."""
    here = f"{where}, tables, {schema.name}"
    said = [settings.key, settings.time, settings.label, settings.split, *(settings.references or ())]
    columns_named({each: "" for each in said if each is not None} | settings.columns, schema.columns, here)
    key = schema.primary_key if settings.key is None else (settings.key,)
    foreign = schema.foreign_keys
    if settings.references is not None:
        foreign = tuple(ForeignKey(column, table) for column, table in settings.references.items())
    elif schema.compound:
        raise InputError(
            f"the foreign key ({', '.join(schema.compound[0])}) of table {schema.name} has several columns",
            where=where,
            fix="Make a view with one column of both, or name references of single columns in a description",
        )
    time = settings.time if settings.says_time else schema.time
    return TableSchema(schema.name, schema.columns, key, foreign, (), time, schema.view)


def _table(
    database: Database, schema: TableSchema, settings: TableSettings, role: Role, names: Collection[str],
    known: Sequence[Encoder] | None, may_ask: bool,
) -> Table:  # fmt: skip
    """What a table is.

    Args:
        database: that it is in.
        schema: of the table, with what the user says of its keys and its times.
        settings: what else the user says.
        role: that follows from other tables.
        names: of the tables of the graph.
        known: encoders of its columns, as another store has them.
        may_ask: it has the label, and no table refers to it, so that its rows are questions if they have nothing but
            keys, a time and the label.
    """
    dropped = {column for column, kind in settings.columns.items() if kind == "drop"}
    key_columns = {*schema.primary_key, *(key.column for key in schema.foreign_keys)}
    if taken := dropped & {*key_columns, settings.label, schema.time}:
        what = f"column {sorted(map(str, taken))[0]} of table {schema.name} is a key, a time or the label"
        raise InputError(what, where=database.where, fix="Do not drop it")
    reader = database.read(schema.name, dropped)
    place = {name: at for at, name in enumerate(reader.names)}
    references = {place[key.column]: key for key in schema.foreign_keys if key.table in names}
    found = Table(schema.name, role, reader, tuple(place[name] for name in schema.primary_key), references)
    for key in schema.foreign_keys:
        if key.table not in names:
            found.notes.append(
                f"{schema.name}.{key.column} refers to {key.table}, which is not among the tables: left out"
            )
    found.label = None if settings.label is None else place[settings.label]
    split = settings.split or (SPLIT if settings.label is not None and SPLIT in place else None)
    found.split = None if split is None else place[split]
    others = [at for name, at in place.items() if name not in key_columns and at not in (found.label, found.split)]
    found.time = _time_of(found, schema, settings, others)
    if may_ask and found.references and not [at for at in others if at != found.time]:
        found.role = "questions"
    if found.role != "rows":
        if strange := [found.column(at) for at in others if at != found.time]:
            found.notes.append(f"{schema.name}: not used, as these rows send no messages: {', '.join(strange)}")
        return found
    if absent := [each.column for each in known or () if each.column not in found.reader.names]:
        raise InputError(
            f"has no column '{absent[0]}', of which the other store has features",
            where=found.where,
            fix="Add it, filled or empty, or leave like out",
        )
    chosen: Encoder | Words | None
    for at in others:
        if known is not None:
            chosen = next((each for each in known if each.column == found.column(at)), None)
        else:
            chosen = encoder_for(reader, at, settings.columns.get(found.column(at)), found.where)
        if at == found.time and isinstance(chosen, Numbers):
            continue  # times to come are not among those that a model learns from; it reads ages
        if chosen is not None:
            found.encoders[at] = chosen
        elif at != found.time:
            found.notes.append(f"{schema.name}.{found.column(at)}: no features are made of it")
    if found.references and found.time is not None and not [at for at in others if at != found.time]:
        found.notes.append(
            f"{schema.name} holds keys and times only. If its rows are questions, or answers to some, they tell what "
            "is to be predicted: name the other tables with --tables"
        )
    return found


def _time_of(table: Table, schema: TableSchema, settings: TableSettings, others: Sequence[int]) -> int | None:
    """The column of times: as the user or the database says, or the only column of dates."""
    if settings.says_time or schema.time is not None:
        if schema.time is not None and schema.time not in table.reader.names:
            raise InputError(
                f"there is no column '{schema.time}'", where=table.where, fix=nearest(schema.time, schema.columns)
            )
        return None if schema.time is None else table.reader.names.index(schema.time)
    dates = [at for at in others if holds_dates(table.reader, at)]
    if len(dates) > 1:
        some = [table.column(at) for at in dates]
        raise InputError(
            f"{len(dates)} columns hold dates: {', '.join(some)}; which of them says from when on a row is there?",
            where=table.where,
            fix=f"Give --row-times {table.name}.{some[0]}, or time: {some[0]} (or null: always there) in a description",
        )
    return dates[0] if dates else None


def _check(tables: Mapping[str, Table], database: Database, description: Description) -> None:
    """See that keys lead somewhere, and that questions have times where rows have some."""
    for table in tables.values():
        for key in table.references.values():
            to = tables[key.table]
            if len(to.key) != 1 or (key.to is not None and key.to != to.column(to.key[0])):
                what = f"{table.name}.{key.column} refers to {key.table}.{key.to or 'its primary key'}, " + (
                    "which is not its primary key" if len(to.key) == 1 else "which has no primary key of one column"
                )
                fix = f"Name the column as the key of {key.table} in a description (key: COLUMN)"
                raise InputError(what, where=database.where, fix=fix)
            if to.role == "targets":
                what = f"{table.name}.{key.column} refers to {key.table}, whose rows are edges to be predicted"
                raise InputError(what, where=database.where, fix="Leave one of the tables out")
        if table.role == "targets" and len(table.references) != 2:
            raise InputError(
                f"has {len(table.references)} foreign keys to tables of the graph; targets have two: a question, and "
                "what answers it",
                where=table.where,
                fix="Name its references in a description",
            )
    timed = [table for table in tables.values() if table.role == "rows" and table.time is not None]
    for table in tables.values():
        if table.role == "questions" and table.time is None and timed:
            raise InputError(
                f"has no column of times, and the rows of {timed[0].name} have times",
                where=table.where,
                fix=f"Give --row-times {table.name}.COLUMN: when each question is asked",
            )
    if not any(table.references for table in tables.values()):
        raise InputError(
            "no foreign keys join the tables",
            where=database.where,
            fix="Name them in a description: tables, TABLE, references: {COLUMN: OTHER_TABLE}",
        )
