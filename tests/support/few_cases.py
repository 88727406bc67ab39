"""A plugin of pytest: of every test that runs anyway, only a few cases for each of some names.

The names are those of the environment variable ``PARTITA_NAMES``, separated by spaces; they occur in the ids of cases,
between hyphens and commas. Of long tests with many cases, these are enough to see that a name works.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from zlib import crc32

import pytest

MOST = 3
"""Cases of a test for a name."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases all of whose names have occurred so often, in an order that does not follow the parameters."""
    names, met, kept = set(os.environ["PARTITA_NAMES"].split()), Counter[tuple[str, str]](), set[str]()
    for item in sorted(items, key=lambda item: crc32(item.nodeid.encode())):
        test, _, case = item.nodeid.removesuffix("]").partition("[")
        found = {(test, name) for name in names.intersection(_parts(case))}
        if any(met[pair] < MOST for pair in found):
            kept.add(item.nodeid)
            met.update(found)
    left_out = [item for item in items if item.nodeid not in kept]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid in kept]


def _parts(case: str) -> set[str]:
    """Names, which may have hyphens themselves, in an id: whatever lies between commas and hyphens."""
    words = re.split(r"([-,])", case)
    return {"".join(words[i : j + 1]) for i in range(0, len(words), 2) for j in range(i, len(words), 2)}
