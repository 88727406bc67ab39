"""What is measured between workers, and the file of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from partita.comm.launch import launch
from partita.core.errors import ConfigError
from partita.core.machine import machine, now
from partita.plan.links import STALE, Curve, Links, links_file

CURVE = Curve((1000.0, 2000.0, 4000.0), (1.0, 1.5, 3.5))


def links(**changes) -> Links:
    values = {"send": {"same_host": CURVE}, "sum": {"same_host": CURVE}, "hosts": 1, "workers": 2}
    return Links(**{**values, "machine": machine(), "date": now(), **changes})


def test_a_curve_goes_through_what_was_measured_and_on_beyond():
    assert [CURVE.at(size) for size in (0, 1, 1000, 1500, 2000, 4000, 8000)] == [0, 1, 1, 1.25, 1.5, 3.5, 7.5]
    assert Curve((1.0, 2.0), (3.0, 2.9)).at(100.0) == 2.9  # noise never makes more cost less


def test_processors_wait_for_what_they_are_not_busy_with():
    curve = Curve(CURVE.num_bytes, CURVE.seconds, (1.0, 1.0, 1.5))
    assert [curve.idle_at(size) for size in (0, 1000, 1500, 4000, 8000)] == [0, 0, 0.25, 2, 5]
    assert [CURVE.idle_at(size) for size in (0, 1000, 8000)] == [0, 0, 0]  # not known


def test_the_file_holds_it_all(tmp_path):
    half = Curve(CURVE.num_bytes, CURVE.seconds, tuple(each / 2 for each in CURVE.seconds))
    links(sum={"same_host": half}).save(tmp_path / "kept" / "links.json")
    found = Links.load(tmp_path / "kept" / "links.json")
    assert (found.send, found.sum) == ({"same_host": CURVE}, {"same_host": half})
    assert (found.idle_while_sending("same_host", 1500), found.idle_while_summing("same_host", 1500)) == (0, 0.625)
    assert found.is_of_here
    assert found.seconds_to_send("same_host", 1500) == 1.25
    assert found.seconds_of_sum("same_host", 1500) == 1.25


def test_what_was_measured_elsewhere_or_long_ago_is_not_of_here():
    assert not links(machine={**machine(), "cores": 1000}).is_of_here
    assert not links(date=(datetime.now(UTC) - 2 * STALE).isoformat()).is_of_here


def test_a_link_that_was_not_there():
    with pytest.raises(ConfigError, match="nothing was measured between workers of other host"):
        links().seconds_to_send("other_host", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("send"), "not a file of measured links"),
        (lambda values: values.update(format=99), "format 99"),
        (lambda values: values["send"].update(moon=values["send"]["same_host"]), "unknown link 'moon'"),
        (lambda values: values["sum"]["same_host"].update(seconds=[1, 2, 0]), "above 0"),
        (lambda values: values["sum"]["same_host"].update(num_bytes=[3, 2, 1]), "ascend"),
        (lambda values: values["sum"]["same_host"].update(busy=[1, 1, 4]), "a number for each of 'seconds'"),
        (lambda values: values["sum"]["same_host"].update(busy=[1, 1]), "a number for each of 'seconds'"),
        (lambda values: values["sum"]["same_host"].update(num_bytes=["a"]), "'a' is not a finite number"),
        (
            lambda values: values["sum"]["same_host"].update(num_bytes=[1, float("nan"), 3]),
            "nan is not a finite",
        ),
        (lambda values: values["send"]["same_host"].update(seconds=[1, "2", 3]), "'2' is not a finite number"),
        (lambda values: values["send"]["same_host"].update(seconds=[1, True, 3]), "True is not a finite number"),
        (lambda values: values.update(send=[1]), "not a file of measured links"),
        (lambda values: values.update(date=3), "date: Input should be a valid string"),
        (lambda values: values.update(date="lately"), "Invalid isoformat"),
        (lambda values: values.update(date="2026-01-01"), "no time zone"),
        (lambda values: values.update(hosts="two"), "hosts: Input should be a valid integer"),
        (lambda values: values.update(machine=[]), "machine: Input should be a valid dictionary"),
    ],
)
def test_a_file_that_holds_something_else(tmp_path, change, message):
    values = json.loads(json.dumps(links().to_json()))
    change(values)
    (tmp_path / "links.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=message) as error:
        Links.load(tmp_path / "links.json")
    assert "links.json" in str(error.value)


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match="partita measure"):
        Links.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("links")
    with pytest.raises(ConfigError, match="cannot be read"):
        Links.load(tmp_path / "text.json")


def test_where_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert links_file(2, 4) == tmp_path / "partita" / "links-2x4.json"
    assert links_file(2, 4, quick=True) == tmp_path / "partita" / "links-2x4-quick.json"


@pytest.mark.parametrize("hosts", [1, 2])
def test_workers_measure_the_links_that_there_are(hosts):
    values = launch("partita.plan.links:links_on_worker", 2, hosts=hosts, arguments={"quick": True})
    found = Links.from_json(values)
    assert found.send.keys() == found.sum.keys() == {"same_host" if hosts == 1 else "other_host"}
    assert (found.hosts, found.workers) == (hosts, 2 // hosts)
    for curve in (*found.send.values(), *found.sum.values()):
        assert list(curve.num_bytes) == [4096.0 * 4**power for power in range(len(curve.num_bytes))]
        assert 2 <= len(curve.num_bytes) <= 5  # to 1 MiB, or as far as it is quick
        assert 0 < curve.seconds[0] < 10
        assert len(curve.busy) == len(curve.seconds)
        assert all(0 < busy <= took for busy, took in zip(curve.busy, curve.seconds, strict=True))
    assert found.is_of_here


def test_links_that_are_no_longer_what_they_were_are_noticed():
    assert launch("planned:links_that_hold", 2) == [True, False, False]


def test_links_are_measured_once_and_again_where_they_have_changed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, again, slow, anew, last = launch("planned:links_found_again", 2)
    assert first == again
    assert max(anew) < min(slow) / 50
    assert anew == last
