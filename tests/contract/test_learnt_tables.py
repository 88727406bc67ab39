"""What every table of learnt rows must do: the rows are those of a table in memory, whatever is known ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.features.learnt_tables import STEPS_HELD, Asked, LearntTable, MemoryTable
from partita.features.paged_table import PagedTable
from partita.setup.learnt import ROW_OPTIMIZERS

N = 60
ADAM = ROW_OPTIMIZERS.find("adam")
RECORDS = {"wide": 200, "narrow": 3}  # columns: rows that fill blocks of a disk, and many in one


def widths_of(columns: int) -> dict[str, int]:
    return {"rows": columns, **ADAM.slots(columns)}


def bytes_for(columns: int, slots: int) -> int:
    """A budget that has room for so many rows."""
    return 13 * N + slots * (24 + 4 * sum(widths_of(columns).values()))


def paged(columns: int, slots: int) -> PagedTable:
    return PagedTable("rows", N, widths_of(columns), torch.float32, bytes_for(columns, slots), fix="-")


TABLES: dict[str, Callable[[int], LearntTable]] = {
    "memory": lambda columns: MemoryTable(N, widths_of(columns), torch.float32),
    "no slots": lambda columns: PagedTable("rows", N, widths_of(columns), torch.float32, 0, fix="-"),
    "few slots": lambda columns: PagedTable(
        "rows", N, widths_of(columns), torch.float32, bytes_for(columns, 7), fix="-"
    ),
    "all slots": lambda columns: PagedTable("rows", N, widths_of(columns), torch.float32, 10**9, fix="-"),
}


@pytest.fixture(params=list(TABLES))
def make(request: pytest.FixtureRequest) -> Callable[[int], LearntTable]:
    return TABLES[request.param]


def steps_of(seed: int, count: int) -> list[torch.Tensor]:
    """Rows of steps; a few are used often."""
    generator = np.random.default_rng(seed)
    often = 1 / (1 + np.arange(N))
    sizes = generator.integers(0, 20, count)
    return [torch.from_numpy(generator.choice(N, size, replace=False, p=often / often.sum())) for size in sizes]


def begun(table: LearntTable, columns: int) -> LearntTable:
    table.put(0, {"rows": torch.randn(N, columns, generator=torch.Generator().manual_seed(5))})
    return table


def arrays_of(table: LearntTable) -> dict[str, torch.Tensor]:
    return {name: array.clone() for name, array in table.piece(0, N).items()}


def assert_same(table: LearntTable, expected: LearntTable) -> None:
    for name, array in arrays_of(table).items():
        assert torch.equal(array, arrays_of(expected)[name]), name


def run(
    table: LearntTable, expected: LearntTable, steps: list[torch.Tensor], window: int, stop: int | None = None
) -> None:
    """Make steps on both tables, as a pipeline does: announced a window ahead, prepared a few ahead."""
    table.look_at(window)
    table.restart()
    asked = [Asked(rows) for rows in steps]
    announced, prepared = 0, 0
    for number, each in enumerate(asked[:stop]):
        while announced < min(len(asked), number + window + 5):
            table.announce(asked[announced])
            announced += 1
        while prepared < min(len(asked), number + 3):
            table.prepare(asked[prepared])
            prepared += 1
        rows = table.read(each.rows, each)
        assert torch.equal(rows, expected.read(each.rows))
        gradient = torch.randn(rows.shape, generator=torch.Generator().manual_seed(number))
        for one in (table, expected):
            one.move(ADAM, each.rows, gradient, 0.1, number + 1)
    if stop is not None and stop < min(prepared, len(asked)):
        table.read(asked[stop].rows, asked[stop])  # a step that fails


@pytest.mark.parametrize("width", list(RECORDS))
@pytest.mark.parametrize("window", [1, 4, 100])
def test_steps_leave_the_rows_of_a_table_in_memory(make, width, window) -> None:
    columns = RECORDS[width]
    table, expected = begun(make(columns), columns), begun(TABLES["memory"](columns), columns)
    run(table, expected, steps_of(window, 60), window)
    assert_same(table, expected)
    assert isinstance(table, LearntTable)
    assert table.num_rows == N


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 30), st.integers(0, 25))
def test_what_is_announced_may_be_taken_back_anywhere(seed, window, slots, stop) -> None:
    table = begun(paged(3, slots), 3)
    expected = begun(TABLES["memory"](3), 3)
    run(table, expected, steps_of(seed, 25), window, stop)
    assert_same(table, expected)  # also while others are announced, and read ahead
    table.restart()
    assert_same(table, expected)
    run(table, expected, steps_of(seed + 1, 15), window)
    assert_same(table, expected)
    for one in (table, expected):
        one.put(7, {"exp_avg": torch.ones(5, 3)})
        one.put(20, {name: torch.full((9, 3), 0.5) for name in one.widths})
    run(table, expected, steps_of(seed + 2, 5), window)
    assert_same(table, expected)


def test_rows_that_nobody_has_announced_are_read_and_moved(make) -> None:
    tables = [begun(make(4), 4), begun(TABLES["memory"](4), 4)]
    for step, rows in enumerate(steps_of(3, 12), start=1):
        read = [table.read(rows) for table in tables]
        assert torch.equal(*read)
        for table in tables:
            table.move(ADAM, rows, torch.ones(len(rows), 4) * step, 0.1, step)
    assert_same(*tables)
    repeated = torch.tensor([3, 3, 59, 0, 3])
    assert torch.equal(tables[0].read(repeated), tables[1].read(repeated))


def test_what_is_kept_is_bounded_and_counted() -> None:
    table = begun(paged(200, 7), 200)
    assert table.num_bytes == bytes_for(200, 7)
    steps = steps_of(1, 40)
    run(table, begun(TABLES["memory"](200), 200), steps, 39)
    reads = table.disk_reads()
    assert reads.asked == sum(map(len, steps))
    assert 0 < reads.kept < reads.asked
    assert reads.kept == hits_of_belady([rows.tolist() for rows in steps], 7)
    assert reads.lru_kept < reads.kept


def hits_of_belady(steps: list[list[int]], slots: int) -> int:
    """Rows that are in memory, if those are kept that are used again first, by brute force."""
    kept, hits = set[int](), 0
    for number, rows in enumerate(steps):
        hits += len(kept & set(rows))

        def next_use(row: int, number: int = number) -> int:
            return next((k for k in range(number + 1, len(steps)) if row in steps[k]), 10**9)

        kept = set(sorted((row for row in kept | set(rows) if next_use(row) < 10**9), key=next_use)[:slots])
    return hits


def test_another_order_is_refused() -> None:
    table = begun(paged(3, 7), 3)
    first, second = Asked(torch.tensor([1, 2])), Asked(torch.tensor([2, 3]))
    for each in (first, second):
        table.announce(each)
    waiting = deque([first, second])
    while waiting:
        table.prepare(waiting.popleft())
    table.read(first.rows, first)
    with pytest.raises(RuntimeError, match="before those of the last"):
        table.read(second.rows, second)
    with pytest.raises(RuntimeError, match="not those that were read"):
        table.move(ADAM, torch.tensor([1, 9]), torch.zeros(2, 3), 0.1, 1)
    assert STEPS_HELD > 1
