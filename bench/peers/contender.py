"""What the contenders have in common: commands in, results out, clocks and memory. Runs in every environment.

A contender is a process that the harness starts in its environment. It reads one command a line from its standard
input and answers each with one line of JSON, so that it stays warm while others have their turn.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

GATHERED_ROWS = 60_000
TABLE_ROWS = 1 << 19
SQUARES = (1024, 2048, 4096)
Settings = dict[str, Any]
Result = dict[str, Any]
Steady = Callable[[], AbstractContextManager[object]]


class Contender:
    """One library. Stages are methods by the name of the stage; the variants of a stage are tried for the best.

    Args:
        threads: that it may use.

    Attributes:
        name: of the library.
        variants: of every stage, the one that the library's documentation shows first.
        steady: makes a block for what of a stage is measured, after warming up; a profile puts itself there.
    """

    name = ""
    variants: dict[str, tuple[str, ...]] = {}  # noqa: RUF012

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.base = 0
        self.steady: Steady = nullcontext

    def around(self, stage: str) -> AbstractContextManager[object]:
        """In what a stage is measured: what the library itself puts around it."""
        return nullcontext()

    def versions(self) -> dict[str, str]:
        """Of the library and of what it computes with."""
        raise NotImplementedError

    def open(self, folder: Path) -> None:
        """Load a graph's arrays, and let go of those of another graph."""
        raise NotImplementedError

    def gather(self, variant: str, settings: Settings) -> Result:
        """Rows of a table by random ids, into a new tensor (``new``) and into one that is there (``reused``)."""
        width, into = settings["row_bytes"] // 4, settings["into"]
        draw = torch.Generator().manual_seed(0)
        table = torch.ones(settings.get("table_rows", TABLE_ROWS), width)
        ids = torch.randint(0, len(table), (GATHERED_ROWS,), generator=draw)
        out = torch.empty(GATHERED_ROWS, width) if into == "reused" else None
        other, copy = torch.rand(GATHERED_ROWS, width), torch.empty(GATHERED_ROWS, width)
        seconds = median_seconds(lambda: self.gather_rows(table, ids, out), steady=self.steady)
        return {
            "seconds": seconds, "bytes": GATHERED_ROWS * settings["row_bytes"],
            "limit_seconds": median_seconds(lambda: copy.copy_(other)),
        }  # fmt: skip

    def gather_rows(self, table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """As the library reads rows of features."""
        return table[ids] if out is None else torch.index_select(table, 0, ids, out=out)

    def dense(self, variant: str, settings: Settings) -> Result:
        """A linear map forward and backward, as all libraries do it; the limit is the best square product."""
        rows, below, above = settings["shape"]
        dtype = torch.bfloat16 if settings["configuration"]["precision"] == "bf16" else torch.float32
        wants_input = settings["input_gradient"]
        x, grad = torch.rand(rows, below, requires_grad=wants_input), torch.rand(rows, above, dtype=dtype)
        linear = torch.nn.Linear(below, above)

        def work() -> None:
            with autocast(settings["configuration"]["precision"]):
                linear(x).backward(grad)

        flops = 2.0 * rows * below * above * (3 if wants_input else 2)
        seconds = median_seconds(work, steady=self.steady)
        return {"seconds": seconds, "flops": flops, "limit_seconds": flops / best_flops(dtype)}


def autocast(precision: str) -> Any:
    """PyTorch's own mixed precision where that is asked for."""
    return torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def best_flops(dtype: torch.dtype) -> float:
    """Floating-point operations a second in the best square matrix product."""
    best = 0.0
    for size in SQUARES:
        a, b, out = torch.rand(size, size).to(dtype), torch.rand(size, size).to(dtype), torch.empty(0, dtype=dtype)
        best = max(best, 2.0 * size**3 / median_seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), 3, 0.0))
    return best


def median_seconds(
    work: Callable[[], object], least: int = 5, budget: float = 0.3, steady: Steady = nullcontext
) -> float:
    """Median time of a call: at least so many, and so long; one more before them is not timed."""
    work()
    seconds: list[float] = []
    with steady():
        while len(seconds) < least or sum(seconds) < budget:
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def load(folder: Path, name: str) -> torch.Tensor:
    """An array of the graph as a tensor in memory."""
    return torch.from_numpy(np.load(folder / f"{name}.npy"))


def load_blocks(path: str) -> list[dict[str, Any]]:
    """The sampled blocks of one batch, layer 1 first: ``indptr``, ``indices`` (int64) and ``num_src``."""
    with np.load(path) as arrays:
        return [
            {
                "indptr": torch.from_numpy(arrays[f"indptr{layer}"]).long(),
                "indices": torch.from_numpy(arrays[f"indices{layer}"]).long(),
                "num_src": int(arrays[f"num_src{layer}"]),
            }
            for layer in range(1, len(arrays.files) // 3 + 1)
        ]


# Memory


def private_bytes() -> int:
    """Private memory of this process, and what the processes that it forked have written to."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))


def _children_bytes() -> int:
    total = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            for child in (task / "children").read_text().split():
                lines = Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:"))
        except OSError:
            continue
    return total


@contextmanager
def peak_memory(base: int) -> Iterator[dict[str, int]]:
    """Watches private memory above ``base`` every 10 ms; processes of this one, being dearer to ask, every 200."""
    found, over = {"peak_private_bytes": 0}, threading.Event()

    def watch() -> None:
        tick = children = 0
        while not over.wait(0.01):
            if tick % 20 == 0:
                children = _children_bytes()
            tick += 1
            found["peak_private_bytes"] = max(found["peak_private_bytes"], private_bytes() + children - base)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def tidy() -> None:
    """Give back to the system what is no longer used."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


# Commands


def serve(make: Callable[[int], Contender]) -> None:
    """Answer commands until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    threads = parser.parse_args().threads
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(result: Result) -> None:
        print(json.dumps(result), file=answers, flush=True)

    torch.set_num_threads(threads)
    contender = make(threads)
    answer({"name": contender.name, "versions": contender.versions(), "variants": contender.variants})
    opened = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["graph"] != opened:
                opened = None
                contender.open(Path(command["graph"]))
                opened = command["graph"]
                tidy()
                contender.base = private_bytes()
            with peak_memory(contender.base) as memory, contender.around(command["stage"]):
                result = getattr(contender, command["stage"])(command["variant"], command)
            answer({**memory, **result})
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]})
        tidy()
