"""The tables of the shop: columns, keys and times; and the times of its questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from partita.sources.shop.options import AHEAD, BACK

OPENED = np.datetime64("2024-01-01", "s")
"""Midnight of day 0."""

DAY = 86_400
"""Seconds."""

WHOLE, NUMBER, TEXT, TIME = "whole", "number", "text", "time"
"""What columns hold: int64, float64, text, and seconds as a timestamp."""


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        columns: what each holds, in order: one of :data:`WHOLE`, :data:`NUMBER`, :data:`TEXT`, :data:`TIME`.
        key: columns that tell rows apart.
        refers: for columns that hold keys of another table, its name.
        time: column that says from when on a row is there; ``None``: none does.
        gaps: columns that may be empty.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    refers: Mapping[str, str] = field(default_factory=dict)
    time: str | None = None
    gaps: tuple[str, ...] = ()


_BUYER, _ITEM = {"customer_id": "customers"}, {"product_id": "products"}

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "customers": Table(
            {"customer_id": WHOLE, "signed_up": TIME, "segment": TEXT, "age": WHOLE, "city": TEXT},
            ("customer_id",), time="signed_up", gaps=("age",),
        ),
        "products": Table(
            {
                "product_id": WHOLE, "category": TEXT, "brand": TEXT, "price": NUMBER, "description": TEXT,
                "introduced": TIME,
            },
            ("product_id",), time="introduced",
        ),
        "purchases": Table(
            {
                "purchase_id": WHOLE, "customer_id": WHOLE, "product_id": WHOLE, "bought_at": TIME, "quantity": WHOLE,
                "price": NUMBER,
            },
            ("purchase_id",), {**_BUYER, **_ITEM}, "bought_at",
        ),
        "reviews": Table(
            {
                "review_id": WHOLE, "customer_id": WHOLE, "product_id": WHOLE, "written_at": TIME, "rating": WHOLE,
                "text": TEXT,
            },
            ("review_id",), {**_BUYER, **_ITEM}, "written_at", gaps=("text",),
        ),
        "churn": Table(
            {"question_id": WHOLE, "customer_id": WHOLE, "asked": TIME, "churned": WHOLE},
            ("question_id",), _BUYER, "asked",
        ),
        "next_purchases": Table(
            {"question_id": WHOLE, "customer_id": WHOLE, "asked": TIME}, ("question_id",), _BUYER, "asked"
        ),
        "next_items": Table(
            {"question_id": WHOLE, "product_id": WHOLE}, ("question_id", "product_id"),
            {"question_id": "next_purchases", **_ITEM},
        ),
    }
)  # fmt: skip
"""By name; every table comes after those that it refers to."""


def question_days(days: int) -> range:
    """The days at whose midnight questions are asked: every 30th, such that the last 30 days are those of the last."""
    first = BACK + (days - BACK) % AHEAD
    return range(first, days - AHEAD + 1, AHEAD)


def split_times(days: int) -> tuple[str, str]:
    """From when on questions are for validation, and from when on for tests, as dates."""
    *_, val, test = question_days(days)
    first, second = (np.datetime_as_string(OPENED + np.timedelta64(day, "D"), unit="D") for day in (val, test))
    return str(first), str(second)
