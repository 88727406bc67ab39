"""What workers wait for: each other between two exchanges, and what a link between hosts carries at once."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from made_up_machine import SETTINGS, Machine, planned

import partita
from partita.config import Config
from partita.core.estimates import FileReads
from partita.core.mesh import Mesh
from partita.core.plan import Seconds
from partita.core.records import Traffic
from partita.plan.candidates import candidates
from partita.plan.cost import Cost, StepCost
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


def of_first_step(store, machine: Machine, change=lambda share, rank: share) -> StepCost:
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
    return lambda share, rank: replace(
        share, messages=[Traffic(), Traffic(forward=num_bytes[rank]), Traffic()], far=[None] * 3
    )


def test_the_workers_of_a_host_share_its_link(store):
    """What one sends alone goes at the rate of both: links were measured with both sending."""
    machine = Machine(send=0.0, far=1e-6, compute=0.0, edge=0.0)
    for sent in ([8000, 0, 0, 0], [4000, 4000, 0, 0], [4000, 4000, 1000, 0]):
        found = [seconds.exchange for seconds in of_first_step(store, machine, only(sent)).workers]
        assert found == pytest.approx([4000 * 2 / 3 * 1e-6] * 4)  # two of three others are on the other host


def test_all_workers_wait_for_the_one_that_sends_most(store):
    machine = Machine(send=1e-6, far=0.0, compute=0.0, edge=0.0)
    found = [seconds.exchange for seconds in of_first_step(store, machine, only([8000, 100, 0, 0])).workers]
    assert found == pytest.approx([8000 / 3 * 1e-6] * 4)


def of_two(
    parts: list[list[float]],
    exchanges: list[bool],
    waits: float = 0.0,
    *,
    ahead: tuple[float, ...] = (0.0, 0.0),
    idle: float = 0.0,
    together: tuple[float, ...] = (0.0,),
) -> StepCost:
    """The cost of a step of two workers.

    Args:
        parts: of their trainers, seconds for the input rows, and in each layer.
        exchanges: whether something is exchanged for each of these.
        waits: seconds of that.
        ahead: what each worker does besides.
        idle: what of the waiting takes no processor.
        together: what goes on at the same time.
    """
    own = np.array(parts)
    workers = tuple(
        Seconds(sample=first, compute=sum(rest), exchange=waits)
        for first, rest in zip(ahead, own.T.tolist(), strict=True)
    )
    busy = np.array([each.total for each in workers]) - idle
    return StepCost(workers, busy, own, np.array(exchanges), waits, together, 0.0)


UNLIKE = [[0.0, 0.0], [5.0, 1.0], [1.0, 5.0]]
"""One worker computes more in layer 1, the other in layer 2; by themselves both take 6 s."""


@pytest.mark.parametrize(
    ("exchanges", "seconds"),
    [
        ([False, False, False], 6.5),
        ([False, False, True], 10.5),
        ([False, True, False], 10.5),
        ([True, False, False], 6.5),  # before both layers
    ],
)
def test_workers_wait_for_each_other_at_exchanges(exchanges, seconds):
    assert of_two(UNLIKE, exchanges, 0.5).seconds.total == pytest.approx(seconds)


def test_what_is_done_ahead_is_done_while_trainers_wait():
    for ahead, seconds in ((2, 10), (4, 10), (7, 13)):
        assert of_two(UNLIKE, [False, False, True], ahead=(ahead, 0)).seconds.total == pytest.approx(seconds)


def test_owners_of_learnt_rows_are_waited_for():
    """One owns all rows and gives them, the other computes more."""
    parts = [[3.0, 0.0], [1.0, 3.0]]
    assert of_two(parts, [True, False], 1.0).seconds.total == pytest.approx(7)
    assert of_two(parts, [False, False], 1.0).seconds.total == pytest.approx(5)


def test_a_step_takes_as_long_as_what_is_busy_longest():
    """A processor, while messages of the trainer are on their way, or sampling, reading and sending that go on."""
    sent = of_two([[0.0, 0.0], [5.0, 5.0]], [False, True], 3.0, ahead=(4.0, 0.0), idle=2.5)
    assert sent.seconds.total == pytest.approx(5 + 3 + 4 - 2.5)
    assert of_two([[0.0, 0.0], [5.0, 5.0]], [False, True], 3.0, ahead=(2.0, 0.0), idle=2.5).seconds.total == 8
    other = of_two([[0.0, 0.0], [5.0, 5.0]], [False, True], 3.0, ahead=(4.0, 0.0), idle=2.5, together=(1.0, 12.0, 2.0))
    assert other.seconds.total == pytest.approx(12)
    # So divided as threads are busy, which is what a run measures.
    assert [each / 12 for each in other.seconds.values()] == pytest.approx([each / 12 for each in (4, 3, 0, 5, 0)])


some_seconds = st.lists(st.floats(0, 100), min_size=2, max_size=2)


@given(
    some_seconds, st.lists(st.tuples(some_seconds, st.booleans()), min_size=1, max_size=5), st.floats(0, 10),
    st.floats(0, 1),
)  # fmt: skip
def test_exchanges_never_make_a_step_shorter(ahead, parts, waits, idle):
    """Nor longer than if all waited after each part; and what takes no processor never makes it longer."""
    seconds, exchanges = zip(*parts, strict=True)
    some, none, every = (
        of_two(list(seconds), list(each), waits, ahead=tuple(ahead), idle=idle * waits)
        for each in (exchanges, [False] * len(parts), [True] * len(parts))
    )
    assert none.seconds.total <= some.seconds.total * (1 + 1e-9)
    assert some.seconds.total <= every.seconds.total * (1 + 1e-9)
    slowest, trainers = max(each.total for each in none.workers), waits + sum(map(max, seconds))
    assert every.seconds.total == pytest.approx(max(slowest - idle * waits, trainers))
    busy = of_two(list(seconds), list(exchanges), waits, ahead=tuple(ahead))
    assert some.seconds.total <= busy.seconds.total * (1 + 1e-9)
    assert busy.seconds.total >= slowest * (1 - 1e-9)


def test_a_sum_over_all_workers_leaves_every_host_once(store):
    """Round a ring of four a worker sends 2 x 3/4 of the gradients; of the two of a host only one to the other host."""
    found = [seconds.gradients for seconds in of_first_step(store, Machine(far=1e-6)).workers]
    settled = 2 * 3 / 4 * 256
    assert found == pytest.approx([(2 * 3 / 4 * PARAMETERS + settled) / 2 * 1e-6] * 4)


def test_input_rows_go_over_the_links_that_they_are_read_over(store):
    """Rows of workers of the same host do not leave it, and of the layers' messages what is known to go elsewhere."""
    machine = Machine(send=0.0, far=1e-6, compute=0.0, edge=0.0)
    for hosts, known in ((1000, 0), (0, 200), (4000, 300)):

        def change(share, rank, hosts=hosts, known=known):
            sent = [Traffic(features=4000), Traffic(forward=300), Traffic()]
            return replace(share, messages=sent, far=[Traffic(features=hosts), Traffic(forward=known), None])

        found = [seconds.exchange for seconds in of_first_step(store, machine, change).workers]
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


@pytest.mark.parametrize("busy", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("far", [1e-9, 1e-6, 1e-3])
def test_input_rows_are_sent_while_the_batches_before_are_computed(store, far, busy):
    """A step takes as long as a processor or the link is busy, and the trainer waits for sums of gradients only."""
    machine = Machine(send=0.0, far=far, compute=1e-4, edge=0.0, busy=busy)
    inputs = [Traffic(features=8000), Traffic(), Traffic()]
    found = of_first_step(store, machine, lambda share, rank: replace(share, messages=inputs, far=[None] * 3))
    computing = max(each.compute for each in found.workers)
    rows, sums = found.workers[0].exchange, found.workers[0].gradients
    assert rows == pytest.approx(8000 * 2 / 3 * far)
    first = far  # as the seconds of a message of one byte are taken to be those of any
    longest = max(computing + busy * (rows + sums), computing + sums, rows + sums - first)
    assert found.seconds.total == pytest.approx(longest)


@pytest.mark.parametrize("busy", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("file_byte", [1e-9, 1e-6, 1e-3])
def test_rows_are_read_from_files_while_the_batches_before_are_computed(store, file_byte, busy):
    machine = Machine(send=0.0, far=0.0, compute=1e-4, edge=0.0, file_byte=file_byte, busy=busy)
    nothing = {"messages": [Traffic()] * 3, "far": [None] * 3}
    found = of_first_step(
        store, machine, lambda share, rank: replace(share, **nothing, files=FileReads(cost=1000 * (rank + 1)))
    ).seconds
    alone = of_first_step(store, machine, lambda share, rank: replace(share, **nothing, files=FileReads())).workers
    computing = [each.total for each in alone]
    loads = [1000 * (rank + 1) * file_byte for rank in range(4)]
    processors = (own + busy * load for own, load in zip(computing, loads, strict=True))
    assert found.total == pytest.approx(max(*processors, *computing, *loads))


def test_learnt_rows_are_not_sent_ahead(store):
    """Neither they nor what is exchanged in layers: the trainer waits for both."""
    machine = Machine(send=0.0, far=1e-6, compute=1e-4, edge=0.0, busy=0.0)
    rows = [Traffic(features=8000), Traffic(), Traffic()]
    for messages, learnt in ((rows, 1), (rows[::-1], 0)):
        found = of_first_step(
            store, machine,
            lambda share, rank, messages=messages, learnt=learnt: replace(
                share, messages=messages, far=[None] * 3, given=np.array([learnt])
            ),
        )  # fmt: skip
        slowest = max(each.total for each in found.workers)
        assert found.seconds.total == pytest.approx(slowest)


class OfParts(Machine):
    """Layers take three times as long by states, layer 1 as long as a whole one."""

    def rates(self, types: int = 1) -> Rates:
        return replace(super().rates(types), ways={"states": (1.0, 3.0)})


def test_layers_that_are_computed_from_parts_take_longer(store):
    machine = OfParts(send=0.0, far=0.0, edge=0.0)

    def compute(*ways: str) -> list[float]:
        found = of_first_step(store, machine, lambda share, rank: replace(share, ways=ways))
        return [seconds.compute for seconds in found.workers]

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
    assert [seconds.load for seconds in found.workers] == pytest.approx(moved)
    plain = of_first_step(store, Machine(send=0.0, far=0.0, edge=0.0))
    assert all(read.compute < other.compute for read, other in zip(found.workers, plain.workers, strict=True))
