"""Edges of which some are on a device, simulated, and some on the host: the picks are those of the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import simulated_device
import torch
from gpu_imports import gpu_kernels
from lacking import some_edges
from simulated_device import DEVICE, held, launch_on_the_device, simulated

from partita import kernels
from partita.comm.routing import bucket, first_appearance
from partita.core.errors import EdgesError
from partita.features.rank_bitmap import Positions
from partita.kernels import memory
from partita.sample import device
from partita.sample.device import DeviceTopology, HostDraws, edge_bytes, on_device
from partita.sample.samplers import Fanout
from partita.sample.topology import ArrayTopology

N = 60


@pytest.fixture(scope="module", autouse=True)
def _device() -> Iterator[None]:
    with gpu_kernels(interpreted=True), pytest.MonkeyPatch.context() as patch:
        launch_on_the_device(patch)
        for module in (memory, device):
            patch.setattr(module, "is_pinned", simulated_device.is_pinned)
        patch.setattr(device, "pinned", simulated_device.pin)
        with simulated():
            yield


def topology(weighted: bool = False, replace: bool = False, types: torch.dtype | None = None) -> ArrayTopology:
    """A graph of rows of 0 to 12 edges, whose nodes have moved since ingest."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(0, 13, (N,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    total = int(indptr[-1])
    indices = torch.randint(0, N, (total,), generator=generator).int()
    weights = torch.randint(0, 9, (total,), generator=generator).int().view(torch.uint32)
    original = torch.randperm(N, generator=generator)
    kinds = torch.randint(0, 4, (total,), generator=generator)
    rows = torch.repeat_interleave(torch.arange(N), lengths)
    kinds = ((4 * rows + kinds).sort().values % 4).int()  # ascending in every row
    return ArrayTopology(
        indptr, indices, original=original, weights=weights if weighted else None, replace=replace, weighted=weighted,
        edge_type=None if types is None else kinds.to(types), num_relations=1 if types is None else 4,
    )  # fmt: skip


def sampled(found: ArrayTopology, dst: torch.Tensor, fanout: int | tuple[int, ...], relabel: bool) -> list[object]:
    sample = found.at_owners(dst, Fanout(17, fanout, positions=True))
    ids = kernels.relabel(dst, sample.indices, kernels.Relabeller(N)) if relabel else [sample.indices]
    return [held(value) for value in (sample.indptr, sample.positions, sample.edge_type, *ids)]


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("budget", [0, 700, 1200, 2**20])
@pytest.mark.parametrize("types", [None, torch.uint8, torch.uint16])
def test_the_picks_are_those_of_the_host(budget, weighted, replace, pin, types) -> None:
    local = topology(weighted, replace, types)
    there = on_device(local, DEVICE, budget, pin=pin)
    if isinstance(there, DeviceTopology):
        assert (budget == 0) == (there.num_hot <= 0)
        assert there.num_hot < N
        assert budget == 0 or there.num_bytes <= budget
    else:
        assert budget >= edge_bytes(local)
    dst = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:40].int()
    for fanout in (-1, 3) if types is None else (2, (3, 0, -1, 1)):
        for relabel in (False, True):
            wanted = sampled(local, dst, fanout, relabel)
            for ours, theirs in zip(sampled(there, dst.to(DEVICE), fanout, relabel), wanted, strict=True):
                assert ours is theirs or torch.equal(ours, theirs)
    nobody = there.sample(dst[:0].to(DEVICE), 17, 3)
    assert held(nobody.indptr).tolist() == [0]


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("budget", [0, 700, 1200, 2**20, None])
@pytest.mark.parametrize("types", [None, torch.uint8])
def test_without_some_edges_the_picks_are_those_of_the_host(budget, weighted, pin, types) -> None:
    """Also where the host draws for the device (no budget)."""
    whole = topology(weighted, False, types)
    local = whole.without(some_edges(whole, 4))
    base = HostDraws(whole, DEVICE) if budget is None else on_device(whole, DEVICE, budget, pin=pin)
    there = base.without(some_edges(whole, 4))
    dst = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:40].int()
    fanouts = (-1, 3) if types is None else (2, (3, 0, -1, 1))
    for fanout in fanouts:
        wanted = sampled(local, dst, fanout, False)
        assert not torch.isin(wanted[1], local.left_out).any()
        for ours, theirs in zip(sampled(there, dst.to(DEVICE), fanout, False), wanted, strict=True):
            assert ours is theirs or torch.equal(ours, theirs)
    assert len(local.left_out) > 20
    assert torch.equal(held(there.degrees(dst.to(DEVICE))), local.degrees(dst))


def test_the_nodes_with_the_most_edges_are_on_the_device() -> None:
    local = topology()
    there = on_device(local, DEVICE, 1200, pin=True)
    hot = held(there._rank) >= 0
    degrees = local.degrees(torch.arange(N))
    assert 0 < int(hot.sum()) < N
    assert int(degrees[hot].min()) >= int(degrees[~hot].max())


@pytest.mark.parametrize("budget", [1200, 2**40])
@pytest.mark.parametrize("wrong", [-1, N])
def test_damaged_edges_do_not_go_to_a_device(budget, wrong) -> None:
    local = topology()
    arrays = local.arrays()
    damaged = arrays["indices"].clone()
    damaged[5] = wrong
    with pytest.raises(EdgesError, match=f"it holds the id {wrong}"):
        on_device(ArrayTopology(**{**arrays, "indices": damaged}), DEVICE, budget, pin=True)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_positions_on_the_device(share) -> None:
    generator = torch.Generator().manual_seed(7)
    members = (torch.rand(300, generator=generator) < share).nonzero().flatten()
    positions = Positions(members, 300)
    asked = torch.randperm(300, generator=generator)
    assert torch.equal(held(positions.find(asked.to(DEVICE))), positions.find(asked))
    assert torch.equal(held(positions.contains(asked.int().to(DEVICE))), positions.contains(asked))


@pytest.mark.parametrize("count", [0, 1, 200])
def test_routing_on_the_device(count) -> None:
    ids = torch.randint(0, 40, (count,), generator=torch.Generator().manual_seed(count))
    for ours, theirs in zip(first_appearance(ids.to(DEVICE)), first_appearance(ids), strict=True):
        assert torch.equal(held(ours), theirs)
    (order, counts), (wanted, wanted_counts) = bucket(ids.to(DEVICE) % 3, 4), bucket(ids % 3, 4)
    assert torch.equal(held(order), wanted)
    assert counts == wanted_counts
