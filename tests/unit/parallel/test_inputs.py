"""Level 0: what arrives, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from meters import bytes_sent

from partita.comm.axis import Axis
from partita.comm.threads import ThreadContext, ThreadGroups
from partita.core.keys import StepKey
from partita.features.cache import Cached
from partita.features.host import HostRows
from partita.features.peers import Peers
from partita.features.rows import FeatureColumn
from partita.parallel.inputs import Direct, Tiered, columns_of
from partita.sample.blocks import sample_block
from partita.sample.topology import LocalTopology
from partita.testing.graphs import formula_store
from partita.train.team import PURPOSES

KEY = StepKey(1, 2, 3)
OFFSETS = torch.tensor([0, 20, 20, 40])
REQUESTS = [[3, 25, 19, 0], [25, 3, 39, 24], []]

ColumnsOf = Callable[[FeatureColumn, slice], Tiered]


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> LocalTopology:
    return LocalTopology(formula_store(tmp_path_factory.mktemp("inputs") / "g", num_nodes=40, shuffle_seed=1))


@pytest.fixture
def read_columns(topology) -> ColumnsOf:
    """Level 0 that reads some columns at hand."""
    return lambda column, columns: Tiered(HostRows(column, columns=columns), column, columns, topology.original)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
def test_owners_ship_what_would_have_been_read(topology, read_columns, scaled, dropout, stored) -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).to(stored)
    column = FeatureColumn(x, scale=torch.linspace(0.5, 2, 40) if scaled else None, dropout=dropout)
    groups = ThreadGroups(3)

    def work(context: ThreadContext) -> tuple[int, int, list[int]]:
        axis = Axis(*(context.group("all", purpose) for purpose in dict.fromkeys(PURPOSES)), OFFSETS, torch.arange(3))
        inputs = Tiered(Peers(axis, HostRows(column), axis.owner), column, slice(0, 5), topology.original)
        requests = torch.tensor(REQUESTS[axis.rank], dtype=torch.int32)
        reads = inputs.expand(requests, KEY)
        alone = read_columns(column, slice(0, 5))
        wanted = alone.forward(alone.expand(requests, KEY))
        assert torch.equal(inputs.forward(reads), wanted)
        assert inputs.collective
        assert not alone.collective
        assert not inputs.sums_by_id(training=True)
        assert reads.num_accesses == reads.num_read
        return reads.num_read, reads.traffic.features, sorted(reads.reads.tolist())

    read, features, looked_up = zip(*groups.run(work))
    assert read == (3, 0, 3)
    assert looked_up == ([0, 3, 19], [], [24, 25, 39])
    assert sum(features) == bytes_sent(groups)["features"] == 5 * 5 * (4 if scaled else stored.itemsize)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_slices_are_those_of_whole_rows(read_columns, dropout, size) -> None:
    column = FeatureColumn(torch.randn(40, 5), scale=torch.linspace(0.5, 2, 40), dropout=dropout)
    ids = torch.tensor([7, 30, 2])
    whole = read_columns(column, slice(0, 5))
    slices = [read_columns(column, columns_of(5, rank, size)) for rank in range(size)]
    parts = [part.forward(part.expand(ids, KEY)) for part in slices]
    assert torch.equal(torch.cat(parts, 1), whole.forward(whole.expand(ids, KEY)))
    widths = [part.shape[1] for part in parts]
    assert max(widths) - min(widths) <= 1
    assert (whole.forward(whole.expand(ids, KEY)) == 0).any() == (dropout > 0)


def test_slices_agree_with_what_a_block_reads(topology, read_columns) -> None:
    column = FeatureColumn(torch.randn(40, 5), dropout=0.5)
    block = sample_block(topology, torch.tensor([4, 9]), KEY, 1, 0)
    block = block.with_(src=block.dst, src_original=topology.original(block.dst))
    inputs = read_columns(column, slice(1, 4))
    assert torch.equal(inputs.forward(inputs.expand(block.dst, KEY)), column.rows(block, KEY).all()[:, 1:4])


def test_a_cached_row_is_dropped_out_like_any_other(topology, read_columns) -> None:
    column = FeatureColumn(torch.randn(40, 5), dropout=0.5)
    cache = Cached(HostRows(column), 40, 1000)
    cache.fill(torch.arange(0, 40, 2))
    ids = torch.arange(3, 20)
    inputs, plain = Tiered(cache, column, slice(0, 5), topology.original, cache), read_columns(column, slice(0, 5))
    reads = inputs.expand(ids, KEY)
    assert torch.equal(inputs.forward(reads), plain.forward(plain.expand(ids, KEY)))
    assert (reads.hits, reads.num_read) == ((8, 9, 0, 0), 17)


def test_direct_reads_say_every_access(topology) -> None:
    inputs = Direct(FeatureColumn(torch.randn(40, 5)), 40)
    reads = inputs.expand(torch.tensor([4, 5, 4]), KEY)
    assert (reads.num_read, reads.num_accesses, reads.hits) == (2, 3, (0, 2, 0, 0))
    assert reads.reads.tolist() == [4, 5, 4]
