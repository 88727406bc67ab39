"""What no table of the shop shows: qualities, tastes, popularity, and how satisfied each customer is at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from partita.sources.shop.options import AHEAD
from partita.sources.shop.tables import OPENED

SEGMENTS = ("occasional", "regular", "premium")
CITIES = ("Arden", "Bellmont", "Corvale", "Dunmore", "Eastwick", "Fairhaven", "Glenrock", "Harwick", "Ironbridge")
CATEGORIES = ("books", "garden", "kitchen", "lamps", "music", "office", "outdoor", "pets", "shoes", "tools", "toys")
BRANDS = tuple(
    f"{first}{last}" for first in ("Al", "Bor", "Cas", "Del", "Ever", "Fen") for last in ("ma", "ton", "via")
)

SEASON = (0.75, 0.75, 0.9, 1.0, 1.05, 1.0, 0.85, 0.85, 1.0, 1.1, 1.35, 1.4)
"""Purchases from January to December, to those of an average month."""

_GROUPS = 8
"""Of taste."""
_OWN, _FOREIGN = 0.85, 0.02
"""How often a customer chooses by the taste of the group, and the weight there of products of other groups."""
_DRIFT, _PRODUCTS, _TASTES = 45.0, 1.5, 0.8
"""Days in which popularity changes, and how much it does, in logarithms: of products, and of categories in a group."""

_LAG, _MEMORY, _PRIOR, _EFFECT, _SPREAD = 10.0, 45.0, 0.4, 2.0, 0.2
"""Days until a purchase is judged and until it is forgotten, the weight of not knowing, what one deviation of quality
does to the logarithm of the rate, and the deviation of that logarithm over customers."""
_RATE = {"occasional": 1 / 24, "regular": 1 / 20, "premium": 1 / 17}
"""Purchases a day of one who neither likes nor dislikes the shop."""


class Products:
    """The products, as they are.

    Args:
        count: of them (P).
        days: of business.
        random: what is drawn from.

    Attributes:
        quality: float64 (P), mean 0 and deviation 1. No column shows it.
        group: int64 (P), whose taste they meet. No column shows it.
        category, brand: int64 (P), in :data:`CATEGORIES` and :data:`BRANDS`.
        price: float64 (P).
        introduced: int64 (P), the day from which on they are sold, below 0 for many.
    """

    def __init__(self, count: int, days: int, random: np.random.Generator) -> None:
        self.quality = random.standard_normal(count)
        self.group = random.permutation(np.arange(count) % groups_of(count))
        self.category = random.integers(0, len(CATEGORIES), count)
        self.brand = random.integers(0, len(BRANDS), count)
        typical = np.exp(random.normal(3.0, 0.6, len(CATEGORIES)))
        self.price = np.round(typical[self.category] * np.exp(random.normal(0, 0.4, count)), 2)
        self.introduced = np.where(
            random.random(count) < 0.3, random.integers(0, days, count), random.integers(-300, 0, count)
        )
        self.introduced[random.integers(count)] = -300  # so that there is one on the first day


class Customers:
    """The customers, as they are.

    Args:
        count: of them (C).
        days: of business.
        groups: of taste.
        random: what is drawn from.

    Attributes:
        group: int64 (C), whose taste they have. No column shows it, nor the next two.
        rate: float64 (C), purchases a day while they neither like nor dislike the shop.
        talks: float64 (C), how often they review what they bought: a fifth of them mostly, the others hardly.
        segment, city: int64 (C), in :data:`SEGMENTS` and :data:`CITIES`.
        age: float64 (C), NaN where it is not known.
        signed_up: int64 (C), the day from which on they may buy, from 0.
    """

    def __init__(self, count: int, days: int, groups: int, random: np.random.Generator) -> None:
        self.group = random.integers(0, groups, count)
        self.segment = random.choice(len(SEGMENTS), count, p=(0.4, 0.4, 0.2))
        self.city = random.integers(0, len(CITIES), count)
        age = np.clip(np.round(random.normal(42, 14, count)), 18, 90)
        self.age = np.where(random.random(count) < 0.08, np.nan, age)
        base = np.array([_RATE[name] for name in SEGMENTS])[self.segment]
        self.rate = base * np.exp(random.normal(0, _SPREAD, count) - (age - 42) / 200)
        self.talks = np.where(random.random(count) < 0.2, 0.7, 0.05)
        early, late = random.integers(0, max(1, days // 6), count), random.integers(0, days, count)
        self.signed_up = np.where(random.random(count) < 0.5, early, late)


def groups_of(products: int) -> int:
    """Groups of taste among so many products: at least five products each."""
    return max(2, min(_GROUPS, products // 5))


class Popularity:
    """What each group of taste likes at a time: logarithms that wander, and return to 0 within some months.

    Args:
        products: that there are.
        random: what is drawn from, once a day.
    """

    def __init__(self, products: Products, random: np.random.Generator) -> None:
        self._products, self._random = products, random
        self._groups = int(products.group.max()) + 1
        self._of_product = random.normal(0, _PRODUCTS, len(products.quality))
        self._of_taste = random.normal(0, _TASTES, (self._groups, len(CATEGORIES)))
        self._ends = np.zeros((self._groups, len(products.quality)))

    def pass_day(self, day: int) -> None:
        """Let a day pass."""
        keep = np.exp(-1 / _DRIFT)
        fresh = np.sqrt(1 - keep**2)
        for state, deviation in ((self._of_product, _PRODUCTS), (self._of_taste, _TASTES)):
            state *= keep
            state += self._random.normal(0, fresh * deviation, state.shape)
        products = self._products
        weights = np.exp(self._of_product + self._of_taste[:, products.category])
        weights *= np.where(products.group == np.arange(self._groups)[:, None], 1, _FOREIGN)
        weights *= products.introduced <= day
        weights /= weights.sum(1, keepdims=True)
        weights = _OWN * weights + (1 - _OWN) * weights.mean(0)
        ends = np.cumsum(weights, 1)
        self._ends = ends / ends[:, -1:] + np.arange(self._groups)[:, None]

    @property
    def shares(self) -> Float64[np.ndarray, "g P"]:
        """How often each group chooses each product today."""
        return np.diff(self._ends - np.arange(self._groups)[:, None], prepend=0)

    def choose(self, group: Int64[np.ndarray, "n"], draws: Float64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """The products that customers of some groups choose today, by numbers from 0 to below 1."""
        count = self._ends.shape[1]
        found = np.searchsorted(self._ends.ravel(), group + draws, side="right") - group * count
        return np.clip(found, 0, count - 1)


class Activity:
    """How often each customer buys: more after good products, and less after bad ones.

    The logarithm of the rate follows the mean quality of what was bought, in which a purchase begins to count after
    some days, and counts less and less after some weeks.

    Args:
        customers: that there are (C).
    """

    def __init__(self, customers: Customers) -> None:
        count = len(customers.rate)
        self._customers = customers
        self._judged, self._open = np.zeros((2, count)), np.zeros((2, count))
        """Of each customer the sum of qualities, and of weights: of what has been judged, and of what has not."""

    def rates(self, day: int) -> Float64[np.ndarray, "C"]:
        """Purchases that are expected of each customer on a day."""
        return self._rates(day, self._judged)

    def bought(self, customer: Int64[np.ndarray, "n"], quality: Float64[np.ndarray, "n"]) -> None:
        """Take note of purchases, of which a customer may have made several."""
        count = self._open.shape[1]
        self._open[0] += np.bincount(customer, quality, count)
        self._open[1] += np.bincount(customer, minlength=count)

    def pass_day(self) -> None:
        """Let a day pass: some purchases are judged, and some forgotten."""
        self._judged, self._open = _next_day(self._judged, self._open)

    def absence(self, day: int) -> Float64[np.ndarray, "C"]:
        """The probability that each customer buys nothing on this day and the next 29, of all that is known."""
        judged, opened, expected = self._judged, self._open, np.zeros(len(self._customers.rate))
        for ahead in range(AHEAD):
            expected += self._rates(day + ahead, judged)
            judged, opened = _next_day(judged, opened)
        return np.exp(-expected)

    def _rates(self, day: int, judged: Float64[np.ndarray, "2 C"]) -> Float64[np.ndarray, "C"]:
        satisfaction = judged[0] / (judged[1] + _PRIOR)
        rates = self._customers.rate * np.exp(_EFFECT * satisfaction) * SEASON[month_of(day)]
        return np.where(self._customers.signed_up <= day, np.minimum(rates, 0.6), 0)


def _next_day(judged: np.ndarray, opened: np.ndarray) -> Sequence[np.ndarray]:
    share = 1 - np.exp(-1 / _LAG)
    return (judged * np.exp(-1 / _MEMORY) + share * opened), opened * (1 - share)


def month_of(day: int) -> int:
    """From 0 for January."""
    return int((OPENED + np.timedelta64(day, "D")).astype("datetime64[M]").astype(int) % 12)
