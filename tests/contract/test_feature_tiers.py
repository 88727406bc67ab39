"""What every feature tier and every chain of tiers promises: the very rows, exact bytes, exact counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from feature_tiers import BUDGET, MADE, NUM_NODES, WIDTH, Maker, Rows
from torch import Tensor

from partita.comm.axis import make_axis
from partita.comm.threads import ThreadContext, ThreadGroups
from partita.config import Config
from partita.core.protocols import CacheTier, FeatureTier, TierWork
from partita.features.cache import Cached
from partita.features.peers import Peers
from partita.features.policies import best_first
from partita.features.tiers import CACHE_LAYOUTS, CacheSettings, make_tiers
from partita.graph.store import GraphStore
from partita.partitioning.shards import shard
from partita.sample.topology import as_tensor
from partita.setup.inputs import open_rows
from partita.testing.graphs import formula_store

CASES = [(name, *mesh) for name, (_, meshes) in MADE.items() for mesh in meshes]
EVERY = pytest.mark.parametrize(
    ("name", "workers", "hosts"), [pytest.param(*case, id="-".join(map(str, case))) for case in CASES]
)
WAYS = {
    "as-stored": Rows(),
    "half": Rows(torch.float16),
    "half-scaled": Rows(torch.float16, torch.float64, scaled=True),
    "scaled": Rows(scaled=True),
    "columns": Rows(columns=slice(1, 4)),
    "half-columns-scaled": Rows(torch.float16, scaled=True, columns=slice(2, 6)),
    "no-columns": Rows(columns=slice(3, 3)),
    "bytes": Rows(small="int8"),
    "bytes-columns-scaled": Rows(small="int8", scaled=True, dtype=torch.float64, columns=slice(1, 4)),
    "half-bytes": Rows(small="int4"),
    "half-bytes-columns": Rows(small="int4", columns=slice(1, 4)),
    "half-bytes-columns-scaled": Rows(small="int4", scaled=True, columns=slice(1, 5)),
}


def asked(kind: str, rank: int, size: int) -> Tensor:
    """Distinct ids that a worker asks for."""
    shuffled = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(rank))
    found = {
        "overlapping": shuffled[: 20 + 7 * rank],
        "disjoint": torch.arange(NUM_NODES)[rank::size].flip(0),
        "all": torch.arange(NUM_NODES),
        "none": shuffled[:0],
        "one worker only": shuffled[:0] if rank else shuffled,
    }[kind]
    return found.int() if kind == "overlapping" else found


def run(make: Maker, rows: Rows, workers: int, hosts: int, kind: str) -> tuple[list[Any], dict[str, int]]:
    """What every worker gets, and the bytes that were sent for it."""
    groups = ThreadGroups(workers, hosts)

    def work(context: ThreadContext) -> tuple[Tensor, Tensor, TierWork, FeatureTier]:
        tier = make(context, rows)
        context.group("all", "train").gather(0)
        before = context.meter.snapshot()
        ids = asked(kind, context.mesh.rank, workers)
        work = tier.ask(ids)
        tier.announce(work)
        work = tier.prepare(work)
        found = tier.read(work)
        context.sent = {k: sum(links.values()) for k, links in context.meter.difference(before).items()}  # type: ignore[attr-defined]
        return ids, found, work, tier

    done = groups.run(work)
    sent = [context.sent for context in groups.contexts]  # type: ignore[attr-defined]
    return done, {kind: sum(each[kind] for each in sent) for kind in sent[0]}


def check(name: str, workers: int, hosts: int, rows: Rows, kind: str) -> None:
    done, sent = run(MADE[name][0], rows, workers, hosts, kind)
    remote = 0
    for ids, found, work, tier in done:
        wanted = rows.wanted(ids)
        assert isinstance(work, TierWork)
        assert isinstance(tier, FeatureTier)
        assert (found.dtype, tier.dtype, tier.width) == (wanted.dtype, wanted.dtype, wanted.shape[1])
        assert torch.equal(found, wanted)
        assert work.remote == sum(work.hits[2:])
        assert sum(work.hits) >= len(ids)
        assert len(work.reads) == len(set(work.reads.tolist()))
        remote += work.remote
    tier = done[0][3]
    assert sent["ids"] == 8 * remote
    assert sent["features"] == tier.width * tier.dtype.itemsize * remote
    assert sent["forward"] == sent["backward"] == 0
    read = sum(sum(work.hits[:2]) for _, _, work, _ in done)
    distinct = len({int(v) for ids, *_ in done for v in ids})
    requests = sum(len(ids) for ids, *_ in done)
    assert distinct <= read <= requests
    if kind == "disjoint":
        assert read == requests
    if not tier.collective:
        assert sent == dict.fromkeys(sent, 0)


@EVERY
@pytest.mark.parametrize("way", ["half", "half-columns-scaled"])
def test_rows_bytes_and_counts(name: str, workers: int, hosts: int, way: str) -> None:
    check(name, workers, hosts, WAYS[way], "overlapping")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MADE)
def test_in_every_way_of_reading(name: str, way: str) -> None:
    check(name, *MADE[name][1][-1], WAYS[way], "overlapping")


@pytest.mark.parametrize("kind", ["disjoint", "all", "none", "one worker only"])
@pytest.mark.parametrize("name", MADE)
def test_whatever_is_asked_for(name: str, kind: str) -> None:
    check(name, *MADE[name][1][-1], Rows(), kind)


@pytest.mark.parametrize("way", ["as-stored", "half-columns-scaled", "no-columns", "half-bytes-columns"])
@pytest.mark.parametrize("name", MADE)
def test_announced_rows_are_the_same(name: str, way: str) -> None:
    """Batch after batch, as far ahead as the tier wants; again after some were prepared and never read."""
    workers, hosts = MADE[name][1][-1]

    def work(context: ThreadContext) -> int:
        tier, rows = MADE[name][0](context, WAYS[way]), WAYS[way]
        generator = torch.Generator().manual_seed(context.mesh.rank)
        for steps, read in ((6, 3), (9, 9)):
            batches = [torch.randperm(NUM_NODES, generator=generator)[:25] for _ in range(steps)]
            works = [tier.ask(ids) for ids in batches]
            announced = 0
            for step in range(min(steps, read + 1)):
                while announced < min(steps, step + 1 + tier.look_ahead):
                    tier.announce(works[announced])
                    announced += 1
                works[step] = tier.prepare(works[step])
                if step < read:
                    assert torch.equal(tier.read(works[step]), rows.wanted(batches[step]))
            tier.restart()
        aside = torch.randperm(NUM_NODES, generator=generator)[:10]
        assert torch.equal(tier.read(tier.ask(aside)), rows.wanted(aside))
        return tier.look_ahead

    found = ThreadGroups(workers, hosts).run(work)
    assert ("file" in name or "ahead" in name) == (max(found) > 0)


@pytest.mark.parametrize("way", ["bytes", "half-bytes", "half-bytes-columns"])
def test_small_rows_are_expanded_behind_the_tiers(way: str) -> None:
    rows, ids = WAYS[way], torch.arange(NUM_NODES)
    host = rows.host()
    assert host.num_columns == 6 if rows.columns is None else 3
    found = host.values(host.read(host.ask(ids)))
    assert found.dtype == torch.float32
    assert torch.equal(found, rows.column().read(ids)[:, rows.columns or slice(None)])
    worst = (rows.column().levels.scale / 2).max()  # type: ignore[union-attr]
    exact = Rows(columns=rows.columns).wanted(ids)
    assert float((found - exact).abs().max()) <= float(worst) * (1 + 1e-5)


def test_a_cache_holds_more_small_rows() -> None:
    budget = 8 * NUM_NODES + 8 * 24
    found = [Cached(rows.host(), NUM_NODES, budget).capacity for rows in (Rows(), Rows(small="int8"))]
    room = budget - Cached(Rows().host(), NUM_NODES, budget).list_bytes
    assert found == [min(NUM_NODES, room // 24), min(NUM_NODES, room // 6)]
    assert found[0] < found[1]


@EVERY
def test_the_budget_is_kept_and_used(name: str, workers: int, hosts: int) -> None:
    done, _ = run(MADE[name][0], Rows(), workers, hosts, "none")
    for *_, tier in done:
        tier = tier.below if isinstance(tier, Peers) else tier
        if isinstance(tier, CacheTier):
            assert tier.num_rows <= tier.capacity <= NUM_NODES
            if tier.capacity < NUM_NODES:
                assert tier.num_bytes <= BUDGET < tier.list_bytes + (tier.capacity + 1) * tier.row_bytes
            assert tier.num_bytes <= tier.list_bytes + tier.num_rows * 4 * WIDTH
            assert tier.num_rows > 0 or name == "empty cache" or tier.allowed() is not None


def test_the_compositions_are_not_idle() -> None:
    """In some chain every place gives rows: else the checks above would check little."""
    done, _ = run(MADE["shards with caches-partitioned"][0], Rows(), 4, 2, "all")
    total = [sum(work.hits[place] for _, _, work, _ in done) for place in range(4)]
    assert min(total) > 0


@pytest.mark.parametrize("layout", CACHE_LAYOUTS)
@pytest.mark.parametrize("hot_bytes", [0, 200])
def test_shards_on_disk(tmp_path: Path, layout: str, hot_bytes: int) -> None:
    """Two hosts of two workers, each with the shard that the partitioner wrote."""
    whole = formula_store(tmp_path / "g", num_nodes=60, num_parts=4, shuffle_seed=2)
    for host in range(2):
        shard(whole, tmp_path / str(host), host=host, hosts=2, hot_bytes=hot_bytes)
    x = torch.from_numpy(whole.x.copy())  # type: ignore[union-attr]

    def work(context: ThreadContext) -> tuple[int, ...]:
        mesh, store = context.mesh, GraphStore.open(tmp_path / str(context.mesh.host))
        host = open_rows(store, Config.make({}))
        hosts, workers = (make_axis(context, name, as_tensor(store.part_offsets)) for name in ("hosts", "workers"))
        tier, cache = make_tiers(host, CacheSettings(120, layout=layout), hosts=hosts, workers=workers, per_host=2)
        assert cache is not None
        cache.fill(best_first(torch.ones(60), cache.capacity, cache.allowed()))
        ids = torch.randperm(60, generator=torch.Generator().manual_seed(mesh.rank))[:40]
        work = tier.ask(ids)
        assert torch.equal(tier.read(work), x[ids])
        return work.hits

    cached, _, _, other_hosts = torch.tensor(ThreadGroups(4, hosts=2).run(work)).sum(0).tolist()
    assert cached > 0
    assert other_hosts > 0
