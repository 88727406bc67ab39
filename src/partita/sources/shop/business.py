"""The days of the shop, one after another: who buys what, who reviews it, and what is asked about whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from partita.sources.shop.options import AHEAD, BACK, ShopOptions
from partita.sources.shop.tables import DAY, OPENED, question_days
from partita.sources.shop.words import descriptions, opinions
from partita.sources.shop.world import (
    BRANDS,
    CATEGORIES,
    CITIES,
    SEGMENTS,
    Activity,
    Customers,
    Popularity,
    Products,
    groups_of,
)

Rows = Mapping[str, Any]
"""Columns of a table: arrays of NumPy or Arrow of equal lengths, by name."""

AGAIN, REMEMBERED = 0.08, 4
"""How often something is bought again, of the last four things."""


@dataclass
class _Question:
    """Those who are asked about on a day, and what was bought since."""

    day: int
    customers: Int64[np.ndarray, "n"]
    bought: list[tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]] = field(default_factory=list)


class Business:
    """A shop from its first day to its last. It is walked through once.

    Every kind of choice is drawn from a generator of its own, which is seeded by the shop's seed.

    Args:
        options: sizes and seed.
        knowing: note what is known of the answers of questions when they are asked, to one who sees everything.

    Attributes:
        known: for the rows of ``churn`` in order, the probability of the answer yes; empty unless ``knowing``.
        tastes: float32 (groups, P), for each time of questions: how often each group chooses each product, but for what
            is bought again; empty unless ``knowing``.
    """

    def __init__(self, options: ShopOptions, *, knowing: bool = False) -> None:
        streams = map(np.random.default_rng, np.random.SeedSequence(options.seed).spawn(6))
        of_products, of_customers, of_popularity, self._random, self._talk, self._words = streams
        self._days, self._knowing = options.days, knowing
        self._products = Products(options.num_products, options.days, of_products)
        groups = groups_of(options.num_products)
        self._customers = Customers(options.num_customers, options.days, groups, of_customers)
        self._popularity = Popularity(self._products, of_popularity)
        self._activity = Activity(self._customers)
        self._last_day = np.full(options.num_customers, -BACK - 1)
        self._remembered = np.zeros((options.num_customers, REMEMBERED), np.int64)
        self._count = np.zeros(options.num_customers, np.int64)
        self._rows = dict[str, int]()
        self.known = list[Float64[np.ndarray, "n"]]()
        self.tastes = list[Float32[np.ndarray, "g P"]]()

    @property
    def groups(self) -> Int64[np.ndarray, "C"]:
        """The group of taste of each customer."""
        return self._customers.group

    def days(self) -> Iterator[list[tuple[str, Rows]]]:
        """What comes about on each day: names of tables, and rows of them.

        Rows that are referred to come first. Ids count from 1.
        """
        asked, question = set(question_days(self._days)), None
        for day in range(self._days):
            found = self._opened() if day == 0 else []
            if day in asked:
                question = _Question(day, np.flatnonzero(self._last_day >= day - BACK))
                if self._knowing:
                    self.known.append(self._activity.absence(day)[question.customers])
            self._popularity.pass_day(day)
            if day in asked and self._knowing:
                self.tastes.append(self._popularity.shares.astype(np.float32))
            customer, product, second = self._bought(day)
            found += self._sold(customer, product, second)
            if question is not None:
                question.bought.append((customer, product))
                if day == question.day + AHEAD - 1:
                    found += self._answers(question)
            yield found

    def _opened(self) -> list[tuple[str, Rows]]:
        """What is there from the beginning."""
        people, goods = self._customers, self._products
        customers = {
            "customer_id": self._ids("customers", len(people.rate)),
            "signed_up": _times(people.signed_up * DAY),
            "segment": _named(SEGMENTS, people.segment),
            "age": _whole(people.age),
            "city": _named(CITIES, people.city),
        }
        products = {
            "product_id": self._ids("products", len(goods.price)),
            "category": _named(CATEGORIES, goods.category),
            "brand": _named(BRANDS, goods.brand),
            "price": goods.price,
            "description": descriptions(goods.category, self._words),
            "introduced": _times(goods.introduced * DAY),
        }
        return [("customers", customers), ("products", products)]

    def _bought(self, day: int) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
        """Customers, products and seconds of the purchases of a day, in order of time."""
        counts = self._random.poisson(self._activity.rates(day))
        customer = np.repeat(np.arange(len(counts)), counts)
        draws = self._random.random((3, len(customer)))
        product = self._popularity.choose(self._customers.group[customer], draws[0])
        known = np.minimum(self._count[customer], REMEMBERED)
        again = (draws[1] < AGAIN) & (known > 0)
        product = np.where(again, self._remembered[customer, (draws[2] * known).astype(np.int64)], product)
        of_today = np.arange(len(customer)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._remembered[customer, (self._count[customer] + of_today) % REMEMBERED] = product
        self._count += counts
        self._last_day[customer] = day
        self._activity.bought(customer, self._products.quality[product])
        self._activity.pass_day()
        second = day * DAY + self._random.integers(6 * 3600, 23 * 3600, len(customer))
        order = np.argsort(second, kind="stable")
        return customer[order], product[order], second[order]

    def _sold(
        self, customer: Int64[np.ndarray, "n"], product: Int64[np.ndarray, "n"], second: Int64[np.ndarray, "n"]
    ) -> list[tuple[str, Rows]]:
        """Rows of purchases, and of the reviews of them that will be written."""
        count = len(customer)
        reduced = np.where(self._random.random(count) < 0.1, 0.8, 1.0)
        purchases = {
            "purchase_id": self._ids("purchases", count),
            "customer_id": customer + 1,
            "product_id": product + 1,
            "bought_at": _times(second),
            "quantity": 1 + self._random.poisson(0.25, count),
            "price": np.round(self._products.price[product] * reduced, 2),
        }
        written = second + self._talk.integers(DAY, 21 * DAY, count)
        impression = 3.3 + 1.1 * self._products.quality[product] + 0.8 * self._talk.standard_normal(count)
        rating = np.clip(np.round(impression), 1, 5).astype(np.int64)
        talks = self._talk.random(count) < self._customers.talks[customer]
        which = np.flatnonzero(talks & (written < self._days * DAY))
        reviews = {
            "review_id": self._ids("reviews", len(which)),
            "customer_id": customer[which] + 1,
            "product_id": product[which] + 1,
            "written_at": _times(written[which]),
            "rating": rating[which],
            "text": opinions(rating[which], self._words),
        }
        return [("purchases", purchases), ("reviews", reviews)]

    def _answers(self, question: _Question) -> list[tuple[str, Rows]]:
        """Rows of the questions of a day, whose answers are known by now."""
        customer, product = (np.concatenate(each) for each in zip(*question.bought, strict=True))
        asked = question.customers
        came = self._last_day[asked] >= question.day
        churn = {
            "question_id": self._ids("churn", len(asked)),
            "customer_id": asked + 1,
            "asked": _asked(question.day, len(asked)),
            "churned": (~came).astype(np.int64),
        }
        buyers = asked[came]
        buys = {
            "question_id": self._ids("next_purchases", len(buyers)),
            "customer_id": buyers + 1,
            "asked": _asked(question.day, len(buyers)),
        }
        of_asked = np.isin(customer, buyers)
        count = len(self._products.price)
        pairs = np.unique(customer[of_asked] * count + product[of_asked])
        items = {
            "question_id": buys["question_id"][np.searchsorted(buyers, pairs // count)],
            "product_id": pairs % count + 1,
        }
        return [("churn", churn), ("next_purchases", buys), ("next_items", items)]

    def _ids(self, table: str, count: int) -> Int64[np.ndarray, "n"]:
        """The next ids of a table."""
        first = self._rows.get(table, 0) + 1
        self._rows[table] = first + count - 1
        return np.arange(first, first + count)


def _times(seconds: Int64[np.ndarray, "n"]) -> np.ndarray:
    """Seconds since the shop opened, as times."""
    return OPENED + seconds.astype("timedelta64[s]")


def _asked(day: int, count: int) -> np.ndarray:
    return _times(np.full(count, day * DAY))


def _named(names: tuple[str, ...], which: Int64[np.ndarray, "n"]) -> Any:
    import pyarrow as pa

    return pa.array(names).take(pa.array(which))


def _whole(values: Float64[np.ndarray, "n"]) -> Any:
    """Whole numbers with gaps where there is NaN."""
    import pyarrow as pa

    missing: Bool[np.ndarray, "n"] = np.isnan(values)
    return pa.array(np.where(missing, 0, values).astype(np.int64), mask=missing)
