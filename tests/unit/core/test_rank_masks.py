"""Groups of workers as masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partita.core.mesh import Mesh
from partita.core.rank_masks import RankMasks

MESH = Mesh.of(4, 6, 3)  # two hosts of three workers


@pytest.mark.parametrize(
    ("workers", "groups"),
    [((3, 4, 5), ((0, 1, 2), (3, 4, 5))), ((1, 4), ((0, 3), (1, 4), (2, 5))), (range(6), (tuple(range(6)),))],
)
def test_groups_are_those_of_an_axis(workers, groups):
    assert RankMasks.of(MESH, workers).groups == groups


def test_workers_that_are_no_group():
    with pytest.raises(ValueError, match="no group"):
        RankMasks.of(MESH, (0, 5))


def test_a_position_is_one_worker_of_each_group():
    ranks = RankMasks.of(MESH, (3, 4, 5))
    assert ranks.at_position(torch.tensor([2, 0])).tolist() == [0b100100, 0b001001]
    assert RankMasks.of(MESH, (1, 4)).at_position(torch.tensor([0, 1])).tolist() == [0b000111, 0b111000]


def test_everyone_is_the_whole_group_of_anybody():
    ranks = RankMasks.of(MESH, (3, 4, 5))
    assert ranks.whole_groups(np.array([0, 0b10, 0b10001, 0b100000], np.uint64)).tolist() == [
        0,
        0b111,
        0b111111,
        0b111000,
    ]


def test_everyone_of_a_host_and_the_workers_of_a_group_who_are_on_one():
    everybody, across = RankMasks.of(MESH, range(6)), RankMasks.of(MESH, (1, 4))
    assert everybody.whole_hosts(np.array([0, 0b10, 0b10001], np.uint64)).tolist() == [0, 0b111, 0b111111]
    assert everybody.near.tolist() == [0b111, 0b111000]
    assert sorted(across.near.tolist()) == [1 << rank for rank in range(6)]
