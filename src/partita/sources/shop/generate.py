"""Generates a shop with known rules, as a relational database."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from partita.core import progress
from partita.core.options import takes
from partita.sources.shop.business import Business
from partita.sources.shop.options import ShopOptions
from partita.sources.shop.tables import split_times
from partita.sources.shop.write import Batches, written


@dataclass(frozen=True)
class Shop:
    """A database that was generated.

    Attributes:
        path: of it.
        rows: of each table.
        split_times: dates from which on questions are for validation, and for tests: those of the last two times at
            which questions are asked.
    """

    path: Path
    rows: dict[str, int]
    split_times: tuple[str, str]


@takes(ShopOptions)
def generate_shop(path: str | os.PathLike[str], options: ShopOptions) -> Shop:
    """Generate a shop as a relational database with two tasks whose rules are known.

    The tables are ``customers``, ``products``, ``purchases`` and ``reviews``. Every 30 days all customers who bought
    in the last 90 days are asked about:

    - ``churn``: do they buy nothing in the 30 days after ``asked``?
    - ``next_purchases``: what do they buy in these days? ``next_items`` has the products. Questions whose answer is
      nothing are left out.

    The answers are counted from purchases. These follow rules, of which no column tells:

    - Every product has a *quality*, which shows in the ratings of its reviews. A customer who has bought good products
      buys up to several times as often, after bad ones as rarely: the logarithm of the rate follows the mean quality
      of what was bought. A purchase begins to count after some 10 days, and is forgotten after some 45. A fifth of the
      customers write most of the reviews, so of most customers it is known only from others what they think of what
      they bought: question, customer, purchases, products, reviews of these.
    - Every customer, and every product, belongs to one of up to eight *groups of taste*, which show only in what is
      bought together. Of a customer's purchases 8 % repeat one of the last four; 85 % of the others are of the
      group's products, in proportion to their popularity, which changes within some 45 days, as that of every category
      does in the group.
    - Purchases depend on the month: fewest in January and February, most in November and December.

    Segment and age change the rate a little; cities and words do not. Products are bought after they were introduced,
    by customers who have signed up. Questions are asked at midnight, when nobody buys.

    With 20,000 customers, 1,500 products and 720 days, gradient boosting on columns about each customer predicts churn
    with an area under the ROC curve of 0.72, and one who knows qualities and rates with 0.83. Rows are a function of
    the options, for one version of NumPy.

    Args:
        path: of the database to make. ``shop.db`` (or ``.sqlite``) is one of SQLite, ``shop.duckdb`` one of DuckDB,
            which has to be installed; a name without an ending is a folder with a Parquet file for each table. These
            tell keys and times in the metadata of their schema, as RelBench's do.
        options: see :class:`~partita.sources.shop.options.ShopOptions`.

    Returns:
        What was written.

    Raises:
        ConfigError: a parameter is out of range, something is there already, or DuckDB is not installed.
        ResourceError: the database cannot be written.
    """
    path = Path(path)
    with written(path, options.overwrite) as write:
        batches = Batches(write)
        with progress.task("simulate days", total=options.days, unit="days") as task:
            for found in Business(options).days():
                for name, rows in found:
                    batches.add(name, rows)
                task.advance()
        batches.finish()
    return Shop(path, batches.counts, split_times(options.days))
