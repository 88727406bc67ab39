"""Batches made ahead of the trainer, by stages that run in threads of their own.

This is the pipeline of DSP (Cai et al., PPoPP 2023, section 5): a sampler, a loader and the trainer work on different
batches at the same time, with a few batches waiting between any two. What is made, and in which order, does not
depend on the threads: a stage makes the item of a step from the one that the stage before made, so the model is the
same to the bit without a pipeline.

How far a stage may be ahead is counted from the item that the trainer has taken last, and not by what waits in front
of the next stage: all workers that stop after the same step may then begin the same items, and can finish them with
each other; or they settle which of these any of them has begun, and make no others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from partita.comm.cuda_streams import Handed, Streams
from partita.core.profiling import named
from partita.train.spans import Spans


@dataclass(frozen=True)
class PipelineStage:
    """One of the stages before the trainer.

    Attributes:
        name: for records.
        work: makes the item of a step, from the step and the item of the stage before (``None`` for the first).
        in_order: the work exchanges something with other workers, so items are begun in order, and none that was
            begun is left out. Otherwise it is a pure function, and several items are made at once.
        at_once: so many items are made at once where ``in_order``, and of each lane, steps that are equal modulo
            ``at_once``, one after the other. Exchanges take little time but the link's and the peer's to answer, in
            which another batch can be worked on.
        after: an item is begun when the stage before has made so many later ones, too, or all.
        early: so many more items may be begun before the trainer takes what they become.
        apart: each of its threads queues its work on a device on a stream of its own; otherwise on the default one.
    """

    name: str
    work: Callable[[int, Any], Any]
    in_order: bool = False
    at_once: int = 1
    apart: bool = True
    after: int = 0
    early: int = 0


class Pipeline:
    """Makes the items of the steps ``start`` to ``stop - 1``; use it in a ``with`` block and :meth:`take` them.

    Args:
        stages: what is done to an item, in this order.
        start: first step.
        stop: one past the last step.
        ahead: how many items may wait behind each stage, or be in the making there; with 0 the stages run one after
            the other, in the thread that takes.
        spans: where the times of all stages are noted.
        streams: of the device that the stages work on.
        failed: called at once, from its thread, with what a stage has raised.
        settle: called where the block ends before all is made and a stage exchanges something, with one past the last
            step that each stage has begun; gives the largest of all workers. It must not wait for its turn behind
            exchanges of stages, which do not go on until it is done. All workers end the block after the same
            step. ``None``: whatever stages may begin by then is made.
    """

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        start: int,
        stop: int,
        ahead: int,
        *,
        spans: Spans | None = None,
        streams: Streams | None = None,
        failed: Callable[[BaseException], None] = lambda error: None,
        settle: Callable[[list[int]], list[int]] | None = None,
    ) -> None:
        self._stages, self._stop, self._ahead = tuple(stages), stop, ahead
        self._settle, self._held = settle, False
        self._ends: list[int] | None = None
        self._spans, self._streams, self._tell = spans or Spans(), streams or Streams(), failed
        # Each stage waits for its own, and is woken only where it can go on: to wake a thread for nothing takes the
        # interpreter from the one that trains.
        lock = threading.Lock()
        self._for_trainer, self._for_stage = threading.Condition(lock), [threading.Condition(lock) for _ in stages]
        self._taken = start
        self._begun = [start] * len(stages)
        self._making: list[set[int]] = [set() for _ in stages]
        self._made: list[dict[int, Handed]] = [{} for _ in stages]
        self._failure: BaseException | None = None
        self._shared = any(stage.in_order for stage in stages)
        self._leaving = self._abandoned = False
        self._threads: list[tuple[threading.Thread, bool]] = []

    def __enter__(self) -> Pipeline:
        if self._ahead > 0:
            before = self._streams.hand_over(None)
            for number, stage in enumerate(self._stages):
                at_once = stage.at_once if stage.in_order else self._ahead if number == 0 else 1
                for place in range(min(at_once, self._ahead)):
                    name, stream = f"partita-{stage.name}", f"{stage.name}/{place}" if stage.apart else None
                    given = (number, stream, before)
                    thread = threading.Thread(target=self._run, args=given, name=name, daemon=True)
                    self._threads.append((thread, stage.in_order))
            for thread, _ in self._threads:
                thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._shared and self._ahead > 0 and self._settle is not None:
                with self._for_trainer:
                    self._held, begun = True, list(self._begun)
                self._ends = self._settle(begun)
        except BaseException as failure:
            kind = type(failure)
            raise
        finally:
            with self._for_trainer:
                self._held, self._leaving = False, True
                self._abandoned = kind is not None
                self._wake()
            for thread, in_order in self._threads:
                # After an error other workers may never come to an exchange that a thread is in.
                if not (in_order and self._abandoned):
                    thread.join()
        if kind is None and self._failure is not None and self._shared:
            raise self._failure  # others wait for what was not made

    def take(self, *, hold: bool = False) -> Any:
        """The item of the next step.

        Args:
            hold: where the item after it is there already, stages begin what they may now at :meth:`go_on` only. Not
                where one exchanges something, as others may wait for it.

        Raises:
            IndexError: there is none.
            BaseException: what a stage has raised, at this step or at a later one.
        """
        step = self._taken
        if step >= self._stop:
            raise IndexError(f"there is no step {step}")
        if self._ahead == 0:
            item = self._made_here(len(self._stages) - 1, step)
            self._taken += 1
            return item
        with self._for_trainer:
            self._spans.waiting(step, [len(made) for made in self._made])
            self._for_trainer.wait_for(lambda: self._failure is not None or step in self._made[-1])
            if self._failure is not None:
                raise self._failure
            self._taken += 1
            handed = self._made[-1].pop(step)
            if not hold or self._shared or self._taken not in self._made[-1]:
                self._wake()
        return self._streams.take_over(handed)

    def go_on(self) -> None:
        """Let the stages begin what they may since an item was taken with ``hold``.

        There is one interpreter, and a thread that needs it for a moment waits for what another runs in it piece by
        piece. So stages should begin where the trainer is about to compute without it.
        """
        if self._ahead > 0:
            with self._for_trainer:
                self._wake()

    def _made_here(self, number: int, step: int) -> Any:
        """The item of a step behind a stage, made in the thread that takes."""
        stage, item = self._stages[number], None
        if number:
            for earlier in range(self._begun[number - 1], self._wanted(number, step)):
                self._begun[number - 1] += 1
                self._made[number - 1][earlier] = Handed(self._made_here(number - 1, earlier))
            item = self._made[number - 1].pop(step).item
        return self._timed(stage, step, item)

    def _wanted(self, number: int, step: int) -> int:
        """One past the last step that the stage before must have made before a stage begins one."""
        return min(self._stop, step + 1 + self._stages[number].after)

    def _limit(self, number: int) -> int:
        """One past the last step that a stage may begin."""
        more = sum(stage.after for stage in self._stages[number + 1 :])
        more += sum(stage.early for stage in self._stages[number:])
        return min(self._stop, self._taken + self._ahead * (len(self._stages) - number) + more)

    def _run(self, number: int, stream: str | None, before: Handed) -> None:
        """Work of one thread of a stage, on a stream that begins after what was done ``before`` all threads."""
        stage = self._stages[number]
        try:
            with self._streams.on(stream):
                self._streams.take_over(before)
                while (found := self._next(number)) is not None:
                    step, handed = found
                    made = self._streams.hand_over(self._timed(stage, step, self._streams.take_over(handed)))
                    with self._for_trainer:
                        self._making[number].remove(step)
                        self._made[number][step] = made
                        self._wake()
        except BaseException as error:
            with self._for_trainer:
                self._failure = self._failure or error
                self._wake()
            self._tell(error)

    def _wake(self) -> None:
        """Wake who can go on after a change; by a thread that has the lock."""
        if self._failure is not None or self._taken in self._made[-1]:
            self._for_trainer.notify()
        for number, waiting in enumerate(self._for_stage):
            if self._over(number):
                waiting.notify_all()
            elif self._ready(number):
                waiting.notify()  # one of its threads, which wakes the next when it has begun

    def _ready(self, number: int) -> bool:
        """Whether a stage can begin its next step."""
        step, stage = self._begun[number], self._stages[number]
        if self._held or (stage.in_order and step - stage.at_once in self._making[number]):
            return False
        if step >= self._limit(number):
            return False
        return number == 0 or all(each in self._made[number - 1] for each in range(step, self._wanted(number, step)))

    def _over(self, number: int) -> bool:
        """Whether nothing is left to do for a stage."""
        if self._failure is not None or self._abandoned or self._begun[number] >= self._stop:
            return True
        if not self._leaving:
            return False
        # What others do with this worker must be done to the end.
        wanted = [later for later in range(number, len(self._stages)) if self._stages[later].in_order]
        return all(self._begun[number] >= self._end(later) for later in wanted)

    def _end(self, number: int) -> int:
        """One past the last step that a stage has to make once the block has ended."""
        return self._limit(number) if self._ends is None else self._ends[number]

    def _next(self, number: int) -> tuple[int, Handed] | None:
        """The next step of a stage, and the item of the stage before; ``None`` where nothing is left to do."""
        waiting = self._for_stage[number]
        with waiting:
            waiting.wait_for(lambda: self._over(number) or self._ready(number))
            if self._over(number):
                return None
            step = self._begun[number]
            self._begun[number] += 1
            self._making[number].add(step)
            handed = self._made[number - 1].pop(step) if number else Handed(None)
            self._wake()
            return step, handed

    def _timed(self, stage: PipelineStage, step: int, item: Any) -> Any:
        begun = time.perf_counter_ns()
        with named(stage.name):
            made = stage.work(step, item)
        self._spans.add(stage.name, step, begun, time.perf_counter_ns())
        return made
