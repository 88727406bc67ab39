"""Who owns a node."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.comm.axis import Axis, owners_of_parts
from partita.comm.group import Group
from partita.comm.threads import ThreadGroups
from partita.core.errors import ConfigError


def axis_of(part_offsets: list[int], owner_of_part: torch.Tensor, size: int) -> Axis:
    group = ThreadGroups(size).contexts[0].group()
    return Axis(group, group, group, torch.tensor(part_offsets), owner_of_part)


@given(sizes=st.lists(st.integers(0, 4), min_size=2, max_size=6))
def test_a_node_belongs_to_its_part_also_beside_empty_ones(sizes: list[int]) -> None:
    offsets = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    wanted = [part for part, size in enumerate(sizes) for _ in range(size)]
    axis = axis_of(offsets, torch.arange(len(sizes)), len(sizes))
    for dtype in (torch.int32, torch.int64):
        assert axis.owner(torch.arange(sum(sizes), dtype=dtype)).tolist() == wanted


def test_one_worker_owns_everything() -> None:
    axis = Axis(Group.alone(), Group.alone(), Group.alone(), torch.tensor([0, 5, 9]), torch.zeros(2, dtype=torch.int64))
    assert axis.owner(torch.tensor([8, 0, 4])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("parts", "axis", "owners"),
    [
        (6, "all", [0, 1, 2, 3, 4, 5]),
        (6, "workers", [0, 1, 2, 0, 1, 2]),
        (3, "workers", [0, 1, 2]),
        (6, "hosts", [0, 0, 0, 1, 1, 1]),
        (2, "hosts", [0, 1]),
    ],
)
def test_parts_are_host_major(parts: int, axis: str, owners: list[int]) -> None:
    assert owners_of_parts(parts, axis, hosts=2, workers=3).tolist() == owners


@pytest.mark.parametrize(("parts", "axis"), [(1, "all"), (3, "all"), (2, "workers"), (4, "hosts"), (12, "workers")])
def test_a_store_of_other_parts_is_refused_with_the_command_to_run(parts: int, axis: str) -> None:
    with pytest.raises(ConfigError, match=r"has \d+ parts?\b.*partita partition STORE OUT --parts 2x3"):
        owners_of_parts(parts, axis, hosts=2, workers=3)


def test_a_single_worker_takes_a_store_of_any_parts() -> None:
    assert owners_of_parts(5, "all", hosts=1, workers=1).tolist() == [0] * 5
    assert owners_of_parts(5, "workers", hosts=3, workers=1).tolist() == [0] * 5
