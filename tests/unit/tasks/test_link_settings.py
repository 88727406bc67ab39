"""Settings of another loss, or of another kind of negatives, are refused; what a run keeps of its own is not."""

from __future__ import annotations

import pytest
from torch.nn import functional

import partita
from partita.config import Config
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.tasks.links.losses import LINK_LOSSES, LOSS_SETTINGS
from partita.tasks.links.negatives import NEGATIVES
from partita.tasks.task import adjusted_task
from partita.testing.graphs import small_random_store

CHANGED = {"margin": 0.5, "temperature": 2.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("links") / "g", 60, 300, num_features=3)


def settled(store: GraphStore, **settings) -> Config:
    return adjusted_task(Config.make({"task": "links", "hidden": 4, **settings}), store)[1]


def test_every_loss_says_what_it_reads() -> None:
    """Its numbers are others if that changes, and the same if anything else does."""
    import torch

    assert LOSS_SETTINGS.keys() == set(LINK_LOSSES)
    generator = torch.Generator().manual_seed(0)
    positive, negative = (torch.randn(size, generator=generator) for size in ((5,), (5, 3)))
    allowed = torch.ones(5, 3, dtype=torch.bool)
    for name, read in LOSS_SETTINGS.items():
        for setting, value in CHANGED.items():
            usual, other = (
                LINK_LOSSES.find(name)(positive, negative, allowed, **more) for more in ({}, {setting: value})
            )
            assert torch.equal(usual, other) == (setting != read)


@pytest.mark.parametrize("setting", CHANGED)
@pytest.mark.parametrize("loss", [*LOSS_SETTINGS, "auto"])
def test_settings_of_other_losses_are_refused(store, loss, setting) -> None:
    if LOSS_SETTINGS.get(loss) == setting:
        assert getattr(settled(store, loss=loss, **{setting: CHANGED[setting]}), setting) == CHANGED[setting]
        return
    with pytest.raises(ConfigError, match=f"{setting}: the loss is '.*', which takes no {setting}"):
        settled(store, loss=loss, **{setting: CHANGED[setting]})


def squared(positive, negative, allowed, *, margin=1.0, temperature=1.0):
    """A loss that reads the margin."""
    each = functional.relu(margin - positive.unsqueeze(1) + negative).square() * allowed
    return each.sum(1) / allowed.sum(1).clamp(min=1)


def test_losses_of_users_are_told_all(store) -> None:
    partita.register("link_loss", "squared", squared)
    try:
        assert settled(store, loss="squared", margin=0.5, temperature=2.0).margin == 0.5
    finally:
        LINK_LOSSES.remove("squared")


@pytest.mark.parametrize("kind", list(NEGATIVES))
def test_numbers_of_negatives_that_are_not_chosen_are_refused(store, kind) -> None:
    if NEGATIVES.find(kind).counted:
        assert settled(store, negative_sampler=kind, negatives=7).negatives == 7
        return
    with pytest.raises(ConfigError, match=f"negatives: negative_sampler '{kind}' says itself how many"):
        settled(store, negative_sampler=kind, negatives=7)


@pytest.mark.parametrize("kind", list(NEGATIVES))
@pytest.mark.parametrize("loss", LOSS_SETTINGS)
@pytest.mark.parametrize("model", ["sage", "none"])
def test_what_a_run_keeps_is_taken_again(store, kind, loss, model) -> None:
    """``config.yaml`` of the run, when it is resumed or evaluated."""
    found = settled(store, negative_sampler=kind, loss=loss, model=model, hidden=4)
    again = adjusted_task(Config.make(found.model_dump(mode="json")), store)[1]
    assert again == found


def test_the_command_says_so(store, tmp_path) -> None:
    with pytest.raises(ConfigError, match="takes no margin") as error:
        partita.Trainer(store, out=tmp_path / "run", task="links", loss="bpr", margin=2.0)
    assert error.value.exit_code == 2
