"""Names in settings are looked up before anything is made or started."""

from __future__ import annotations

import pytest

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.registries import KINDS
from partita.setup.check import NAMES, check_names


def test_the_names_of_the_defaults_are_known() -> None:
    check_names(Config())


@pytest.mark.parametrize("setting", NAMES)
def test_a_name_that_is_none_is_refused_by_its_setting(setting) -> None:
    kind = KINDS.find(NAMES[setting])
    meant = max((*kind, *kind.also), key=len)
    with pytest.raises(ConfigError, match=f"^{setting}: there is no .* '{meant}x'. Did you mean '{meant}'") as error:
        check_names(Config.make({setting: meant + "x"}))
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=f"^{setting}: 'no_such_package:Name' cannot be imported"):
        check_names(Config.make({setting: "no_such_package:Name"}))


def test_things_of_ones_own_are_registered_by_kind() -> None:
    partita.register("activation", "square", "torch:square")
    try:
        check_names(Config.make({"activation": "square"}))
    finally:
        KINDS.find("activation").remove("square")
    with pytest.raises(ConfigError, match="Did you mean 'activation'"):
        partita.register("activaton", "square", "torch:square")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_table(kind) -> None:
    table = KINDS.find(kind)
    assert [table.find(name) for name in table]
