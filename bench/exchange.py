"""Throughput of the exchange of rows between the workers of one machine, against the raw collective.

    python bench/exchange.py [--workers 2] [--mib 64] [--repeats 15]

Three ways to move the same float32 rows, alternated, with the first one changing; medians, minimum and maximum:
``raw`` is torch.distributed.all_to_all_single into memory that is kept, ``raw, new memory`` allocates what it
receives, as every caller must who keeps it, ``exchange_rows`` is ours.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from partita.comm.context import Context
from partita.comm.launch import launch

WIDTH = 128


def measure(context: Context, mib: float, repeats: int) -> dict[str, list[float]]:
    """Seconds of each repetition, by way, on rank 0."""
    group = context.group()
    per_worker = int(mib * 2**20) // (4 * WIDTH * group.size)
    counts = [per_worker] * group.size
    rows = torch.randn(sum(counts), WIDTH)
    kept = torch.empty_like(rows)

    def raw(target: torch.Tensor) -> None:
        dist.all_to_all_single(target, rows, counts, counts)

    ways: dict[str, Callable[[], object]] = {
        "raw": lambda: raw(kept),
        "raw, new memory": lambda: raw(torch.empty_like(rows)),
        "exchange_rows": lambda: group.exchange_rows(rows, counts, counts),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 2):
        for index in range(len(ways)):
            name, way = list(ways.items())[(index + repeat) % len(ways)]
            group.gather(0)
            started = time.perf_counter()
            way()
            group.gather(0)
            if repeat >= 2:  # the first ones warm up
                seconds[name].append(time.perf_counter() - started)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mib", type=float, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    seconds = launch(measure, options.workers, arguments={"mib": options.mib, "repeats": options.repeats})
    base = statistics.median(seconds["raw"])
    print(f"{options.mib:g} MiB of float32 rows per worker, {options.workers} workers, {options.repeats} repetitions")
    for name, all_seconds in seconds.items():
        median = statistics.median(all_seconds)
        print(
            f"{name:16} {1000 * median:8.2f} ms  ({1000 * min(all_seconds):.2f} to {1000 * max(all_seconds):.2f})  "
            f"{options.mib / 1024 / median:6.2f} GiB/s  {base / median:4.0%} of raw"
        )


if __name__ == "__main__":
    main()
