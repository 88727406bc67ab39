"""What one stream hands over to another is waited for, and its memory is kept; on the CPU nothing is done."""

from __future__ import annotations

import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from simulated_device import DEVICE, simulated
from simulated_streams import Checker, SimulatedStream, checked_streams

from partita.comm.cuda_streams import Handed, Streams, device_tensors
from partita.train.pipeline import Pipeline, PipelineStage

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True, slots=True)
class Box:
    content: object
    label: str = ""


@pytest.fixture
def checker() -> Iterator[Checker]:
    with simulated(), checked_streams() as checker:
        yield checker


def test_on_the_cpu_nothing_is_done(monkeypatch) -> None:
    def called(*_: object, **__: object) -> None:
        raise AssertionError("called")

    for name in ("Stream", "stream", "current_stream", "device"):
        monkeypatch.setattr(torch.cuda, name, called)
    monkeypatch.setattr(torch.Tensor, "record_stream", called)
    streams, item = Streams("cpu"), Box({"x": torch.ones(2)})
    for name in ("a", None):
        with streams.on(name):
            handed = streams.hand_over(item)
    assert handed == Handed(item)
    assert streams.take_over(handed) is item
    anything = object()
    assert streams.take_over(streams.hand_over(anything)) is anything


def test_an_item_is_waited_for_and_its_memory_is_kept(checker) -> None:
    streams = Streams(DEVICE)
    with streams.on("a"):
        handed = streams.hand_over(Box((torch.ones(2, device=DEVICE), torch.ones(3))))
        with streams.on("b"):
            content = streams.take_over(handed).content
            total = content[0].sum()
            del content, handed
        checker.host_waits_for(checker.default)  # frees are seen at the next call
    assert checker.calls == ["stream 1", "stream 2", "2 waits", "2 uses (2,)", "2 is done", "1 is done"]
    assert checker.problems == []
    assert float(total) == 2


def test_a_stream_is_made_once(checker) -> None:
    streams = Streams(DEVICE)
    for name in ("a", "b", "a", None):
        with streams.on(name):
            assert checker.current.name == {"a": "1", "b": "2", None: "default"}[name]
    assert checker.current is checker.default
    assert checker.calls == ["stream 1", "1 is done", "stream 2", "2 is done", "1 is done"]


def test_what_was_made_by_an_error_is_waited_for_too(checker) -> None:
    with pytest.raises(ValueError, match="three"), Streams(DEVICE).on("a"):
        raise ValueError("three")
    assert checker.calls == ["stream 1", "1 is done"]


def test_the_checker_sees_what_is_not_waited_for(checker) -> None:
    streams = Streams(DEVICE)
    with streams.on("a"):
        made = torch.ones(2, device=DEVICE)
        with streams.on("b"):
            made + 1
        with streams.on("a"):
            made + 1
        checker.current.synchronize()
        with streams.on("b"):
            made + 1
    assert checker.problems == ["add on 2 does not wait for what 1 makes"]


def test_the_checker_sees_memory_that_goes_too_early(checker) -> None:
    streams = Streams(DEVICE)
    for told in (True, False):
        with streams.on("a"):
            made = torch.ones(2, device=DEVICE)
            handed = streams.hand_over(made if told else 0)
            with streams.on("b"):
                streams.take_over(handed)
                made + 1
                del made, handed
                torch.ones(1, device=DEVICE)
        assert checker.problems == ([] if told else ["memory of 1 is given back while 2 uses it"])


def test_tensors_of_a_device_are_found_at_any_depth() -> None:
    with simulated():
        there = [torch.full((n,), 1.0, device=DEVICE) for n in range(1, 8)]
    item = Box([there[0], (there[1], None, 3, "x"), {"a": there[2], 1: Pair(there[3], torch.ones(2))}, there[4][:2]])
    found = list(device_tensors(Box(item, "label")))
    assert [tensor.shape[0] for tensor in found] == [1, 2, 3, 4, 2]
    assert list(device_tensors(None)) == []


def test_what_may_hide_tensors_is_refused(checker) -> None:
    class Custom:
        pass

    streams = Streams(DEVICE)
    with pytest.raises(TypeError, match="Custom: what passes between streams"):
        streams.take_over(streams.hand_over([Custom()]))


def _numbers(step: int) -> torch.Tensor:
    return torch.arange(step + 5, device=DEVICE)


def _wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        time.sleep(0.001)


def _in_simulation(work):
    def inside(step: int, item: object) -> object:
        with simulated():
            return work(step, item)

    return inside


@pytest.mark.parametrize(("in_order", "lanes"), [(False, 1), (True, 1), (True, 3)])
@pytest.mark.parametrize("apart", [True, False])
def test_every_stage_of_a_pipeline_waits_for_the_one_before(checker, in_order, lanes, apart) -> None:
    factor = torch.tensor([2, 3], device=DEVICE).sum()  # on the stream of the trainer, before the pipeline begins
    stages = [
        PipelineStage("sample", _in_simulation(lambda step, _: Box(_numbers(step))), in_order, lanes, apart),
        PipelineStage("load", _in_simulation(lambda _, box: (box, box.content * factor)), in_order, apart=apart),
        PipelineStage("more", _in_simulation(lambda _, both: (*both, both[1] + both[0].content)), in_order),
    ]
    streams, totals = Streams(DEVICE), []
    for _ in range(2):
        with Pipeline(stages, 0, 30, 3, streams=streams) as pipeline:
            for _ in range(20):
                box, product, added = pipeline.take()
                totals.append((box.content + product + added).sum())
                del box, product, added
    assert [int(total) for total in totals] == 2 * [12 * sum(range(step + 5)) for step in range(20)]
    assert checker.problems == []
    threads = 1 + (apart and 1) + (apart and (lanes if in_order else 3))
    assert [call for call in checker.calls if call.startswith("stream")] == [f"stream {n + 1}" for n in range(threads)]


def test_without_a_pipeline_nothing_is_done_with_streams(checker) -> None:
    with Pipeline([PipelineStage("sample", lambda step, _: _numbers(step))], 0, 3, 0, streams=Streams(DEVICE)) as steps:
        assert [len(steps.take()) for _ in range(3)] == [5, 6, 7]
    assert checker.calls == []


def test_a_device_that_fails_at_the_end_ends_the_pipeline(checker, monkeypatch) -> None:
    def fails(self: SimulatedStream) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(SimulatedStream, "synchronize", fails)
    stages, told = [PipelineStage("sample", _in_simulation(lambda step, _: step), in_order=True)], []
    pipeline = Pipeline(stages, 0, 2, 2, streams=Streams(DEVICE), failed=told.append)
    with pytest.raises(RuntimeError, match="illegal memory"), pipeline:
        _wait_for(lambda: bool(told))
    assert len(told) == 1
