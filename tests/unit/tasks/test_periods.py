"""Metrics by the time of the question, beside the metrics of the same seeds alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import partita
from partita.config import Config
from partita.graph.times import ALWAYS
from partita.tasks.metrics import judge
from partita.tasks.periods import MOST_PERIODS, judge_by_time, periods
from partita.tasks.task import make_task


def micro(*dates: datetime) -> np.ndarray:
    return np.array([int(date.timestamp() * 1e6) for date in dates])


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=200))
def test_every_number_is_in_one_period_and_periods_are_in_order(times: list[int]) -> None:
    names, places = periods(np.array(times), dates=False)
    assert 1 <= len(names) <= MOST_PERIODS
    assert sorted(set(places.tolist())) == list(range(len(names)))  # none is empty
    begins = [int(name) for name in names]
    assert begins == sorted(begins)
    for time, place in zip(times, places):
        assert begins[place] <= time
        assert place + 1 == len(begins) or time < begins[place + 1]


@given(st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2300, 1, 1)), min_size=1, max_size=200))
def test_dates_are_in_the_periods_that_they_begin(dates: list[datetime]) -> None:
    dates = [date.replace(tzinfo=UTC) for date in dates]
    names, places = periods(micro(*dates), dates=True)
    assert 1 <= len(names) <= MOST_PERIODS
    assert names == sorted(names)
    for date, place in zip(dates, places):
        assert names[place] <= date.isoformat()[: len(names[place])]


def test_weeks_begin_on_mondays() -> None:
    days = [datetime(2026, 1, 1, 13, tzinfo=UTC) + timedelta(days=day) for day in range(200)]
    names, _ = periods(micro(*days), dates=True)
    assert names[0] == "2025-12-29"
    assert all(datetime.fromisoformat(name).weekday() == 0 for name in names)


@pytest.mark.parametrize(("days", "first"), [(30, "2026-01-01T06:00:00"), (900, "2026-01"), (9000, "2026")])
def test_periods_are_as_narrow_as_can_be(days: int, first: str) -> None:
    times = [datetime(2026, 1, 1, 6, tzinfo=UTC) + timedelta(days=day) for day in range(days)]
    assert periods(micro(*times), dates=True)[0][0] == first
    assert periods(micro(datetime(2026, 1, 1, tzinfo=UTC)), dates=True)[0] == ["2026-01-01"]


@pytest.mark.parametrize("labels", ["two", "three", "values"])
def test_the_metrics_of_a_period_are_those_of_its_seeds(labels: str, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    y = {"two": random.integers(0, 2, 60), "three": random.integers(0, 3, 60), "values": random.random(60)}[labels]
    seed_time = np.where(np.arange(60) < 5, ALWAYS, random.integers(0, 3, 60) * 10)
    arrays = {"edge_index": np.stack([np.arange(60), np.roll(np.arange(60), 1)]), "x": random.random((60, 2)), "y": y}
    partita.ingest({**arrays, "seed_time": seed_time, "edge_time": np.zeros(60, int)}, tmp_path / "store")
    store = partita.GraphStore.open(tmp_path / "store")
    task = make_task(Config.make({}), store)
    seeds, output = torch.arange(60), torch.from_numpy(random.standard_normal((60, task.width))).float()
    found = judge_by_time(task, seeds, output, task.targets(seeds))
    assert [each["time"] for each in found] == ["0", "10", "20"]
    for each in found:
        mine = torch.from_numpy(np.flatnonzero(seed_time == int(each["time"])))
        wanted = judge(task, output[mine], task.targets(mine)).metrics
        assert {name: each[name] for name in wanted} == wanted
        assert each["nodes"] == len(mine)
        assert ("share" in each) == (labels != "three")
        if labels == "two":
            assert each["share"] == pytest.approx(float(y[mine.numpy()].mean()))
            assert each["expected"] == pytest.approx(float(output[mine].softmax(1)[:, 1].mean()), rel=1e-5)


def test_nothing_is_said_without_times(tmp_path: Path) -> None:
    arrays = {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.eye(3), "y": np.array([0, 1, 0])}
    partita.ingest(arrays, tmp_path / "plain")
    store = partita.GraphStore.open(tmp_path / "plain")
    task = make_task(Config.make({}), store)
    seeds = torch.arange(3)
    assert judge_by_time(task, seeds, torch.zeros(3, task.width), task.targets(seeds)) == []
