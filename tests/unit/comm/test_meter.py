"""Counts add up, and only known kinds and links are counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from meters import reset

from partita.comm.meter import KINDS, LINKS, Meter


def test_counts_by_kind_and_link() -> None:
    meter = Meter()
    meter.add("ids", "same_host", 5)
    before = meter.snapshot()
    meter.add("ids", "same_host", 2)
    meter.add("forward", "other_host", 7)
    assert meter.snapshot()["ids"] == {"same_host": 7, "other_host": 0}
    difference = meter.difference(before)
    assert difference["ids"] == {"same_host": 2, "other_host": 0}
    assert difference["forward"] == {"same_host": 0, "other_host": 7}
    assert set(difference) == set(KINDS)
    assert before["ids"]["same_host"] == 5
    reset(meter)
    assert all(meter.snapshot()[kind] == dict.fromkeys(LINKS, 0) for kind in KINDS)


@pytest.mark.parametrize(("kind", "link"), [("id", "same_host"), ("ids", "host")])
def test_unknown_names_are_refused(kind: str, link: str) -> None:
    with pytest.raises(ValueError, match=f"'{kind}' over '{link}'"):
        Meter().add(kind, link, 1)


def test_several_threads() -> None:
    meter = Meter()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: meter.add("features", "same_host", 3), range(2000)))
    assert meter.snapshot()["features"]["same_host"] == 6000
