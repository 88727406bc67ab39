"""Threads of several workers start their exchanges in one order, and cannot wait for each other for ever."""

from __future__ import annotations

import queue
import random
import threading
import time
from contextlib import nullcontext

import pytest

from partita.comm.collective_order import END, CollectiveOrder, MessageChannel
from partita.train.pipeline import Pipeline, PipelineStage

WORKERS = 4
NAMES = ("sample", "load", "train")
PATIENCE = 20.0


class QueueChannel(MessageChannel):
    """Codes through queues, one for every follower."""

    def __init__(self, queues: list[queue.SimpleQueue[int]], rank: int) -> None:
        self.queues, self.rank = queues, rank

    def send(self, code: int) -> None:
        for each in self.queues[1:]:
            each.put(code)

    def receive(self) -> int:
        return self.queues[self.rank].get()


class Device:
    """What NCCL does at its worst: a worker's exchange occupies it until all workers have come to that exchange."""

    def __init__(self, patience: float) -> None:
        self.rooms: dict[tuple[str, int], threading.Barrier] = {}
        self.lock = threading.Lock()
        self.occupied = [threading.Lock() for _ in range(WORKERS)]
        self.log: list[list[str]] = [[] for _ in range(WORKERS)]
        self.patience = patience

    def exchange(self, rank: int, name: str, number: int) -> None:
        with self.lock:
            room = self.rooms.setdefault((name, number), threading.Barrier(WORKERS, timeout=self.patience))
        if not self.occupied[rank].acquire(timeout=self.patience):
            raise TimeoutError(f"worker {rank} waits for its device")
        try:
            self.log[rank].append(f"{name} {number}")
            room.wait()
        finally:
            self.occupied[rank].release()


def run(schedule: int, *, ordered: bool, steps: int = 4, patience: float = PATIENCE, fails: str = "") -> Device:
    """A run of some steps on workers whose stages pause at random before and after every exchange.

    Args:
        schedule: names the pauses.
        ordered: with turns.
        steps: of the run.
        patience: seconds after which a worker gives up.
        fails: name of the stage that raises on worker 2 in step 2.
    """
    device = Device(patience)
    queues: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(WORKERS)]
    errors: list[BaseException | None] = [None] * WORKERS

    def work(rank: int) -> None:
        turns = CollectiveOrder(rank == 0, QueueChannel(queues, rank), NAMES) if ordered else None
        pauses = {name: random.Random(f"{schedule} {rank} {name}") for name in NAMES}
        numbers = dict.fromkeys(NAMES, 0)

        def exchange(name: str) -> None:
            time.sleep(pauses[name].choice([0, 0, 0.0002, 0.002]))
            number, numbers[name] = numbers[name], numbers[name] + 1
            with turns.turn(name) if turns else nullcontext():
                device.exchange(rank, name, number)
            time.sleep(pauses[name].choice([0, 0, 0.0002, 0.002]))

        def stage(name: str, exchanges: int):
            def make(step: int, item: object) -> int:
                if rank == 2 and step == 2 and name == fails:
                    raise ValueError(f"{name} failed")
                for _ in range(exchanges):
                    exchange(name)
                return step

            return PipelineStage(name, make, in_order=True)

        def failed(error: BaseException) -> None:
            if turns is not None:
                turns.abort(error)

        try:
            with Pipeline([stage("sample", 3), stage("load", 1)], 0, steps, 2, failed=failed) as pipeline:
                for _ in range(steps):
                    pipeline.take()
                    exchange("train")
                    exchange("train")
            if turns is not None:
                turns.close()
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * patience)
        assert not thread.is_alive()
    first = [error for error in errors if error is not None]
    if first:
        raise next((error for error in first if isinstance(error, ValueError)), first[0])
    return device


def test_no_order_of_arrival_deadlocks() -> None:
    for schedule in range(200):
        device = run(schedule, ordered=True)
        assert all(log == device.log[0] for log in device.log)
        assert len(device.log[0]) == 4 * (3 + 1 + 2)


def test_without_turns_workers_do_wait_for_each_other() -> None:
    """The device above is one that can deadlock, or the test above would show nothing."""

    def all_of_them() -> None:
        for schedule in range(50):
            run(schedule, ordered=False, patience=0.5)

    with pytest.raises((threading.BrokenBarrierError, TimeoutError)):
        all_of_them()


@pytest.mark.parametrize("stage", ["sample", "load"])
def test_a_stage_that_fails_on_a_follower_frees_all_threads_of_its_worker(stage) -> None:
    """The trainer would wait for its turn behind an exchange that does not come."""
    started = time.monotonic()
    with pytest.raises(ValueError, match=f"{stage} failed"):
        run(1, ordered=True, patience=1.0, fails=stage)
    assert time.monotonic() - started < 15


def test_a_follower_starts_nothing_before_it_is_told() -> None:
    queues: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(2)]
    turns = CollectiveOrder(False, QueueChannel(queues, 1), NAMES)
    log: list[str] = []

    def start(name: str) -> None:
        with turns.turn(name):
            log.append(name)

    threads = [threading.Thread(target=start, args=(name,)) for name in ("train", "sample")]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    assert log == []
    queues[1].put(NAMES.index("sample"))
    queues[1].put(NAMES.index("train"))
    for thread in threads:
        thread.join(5)
    assert log == ["sample", "train"]
    queues[1].put(END)
    turns.close()
    turns.close()


def test_who_waits_for_a_turn_hears_of_a_failure() -> None:
    queues: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(2)]
    turns = CollectiveOrder(False, QueueChannel(queues, 1), NAMES)
    threading.Timer(0.02, turns.abort, [RuntimeError("sampler")]).start()
    with pytest.raises(RuntimeError, match="sampler"), turns.turn("train"):
        pytest.fail("its turn never comes")
    queues[1].put(END)
    turns.close()
