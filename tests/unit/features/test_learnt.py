"""Tables of learnt rows: how they begin, where rows and gradients go, how rows move."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from partita.comm.axis import Workers
from partita.comm.group import Group
from partita.comm.threads import ThreadGroups
from partita.core.keys import fold
from partita.core.node_types import NodeTypes
from partita.features.learnt import LazyAdam, LearntRows, RowAdagrad, RowOwners, RowSGD, keyed_uniform

NODES, WIDTHS = 23, (3, 0, 2)
OFFSETS = np.array([0, 4, 5, 7, 12, 13, 20, 20, 20, 23])
"""Three parts of three types: 4, 1, 2; 5, 1, 7; 0, 0, 3."""
PARTS = torch.tensor([0, 7, 20, 23])


def key_of(name: str) -> int:
    return fold(7, ord(name))


def tables(group: Group, workers: int, part_offsets: Tensor = PARTS) -> LearntRows:
    types = NodeTypes(OFFSETS, 3)
    found = LearntRows("abc", WIDTHS, RowOwners.of(types, part_offsets, workers), group, torch.float64, RowSGD())
    original = np.random.default_rng(0).permutation(NODES)
    found.initialize(key_of, lambda width: 1.0 / width, lambda kind, rows: original[types.ids(kind, rows)])
    return found


def of_all(parts: list[LearntRows], kind: int) -> Tensor:
    return torch.cat([part.tables[kind].rows for part in parts])


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_rows_begin_alike_whoever_owns_them(workers) -> None:
    alone = tables(Group.alone(), 1)
    parts = ThreadGroups(workers).run(lambda context: tables(context.group("all"), workers))
    for kind in (0, 2):
        assert torch.equal(of_all(parts, kind), alone.tables[kind].rows)
        assert alone.tables[kind].rows.abs().max() <= 1 / WIDTHS[kind]
        assert len(alone.tables[kind].rows.unique()) == alone.tables[kind].rows.numel()
    assert alone.tables.keys() == {0, 2}


def test_an_entry_is_a_function_of_key_original_index_and_column() -> None:
    alone, types = tables(Group.alone(), 1), NodeTypes(OFFSETS, 3)
    original = np.random.default_rng(0).permutation(NODES)
    for kind, name in ((0, "a"), (2, "c")):
        for row, index in enumerate(original[types.all_ids(kind)].tolist()):
            for column in range(WIDTHS[kind]):
                unit = (fold(fold(key_of(name), index), column) >> 11) * 2.0**-53
                assert float(alone.tables[kind].rows[row, column]) == (2 * unit - 1) * (1.0 / WIDTHS[kind])


def test_draws_are_uniform() -> None:
    drawn = keyed_uniform(5, np.arange(4000), 16)
    assert abs(drawn.mean() - 0.5) < 0.005
    assert abs(drawn.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(drawn.T) - np.eye(16)).max() < 0.08


def wanted_of(generator: np.random.Generator, kind: int) -> Tensor:
    size = int(NodeTypes(OFFSETS, 3).size(kind))
    return torch.from_numpy(generator.permutation(size)[: generator.integers(0, size + 1)])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 2), st.booleans())
def test_rows_are_those_of_a_dense_table_and_gradients_are_summed(seed, workers, reads, by_part) -> None:
    """Every worker reads any rows, once or twice a step, none or all; its gradients are of any values."""
    offsets = PARTS if by_part else torch.tensor([0, NODES])
    dense = {kind: tables(Group.alone(), 1).tables[kind].rows.clone() for kind in (0, 2)}
    change = {kind: torch.zeros_like(rows) for kind, rows in dense.items()}
    draws = [
        [(kind, *_drawn(seed, rank, turn, kind)) for turn in range(reads) for kind in (0, 2)] for rank in range(workers)
    ]
    for of_worker in draws:
        for kind, numbers, gradient in of_worker:
            change[kind].index_add_(0, numbers, gradient)

    def work(context: Workers) -> LearntRows:
        found = tables(context.group("all"), workers, part_offsets=offsets)
        for kind, numbers, gradient in draws[context.mesh.rank]:
            rows = found.read(kind, numbers)
            assert torch.equal(rows, dense[kind][numbers])
            (rows * gradient).sum().backward()
        found.collect()
        norm = sum(float(each.square().sum()) for each in change.values())
        assert found.squared_norm() == pytest.approx(norm, rel=1e-12, abs=1e-12)
        found.update(0.5, factor=0.25)
        return found

    parts = ThreadGroups(workers).run(work)
    for kind in (0, 2):
        torch.testing.assert_close(of_all(parts, kind), dense[kind] - 0.125 * change[kind], rtol=1e-12, atol=1e-12)
    assert all(part.steps == 1 for part in parts)


def _drawn(seed: int, rank: int, turn: int, kind: int) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng((seed, rank, turn, kind))
    numbers = wanted_of(generator, kind)
    return numbers, torch.from_numpy(generator.normal(size=(len(numbers), WIDTHS[kind])))


def test_nothing_is_kept_of_what_is_read_without_gradients() -> None:
    found = tables(Group.alone(), 1)
    with torch.no_grad():
        assert not found.read(0, torch.tensor([3, 1])).requires_grad
    before = found.tables[0].rows.clone()
    found.collect()
    found.update(1.0)
    assert torch.equal(found.tables[0].rows, before)


def steps_of(rows: int, width: int) -> list[tuple[Tensor, Tensor]]:
    generator = np.random.default_rng(3)
    found = []
    for _ in range(12):
        at = torch.from_numpy(np.sort(generator.permutation(rows)[: generator.integers(1, rows)]))
        found.append((at, torch.from_numpy(generator.normal(size=(len(at), width)))))
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adam_is_sparse_adam(dtype) -> None:
    start = torch.randn(9, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
    rows, parameter = start.clone(), torch.nn.Parameter(start.clone())
    slots = {name: torch.zeros(9, columns, dtype=dtype) for name, columns in LazyAdam().slots(4).items()}
    other = torch.optim.SparseAdam([parameter], lr=0.1)
    for number, (at, gradient) in enumerate(steps_of(9, 4), start=1):
        gradient = gradient.to(dtype)
        LazyAdam().update(rows, slots, at, gradient, 0.1, number)
        with torch.sparse.check_sparse_tensor_invariants():
            parameter.grad = torch.sparse_coo_tensor(at[None], gradient, (9, 4))
            other.step()
        torch.testing.assert_close(rows, parameter.detach(), rtol=1e-12 if dtype == torch.float64 else 1e-5, atol=1e-6)
    assert not torch.equal(rows, start)


def test_adagrad_has_one_number_for_each_row() -> None:
    start = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows, expected, sums = start.clone(), start.clone(), torch.zeros(9, dtype=torch.float64)
    slots = {name: torch.zeros(9, columns, dtype=torch.float64) for name, columns in RowAdagrad().slots(4).items()}
    assert slots["sum"].shape == (9, 1)
    for number, (at, gradient) in enumerate(steps_of(9, 4), start=1):
        RowAdagrad().update(rows, slots, at, gradient, 0.1, number)
        for row, of_row in zip(at.tolist(), gradient, strict=True):
            sums[row] += (of_row**2).mean()
            expected[row] -= 0.1 * of_row / (sums[row].sqrt() + 1e-10)
        torch.testing.assert_close(rows, expected, rtol=1e-12, atol=1e-12)


def test_sgd_is_sgd_on_a_dense_copy() -> None:
    start = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows, parameter = start.clone(), torch.nn.Parameter(start.clone())
    other = torch.optim.SGD([parameter], lr=0.1)
    for number, (at, gradient) in enumerate(steps_of(9, 4), start=1):
        RowSGD().update(rows, {}, at, gradient, 0.1, number)
        parameter.grad = torch.zeros_like(start).index_add_(0, at, gradient)
        other.step()
    torch.testing.assert_close(rows, parameter.detach(), rtol=1e-12, atol=1e-12)
