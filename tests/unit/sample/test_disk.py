"""Edges in files: what memory keeps of them, what is read, and that threads and columns change nothing.

That all samplers draw the same is in ``tests/contract/test_samplers.py``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from edge_files import N, in_files, topology

from partita.core.errors import EdgesError, StoreError
from partita.core.records import TargetEdges
from partita.sample.disk import DiskTopology, edges_on_disk, how_often
from partita.sample.topology import ArrayTopology, as_tensor

RANK = 4 * N


def on_disk(local: ArrayTopology, budget: int) -> DiskTopology:
    found = in_files(local, budget, edge_rows=local.arrays()["edge_rows"])
    assert isinstance(found, DiskTopology)
    return found


def same(ours, theirs) -> None:
    for name in ("indptr", "indices", "positions", "edge_type", "edge_weight", "edge_attr"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine is other or torch.equal(mine, other)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("budget", [0, RANK + 1000, 2**20])
def test_columns_of_edges_come_with_them(budget, weighted, typed) -> None:
    local = topology(weighted=weighted, typed=typed, attributes=True)
    there = on_disk(local, budget)
    assert (there.num_hot == 0) == (budget == 0)
    assert (there.num_hot == N) == (budget == 2**20)
    assert there.num_bytes <= max(budget, RANK + 8)
    dst = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:90].int()
    columns = ("edge_weight", "edge_attr")
    for fanout in (3, -1, 0):
        for positions in (False, True):
            wanted = local.drawing(columns).sample(dst, 17, fanout, positions=positions)
            same(there.drawing(columns).sample(dst, 17, fanout, positions=positions), wanted)


def test_removed_edges_are_counted_with_their_weights() -> None:
    local = topology(attributes=True)
    there = on_disk(local, RANK + 1000)
    dst = torch.repeat_interleave(torch.arange(N), local.arrays()["indptr"].diff())
    pairs = TargetEdges(dst[::5].clone(), local.arrays()["indices"][::5].long().clone())
    ours, theirs = there.without(pairs), local.without(TargetEdges(pairs.dst, pairs.src))
    assert torch.equal(ours.left_out, theirs.left_out)
    for name in ("ids", "edges", "loops", "weights"):
        assert torch.equal(getattr(ours.removed(), name), getattr(theirs.removed(), name))


def test_equally_likely_edges_are_read_one_by_one_and_others_by_rows() -> None:
    dst = torch.arange(N)
    degrees = topology().degrees(dst)
    for weighted, edges in ((False, int(degrees.clamp(max=2).sum())), (True, int(degrees.sum()))):
        there = on_disk(topology(weighted=weighted), 0)
        drawn = there.sample(dst, 3, 2)
        reads = there.disk_reads()
        picked = len(drawn.indices)
        assert reads.asked == reads.rows == edges + picked * weighted
        assert reads.kept == 0
        assert reads.reads > 0
        assert reads.bytes >= 4 * edges


def test_nothing_is_read_of_what_is_in_memory() -> None:
    there = on_disk(topology(), 2**20)
    there.sample(torch.arange(N), 3, 5)
    reads = there.disk_reads()
    assert reads.kept == reads.asked > 0
    assert reads.rows == reads.reads == reads.bytes == 0


def test_edges_are_kept_that_batches_read_most() -> None:
    degrees = torch.tensor([0, 1, 5, 10, 100, 100_000])
    drawn = how_often(degrees, 10**6, 2000, 5)
    assert drawn[0] == 0
    # A batch comes to a hub for certain, and hardly draws a certain one of its edges.
    assert drawn[5] < drawn[1] < drawn[4] < drawn[3] < drawn[2]
    whole = how_often(degrees, 10**6, 2000, -1)
    assert whole.tolist() == sorted(whole.tolist())
    assert torch.isfinite(how_often(degrees, 0, 1, 1)).all()


def test_many_threads_at_once() -> None:
    local, there = topology(weighted=True), on_disk(topology(weighted=True), RANK + 1000)
    batches = [torch.randperm(N, generator=torch.Generator().manual_seed(seed))[:60] for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda dst: there.sample(dst, 9, 4), batches))
    for dst, ours in zip(batches, found, strict=True):
        same(ours, local.sample(dst, 9, 4))


def test_nodes_that_are_none() -> None:
    for weighted in (False, True):
        there = on_disk(topology(weighted=weighted), 0)
        for wrong in (-1, N):
            with pytest.raises(IndexError):
                there.sample(torch.tensor([wrong]), 1, 2)


def columns_of(folder: Path, indices: np.ndarray) -> tuple[ArrayTopology, dict[str, np.ndarray]]:
    np.save(folder / "indices.npy", indices)
    mapped = np.load(folder / "indices.npy", mmap_mode="r")
    indptr = torch.arange(0, len(indices) + 1, 2)
    return ArrayTopology(indptr, as_tensor(mapped)), {"indices": mapped}


def test_a_damaged_id_is_no_node(tmp_path) -> None:
    local, columns = columns_of(tmp_path, np.array([1, 0, 0, 7], np.int32))
    there = edges_on_disk(local, columns, 0, asked=1, picks=1)
    with pytest.raises(EdgesError, match="it holds the id 7"):
        there.sample(torch.tensor([0, 1]), 1, 2)


def test_a_file_that_is_cut_short(tmp_path) -> None:
    local, columns = columns_of(tmp_path, np.zeros(40_000, np.int32))
    there = edges_on_disk(local, columns, 0, asked=1, picks=1)
    with (tmp_path / "indices.npy").open("r+b") as file:
        file.truncate(70_000)
    with pytest.raises(StoreError, match="the file is cut short"):
        there.sample(torch.arange(15_000, 20_000), 1, 2)


def test_edges_that_are_in_no_file() -> None:
    local = topology()
    assert edges_on_disk(local, {"indices": local.arrays()["indices"].numpy()}, 0, asked=1, picks=1) is None
