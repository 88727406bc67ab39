"""How fast workers exchange rows and sum tensors, on one host and between hosts: measured, and kept in a file."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partita.comm.context import Context
from partita.comm.group import Group
from partita.comm.meter import LINKS
from partita.core.errors import ConfigError
from partita.core.files import read_object, write_text
from partita.core.machine import machine, now
from partita.core.typed import number, problem, typed
from partita.plan.processors import share_of_processor, watched

LINKS_FORMAT = 1
SMALLEST, LARGEST = 2**12, 2**28
QUICK_LARGEST = 2**21
LONGEST_SECONDS, QUICK_LONGEST = 0.3, 0.03
"""Larger messages are not tried once one took so long."""
REPEATS, QUICK_REPEATS = 9, 3
STALE = timedelta(days=30)
_AXIS_OF = {"same_host": "workers", "other_host": "hosts"}
_COLUMNS = 64
_PROBE_BYTES, _PROBES = 2**18, 3
"""Of a message that shows whether links still are as they were measured; and how often that is looked at, at most."""


@dataclass(frozen=True)
class Curve:
    """Seconds by bytes: what was measured, straight lines between, and the last line beyond.

    Attributes:
        num_bytes: ascending.
        seconds: of each.
        busy: of these, what a worker's processor, or the share of one that it has, is busy; in the rest it may do
            something else. Empty: all.
    """

    num_bytes: tuple[float, ...]
    seconds: tuple[float, ...]
    busy: tuple[float, ...] = ()

    def at(self, num_bytes: float) -> float:
        """Seconds for so many bytes; nothing for nothing."""
        return self._along(self.seconds, num_bytes)

    def idle_at(self, num_bytes: float) -> float:
        """What of these seconds a worker's processor waits."""
        return max(0.0, self.at(num_bytes) - self._along(self.busy or self.seconds, num_bytes))

    def _along(self, seconds: tuple[float, ...], num_bytes: float) -> float:
        if num_bytes <= 0:
            return 0.0
        if num_bytes <= self.num_bytes[-1]:
            return float(np.interp(num_bytes, self.num_bytes, seconds))
        (before, last), (sooner, later) = self.num_bytes[-2:], seconds[-2:]
        return later + (num_bytes - last) * max(0.0, later - sooner) / (last - before)


@dataclass(frozen=True)
class Links:
    """What was measured between workers, all of them sending at once.

    Attributes:
        send: an exchange of rows, by the bytes that each worker sends over a link
            (:data:`~partita.comm.meter.LINKS`); a link that was not there is not in it.
        sum: a sum of tensors, by the bytes that each worker sends for it, likewise.
        hosts, workers: how many hosts measured, and how many workers on each.
        machine: where, with versions.
        date: when, ISO 8601.
    """

    send: Mapping[str, Curve]
    sum: Mapping[str, Curve]
    hosts: int
    workers: int
    machine: Mapping[str, Any]
    date: str

    def to_json(self) -> dict[str, Any]:
        """As the file holds it."""
        return {"format": LINKS_FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "links") -> Links:
        """The inverse of :meth:`to_json`.

        Raises:
            ConfigError: it is something else.
        """
        try:
            if values["format"] != LINKS_FORMAT:
                raise ConfigError(
                    f"format {values['format']}, this version reads {LINKS_FORMAT}", where=where, fix="Measure again"
                )
            curves = {
                kind: {
                    link: Curve(
                        tuple(map(number, curve["num_bytes"])),
                        tuple(map(number, curve["seconds"])),
                        tuple(map(number, curve.get("busy", ()))),
                    )
                    for link, curve in values[kind].items()
                }
                for kind in ("send", "sum")
            }
            rest = {name: values[name] for name in ("hosts", "workers", "machine", "date")}
            found = typed(cls, {**curves, **rest})
            if datetime.fromisoformat(found.date).tzinfo is None:
                raise ValueError(f"the date {found.date} has no time zone")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"not a file of measured links: {problem(error)}",
                where=where,
                fix="Make it with: partita measure --out FILE",
            ) from None
        for of_link in curves.values():
            for link, curve in of_link.items():
                _check(link, curve, where)
        return found

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Links:
        """Read a file.

        Raises:
            ConfigError: there is none, or it holds something else.
        """
        return cls.from_json(read_object(path, ConfigError, "Make it with: partita measure --out FILE"), str(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    @property
    def is_of_here(self) -> bool:
        """Whether it was measured on a machine like this one, with these versions, and lately."""
        here, age = machine(), datetime.now(UTC) - datetime.fromisoformat(self.date)
        same = all(self.machine.get(name) == here[name] for name in ("system", "cores", "memory_bytes", "versions"))
        return same and age < STALE

    def seconds_to_send(self, link: str, num_bytes: float) -> float:
        """Of an exchange in which each worker sends so many bytes over a link.

        Raises:
            ConfigError: the link was not measured.
        """
        return self._of(self.send, link).at(num_bytes)

    def seconds_of_sum(self, link: str, num_bytes: float) -> float:
        """Of a sum for which each worker sends so many bytes over a link, all workers of a host at once."""
        return self._of(self.sum, link).at(num_bytes)

    def idle_while_sending(self, link: str, num_bytes: float) -> float:
        """What of :meth:`seconds_to_send` a worker's processor waits."""
        return self._of(self.send, link).idle_at(num_bytes)

    def idle_while_summing(self, link: str, num_bytes: float) -> float:
        """What of :meth:`seconds_of_sum` a worker's processor waits."""
        return self._of(self.sum, link).idle_at(num_bytes)

    def _of(self, curves: Mapping[str, Curve], link: str) -> Curve:
        if link not in curves:
            raise ConfigError(
                f"nothing was measured between workers of {link.replace('_', ' ')}",
                where="links",
                fix="Run partita measure on all hosts with torchrun, and give its file with --links",
            )
        return curves[link]


def _check(link: str, curve: Curve, where: str) -> None:
    sizes, seconds, busy = (np.array(each) for each in (curve.num_bytes, curve.seconds, curve.busy or curve.seconds))
    if link not in LINKS:
        raise ConfigError(f"unknown link '{link}'", where=where, fix=f"Links are {', '.join(LINKS)}")
    if len(sizes) < 2 or len(sizes) != len(seconds) or (np.diff(sizes) <= 0).any() or not (seconds > 0).all():
        raise ConfigError(
            "sizes must ascend, each with a time above 0, and there must be two of them", where=f"{where}, {link}"
        )
    if len(busy) != len(seconds) or (busy < 0).any() or (busy > seconds).any():
        raise ConfigError(
            "'busy' must have a number for each of 'seconds', from 0 to that",
            where=f"{where}, {link}",
            fix="Measure again with: partita measure --out FILE; or leave 'busy' out",
        )


def links_file(hosts: int, workers: int, *, quick: bool = False) -> Path:
    """Where what was measured with so many workers on each of so many hosts is kept.

    ``quick``: by a plan, and not by ``partita measure``.
    """
    return cache_folder() / f"links-{hosts}x{workers}{'-quick' if quick else ''}.json"


def cache_folder() -> Path:
    """Where what was measured on this machine is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partita"


def measure_links(context: Context, *, quick: bool = False) -> Links:
    """Measure all links that there are, with all workers sending at once. All workers call this.

    Messages grow from 4 KiB fourfold until one takes 0.3 s, or to 256 MiB (``quick``: 0.03 s, 2 MiB, a third as often).
    """
    mesh = context.mesh
    send, added = dict[str, Curve](), dict[str, Curve]()
    everybody = context.group()
    share = share_of_processor(everybody)
    for link, axis in _AXIS_OF.items():
        group = context.group(axis)
        if group.size > 1:
            send[link] = _curve(everybody, _sender(group), quick, share)
            added[link] = _curve(everybody, _adder(group), quick, share)
    return Links(send, added, mesh.hosts, mesh.workers, machine(), now())


def links_hold(context: Context, links: Links, times: float) -> bool:
    """Whether one message over each link takes no more than so many times longer than was measured, and no less. All
    workers call this."""
    for link, axis in _AXIS_OF.items():
        group = context.group(axis)
        if group.size == 1:
            continue
        if link not in links.send:
            return False
        was, work = links.seconds_to_send(link, _PROBE_BYTES), _sender(group)(_PROBE_BYTES)
        # Where there are more workers than cores, one message now and then takes several times as long as others.
        probes = (_taken(context.group(), work, QUICK_REPEATS)[0] for _ in range(_PROBES))
        if not any(was / times < found < was * times for found in probes):
            return False
    return True


def _sender(group: Group) -> Callable[[int], Callable[[], object]]:
    def of(num_bytes: int) -> Callable[[], object]:
        counts = [max(1, num_bytes // (4 * _COLUMNS * (group.size - 1)))] * group.size
        counts[group.rank] = 0
        rows = torch.zeros(sum(counts), _COLUMNS)
        return lambda: group.exchange(rows, counts, counts, "forward")

    return of


def _adder(group: Group) -> Callable[[int], Callable[[], object]]:
    def of(num_bytes: int) -> Callable[[], object]:
        tensor = torch.zeros(max(1, num_bytes * group.size // (8 * (group.size - 1))))
        return lambda: group.sum_([tensor])

    return of


def _curve(everybody: Group, of: Callable[[int], Callable[[], object]], quick: bool, share: float) -> Curve:
    largest, longest = (QUICK_LARGEST, QUICK_LONGEST) if quick else (LARGEST, LONGEST_SECONDS)
    sizes, found, size = list[float](), list[tuple[float, float]](), SMALLEST
    while size <= largest and (not found or found[-1][0] < longest or len(found) < 2):
        found.append(_taken(everybody, of(size), QUICK_REPEATS if quick else REPEATS))
        sizes.append(float(size))
        size *= 4
    seconds, busy = zip(*found, strict=True)
    return Curve(
        tuple(sizes), seconds, tuple(min(took, each / share) for took, each in zip(seconds, busy, strict=True))
    )


def _taken(everybody: Group, work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds, and those of a processor: medians over the repetitions, means over the workers."""
    found = list[tuple[float, float]]()
    for _ in range(repeats + 2):  # the first two warm up
        everybody.gather(0)
        found.append(watched(work))
    # All must come to the same end, so they settle what it took.
    of_workers = everybody.gather([statistics.median(each) for each in zip(*found[2:], strict=True)])
    took, busy = (statistics.fmean(each) for each in zip(*of_workers, strict=True))
    return took, busy


def links_on_worker(context: Context, *, quick: bool = False) -> dict[str, Any]:
    """What each worker does that is started to measure; returns :meth:`Links.to_json`."""
    return measure_links(context, quick=quick).to_json()
