"""How the seeds of a batch are dealt out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import ConfigError
from partita.core.mesh import Mesh
from partita.parallel.seed_split import share_of

OFFSETS = {4: torch.tensor([0, 10, 10, 30, 40]), 2: torch.tensor([0, 25, 40]), 1: torch.tensor([0, 40])}


@given(
    seeds=st.lists(st.integers(0, 39), unique=True, max_size=20),
    workers=st.sampled_from([1, 2, 4]),
    seed_split=st.sampled_from(["owner", "even"]),
    parts=st.sampled_from([2, 4]),
)
def test_every_seed_is_dealt_once_and_shares_keep_the_order(seeds, workers, seed_split, parts) -> None:
    if seed_split == "owner" and workers != 2:
        parts = 4  # one for each worker
    batch = torch.tensor(seeds, dtype=torch.int64)
    shares = [share_of(batch, Mesh.of(rank, 4, workers), seed_split, OFFSETS[parts]).tolist() for rank in range(4)]
    assert sorted(seed for share in shares for seed in share) == sorted(seeds)
    for share in shares:
        assert share == [seed for seed in seeds if seed in share]
    if seed_split == "even":
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_owners_get_their_own() -> None:
    seeds = torch.tensor([39, 3, 12, 29, 9, 30])
    shares = [share_of(seeds, Mesh.of(rank, 4, 2), "owner", OFFSETS[4]).tolist() for rank in range(4)]
    assert shares == [[3, 9], [], [12, 29], [39, 30]]
    shares = [share_of(seeds, Mesh.of(rank, 4, 2), "owner", OFFSETS[2]).tolist() for rank in range(4)]
    assert shares == [[3, 12], [39], [9], [29, 30]]


def test_owners_need_parts() -> None:
    with pytest.raises(ConfigError, match="1 part"):
        share_of(torch.tensor([1]), Mesh.of(0, 4, 2), "owner", OFFSETS[1])
    assert share_of(torch.tensor([1]), Mesh.of(0, 1, 1), "owner", OFFSETS[4]).tolist() == [1]
