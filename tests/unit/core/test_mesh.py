"""Hosts x workers, host-major."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.mesh import AXES, Mesh


@given(st.integers(1, 5), st.integers(1, 5))
def test_every_axis_divides_the_workers(hosts: int, workers: int) -> None:
    size = hosts * workers
    for rank in range(size):
        mesh = Mesh.of(rank, size, workers)
        assert (mesh.hosts, mesh.workers) == (hosts, workers)
        assert rank == mesh.host * workers + mesh.worker
        for axis in AXES:
            members = mesh.members(axis)
            assert sorted(each for group in members for each in group) == list(range(size))
            own = next(group for group in members if rank in group)
            if axis == "workers":
                assert {each // workers for each in own} == {mesh.host}
            if axis == "hosts":
                assert {each % workers for each in own} == {mesh.worker}


@pytest.mark.parametrize(("rank", "size", "workers"), [(4, 4, 2), (0, 4, 3), (-1, 4, 2), (0, 4, 0)])
def test_impossible_meshes(rank: int, size: int, workers: int) -> None:
    with pytest.raises(ValueError, match=f"of {size} workers"):
        Mesh.of(rank, size, workers)


def test_unknown_axis() -> None:
    with pytest.raises(ValueError, match="axis 'racks'"):
        Mesh.of(0, 1, 1).members("racks")
