"""What workers exchange, with 2, 3 and 4 of them, on one host and on two."""

from __future__ import annotations

import threading
import time
from typing import NoReturn

import pytest
import torch

from partita.comm import group as group_module
from partita.comm.context import Context
from partita.comm.errors import WorkerError
from partita.comm.group import Group, sum_bytes
from partita.core.errors import ConfigError, StoreError
from partita.testing.workers import run_workers

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
DTYPES += [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]


def rows_between(sender: int, receiver: int) -> int:
    """How many rows one worker sends another: nothing in some cases, uneven in all."""
    return (3 * sender + receiver) % 4


def value(sender: int, receiver: int, row: int, column: int) -> int:
    return (sender * 31 + receiver * 7 + row * 3 + column) % 120


def rows_for(group: Group, receivers: list[int], width: int) -> torch.Tensor:
    rows = [
        [value(group.rank, to, row, column) for column in range(width)]
        for to in receivers
        for row in range(rows_between(group.rank, to))
    ]
    return torch.tensor(rows, dtype=torch.int64).view(-1, width)


def expected_rows(group: Group, width: int) -> torch.Tensor:
    rows = [
        [value(sender, group.rank, row, column) for column in range(width)]
        for sender in range(group.size)
        for row in range(rows_between(sender, group.rank))
    ]
    return torch.tensor(rows, dtype=torch.int64).view(-1, width)


def check_exchange(group: Group) -> None:
    everyone = list(range(group.size))
    send = [rows_between(group.rank, to) for to in everyone]
    receive = group.exchange_counts(torch.tensor(send))
    assert receive.tolist() == [rows_between(sender, group.rank) for sender in everyone]
    counts = receive.tolist()
    rows, expected = rows_for(group, everyone, 5), expected_rows(group, 5)
    for dtype in DTYPES:
        got = group.exchange(rows.to(dtype), send, counts, "ids")
        assert got.dtype == dtype
        assert torch.equal(got, expected.to(dtype)), dtype
    assert torch.equal(group.exchange(rows[:, 0].clone(), send, counts, "ids"), expected[:, 0])
    transposed = rows.t().contiguous().t()
    assert torch.equal(group.exchange(transposed, send, counts, "ids"), expected)
    deep = rows.view(-1, 5, 1).expand(-1, 5, 2)
    assert torch.equal(group.exchange(deep, send, counts, "ids"), expected.view(-1, 5, 1).expand(-1, 5, 2))
    assert group.exchange(rows[:, :0], send, counts, "ids").shape == (len(expected), 0)
    nothing = [0] * group.size
    assert group.exchange(rows[:0], nothing, nothing, "ids").shape == (0, 5)


def check_bytes(context: Context, group: Group) -> None:
    """Exact, by kind and link."""
    meter, mesh = context.meter, context.mesh
    send = [rows_between(group.rank, to) for to in range(group.size)]
    before = meter.snapshot()
    receive = group.exchange_counts(torch.tensor(send)).tolist()
    rows = torch.ones(sum(send), 3, requires_grad=True)
    group.exchange_rows(rows, send, receive).sum().backward()
    gradients = [torch.ones(7, dtype=torch.float64), torch.ones(3)]
    group.sum_(gradients)
    difference = meter.difference(before)
    expected = {kind: {"same_host": 0, "other_host": 0} for kind in difference}
    for other in range(group.size):
        if other != group.rank:
            same = group.workers[other] // mesh.workers == mesh.host
            link = "same_host" if same else "other_host"
            expected["metadata"][link] += 8
            expected["forward"][link] += 12 * rows_between(group.rank, other)
            expected["backward"][link] += 12 * rows_between(other, group.rank)
    following = group.workers[(group.rank + 1) % group.size]
    link = "same_host" if following // mesh.workers == mesh.host else "other_host"
    expected["gradients"][link] = sum_bytes(7 * 8 + 3 * 4, group.size)
    assert difference == expected
    before = meter.snapshot()
    group.broadcast("x" * 100, source=1)
    sent = sum(meter.difference(before)["metadata"].values())
    assert sent == (group.size - 1) * (8 + (102 if group.rank == 1 else 0))


def check_gradient(group: Group) -> None:
    """The row that a worker sent gets the factor that its receiver multiplied it with."""
    send = [rows_between(group.rank, to) for to in range(group.size)]
    receive = [rows_between(sender, group.rank) for sender in range(group.size)]
    rows = torch.randn(sum(send), 4, dtype=torch.float64).requires_grad_(group.rank != 1)  # also one without weights
    got = group.exchange_rows(rows, send, receive)
    again = group.exchange_rows(got * (group.rank + 1), receive, send)
    assert torch.allclose(
        again.detach(),
        rows.detach()
        * torch.repeat_interleave(torch.arange(1, group.size + 1), torch.tensor(send)).to(torch.float64)[:, None],
    )
    (again.sum() * (10 if group.rank == 0 else 1)).backward()
    factors = torch.repeat_interleave(torch.arange(1, group.size + 1), torch.tensor(send)).to(torch.float64)
    if group.rank != 1:
        assert torch.equal(rows.grad, (factors * (10 if group.rank == 0 else 1))[:, None].expand(-1, 4))
    with torch.no_grad():
        assert not group.exchange_rows(rows, send, receive).requires_grad


def check_sum(group: Group) -> None:
    group_module.BUCKET_BYTES = 1000  # so that there are several; of this worker process alone
    torch.manual_seed(group.rank)
    sizes = [(1,), (0,), (13, 7), (), (20_011,), (100,)]
    mine = [torch.randn(size) for size in sizes] + [torch.randn(5, 2, dtype=torch.float64).t()]
    mine += [torch.tensor([group.rank + 1]), torch.randn(9).to(torch.bfloat16)]
    expected = []
    for index in range(len(mine)):
        total = torch.zeros(mine[index].shape, dtype=torch.float64)
        for rank in range(group.size):
            torch.manual_seed(rank)
            theirs = [torch.randn(size) for size in sizes] + [torch.randn(5, 2, dtype=torch.float64).t()]
            theirs += [torch.tensor([rank + 1]), torch.randn(9).to(torch.bfloat16)]
            total += theirs[index]
        expected.append(total)
    results = []
    for _ in range(3):
        tensors = [tensor.clone() for tensor in mine]
        group.sum_(tensors)
        results.append(tensors)
    for tensor, total in zip(results[0], expected):
        tolerance = 0.05 if tensor.dtype == torch.bfloat16 else 1e-5
        assert torch.allclose(tensor.double(), total, atol=tolerance, rtol=tolerance)
    for again in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], again))
    digests = group.gather([tensor.double().sum().item().hex() for tensor in results[0]])
    assert all(digest == digests[0] for digest in digests)


def check_values(group: Group) -> None:
    assert group.gather({"rank": group.rank, "name": "é" * group.rank}) == [
        {"rank": rank, "name": "é" * rank} for rank in range(group.size)
    ]
    assert group.gather(None) == [None] * group.size
    assert group.broadcast([0.1, "x"] if group.rank == 1 else None, source=1) == [0.1, "x"]
    assert len(group.broadcast("y" * 10**6)) == 10**6


def check_agreement(context: Context) -> None:
    rank = context.mesh.rank
    assert context.agree(lambda: {"rank": rank}, source=1) == {"rank": 1}
    with pytest.raises(StoreError, match="in 1") as caught:
        context.agree(lambda: fail(StoreError(f"in {rank}")), source=1)
    assert rank == 1 or "In worker 1" in caught.value.__notes__
    missing = StoreError("is missing", where="graph", fix="Ingest")
    with pytest.raises(StoreError, match="graph: is missing"), context.together("open the store"):
        rank == 1 and fail(missing)
    with pytest.raises(ZeroDivisionError if rank == 0 else WorkerError) as bug, context.together("divide"):
        1 / rank
    assert "While trying to divide" in bug.value.__notes__
    # After errors the workers are still in step.
    assert context.group().gather(rank) == list(range(context.mesh.size))
    context.check_same("configuration", {"seed": 1, "fanout": [5, 5]})
    with pytest.raises(ConfigError, match="configuration differs between workers: seed is 0 on worker"):
        context.check_same("configuration", {"layers": 2, "seed": int(rank == 1)})
    with pytest.raises(ConfigError, match=r"store differs .* y is missing on worker 0; 3 on worker"):
        context.check_same("store", {"x": 1} | ({"y": 3} if rank else {}))


def fail(error: Exception) -> NoReturn:
    raise error


def check_threads(context: Context) -> None:
    """Two groups of one purpose each, used at once by a thread each, at different paces."""
    results: dict[str, list[list[int]]] = {}

    def talk(purpose: str) -> None:
        group = context.group(purpose=purpose)
        for step in range(20):
            time.sleep(0.001 * ((context.mesh.rank + len(purpose) + step) % 3))
            results.setdefault(purpose, []).append(group.gather(step))

    threads = [threading.Thread(target=talk, args=(purpose,)) for purpose in ("train", "sample")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [[step] * context.mesh.size for step in range(20)]
    assert results == {"train": expected, "sample": expected}


def check_existing_process_group(context: Context) -> None:
    """A process group that is there is used, with the launcher's variables or with host names."""
    with pytest.MonkeyPatch.context() as patch:
        second = Context.from_environment()
        assert second.mesh == context.mesh
        assert second.group().gather(1) == [1] * context.mesh.size
        second.close()
        patch.setenv("LOCAL_RANK", "0")
        with pytest.raises(ConfigError, match="LOCAL_RANK/LOCAL_WORLD_SIZE by rank: 0/"):
            Context.from_environment()
        patch.delenv("LOCAL_RANK")
        with Context.from_environment() as third:
            assert third.mesh.hosts == 1
    assert context.group().gather(2) == [2] * context.mesh.size


def everything(context: Context, hosts: int) -> list[list[int]]:
    assert context.mesh.hosts == hosts
    workers = [list(context.group(axis).workers) for axis in ("all", "workers", "hosts")]
    for axis in ("all", "workers", "hosts"):
        group = context.group(axis)
        assert group.workers[group.rank] == context.mesh.rank
        if group.size > 1:
            check_exchange(group)
            check_bytes(context, group)
    check_gradient(context.group())
    check_sum(context.group())
    check_values(context.group())
    check_agreement(context)
    check_threads(context)
    check_existing_process_group(context)
    return workers


@pytest.mark.parametrize(("size", "hosts"), [(2, 1), (3, 1), (4, 2)])
def test_everything(size: int, hosts: int) -> None:
    seen = run_workers(everything, size, hosts, hosts=hosts, purposes=("train", "sample"))
    everyone = list(range(size))
    if hosts == 1:
        assert seen == [[everyone, everyone, [rank]] for rank in everyone]
    else:
        assert seen[1] == [everyone, [0, 1], [1, 3]]
        assert seen[2] == [everyone, [2, 3], [0, 2]]


def mismatched(context: Context, kind: str) -> None:
    group = context.group()
    if kind == "counts":
        group.exchange(torch.ones(3, 2), [1, 2], [1, 2], "ids") if group.rank == 0 else group.exchange(
            torch.ones(2, 2), [1, 1], [1, 1], "ids"
        )
    else:
        group.sum_([torch.ones(2 + group.rank)])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("counts", r"worker (0 sends 2 rows, but worker 1 expects 1|1 sends 1 rows, but worker 0 expects 2)"),
        ("shapes", "brings other types, shapes or calls"),
    ],
)
def test_what_does_not_fit_is_named(kind: str, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        run_workers(mismatched, 2, kind)
