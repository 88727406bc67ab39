"""What a step waits for, where its parts are done at the same time, and what a link of a host carries at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_machine import SETTINGS, Machine, planned

import partita
from partita.config import Config
from partita.core.mesh import Mesh
from partita.core.records import Traffic
from partita.plan.candidates import candidates
from partita.plan.cost import Cost
from partita.plan.dryrun import DryRun
from partita.testing.graphs import small_random_store

PARAMETERS = 12_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    small_random_store(folder / "whole", 400, 4000, undirected=True, num_features=12)
    partita.partition(folder / "whole", folder / "four", parts=4, algorithm="random")
    return partita.open(folder / "four")


BUSY = {"edge": 1e-6, "compute": 1e-5, "row": 1e-6, "far": 1e-7}


@pytest.mark.parametrize("busy", [0.0, 0.3, 1.0])
def test_a_step_takes_no_longer_than_one_thing_after_another(store, busy):
    alone, together = (planned(store, Machine(**BUSY, busy=each), hosts=2, shards=True) for each in (None, busy))
    assert any(together.foreseen(each).total < 0.9 * alone.foreseen(each).total for each in alone.found)
    for strategy in alone.found:
        stages, took = alone.foreseen(strategy), together.foreseen(strategy).total
        assert together.found[strategy].seconds.values() == alone.found[strategy].seconds.values()
        assert max(stages.compute, stages.load) - 1e-12 <= took <= stages.total * (1 + 1e-9)
        # Processors that are busy do no more at a time.
        local = stages.total - stages.exchange - stages.gradients
        assert took >= busy * local - 1e-12


def test_without_prefetch_one_thing_is_done_after_another(store):
    plan = planned(store, Machine(**BUSY, busy=0.3), hosts=2, shards=True, prefetch=0)
    for strategy in plan.found:
        assert plan.waiting(strategy).total == pytest.approx(plan.found[strategy].seconds.total)


def test_rows_that_come_ahead_hide_what_is_computed_meanwhile(store):
    """Of gdp on shards the loader asks other hosts for rows, while the trainer computes."""
    slow = planned(store, Machine(far=1e-5, busy=1.0), hosts=2, shards=True)
    computes = planned(store, Machine(far=1e-5, busy=1.0, compute=1e-6), hosts=2, shards=True)
    for plan in (slow, computes):
        gdp = next(each for each in plan.found if each.name == "gdp")
        assert plan.waiting(gdp).local == 0.0
        assert plan.waiting(gdp).total == slow.waiting(gdp).total
    assert computes.found[gdp].seconds.compute > slow.found[gdp].seconds.compute


def of_first_step(store, machine: Machine, change=lambda share, rank: share):
    mesh = Mesh.of(0, 4, 2)
    dry_run = DryRun(store, Config.make(SETTINGS, where="test"), mesh, candidates(2, mesh), shards=True)
    strategy, shares = next(
        (each, shares) for each, shares in next(dry_run.steps(seconds=0.0)).items() if each.name == "dnp"
    )
    cost = Cost(
        dry_run.engines[strategy], strategy.axis, mesh, machine.rates(), machine.links(), parameter_bytes=PARAMETERS,
        row_bytes=dry_run.row_bytes, ahead=2, cache=0,
    )  # fmt: skip
    return cost.of_step([change(share, rank) for rank, share in enumerate(shares)])


def only(num_bytes: list[int]):
    """Each worker sends so many bytes, in one message."""
    return lambda share, rank: replace(share, messages=[Traffic(forward=num_bytes[rank])])


def test_the_workers_of_a_host_share_its_link(store):
    """What one sends alone goes at the rate of both: links were measured with both sending."""
    machine = Machine(send=0.0, far=1e-6, compute=0.0, edge=0.0)
    alone, both = (
        [seconds.exchange for seconds, *_ in of_first_step(store, machine, only(each))]
        for each in ([8000, 0, 0, 0], [4000, 4000, 0, 0])
    )
    assert alone == pytest.approx(both)
    assert alone == pytest.approx([4000 * 2 / 3 * 1e-6] * 2 + [0.0] * 2)  # two of three others are on the other host


def test_within_a_host_each_worker_waits_for_what_it_sends(store):
    machine = Machine(send=1e-6, far=0.0, compute=0.0, edge=0.0)
    found = [seconds.exchange for seconds, *_ in of_first_step(store, machine, only([8000, 0, 0, 0]))]
    assert found == pytest.approx([8000 / 3 * 1e-6, 0.0, 0.0, 0.0])


def test_a_sum_over_all_workers_leaves_every_host_once(store):
    """Round a ring of four a worker sends 2 x 3/4 of the gradients; of the two of a host only one to the other host."""
    found = [seconds.gradients for seconds, *_ in of_first_step(store, Machine(far=1e-6))]
    settled = 2 * 3 / 4 * 256
    assert found == pytest.approx([(2 * 3 / 4 * PARAMETERS + settled) / 2 * 1e-6] * 4)
