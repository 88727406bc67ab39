"""Tables of things by name."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from partita.core.errors import ConfigError
from partita.core.registry import Registry


@pytest.fixture
def table() -> Registry[type]:
    return Registry("mapping", {"plain": dict, "ordered": "collections:OrderedDict", "gone": "collections:Gone"})


def test_things_are_found_by_name_by_import_and_lazily(table) -> None:
    assert table.find("plain") is dict
    assert table.find("ordered") is table.find("collections:OrderedDict") is OrderedDict
    assert list(table) == ["plain", "ordered", "gone"]
    assert ("plain" in table, "other" in table, len(table)) == (True, False, 3)


def test_a_miss_names_the_nearest(table) -> None:
    with pytest.raises(ConfigError, match=r"no mapping 'ordred'.*ordered"):
        table.find("ordred")
    with pytest.raises(ConfigError, match="no mapping 'ordred'"):
        table.check("ordred")
    with pytest.raises(ConfigError, match="cannot be imported"):
        table.find("gone")
    table.check("gone")  # known, and not imported


def test_a_name_means_one_thing(table) -> None:
    table.register("mine", frozenset)
    table.register("mine", frozenset)
    assert table.find("mine") is frozenset
    for name in ("mine", "plain"):
        with pytest.raises(ConfigError, match="already"):
            table.register(name, set)
    for name in ("", "a:b", "a,b"):
        with pytest.raises(ConfigError, match="cannot name"):
            table.register(name, set)
    table.remove("mine")
    with pytest.raises(ConfigError):
        table.find("mine")
