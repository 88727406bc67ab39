"""Ways of a benchmark that take turns, each in a process of its own, and in a control group of memory where it asks."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GROUPS = Path("/sys/fs/cgroup/memory")
_PREFIX = "partita-bench-"


def groups_can_be_made() -> bool:
    """Whether this process may limit memory, pages of files included."""
    return os.access(GROUPS, os.W_OK) and (GROUPS / "memory.limit_in_bytes").exists()


def limit_memory(num_bytes: int) -> None:
    """Put this process into a control group of so much memory."""
    group = GROUPS / f"{_PREFIX}{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(num_bytes))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def one_way(
    script: str, way: str, folder: Path, options: Namespace, names: Sequence[str], timeout: float | None = None
) -> dict[str, Any]:
    """The JSON object that ``script --way WAY --folder FOLDER`` prints last; ``error`` says why there is none.

    Args:
        script: the benchmark.
        way: what it is to do.
        folder: where it finds what all ways share.
        options: its own.
        names: of those that the way reads.
        timeout: seconds.
    """
    command = [sys.executable, script, "--way", way, "--folder", str(folder)]
    for name in names:
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"nothing in {timeout:.0f} s"}
    for group in GROUPS.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            group.rmdir()
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def read_all(file: Path) -> None:
    """Bring a file into the system's cache."""
    with file.open("rb") as opened:
        while opened.read(1 << 24):
            pass


def drop(file: Path) -> None:
    """Take a file that nothing has mapped out of the system's cache."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def not_in_order(mapped: Any) -> None:
    """Tell the system that a mapped array is read at random places."""
    while not isinstance(mapped, mmap.mmap):
        mapped = mapped.base
    mapped.madvise(mmap.MADV_RANDOM)


def rows_of_ways(what: str, script: str, folder: Path, options: Namespace, names: Sequence[str]) -> None:
    """Let the ways of ``options`` take turns, and print a table of how long each takes and what it reads.

    Args:
        what: is read.
        script, folder, options, names: see :func:`one_way`.
    """
    print(f"| {what} | seconds per epoch | to memory | in memory | reads | GB read | peak resident MiB |")
    print("|---|---|---|---|---|---|---|")
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in options.ways.split(",")}
    for _ in range(options.repetitions):
        for way in found:
            found[way].append(one_way(script, way, folder, options, names, 4 * options.limit + 60))
    first = None
    for way, results in found.items():
        if not results[-1].get("seconds"):
            print(f"| {way} | {results[-1]['error']} | | | | | |")
            continue
        seconds = statistics.median(each["seconds"] for each in results)
        first = first or seconds
        cells = ["", "", ""]
        if reads := results[-1]["reads"]:
            cells = [f"{reads['kept'] / reads['asked']:.0%}", f"{reads['reads']:,}", f"{reads['bytes'] / 1e9:.1f}"]
        peak = results[-1]["peak"] >> 20
        name = way if not (some := results[-1]["steps"]) else f"{way} (by its first {some} steps)"
        print(f"| {name} | {seconds:.1f} | {seconds / first:.2f} | {' | '.join(cells)} | {peak:,} |", flush=True)
