"""What every schedule and every sync must keep; one that is new in the tables is tested by being there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import partita
from partita.comm.group import Group
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.isolated.coverage import COVERAGES
from partita.isolated.schedules import VIEW_SCHEDULES, Schedule
from partita.isolated.subgraph import HALOS
from partita.isolated.syncs import SYNCS, Replica, Sync, SyncSettings
from partita.testing.graphs import small_random_store


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    folder = tmp_path_factory.mktemp("stores")
    whole = small_random_store(folder / "whole", 120, 700, undirected=True, num_features=5)
    partita.partition(whole, folder / "four", parts=4, algorithm="random")
    return partita.open(folder / "four")


@pytest.mark.parametrize("name", list(VIEW_SCHEDULES))
@given(parts=st.integers(1, 20), workers=st.integers(1, 10), epochs=st.integers(0, 30), data=st.data())
def test_a_schedule_has_every_part_in_one_view_of_every_epoch(name, parts, workers, epochs, data) -> None:
    try:
        schedule = VIEW_SCHEDULES.find(name)(parts, workers, epochs)
    except ConfigError:
        return  # what is refused, and how, is tested with each schedule
    assert isinstance(schedule, Schedule)
    epoch = data.draw(st.integers(0, epochs + 5))
    switches = sorted(data.draw(st.sets(st.integers(1, epochs + 5), max_size=3)))
    assignment = schedule.assignment(epoch, switches)
    again = VIEW_SCHEDULES.find(name)(parts, workers, epochs)
    assert assignment == again.assignment(epoch, switches)  # of nothing else
    assert all(len(phase) == workers for phase in assignment)
    views = [view for phase in assignment for view in phase if view is not None]
    assert all(view and tuple(sorted(set(view))) == view for view in views)
    assert sorted(part for view in views for part in view) == list(range(parts))


@pytest.mark.parametrize("name", list(SYNCS))
def test_a_sync_with_one_member_changes_nothing(name) -> None:
    sync = SYNCS.find(name)(SyncSettings())
    assert isinstance(sync, Sync)
    group = Group.alone()
    some = torch.tensor([3, 5])
    assert sync.factor(some, some, some) == 1  # all neighbors are in view
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    weight.grad = torch.tensor([0.25, -0.5])
    sync.join_gradients([weight], 1.0, group)
    assert weight.grad.tolist() == [0.25, -0.5]
    due = [sync.due(epoch, 5) for epoch in range(5)]
    assert due[-1] != sync.every_step  # models that come apart are joined in the end
    if any(due):
        member = Replica({"w": weight.detach()}, {"state": {}, "param_groups": []}, 7.0)
        model, optimizers = sync.join_models([member], group)
        assert torch.equal(model["w"], weight.detach())
        assert len(optimizers) == 1


@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("sync", list(SYNCS))
@pytest.mark.parametrize("views", list(VIEW_SCHEDULES))
def test_any_schedule_goes_with_any_sync_and_halo(store, tmp_path, views, sync, halo) -> None:
    summary = partita.Trainer(
        store, out=tmp_path / "run", views=views, sync=sync, halo=halo, layers=2, hidden=8, batch_size=16, epochs=3,
        fanout=3,
    ).fit()  # fmt: skip
    assert summary.status == "finished"
    assert summary.record["counts"]["computed_destinations"][-1] == 3 * len(store.split("train"))
    assert math.isfinite(summary.metrics["test"]["loss"])
    assert_losses_are_numbers(tmp_path / "run")


@pytest.mark.parametrize("coverage", list(COVERAGES))
def test_any_coverage_trains(store, tmp_path, coverage) -> None:
    partita.Trainer(store, out=tmp_path / "run", preset="grappa", coverage=coverage, layers=2, hidden=8, epochs=3).fit()
    assert_losses_are_numbers(tmp_path / "run")


def assert_losses_are_numbers(run: Path) -> None:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [event for event in events if event["event"] == "epoch"]
    assert len(epochs) == 3
    assert all(math.isfinite(event["loss"]) and 0 <= event["coverage"] <= 1 for event in epochs)
