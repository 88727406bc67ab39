"""The options of a made-up shop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from partita.core.options import SEEDS, Options, Range

AHEAD, BACK = 30, 90
"""Days: a question is about the next 30, and asked of those who bought in the last 90. One comes every 30 days."""

FEWEST_DAYS = BACK + 3 * AHEAD
"""Questions are then asked at three times: one each for training, validation and tests."""


@dataclass(frozen=True, kw_only=True)
class ShopOptions(Options):
    """See :func:`partita.generate_shop`."""

    num_customers: Annotated[int, "Number of customers.", Range(10, 10**8)] = 400
    num_products: Annotated[int, "Number of products.", Range(10, 10**6)] = 80
    days: Annotated[int, "Days of business.", Range(FEWEST_DAYS, 10_000)] = 360
    seed: Annotated[int, "Random seed.", SEEDS] = 0
    overwrite: Annotated[bool, "Replace a shop that is there."] = False
