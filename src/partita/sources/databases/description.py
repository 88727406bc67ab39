"""What a user says of a database: which tables make the graph, and what their columns are.

Either options of the ingest say it, or a YAML file::

    database: shop.db
    tables:
      customers: {time: signed_up, columns: {note: drop, region: category}}
      purchases: {time: bought_at, references: {customer_id: customers, product_id: products}}
      products: {}
      churn: {time: asked, label: churned}
    unmatched_keys: skip

Paths are relative to the file. Without ``tables``, all tables of the database are meant, but no views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from partita.core.errors import ConfigError, InputError, nearest
from partita.sources.arrays import damage_of
from partita.sources.databases.columns import DROP, ENCODERS
from partita.sources.databases.schema import Database
from partita.sources.options import IngestOptions

_TOP = ("database", "tables", "unmatched_keys")
_TABLE = ("key", "references", "time", "label", "split", "columns", "targets")
_UNMATCHED = ("refuse", "skip")
_HERE = "A description has database, tables and unmatched_keys; see the page on relational databases"
OPTIONS = ("tables", "row_times", "targets")
"""The options of an ingest that are for databases only."""


@dataclass
class TableSettings:
    """What is said of a table.

    Attributes:
        key: the column of its primary key; ``None``: as declared.
        references: tables that columns refer to; ``None``: as declared.
        time: the column that says from when on a row is there, or when its question is asked; ``None``: none does.
        says_time: whether anything was said of that.
        label: the column that is to be predicted.
        split: the column that says which split a row is in.
        columns: kinds of columns, see :data:`partita.sources.databases.columns.ENCODERS`, or ``"drop"``.
        targets: its rows are links that are to be predicted: of questions to what answers them.
    """

    key: str | None = None
    references: dict[str, str] | None = None
    time: str | None = None
    says_time: bool = False
    label: str | None = None
    split: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    targets: bool = False


@dataclass
class Description:
    """What is said of a database.

    Attributes:
        where: who says it, for messages.
        tables: what is said of each; those that make the graph, where ``all_tables`` is not set.
        all_tables: all tables make the graph.
        skip_unmatched: values of foreign keys that are in no row are taken for empty ones.
    """

    where: str
    tables: dict[str, TableSettings] = field(default_factory=dict)
    all_tables: bool = True
    skip_unmatched: bool = False

    def of(self, table: str) -> TableSettings:
        """What is said of a table."""
        return self.tables.get(table) or TableSettings()

    def chosen(self, database: Database) -> list[str]:
        """The tables that make the graph, in the order of the database.

        Raises:
            InputError: a table that is named is not there.
        """
        known = database.tables
        for name in self.tables:
            if name not in known:
                fix = nearest(name, known)
                raise InputError(f"there is no table '{name}' in {database.where}", where=self.where, fix=fix)
        return [
            name
            for name, schema in known.items()
            if name in self.tables or (self.all_tables and not schema.view)
        ]  # fmt: skip


def of_options(options: IngestOptions, database: Database) -> Description:
    """What options of an ingest say.

    Raises:
        ConfigError: one of them names no column of a table.
    """
    found = Description("options")
    if options.tables is not None:
        found.all_tables = False
        found.tables = {name: TableSettings() for name in options.tables}

    def settings(name: str, option: str) -> tuple[TableSettings, str]:
        table, column = _column(name, option, database)
        return found.tables.setdefault(table, TableSettings()), column

    for name in options.row_times or ():
        of, of_time = settings(name, "row_times")
        of.time, of.says_time = of_time, True
    given = options.label_column
    labels = [] if given is None else [given] if isinstance(given, str | int) else list(given)
    if len(labels) > 1:
        fix = "Name one column, and ingest again for another"
        raise ConfigError(f"{len(labels)} columns of a database", where="label_column", fix=fix)
    for given_label in labels:
        of, label = settings(str(given_label), "label_column")
        of.label = label
    if options.split_column is not None:
        of, split = settings(str(options.split_column), "split_column")
        of.split = split
    for option, kind in (("drop_columns", DROP), ("categorical", "category")):
        for name in getattr(options, option) or ():
            of, column = settings(str(name), option)
            of.columns[column] = kind
    for name in options.targets or ():
        found.tables.setdefault(name, TableSettings()).targets = True
    return found


def of_file(path: Path, options: IngestOptions) -> tuple[Path, Description]:
    """The database that a YAML file names, and what the file says of it.

    Raises:
        InputError: it cannot be read, or says what is not understood.
        ConfigError: options say what should be in the file.
    """
    where = str(path)
    for name in (*OPTIONS, "label_column", "split_column", "drop_columns", "categorical"):
        if getattr(options, name) is not None:
            raise ConfigError(f"the tables are described by {where}", where=name, fix="Write it there")
    given = _mapping(_loaded(path), where, _TOP)
    database = given.get("database")
    if not isinstance(database, str):
        raise InputError("names no database", where=where, fix="Write database: FILE, relative to the description")
    found = Description(where, skip_unmatched=_one_of(given, "unmatched_keys", _UNMATCHED, where) == "skip")
    if "tables" in given:
        found.all_tables = False
        tables = _mapping(given["tables"], f"{where}, tables")
        found.tables = {name: _settings(each, f"{where}, tables, {name}") for name, each in tables.items()}
    return path.parent / database, found


def is_description(path: Path) -> bool:
    """Whether a YAML file describes a database."""
    if path.suffix.lower() not in (".yaml", ".yml") or not path.is_file():
        return False
    found = _loaded(path)
    return isinstance(found, dict) and "database" in found


def _loaded(path: Path) -> Any:
    with damage_of(str(path)):
        text = path.read_text(encoding="utf-8")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML ({' '.join(str(error).split())})", where=str(path)) from None


def _settings(given: Any, where: str) -> TableSettings:
    entry = _mapping({} if given is None else given, where, _TABLE)
    words = {
        name: _word(entry[name], f"{where}, {name}") for name in ("key", "time", "label", "split") if name in entry
    }
    columns = _words(entry.get("columns"), f"{where}, columns")
    for column, kind in columns.items():
        if kind not in (*ENCODERS, DROP):
            fix = nearest(kind, [*ENCODERS, DROP])
            raise InputError(f"'{kind}' is no kind of column", where=f"{where}, columns, {column}", fix=fix)
    references = None if "references" not in entry else _words(entry["references"], f"{where}, references")
    targets = entry.get("targets", False)
    if not isinstance(targets, bool):
        raise InputError(f"targets is '{targets}'", where=where, fix="Give true or false")
    return TableSettings(
        words.get("key"), references, words.get("time"), "time" in entry, words.get("label"), words.get("split"),
        columns, targets,
    )  # fmt: skip


def _column(name: str, option: str, database: Database) -> tuple[str, str]:
    """The table and the column that ``table.column`` means; tables may have dots in their names."""
    for table, schema in database.tables.items():
        if name.startswith(f"{table}.") and name.removeprefix(f"{table}.") in schema.columns:
            return table, name.removeprefix(f"{table}.")
    every = [f"{table}.{column}" for table, schema in database.tables.items() for column in schema.columns]
    raise ConfigError(f"'{name}' is no column of a table", where=option, fix=nearest(name, every))


def _mapping(value: Any, where: str, known: Sequence[str] = ()) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        what = f"holds {'nothing' if value is None else type(value).__name__}, not names with values"
        raise InputError(what, where=where, fix=_HERE)
    if known and (strange := [key for key in value if key not in known]):
        raise InputError(f"there is no '{strange[0]}' here", where=where, fix=nearest(str(strange[0]), known))
    return {str(key): each for key, each in value.items()}


def _words(value: Any, where: str) -> dict[str, str]:
    found = _mapping({} if value is None else value, where)
    return {name: str(_word(each, f"{where}, {name}")) for name, each in found.items()}


def _word(value: Any, where: str) -> str | None:
    if value is not None and not isinstance(value, str | int):
        raise InputError(f"is '{value}', not a name", where=where, fix="Write one name")
    return None if value is None else str(value)


def _one_of(given: Mapping[str, Any], name: str, choices: Sequence[str], where: str) -> str:
    value = given.get(name, choices[0])
    if value not in choices:
        raise InputError(f"{name} is '{value}'", where=where, fix=nearest(str(value), choices))
    return str(value)
