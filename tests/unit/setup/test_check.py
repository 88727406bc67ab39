"""Names in settings are looked up before anything is made or started."""

from __future__ import annotations

import pytest

import partita
from partita.comm.group import Group
from partita.config import Config
from partita.core.errors import ConfigError
from partita.registries import KINDS
from partita.sample.base import BaseSampler
from partita.setup.check import NAMES, check_names
from partita.setup.sampler import make_sampler


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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": "laier"}, ["no sampler", "'layer'"]),
        ({"sampler": "layer"}, ["needs a layer_budget", "512,256,128"]),
        ({"layer_budget": 9}, ["layer_budget", "sampler layer", "'node'"]),
        ({"sampler": "layer", "layer_budget": 9, "fanout": 5}, ["fanout", "'layer'"]),
        ({"sampler": "layer", "layer_budget": 9, "views": "all"}, ["views 'all'", "Use sampler node"]),
        ({"sampler": "walk", "fanout": "5,-1,5"}, ["fanout 5,-1,5", "'walk'", "at least 1"]),
        ({"sampler": "walk", "replace": True}, ["replace", "'walk'"]),
        ({"sampler": "walk", "views": "all"}, ["views 'all'", "Use sampler node"]),
        ({"sampler": "labor", "replace": True}, ["replace", "'labor'", "sampler node"]),
        ({"batch_dependency": 64}, ["batch_dependency", "sampler labor", "'node'"]),
        ({"sampler": "walk", "layer_dependency": True}, ["layer_dependency", "sampler labor", "'walk'"]),
        ({"walks": 20}, ["walks", "sampler walk", "'node'"]),
        ({"walk_restart": 0.2}, ["walk_restart", "sampler walk", "'node'"]),
        ({"sampler": "layer", "layer_budget": 9, "walk_length": 4}, ["walk_length", "sampler walk", "'layer'"]),
        ({"sampler": "layer", "layer_budget": 2**20 + 1}, ["layer_budget: at most 1,048,576 edges", "sampler node"]),
        ({"options": {"depth": 3}}, ["options: neither the layer 'sage' nor the sampler 'node' has an option 'depth'"]),
    ],
)
def test_what_a_sampler_does_not_take_is_one_clear_message(settings, words) -> None:
    with pytest.raises(ConfigError) as error:
        check_names(Config.make(settings))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


class Nearest(BaseSampler):
    """The first in-neighbors."""

    settings = ("fanout",)
    options = ("skip",)

    def __init__(self, fanouts, skip):
        self.fanouts, self.skip = fanouts, skip

    @classmethod
    def of(cls, settings, group):
        return cls(settings.fanouts, settings.options.get("skip", 0))


def test_a_sampler_of_ones_own_says_what_it_takes() -> None:
    partita.register("sampler", "nearest", Nearest)
    try:
        config = Config.make({"sampler": "nearest", "fanout": "3,2", "layers": 2, "options": ["skip=1"]})
        check_names(config)
        made = make_sampler(config, Group.alone())
        assert (made.fanouts, made.skip) == ((2, 3), 1)
        with pytest.raises(ConfigError, match="layer_budget is for the sampler layer, not for 'nearest'"):
            check_names(Config.make({"sampler": "nearest", "layer_budget": 9}))
        with pytest.raises(ConfigError, match="Did you mean 'skip'"):
            check_names(Config.make({"sampler": "nearest", "options": {"skp": 1}}))
    finally:
        KINDS.find("sampler").remove("nearest")
