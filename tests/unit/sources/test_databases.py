"""Relational databases as typed graphs: rows beside what plain Python says of the same tables."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import partita
from partita.core.errors import ConfigError, InputError, PartitaError, StoreError
from partita.graph.times import ALWAYS
from partita.graph.verify import verify

NEVER = np.iinfo(np.int64).max
KINDS = ("sqlite", "duckdb", "folder")

# name -> columns with SQL types, primary key, foreign keys, time, rows
TABLES: dict[str, Any] = {
    "customers": (
        {"customer": "INTEGER", "joined": "TIMESTAMP", "segment": "VARCHAR", "age": "INTEGER"},
        "customer", {}, "joined",
        [(11, "2026-01-01", "new", 30), (5, "2026-01-02", "old", None), (7, "2026-02-01", "new", 50)],
    ),
    "products": (
        {"code": "VARCHAR", "price": "DOUBLE", "text": "VARCHAR"},
        "code", {}, None,
        [("b", 2.0, "a red ball"), ("a", 4.0, "A ball; blue"), ("c", 9.0, None)],
    ),
    "purchases": (
        {"number": "INTEGER", "who": "INTEGER", "what": "VARCHAR", "at": "TIMESTAMP", "count": "INTEGER"},
        "number", {"who": "customers", "what": "products"}, "at",
        [
            (100, 11, "a", "2026-01-05 12:00:00", 1), (101, 5, "b", "2026-01-10 00:00:00", 2),
            (102, 11, None, "2026-02-10 06:30:00", 300), (103, 7, "c", "2026-03-01 18:00:00", 4),
        ],
    ),
    "asked": (
        {"question": "INTEGER", "who": "INTEGER", "day": "TIMESTAMP", "back": "INTEGER"},
        "question", {"who": "customers"}, "day",
        [(0, 11, "2026-01-20", 1), (1, 5, "2026-01-20", 0), (2, 11, "2026-02-20", 0), (3, 7, "2026-03-20", None)],
    ),
    "next": (
        {"question": "INTEGER", "code": "VARCHAR"},
        None, {"question": "asked", "code": "products"}, None,
        [(0, "b"), (0, "c"), (2, "a")],
    ),
}  # fmt: skip
GRAPH = ("customers", "products", "purchases")


def statements(tables: dict[str, Any]) -> list[tuple[str, str, list[tuple[Any, ...]]]]:
    found = []
    for name, (columns, key, foreign, _, rows) in tables.items():
        parts = [f'"{column}" {kind}' for column, kind in columns.items()]
        parts += [f'PRIMARY KEY ("{key}")'] if key else []
        parts += [f'FOREIGN KEY ("{column}") REFERENCES "{to}" ("{tables[to][1]}")' for column, to in foreign.items()]
        marks = ", ".join("?" * len(columns))
        found.append((f'CREATE TABLE "{name}" ({", ".join(parts)})', f'INSERT INTO "{name}" VALUES ({marks})', rows))
    return found


def write_sqlite(path: Path, tables: dict[str, Any] = TABLES, *more: str) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for create, insert, rows in statements(tables):
            connection.execute(create)
            connection.executemany(insert, rows)
        for each in more:
            connection.execute(each)
    return path


def write_duckdb(path: Path, tables: dict[str, Any] = TABLES, *more: str) -> Path:
    duckdb = pytest.importorskip("duckdb")
    with closing(duckdb.connect(str(path))) as connection:
        for create, insert, rows in statements(tables):
            connection.execute(create)
            connection.executemany(insert, rows)
        for each in more:
            connection.execute(each)
    return path


def arrow(name: str, tables: dict[str, Any] = TABLES) -> pa.Table:
    columns, key, foreign, time, rows = tables[name]
    types = {"INTEGER": pa.int64(), "DOUBLE": pa.float64(), "VARCHAR": pa.string(), "TIMESTAMP": pa.timestamp("us")}
    arrays = []
    for at, kind in enumerate(columns.values()):
        cells = pa.array([row[at] for row in rows], pa.string() if kind == "TIMESTAMP" else types[kind])
        arrays.append(cells.cast(types[kind]))
    said = {"pkey_col": key, "fkey_col_to_pkey_table": foreign, "time_col": time}
    return pa.table(arrays, names=list(columns)).replace_schema_metadata(
        {each: json.dumps(value) for each, value in said.items()}
    )


def write_folder(path: Path, tables: dict[str, Any] = TABLES) -> Path:
    path.mkdir()
    for name in tables:
        pq.write_table(arrow(name, tables), path / f"{name}.parquet")
    return path


WRITE = {"sqlite": write_sqlite, "duckdb": write_duckdb, "folder": write_folder}


def ingested(source: Any, tmp_path: Path, name: str = "store", **options: Any) -> partita.GraphStore:
    partita.ingest(source, tmp_path / name, **{"split": None, "tables": [*GRAPH], **options})
    return partita.GraphStore.open(tmp_path / name)


def micro(text: str) -> int:
    return int(np.datetime64(text, "us").astype(np.int64))


def named_edges(store: partita.GraphStore) -> dict[str, list[tuple[str, str, int]]]:
    names, dst = store.names(), np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    found: dict[str, list[tuple[str, str, int]]] = {str(each): [] for each in store.schema.relations}
    for u, v, kind, time in zip(store.indices, dst, store.edge_type, store.held("edge_time")[0]):
        found[str(store.schema.relations[kind])].append((str(names[u]), str(names[v]), int(time)))
    return {name: sorted(edges) for name, edges in found.items()}


def features(store: partita.GraphStore, kind: str) -> np.ndarray:
    return np.asarray(store.x_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_nodes_and_keys_are_edges(kind: str, tmp_path: Path) -> None:
    source = WRITE[kind](tmp_path / f"shop.{kind}")
    store = ingested(source, tmp_path, label_column=["asked.back"], targets=["next"])
    schema = store.schema
    sizes = {"customers": 3, "products": 3, "purchases": 4, "asked": 4}
    assert dict(zip(schema.node_types, schema.num_nodes)) == {name: sizes[name] for name in schema.node_types}
    edges = named_edges(store)
    at = {str(row[0]): micro(row[3]) for row in TABLES["purchases"][4]}
    joined = {str(row[0]): micro(row[1]) for row in TABLES["customers"][4]}
    bought = [(str(row[0]), str(row[1])) for row in TABLES["purchases"][4]]
    assert edges["purchases:who:customers"] == sorted((row, who, at[row]) for row, who in bought)
    assert edges["customers:rev_who:purchases"] == sorted((who, row, joined[who]) for row, who in bought)
    of = [(str(row[0]), row[2], at[str(row[0])]) for row in TABLES["purchases"][4] if row[2] is not None]
    assert edges["purchases:what:products"] == sorted(of)
    assert edges["products:rev_what:purchases"] == sorted((what, row, ALWAYS) for row, what, _ in of)
    asked = [(str(row[1]), str(row[0]), joined[str(row[1])]) for row in TABLES["asked"][4]]
    assert edges["customers:rev_who:asked"] == sorted(asked)
    assert edges["asked:next:products"] == [(str(q), code, NEVER) for q, code in TABLES["next"][4]]
    assert set(edges) == {
        "purchases:who:customers", "customers:rev_who:purchases", "purchases:what:products",
        "products:rev_what:purchases", "customers:rev_who:asked", "asked:next:products",
    }  # fmt: skip  # questions send nothing but what is to be predicted
    first, last = schema.first_nodes[schema.type_number("asked") :][:2]
    assert store.seed_time[first:last].tolist() == [micro(row[2]) for row in TABLES["asked"][4]]
    assert (np.delete(store.seed_time, np.s_[first:last]) == ALWAYS).all()
    assert store.y[first:last].tolist() == [1, 0, 0, -1] or store.y[first:last].max() == 1
    assert (np.delete(store.y, np.s_[first:last]) < 0).all()
    verify(tmp_path / "store")


def test_all_kinds_of_databases_become_the_same_store(tmp_path: Path) -> None:
    stores = []
    for kind in KINDS:
        source = WRITE[kind](tmp_path / f"shop.{kind}")
        given = f"{kind}:{source}" if kind != "folder" else source
        options = {"label_column": ["asked.back"], "split_times": ["2026-02-01", "2026-03-01"]}
        stores.append(ingested(given, tmp_path, f"store-{kind}", **options))
    first = stores[0]
    for other in stores[1:]:
        assert named_edges(other) == named_edges(first)
        for name in first.schema.node_types:
            if first.x_of(name) is not None:
                wanted = dict(zip(names_of(first, name), features(first, name).tolist()))
                found = dict(zip(names_of(other, name), features(other, name).tolist()))
                assert found.keys() == wanted.keys()
                assert all(found[key] == pytest.approx(wanted[key]) for key in wanted)
        assert {
            split: sorted(str(other.names()[node]) for node in nodes) for split, nodes in other.splits.items()
        } == {"train": ["0", "1"], "val": ["2"], "test": []}  # fmt: skip


def names_of(store: partita.GraphStore, kind: str) -> list[str]:
    number = store.schema.type_number(kind)
    first, last = store.schema.first_nodes[number : number + 2]
    return [str(name) for name in store.names()[first:last]]


def test_columns_are_counted_before_the_time_of_validation(tmp_path: Path) -> None:
    source = write_sqlite(tmp_path / "shop.db")
    store = ingested(source, tmp_path, label_column=["asked.back"], split_times=["2026-02-01", "2026-03-01"])
    note = store.metadata.notes["database"]
    count = next(each for each in note["purchases"]["columns"] if each["column"] == "count")
    assert (count["count"], count["mean"]) == (2, 1.5)  # not the 300 of February
    at = [each["column"] for each in note["purchases"]["columns"]].index("count")
    place = sum(len(_names(each)) for each in note["purchases"]["columns"][:at])
    found = dict(zip(names_of(store, "purchases"), features(store, "purchases")[:, place]))
    assert found == pytest.approx({"100": -1, "101": 1, "102": (300 - 1.5) / 0.5, "103": 5})
    age = next(each for each in note["customers"]["columns"] if each["column"] == "age")
    assert (age["mean"], age["gaps"]) == (30, True)  # of those who joined before


def _names(column: dict[str, Any]) -> list[str]:
    from partita.sources.databases.columns import from_json

    return from_json([column], "here")[0].names


def test_all_rows_count_where_no_time_divides_them(tmp_path: Path) -> None:
    store = ingested(write_sqlite(tmp_path / "shop.db"), tmp_path)
    note = store.metadata.notes["database"]
    price = next(each for each in note["products"]["columns"] if each["column"] == "price")
    assert price["mean"] == pytest.approx(5)


def test_the_same_for_another_database(tmp_path: Path) -> None:
    first = ingested(write_sqlite(tmp_path / "shop.db"), tmp_path, label_column=["asked.back"])
    tables = {name: (*table[:4], list(table[4])) for name, table in TABLES.items()}
    tables["products"][4][2] = ("c", 1e6, "another text")
    tables["customers"][4].append((99, "2026-01-01", "unheard of", 20))
    source = write_sqlite(tmp_path / "other.db", tables)
    other = ingested(source, tmp_path, "other", label_column=["asked.back"], like=tmp_path / "store")
    assert other.metadata.notes["database"] == first.metadata.notes["database"]
    assert np.array_equal(features(other, "products")[:2], features(first, "products")[:2])
    assert np.array_equal(features(other, "customers")[:3], features(first, "customers")[:3])
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("ALTER TABLE products DROP COLUMN price")
    with pytest.raises(
        InputError, match="table products: has no column 'price', of which the other store has features"
    ):
        ingested(source, tmp_path, "fewer", label_column=["asked.back"], like=tmp_path / "store")
    partita.ingest({"edge_index": np.array([[0], [1]])}, tmp_path / "plain")
    with pytest.raises(StoreError, match="was not made of a database"):
        ingested(source, tmp_path, "third", like=tmp_path / "plain")


def test_an_index_does_not_change_the_order_of_rows(tmp_path: Path) -> None:
    plain = ingested(write_sqlite(tmp_path / "plain.db"), tmp_path, "plain")
    more = ('CREATE INDEX i ON purchases ("what", "who")', 'CREATE INDEX j ON purchases ("who")')
    indexed = ingested(write_sqlite(tmp_path / "indexed.db", TABLES, *more), tmp_path, "indexed")
    assert named_edges(indexed) == named_edges(plain)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_tables_of_other_forms(kind: str, tmp_path: Path) -> None:
    tables = {
        "people": ({"id": "INTEGER", "boss": "INTEGER"}, "id", {"boss": "people"}, None, [(3, None), (1, 3), (2, 3)]),
        "notes": ({"who": "INTEGER", "size": "DOUBLE"}, None, {"who": "people"}, None, [(1, 1.0), (1, 3.0), (2, 2.0)]),
    }
    view = "CREATE VIEW seen AS SELECT who, who * 2 AS twice FROM notes WHERE size > 1"
    source = WRITE[kind](tmp_path / "db", tables, view)
    store = ingested(source, tmp_path, tables=None)
    found = {name: [edge[:2] for edge in edges] for name, edges in plain_edges(store).items()}
    assert found == {
        "people:boss:people": [("1", "3"), ("2", "3")], "people:rev_boss:people": [("3", "1"), ("3", "2")],
        "notes:who:people": [("0", "1"), ("1", "1"), ("2", "2")],  # rows without a key have numbers
        "people:rev_who:notes": [("1", "0"), ("1", "1"), ("2", "2")],
    }  # fmt: skip
    (tmp_path / "schema.yaml").write_text(
        "database: db\ntables:\n  people: {references: {boss: people}}\n  seen: {references: {who: people}}\n"
    )
    viewed = plain_edges(ingested(tmp_path / "schema.yaml", tmp_path, "viewed", tables=None))
    assert viewed["seen:who:people"] == [("0", "1"), ("1", "2")]


def plain_edges(store: partita.GraphStore) -> dict[str, list[tuple[str, str]]]:
    names, dst = store.names(), np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    found: dict[str, list[tuple[str, str]]] = {str(each): [] for each in store.schema.relations}
    for u, v, kind in zip(store.indices, dst, store.edge_type):
        found[str(store.schema.relations[kind])].append((str(names[u]), str(names[v])))
    return {name: sorted(edges) for name, edges in found.items()}


def test_keys_of_several_columns_and_tables_without_rowid(tmp_path: Path) -> None:
    source = tmp_path / "db"
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.executescript("""
            CREATE TABLE a (id TEXT PRIMARY KEY) WITHOUT ROWID;
            CREATE TABLE b (x TEXT, y INTEGER, a TEXT REFERENCES a (id), z REAL, PRIMARY KEY (x, y)) WITHOUT ROWID;
            INSERT INTO a VALUES ('q'), ('p');
            INSERT INTO b VALUES ('k', 2, 'p', 1), ('k', 1, 'q', 2), ('j', 1, 'q', 3);
        """)
    found = plain_edges(ingested(source, tmp_path, tables=None))
    assert found["b:a:a"] == [("j, 1", "q"), ("k, 1", "q"), ("k, 2", "p")]


def test_csv_files_with_a_description(tmp_path: Path) -> None:
    wanted = ingested(write_sqlite(tmp_path / "shop.db"), tmp_path)
    (tmp_path / "tables").mkdir()
    for name in GRAPH:
        pyarrow.csv.write_csv(arrow(name), tmp_path / "tables" / f"{name}.csv")
    (tmp_path / "shop.yaml").write_text("""
        database: tables
        tables:
          customers: {key: customer, time: joined}
          products: {key: code}
          purchases: {key: number, time: at, references: {who: customers, what: products}}
    """)
    found = ingested(tmp_path / "shop.yaml", tmp_path, "csv", tables=None)
    assert named_edges(found) == named_edges(wanted)
    for name in GRAPH:
        order = [names_of(found, name).index(each) for each in names_of(wanted, name)]
        assert features(found, name)[order] == pytest.approx(features(wanted, name))


def test_a_description_says_what_columns_are(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "shop.db")
    (tmp_path / "shop.yaml").write_text("""
        database: shop.db
        tables:
          customers: {time: null, columns: {age: category, joined: drop}}
          purchases: {time: at, columns: {count: drop}, references: {who: customers}}
          asked: {time: day, label: back}
    """)
    store = ingested(tmp_path / "shop.yaml", tmp_path, tables=None)
    note = store.metadata.notes["database"]
    kinds = {each["column"]: each["kind"] for each in note["customers"]["columns"]}
    assert kinds == {"segment": "category", "age": "category"}
    assert {each["column"] for each in note["purchases"]["columns"]} == {"at"} | {"what"}
    assert note["asked"]["role"] == "questions"
    assert store.schema.node_types == ("customers", "purchases", "asked")


@pytest.mark.parametrize(
    ("label", "cells", "task", "values"),
    [
        ("INTEGER", [1, 0, None, 1], "classes", [1, 0, -1, 1]),
        ("INTEGER", [1, -1, None, 1], "classes", [1, 0, -1, 1]),  # -1 is a class here
        ("VARCHAR", ["yes", "no", "", "yes"], "classes", [1, 0, -1, 1]),
        ("DOUBLE", [0.5, -1.0, 2.5, 7.0], "regression", [0.5, -1.0, 2.5, 7.0]),
    ],
)
def test_labels(label: str, cells: list[Any], task: str, values: list[float], tmp_path: Path) -> None:
    columns, key, foreign, time, rows = TABLES["asked"]
    rows = [(*row[:3], cell) for row, cell in zip(rows, cells)]
    tables = {**TABLES, "asked": ({**columns, "back": label}, key, foreign, time, rows)}
    del tables["next"]
    store = ingested(write_sqlite(tmp_path / "shop.db", tables), tmp_path, label_column=["asked.back"])
    first = store.schema.first_nodes[store.schema.type_number("asked")]
    assert store.metadata.task == task
    found = np.asarray(store.y[first : first + 4])
    assert np.where(found < -1e9, -1, found).tolist() == values


def test_a_label_of_rows_that_others_refer_to(tmp_path: Path) -> None:
    store = ingested(write_sqlite(tmp_path / "shop.db"), tmp_path, label_column=["customers.segment"])
    note = store.metadata.notes["database"]
    assert note["customers"]["role"] == "rows"
    assert "segment" not in {each["column"] for each in note["customers"]["columns"]}
    assert "seed_time" not in store.metadata.columns
    assert store.seed_time is not None  # the time of the row itself
    assert store.metadata.class_names == ("new", "old")


# Bad input


def changed(name: str, *, columns: Any = None, key: Any = ..., foreign: Any = None, rows: Any = None) -> dict[str, Any]:
    old = TABLES[name]
    new = (
        columns or old[0],
        old[1] if key is ... else key,
        old[2] if foreign is None else foreign,
        old[3],
        rows or old[4],
    )
    return {**TABLES, name: new}


BAD: dict[str, tuple[Any, dict[str, Any], type[PartitaError], list[str]]] = {
    "a key of no row": (
        changed("purchases", rows=[(100, 11, "a", "2026-01-05", 1), (101, 999, "b", "2026-01-06", 2)]), {},
        InputError, ["table purchases, row 1 (from 0), column who", "no row of customers has the key 999", "skip"],
    ),
    "a key twice": (
        changed("purchases", key=None, rows=[(1, 11, "a", "2026-01-05", 1), (1, 5, "b", "2026-01-06", 2)]),
        {"yaml": "purchases: {key: number, time: at}\n  customers: {time: joined}\n  products: {}"},
        InputError, ["column number", "the key 1 is there twice"],
    ),
    "two columns of dates": (
        changed("customers", columns={**TABLES["customers"][0], "segment": "DATE"},
                rows=[(11, "2026-01-01", "2026-01-01", 3)]),
        {"tables": ["customers", "purchases"]}, InputError, ["joined, segment", "--row-times customers.joined"],
    ),
    "no table of this name": (
        TABLES, {"tables": ["customers", "purchase"]}, InputError, ["no table 'purchase'", "purchases"],
    ),
    "no column of this name": (TABLES, {"label_column": ["asked.bock"]}, ConfigError, ["'asked.bock'", "asked.back"]),
    "two labels": (TABLES, {"label_column": ["asked.back", "asked.day"]}, ConfigError, ["2 columns"]),
    "no keys": (TABLES, {"tables": ["products"]}, InputError, ["no foreign keys join the tables", "references"]),
    "numbers that are text": (
        changed("products", rows=[("a", 1.0, "x"), ("b", "n/a", "y")]), {},
        InputError, ["table products, column price", "is declared DOUBLE and holds text", "n/a"],
    ),
    "targets with one key": (TABLES, {"targets": ["asked"]}, InputError, ["1 foreign keys", "targets have two"]),
    "no time for questions": (
        changed("asked", columns={"question": "INTEGER", "who": "INTEGER", "day": "INTEGER", "back": "INTEGER"},
                rows=[(0, 11, 3, 1)]),
        {"yaml": "customers: {time: joined}\n  asked: {time: null, label: back, columns: {day: drop}}"},
        InputError, ["table asked", "no column of times"],
    ),
    "a time that is a key": (
        TABLES, {"yaml": "customers: {columns: {customer: drop}}\n  purchases: {}"},
        InputError, ["customer", "is a key"],
    ),
    "no such kind of column": (
        TABLES, {"yaml": "customers: {columns: {age: numbr}}\n  purchases: {}"}, InputError, ["'numbr'", "number"],
    ),
    "split times without times": (
        TABLES, {"yaml": "customers: {time: null}\n  purchases: {time: null}", "split_times": ["1", "2"]},
        ConfigError, ["no table has a column of times"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, tmp_path: Path) -> None:
    tables, options, kind, said = BAD[case]
    source = write_sqlite(tmp_path / "shop.db", tables)
    options = dict(options)
    if text := options.pop("yaml", None):
        source, options["tables"] = tmp_path / "shop.yaml", None
        source.write_text(f"database: shop.db\ntables:\n  {text}\n")
    with pytest.raises(kind) as error:
        ingested(source, tmp_path, **options)
    for each in said:
        assert each in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix not in (".db", ".yaml")) == []


def test_keys_of_no_row_are_skipped_where_the_user_says_so(tmp_path: Path) -> None:
    rows = [(100, 11, "a", "2026-01-05", 1), (101, 999, "b", "2026-01-06", 2)]
    write_sqlite(tmp_path / "shop.db", changed("purchases", rows=rows))
    tables = "{customers: {}, products: {}, purchases: {}}"
    (tmp_path / "shop.yaml").write_text(f"database: shop.db\ntables: {tables}\nunmatched_keys: skip\n")
    summary = partita.ingest(tmp_path / "shop.yaml", tmp_path / "store")
    assert "1 values of purchases.who are keys of no row, taken for empty cells" in " ".join(summary.notes)
    store = partita.GraphStore.open(tmp_path / "store")
    assert [edge[:2] for edge in named_edges(store)["purchases:who:customers"]] == [("100", "11")]


def test_a_foreign_key_to_another_column_than_the_primary_key(tmp_path: Path) -> None:
    source = tmp_path / "db"
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.executescript("""
            CREATE TABLE a (id INTEGER PRIMARY KEY, mail TEXT UNIQUE);
            CREATE TABLE b (id INTEGER PRIMARY KEY, mail TEXT REFERENCES a (mail));
            INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1, 'x');
        """)
    with pytest.raises(InputError, match=r"b\.mail refers to a\.mail, which is not its primary key"):
        ingested(source, tmp_path, tables=None)
    (tmp_path / "d.yaml").write_text("database: db\ntables: {a: {key: mail}, b: {}}")
    assert plain_edges(ingested(tmp_path / "d.yaml", tmp_path, tables=None))["b:mail:a"] == [("1", "x")]


def test_a_foreign_key_of_two_columns(tmp_path: Path) -> None:
    source = tmp_path / "db"
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("CREATE TABLE a (x INTEGER, y INTEGER, PRIMARY KEY (x, y))")
        connection.execute("CREATE TABLE b (x INTEGER, y INTEGER, FOREIGN KEY (x, y) REFERENCES a (x, y))")
    with pytest.raises(InputError, match=r"the foreign key \(x, y\) of table b has several columns"):
        ingested(source, tmp_path, tables=None)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    source = WRITE[kind](tmp_path / "db")
    good = source.read_bytes()
    source.write_bytes(good[:100] + bytes(1000) + good[1100:] if kind == "sqlite" else good[:10_000])
    with pytest.raises(InputError, match="database of"):
        ingested(source, tmp_path)
    source.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError):
        ingested(f"{kind}:{source}", tmp_path)
    with pytest.raises(InputError, match="no such"):
        ingested(f"{kind}:{tmp_path / 'absent'}", tmp_path)
    assert not (tmp_path / "store").exists()


def test_without_the_package_of_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_duckdb(tmp_path / "db")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match="pip install duckdb"):
        ingested(source, tmp_path)


def test_options_of_databases_are_for_databases(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="is for relational databases"):
        partita.ingest(tmp_path / "edges.csv", tmp_path / "store", tables=["a"])
    write_sqlite(tmp_path / "shop.db")
    (tmp_path / "d.yaml").write_text("database: shop.db\n")
    with pytest.raises(ConfigError, match="the tables are described by"):
        partita.ingest(tmp_path / "d.yaml", tmp_path / "store", row_times=["asked.day"])


def test_times_that_are_numbers_are_no_features(tmp_path: Path) -> None:
    tables = {
        "a": ({"id": "INTEGER", "size": "DOUBLE"}, "id", {}, None, [(1, 1.0), (2, 2.0)]),
        "b": (
            {"id": "INTEGER", "a": "INTEGER", "day": "INTEGER", "size": "DOUBLE"}, "id", {"a": "a"}, None,
            [(1, 1, 10, 0.5), (2, 1, 20, 1.5)],
        ),
    }  # fmt: skip
    store = ingested(write_sqlite(tmp_path / "db", tables), tmp_path, tables=None, row_times=["b.day"])
    assert [each["column"] for each in store.metadata.notes["database"]["b"]["columns"]] == ["size"]
    assert sorted(store.node_time.tolist()) == [ALWAYS, ALWAYS, 10, 20]


def test_a_table_that_may_be_of_questions_is_told(tmp_path: Path) -> None:
    tables = {name: table for name, table in TABLES.items() if name in GRAPH}
    tables["visits"] = (
        {"number": "INTEGER", "who": "INTEGER", "day": "TIMESTAMP"}, "number", {"who": "customers"}, "day",
        [(1, 11, "2026-01-05"), (2, 5, "2026-01-06")],
    )  # fmt: skip
    source = write_sqlite(tmp_path / "shop.db", tables)
    every = partita.ingest(source, tmp_path / "every").notes
    some = partita.ingest(source, tmp_path / "some", tables=list(GRAPH)).notes
    assert [note for note in every if "visits holds keys and times only" in note]
    assert not [note for note in some if "keys and times only" in note]


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    for kind in ("sqlite", "duckdb"):
        source = WRITE[kind](tmp_path / kind)
        before = source.read_bytes()
        ingested(source, tmp_path, f"store-{kind}")
        assert source.read_bytes() == before
        assert sorted(path.name for path in tmp_path.glob(f"{kind}*")) == [kind]  # no journal is left
