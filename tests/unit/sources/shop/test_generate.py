"""A generated shop: sound tables in every format, answers that follow from purchases, and rules that can be found."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pyarrow.parquet as pq
import pytest

from partita.cli.main import main
from partita.core.errors import ConfigError, ResourceError
from partita.sources.shop.business import Business
from partita.sources.shop.generate import generate_shop
from partita.sources.shop.options import ShopOptions
from partita.sources.shop.tables import TABLES, question_days, split_times

SMALL = {"num_customers": 60, "num_products": 30, "days": 200}
KINDS = ("shop.db", "shop.duckdb", "shop")


def rows_of(path) -> dict[str, list[tuple]]:
    """All rows of all tables, in order, with times as text."""
    if path.suffix == ".db":
        with closing(sqlite3.connect(path)) as database:
            return {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}
    if path.suffix == ".duckdb":
        duckdb = pytest.importorskip("duckdb")
        with closing(duckdb.connect(str(path), read_only=True)) as database:
            found = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}
    else:
        tables = {name: pq.read_table(path / f"{name}.parquet").columns for name in TABLES}
        found = {name: list(zip(*(each.to_pylist() for each in columns))) for name, columns in tables.items()}
    return {
        name: [tuple(str(cell) if hasattr(cell, "year") else cell for cell in row) for row in rows]
        for name, rows in found.items()
    }


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return generate_shop(tmp_path_factory.mktemp("shop") / "shop.db", **SMALL)


@pytest.fixture
def database(shop):
    with closing(sqlite3.connect(shop.path)) as found:
        yield found


def test_every_kind_of_database_has_the_same_rows(shop, tmp_path):
    expected = rows_of(shop.path)
    assert {name: len(rows) for name, rows in expected.items()} == shop.rows
    assert min(shop.rows.values()) > 0
    for kind in KINDS:
        if kind == "shop.duckdb":
            pytest.importorskip("duckdb")
        again = generate_shop(tmp_path / "new" / kind, **SMALL)
        assert rows_of(again.path) == expected, kind
        assert (again.rows, again.split_times) == (shop.rows, shop.split_times)
    other = rows_of(generate_shop(tmp_path / "other.sqlite", **SMALL, seed=1).path.rename(tmp_path / "other.db"))
    assert all(other[name] != expected[name] for name in TABLES)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_how_many_are_written_together(shop, tmp_path, monkeypatch, kind):
    """DuckDB checks keys when rows are written: what they refer to is there before."""
    if kind == "shop.duckdb":
        pytest.importorskip("duckdb")
    monkeypatch.setattr("partita.sources.shop.write._AT_ONCE", 100)
    assert rows_of(generate_shop(tmp_path / kind, **SMALL).path) == rows_of(shop.path)


def test_keys_are_declared_and_valid(database):
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    for name, table in TABLES.items():
        columns = database.execute(f"PRAGMA table_info({name})").fetchall()
        assert tuple(row[1] for row in columns) == tuple(table.columns)
        assert tuple(row[1] for row in sorted(columns, key=lambda row: row[5]) if row[5]) == table.key
        declared = {row[3]: (row[2], row[4]) for row in database.execute(f"PRAGMA foreign_key_list({name})")}
        assert declared == {each: (other, TABLES[other].key[0]) for each, other in table.refers.items()}
        assert {row[1] for row in columns if not row[3]} == set(table.gaps)
        counted = "SELECT COUNT(*), COUNT(DISTINCT " + " || '-' || ".join(table.key) + f") FROM {name}"
        (rows, distinct) = database.execute(counted).fetchone()
        assert rows == distinct


def test_keys_in_duckdb_are_declared(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = generate_shop(tmp_path / "shop.duckdb", **SMALL).path
    with closing(duckdb.connect(str(path), read_only=True)) as database:
        found = database.execute(
            "SELECT table_name, constraint_type, constraint_column_names, referenced_table FROM duckdb_constraints() "
            "WHERE constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')"
        ).fetchall()
    expected = [(name, "PRIMARY KEY", list(table.key), None) for name, table in TABLES.items()]
    for name, table in TABLES.items():
        expected += [(name, "FOREIGN KEY", [column], other) for column, other in table.refers.items()]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_parquet_files_say_keys_and_times_as_relbench_does(tmp_path):
    path = generate_shop(tmp_path / "shop", **SMALL).path
    assert sorted(os.listdir(path)) == sorted(f"{name}.parquet" for name in TABLES)
    schemas = {name: pq.read_schema(path / f"{name}.parquet") for name in TABLES}
    said = {
        name: {key.decode(): json.loads(value) for key, value in schema.metadata.items()}
        for name, schema in schemas.items()
    }
    assert said["purchases"] == {
        "pkey_col": "purchase_id",
        "fkey_col_to_pkey_table": {"customer_id": "customers", "product_id": "products"},
        "time_col": "bought_at",
    }
    assert said["next_items"]["pkey_col"] is None
    assert said["next_items"]["time_col"] is None
    assert said["customers"]["fkey_col_to_pkey_table"] == {}


def test_nothing_happens_before_it_can(database):
    for table, time in (("purchases", "bought_at"), ("reviews", "written_at")):
        (early,) = database.execute(
            f"SELECT COUNT(*) FROM {table} JOIN customers USING (customer_id) JOIN products USING (product_id) "
            f"WHERE {time} <= signed_up OR {time} <= introduced"
        ).fetchone()
        assert early == 0
    (unbought,) = database.execute(
        "SELECT COUNT(*) FROM reviews r WHERE NOT EXISTS (SELECT * FROM purchases p "
        "WHERE p.customer_id = r.customer_id AND p.product_id = r.product_id AND p.bought_at < r.written_at)"
    ).fetchone()
    assert unbought == 0
    times = [time for (time,) in database.execute("SELECT bought_at FROM purchases ORDER BY purchase_id")]
    assert times == sorted(times)
    assert times[-1] < "2024-07-19"  # 200 days


def test_answers_are_those_of_plain_sql(database):
    days = [f"2024-01-01 00:00:00|+{day} days" for day in question_days(SMALL["days"])]
    asked = " UNION ALL ".join(
        f"SELECT datetime('{first}', '{days}') AS asked" for first, days in (day.split("|") for day in days)
    )
    expected = database.execute(
        f"WITH questions AS ({asked}) SELECT customer_id, asked, NOT EXISTS (SELECT * FROM purchases p "
        "WHERE p.customer_id = c.customer_id AND bought_at > asked AND bought_at <= datetime(asked, '+30 days')) "
        "FROM questions, customers c WHERE EXISTS (SELECT * FROM purchases p WHERE p.customer_id = c.customer_id "
        "AND bought_at > datetime(asked, '-90 days') AND bought_at <= asked) ORDER BY asked, customer_id"
    ).fetchall()
    assert database.execute("SELECT customer_id, asked, churned FROM churn ORDER BY question_id").fetchall() == expected
    assert {churned for _, _, churned in expected} == {0, 1}
    expected = database.execute(
        "SELECT DISTINCT customer_id, asked, product_id FROM churn JOIN purchases USING (customer_id) "
        "WHERE bought_at > asked AND bought_at <= datetime(asked, '+30 days') ORDER BY asked, customer_id, product_id"
    ).fetchall()
    found = database.execute(
        "SELECT customer_id, asked, product_id FROM next_purchases JOIN next_items USING (question_id) "
        "ORDER BY question_id, product_id"
    ).fetchall()
    assert found == expected
    (empty,) = database.execute(
        "SELECT COUNT(*) FROM next_purchases WHERE question_id NOT IN (SELECT question_id FROM next_items)"
    ).fetchone()
    assert empty == 0


def test_the_last_two_times_are_for_validation_and_tests(shop, database):
    asked = [time[:10] for (time,) in database.execute("SELECT DISTINCT asked FROM churn ORDER BY asked")]
    assert len(asked) == 3
    assert tuple(asked[-2:]) == shop.split_times == split_times(200)
    with pytest.raises(ConfigError, match="days"):
        generate_shop(shop.path.parent / "short.db", days=179)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_shop_leaves_nothing(tmp_path, monkeypatch, kind, error):
    if kind == "shop.duckdb":
        pytest.importorskip("duckdb")
    days = Business.days

    def stopped(self):
        for day, found in enumerate(days(self)):
            if day == 20:
                raise error
            yield found

    monkeypatch.setattr(Business, "days", stopped)
    with pytest.raises(error):
        generate_shop(tmp_path / kind, **SMALL)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_shop_is_replaced(tmp_path, kind):
    if kind == "shop.duckdb":
        pytest.importorskip("duckdb")
    path = generate_shop(tmp_path / kind, **SMALL).path
    with pytest.raises(ConfigError, match="already exists"):
        generate_shop(path, **SMALL)
    generate_shop(path, **SMALL, seed=1, overwrite=True)
    assert os.listdir(tmp_path) == [kind]
    if path.is_dir():
        (path / "mine.txt").write_text("a")
    else:
        path.write_text("a")
    with pytest.raises(ConfigError, match="not a generated shop"):
        generate_shop(path, **SMALL, overwrite=True)


def test_what_is_no_database_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"'\.csv' is the ending of no database"):
        generate_shop(tmp_path / "shop.csv")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match="pip install duckdb"):
        generate_shop(tmp_path / "shop.duckdb")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    connect = sqlite3.connect

    def small(*arguments, **options):
        database = connect(*arguments, **options)
        database.execute("PRAGMA max_page_count = 20")
        return database

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(ResourceError, match=r"shop\.db: the database cannot be written: database or disk is full"):
        generate_shop(tmp_path / "shop.db", **SMALL)
    assert os.listdir(tmp_path) == []


def test_the_command(tmp_path, capsys):
    arguments = ["--customers", "50", "--products", "20", "--days", "180"]
    for options in ([], ["--overwrite", "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["generate", "shop", str(tmp_path / "shop.db"), *arguments, *options])
        assert ended.value.code == 0
        printed = capsys.readouterr().out
        if not options:
            assert "--split-times 2024-04-30,2024-05-30" in printed
    found = json.loads(printed)
    assert found["split_times"] == ["2024-04-30", "2024-05-30"]
    assert found["rows"] == {name: len(rows) for name, rows in rows_of(tmp_path / "shop.db").items()}


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve; equal scores are in any order."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    positive = int(labels.sum())
    return (ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))


def test_who_knows_everything_foresees_most_and_recency_little():
    business, days = Business(ShopOptions(num_customers=1500, num_products=200), knowing=True), list[dict]()
    days.extend(map(dict, business.days()))

    def column(table, name):
        return np.concatenate([found[table][name] for found in days if table in found])

    # Ids of customers and seconds, as one number in the order of both.
    bought, asked = (
        column(table, "customer_id") << 32 | column(table, time).astype(np.int64)
        for table, time in (("purchases", "bought_at"), ("churn", "asked"))
    )
    bought.sort()
    recency = asked - bought[np.searchsorted(bought, asked) - 1]
    known, churned = np.concatenate(business.known), column("churn", "churned")
    assert 0.2 < churned.mean() < 0.45
    assert area(known, churned) > 0.8
    assert 0.55 < area(recency, churned) < 0.7
    # Each probability is what it says it is.
    for low in np.arange(0, 1, 0.2):
        chosen = (known >= low) & (known < low + 0.2)
        assert chosen.sum() > 30
        assert abs(churned[chosen].mean() - known[chosen].mean()) < 0.02 + 1.5 / chosen.sum() ** 0.5
