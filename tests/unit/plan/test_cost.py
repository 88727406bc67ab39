"""What a link between hosts carries at once: rows that their workers send, and sums of gradients."""

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
from partita.plan.rates import PerBlock, Rates
from partita.testing.graphs import small_random_store

PARAMETERS = 12_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    small_random_store(folder / "whole", 400, 4000, undirected=True, num_features=12)
    partita.partition(folder / "whole", folder / "four", parts=4, algorithm="random")
    return partita.open(folder / "four")


def of_first_step(store, machine: Machine, change=lambda share, rank: share):
    mesh = Mesh.of(0, 4, 2)
    dry_run = DryRun(store, Config.make(SETTINGS, where="test"), mesh, candidates(2, mesh), shards=True)
    strategy, shares = next(
        (each, shares) for each, shares in next(dry_run.steps(seconds=0.0)).items() if each.name == "dnp"
    )
    cost = Cost(
        dry_run.engines[strategy], strategy.axis, mesh, machine.rates(), machine.links(), parameter_bytes=PARAMETERS,
        row_bytes=dry_run.row_bytes, ahead=2, held=0,
    )  # fmt: skip
    return cost.of_step([change(share, rank) for rank, share in enumerate(shares)])


def only(num_bytes: list[int]):
    """Each worker sends so many bytes, in one message of a layer."""
    return lambda share, rank: replace(share, messages=[Traffic(), Traffic(forward=num_bytes[rank])], far=[None, None])


def test_the_workers_of_a_host_share_its_link(store):
    """What one sends alone goes at the rate of both: links were measured with both sending."""
    machine = Machine(send=0.0, far=1e-6, compute=0.0, edge=0.0)
    alone, both = (
        [seconds.exchange for seconds, _ in of_first_step(store, machine, only(each))]
        for each in ([8000, 0, 0, 0], [4000, 4000, 0, 0])
    )
    assert alone == pytest.approx(both)
    assert alone == pytest.approx([4000 * 2 / 3 * 1e-6] * 2 + [0.0] * 2)  # two of three others are on the other host


def test_within_a_host_each_worker_waits_for_what_it_sends(store):
    machine = Machine(send=1e-6, far=0.0, compute=0.0, edge=0.0)
    found = [seconds.exchange for seconds, _ in of_first_step(store, machine, only([8000, 0, 0, 0]))]
    assert found == pytest.approx([8000 / 3 * 1e-6, 0.0, 0.0, 0.0])


def test_a_sum_over_all_workers_leaves_every_host_once(store):
    """Round a ring of four a worker sends 2 x 3/4 of the gradients; of the two of a host only one to the other host."""
    found = [seconds.gradients for seconds, _ in of_first_step(store, Machine(far=1e-6))]
    settled = 2 * 3 / 4 * 256
    assert found == pytest.approx([(2 * 3 / 4 * PARAMETERS + settled) / 2 * 1e-6] * 4)


def test_input_rows_go_over_the_links_that_they_are_read_over(store):
    """Rows of workers of the same host do not leave it, and of the layers' messages what is known to go elsewhere."""
    machine = Machine(send=0.0, far=1e-6, compute=0.0, edge=0.0)
    for hosts, known in ((1000, 0), (0, 200), (4000, 300)):

        def change(share, rank, hosts=hosts, known=known):
            sent = [Traffic(features=4000), Traffic(forward=300)]
            return replace(share, messages=sent, far=[Traffic(features=hosts), Traffic(forward=known)])

        found = [seconds.exchange for seconds, _ in of_first_step(store, machine, change)]
        assert found == pytest.approx([(hosts + known) * 1e-6] * 4)


@pytest.mark.parametrize("name", ["dnp@workers+data@hosts", "by-owner,data,data@workers", "gdp"])
def test_rows_of_other_hosts_come_over_their_link_however_workers_place(store, name):
    """On shards: those that place among the workers of a host also read rows of other hosts."""
    free, slow = (
        planned(store, Machine(send=0.0, far=far, compute=0.0, edge=0.0), hosts=2, shards=True) for far in (0.0, 1e-6)
    )
    plan = slow.plan({})
    candidate = next(each for each in plan.candidates if each.name == name)
    strategy = next(each for each in slow.found if each.name == name)
    more = slow.foreseen(strategy).exchange - free.foreseen(strategy).exchange
    # Of the bytes that all receive, those of the host that receives more; which is half of them at least.
    assert candidate.epoch_rows["hosts"] > 0
    assert candidate.epoch_links["other_host"] >= candidate.epoch_rows["hosts"]
    assert 0.49 * candidate.epoch_rows["hosts"] / 2 * 1e-6 <= more <= candidate.epoch_rows["hosts"] * 1e-6


class OfParts(Machine):
    """Layers take three times as long by states, layer 1 as long as a whole one."""

    def rates(self, types: int = 1) -> Rates:
        return replace(super().rates(types), ways={"states": (1.0, 3.0)})


def test_layers_that_are_computed_from_parts_take_longer(store):
    machine = OfParts(send=0.0, far=0.0, edge=0.0)

    def compute(*ways: str) -> list[float]:
        found = of_first_step(store, machine, lambda share, rank: replace(share, ways=ways))
        return [seconds.compute for seconds, _ in found]

    whole, first, second = compute("whole", "rows"), compute("states", "whole"), compute("whole", "states")
    assert first == pytest.approx(whole)
    shares: list[float] = []
    of_first_step(store, machine, lambda share, rank: shares.append(share.blocks[1, 0]) or share)
    assert [longer - as_long for longer, as_long in zip(second, whole, strict=True)] == pytest.approx(
        [2 * machine.compute * destinations for destinations in shares]
    )


class WhereRowsMove(Machine):
    """Rows take a second for a byte to be put together; layer 1 takes nothing of rows that were read before."""

    def rates(self, types: int = 1) -> Rates:
        nothing = PerBlock(0.0, 0.0, 0.0, 0.0)
        return replace(super().rates(types), moved_byte=1.0, tiered=(nothing, nothing))


def test_rows_that_come_from_several_workers_are_put_together(store):
    """On shards, by what a worker asks for and what it reads for others."""
    machine = WhereRowsMove(send=0.0, far=0.0, edge=0.0)
    moved: list[int] = []
    found = of_first_step(store, machine, lambda share, rank: moved.append(sum(share.row_bytes)) or share)
    assert [seconds.load for seconds, _ in found] == pytest.approx(moved)
    plain = of_first_step(store, Machine(send=0.0, far=0.0, edge=0.0))
    assert all(given.compute < other.compute for (given, _), (other, _) in zip(found, plain, strict=True))
