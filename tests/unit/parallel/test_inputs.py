"""Level 0: who reads the input rows, and what arrives."""

from __future__ import annotations

import pytest
import torch

from partita.comm.axis import Axis
from partita.core.keys import StepKey
from partita.features.rows import FeatureColumn
from partita.parallel.inputs import ByOwner, Columns, columns_of
from partita.sample.blocks import sample_block
from partita.sample.topology import LocalTopology
from partita.testing.graphs import formula_store
from partita.testing.threads import ThreadContext, ThreadGroups

KEY = StepKey(1, 2, 3)
OFFSETS = torch.tensor([0, 20, 20, 40])
REQUESTS = [[3, 25, 19, 0], [25, 3, 39, 24], []]


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> LocalTopology:
    return LocalTopology(formula_store(tmp_path_factory.mktemp("inputs") / "g", num_nodes=40, shuffle_seed=1))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
def test_owners_ship_what_would_have_been_read(topology, scaled, dropout, stored) -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).to(stored)
    column = FeatureColumn(x, scale=torch.linspace(0.5, 2, 40) if scaled else None, dropout=dropout)
    groups = ThreadGroups(3)

    def work(context: ThreadContext) -> tuple[int, int]:
        axis = Axis(context.group("all", "sample"), context.group("all", "train"), OFFSETS, torch.arange(3))
        inputs = ByOwner(column, axis, topology)
        requests = torch.tensor(REQUESTS[axis.rank], dtype=torch.int32)
        reads = inputs.expand(requests, KEY)
        alone = Columns(column, slice(0, 5), topology)
        wanted = alone.forward(alone.expand(requests, KEY))
        assert torch.equal(inputs.forward(reads), wanted)
        return reads.num_read, inputs.traffic(reads.rows).features

    read, features = zip(*groups.run(work))
    assert read == (3, 0, 3)  # 0, 3, 19; nothing; 24, 25, 39
    assert sum(features) == groups.sent()["features"] == 5 * 5 * (4 if scaled else stored.itemsize)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_slices_are_those_of_whole_rows(topology, dropout, size) -> None:
    column = FeatureColumn(torch.randn(40, 5), scale=torch.linspace(0.5, 2, 40), dropout=dropout)
    ids = torch.tensor([7, 30, 2])
    whole = Columns(column, slice(0, 5), topology)
    slices = [Columns(column, columns_of(5, rank, size), topology) for rank in range(size)]
    parts = [part.forward(part.expand(ids, KEY)) for part in slices]
    assert torch.equal(torch.cat(parts, 1), whole.forward(whole.expand(ids, KEY)))
    widths = [part.shape[1] for part in parts]
    assert max(widths) - min(widths) <= 1
    assert (whole.forward(whole.expand(ids, KEY)) == 0).any() == (dropout > 0)


def test_slices_agree_with_what_a_block_reads(topology) -> None:
    column = FeatureColumn(torch.randn(40, 5), dropout=0.5)
    block = sample_block(topology, torch.tensor([4, 9]), KEY, 1, 0)
    block = block.with_(src=block.dst, src_original=topology.original(block.dst))
    inputs = Columns(column, slice(1, 4), topology)
    assert torch.equal(inputs.forward(inputs.expand(block.dst, KEY)), column.rows(block, KEY).all()[:, 1:4])
