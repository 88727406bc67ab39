"""Single tiers by hand: who gives which row, what is refused, what is kept."""

from __future__ import annotations

import pytest
import torch
from feature_tiers import BUDGET, NUM_NODES, PARTS, WIDTH, Rows, axis_of
from torch import Tensor

from partita.comm.threads import ThreadContext, ThreadGroups
from partita.core.errors import ConfigError
from partita.features.cache import Cached, PartitionedCache, owned
from partita.features.host import HostRows
from partita.features.peers import Peers
from partita.features.rank_bitmap import Positions
from partita.features.rows import FeatureColumn
from partita.features.tiers import CacheSettings, make_tiers


@pytest.mark.parametrize("num_nodes", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9, 1.0])
def test_positions_are_ranks(num_nodes: int, share: float) -> None:
    generator = torch.Generator().manual_seed(num_nodes)
    member = torch.rand(num_nodes, generator=generator) < share
    ids = member.nonzero().flatten()
    positions = Positions(ids[torch.randperm(len(ids), generator=generator)], num_nodes)
    asked = torch.randint(num_nodes, (300,), generator=generator, dtype=torch.int32)
    rank = torch.where(member, member.cumsum(0) - 1, -1)
    assert torch.equal(positions.find(asked), rank[asked.long()])
    assert torch.equal(positions.contains(asked), member[asked.long()])
    assert positions.num_bytes == Positions.bytes_for(num_nodes) == -(-num_nodes // 64) * 12


def test_positions_without_the_instruction_of_numpy_2(monkeypatch) -> None:
    monkeypatch.delattr("numpy.bitwise_count", raising=False)
    test_positions_are_ranks(1000, 0.5)


def test_a_row_that_the_host_lacks_is_refused() -> None:
    x = torch.arange(12.0).view(6, 2)
    host = HostRows(FeatureColumn(x[2:4]), 6, 2, torch.tensor([0, 5]), FeatureColumn(x[[0, 5]]))
    assert host.holds(torch.arange(6)).tolist() == [True, False, True, True, False, True]
    work = host.ask(torch.tensor([5, 2, 0, 3]))
    assert torch.equal(host.read(work), x[[5, 2, 0, 3]])
    assert work.hits == (0, 4, 0, 0)
    with pytest.raises(ValueError, match=r"rows of 2 of 3 nodes: \[4, 1\]"):
        host.ask(torch.tensor([4, 2, 1]))
    with pytest.raises(ValueError, match="does not hold"):
        HostRows(FeatureColumn(x[2:4]), 6, 2).ask(torch.tensor([0]))


def test_hot_rows_must_be_like_the_others() -> None:
    x, ids, scale = torch.ones(6, 2), torch.tensor([0, 5]), torch.ones(6)
    home = FeatureColumn(x[2:4], scale=scale[2:4])
    HostRows(home, 6, 2, ids, FeatureColumn(x[:2], scale=scale[:2]))
    for hot in (
        *(FeatureColumn(x[:2]), FeatureColumn(x[:3], scale=scale[:3])),
        *(FeatureColumn(x[:2].half(), scale=scale[:2]), FeatureColumn(x[:2, :1], scale=scale[:2]), None),
    ):
        with pytest.raises(ValueError, match="hot rows need"):
            HostRows(home, 6, 2, ids, hot)


def test_a_cache_is_on_its_device() -> None:
    cache = Cached(Rows().host(), NUM_NODES, BUDGET, device="meta")
    for best in ([], [1, 2]):
        cache.fill(torch.tensor(best, dtype=torch.int64))
        for ids in ([1, 2], [1, 3], [3], []):
            rows = cache.read(cache.ask(torch.tensor(ids, dtype=torch.int64)))
            assert (rows.shape, rows.dtype, rows.device.type) == ((len(ids), WIDTH), torch.float32, "meta")


def test_a_cache_keeps_the_first_that_fit_and_gives_the_rest_from_below() -> None:
    host = Rows().host()
    cache = Cached(host, NUM_NODES, BUDGET)
    assert cache.list_bytes == 24
    assert cache.capacity == (BUDGET - 24) // 24 == 28
    best = torch.arange(NUM_NODES).flip(0)
    cache.fill(best)
    assert cache.num_rows == 28
    ids = torch.tensor([41, 42, 69, 0, 50])
    work = cache.ask(ids)
    assert work.hits == (3, 2, 0, 0)
    assert torch.equal(cache.read(work), Rows().wanted(ids))
    host.home.x.zero_()  # what is cached is a copy
    assert torch.equal(cache.read(cache.ask(ids)) != 0, torch.tensor([0, 1, 1, 0, 1]).bool()[:, None].expand(5, 6))
    cache.fill(best[-2:])
    assert (cache.num_rows, cache.num_bytes) == (2, 24 + 2 * 24)
    cache.fill(best[:0])
    assert cache.num_bytes == 0
    assert cache.ask(ids).hits == (0, 5, 0, 0)


def test_the_owner_reads_for_all_and_once() -> None:
    requests = [[3, 40, 19, 0], [40, 3, 69, 24], []]
    groups = ThreadGroups(3)

    def work(context: ThreadContext) -> tuple[tuple[int, ...], list[int]]:
        axis = axis_of(context, "all")
        cache = Cached(Rows().host(), NUM_NODES, BUDGET)
        cache.fill(torch.tensor([40, 3, 0]))
        tier = Peers(axis, cache, axis.owner)
        found = tier.ask(torch.tensor(requests[axis.rank], dtype=torch.int32))
        tier.read(found)
        return found.hits, sorted(found.reads.tolist())

    assert groups.run(work) == [((2, 2, 1, 0), [0, 3, 19, 24]), ((0, 0, 4, 0), []), ((1, 1, 0, 0), [40, 69])]


def test_hot_rows_come_from_their_holders_and_cold_ones_from_the_host() -> None:
    groups = ThreadGroups(2)

    def work(context: ThreadContext) -> tuple[tuple[int, ...], int, int]:
        axis = axis_of(context, "workers")
        cache = PartitionedCache(Rows().host(), NUM_NODES, BUDGET, axis)
        cache.fill(torch.tensor([[3, 1], [30]][axis.rank]))
        found = cache.ask(torch.tensor([1, 2, 3, 30, 60]))
        return found.hits, cache.num_rows, cache.num_bytes

    # The first worker reads 2 and has 1 and 3; 30 comes from the second, which asks for the other two.
    assert groups.run(work) == [((2, 2, 1, 0), 2, 24 + 48 + 24), ((1, 2, 2, 0), 1, 24 + 24 + 24)]


def test_rows_of_other_hosts_are_told_from_those_of_other_workers() -> None:
    groups = ThreadGroups(4, hosts=2)

    def work(context: ThreadContext) -> tuple[int, ...]:
        axis = axis_of(context, "all")
        tier = Peers(axis, Rows().host(), axis.owner, context.mesh.workers)
        ids = torch.tensor([0, 20, 21, 50, 51, 52]) if context.mesh.rank == 2 else torch.arange(0)
        return tier.ask(ids).hits

    assert groups.run(work) == [(0, 1, 0, 0), (0, 0, 0, 0), (0, 2, 3, 1), (0, 3, 0, 0)]


def test_copies_of_what_the_host_has_are_not_wanted_where_it_lacks_rows() -> None:
    def work(context: ThreadContext) -> Tensor:
        host = Rows().shard(context)
        axis = axis_of(context, "hosts")
        _, cache = make_tiers(host, CacheSettings(BUDGET), hosts=axis, per_host=1)
        assert cache is not None
        allowed = cache.allowed()
        assert allowed is not None
        assert not (allowed & host.holds(torch.arange(NUM_NODES))).any()
        return allowed

    for allowed in ThreadGroups(2, hosts=2).run(work):
        assert allowed.any()


def test_a_cache_without_room_for_a_row_is_refused() -> None:
    for size in (1, 24, 47):
        with pytest.raises(ConfigError, match=r"cache: a cache of .* bytes has no room.*takes 24.*a row 24"):
            make_tiers(Rows().host(), CacheSettings(size))
    assert make_tiers(Rows().host(), CacheSettings(48))[1] is not None
    assert make_tiers(Rows(columns=slice(2, 2)).host(), CacheSettings(48))[1] is not None


@pytest.mark.parametrize("size", PARTS)
def test_every_node_is_owned_once(size: int) -> None:
    found = ThreadGroups(size).run(lambda context: owned(axis_of(context, "all"), NUM_NODES))
    assert torch.stack(found).sum(0).tolist() == [1] * NUM_NODES
