"""Ingest and partitioning of a typed graph of IGB-Heterogeneous' shape within a memory limit.

    python bench/typed_ingest.py --shape small --limit-gib 1 --parts 4

Generates the graph (128 columns of float16 for every node type) and exports it to an ``.npz`` file; then ingests that,
and partitions the store into parts that are balanced by node type. Every step is a process of its own, whose private
memory is limited (RLIMIT_DATA) besides what it holds after its imports. Peak is private memory (RssAnon) above that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

_STEP = """
    import json, resource, sys, threading, time
    import numba, numpy, pyarrow
    import partita, partita.sources.ingest, partita.partitioning.job, partita.graph.build_loops
    from partita.core.memory import private_bytes

    verb, positional, options, limit = json.loads(sys.argv[1])
    held = [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData")][0]
    resource.setrlimit(resource.RLIMIT_DATA, (int(held + limit * 2**30), -1))
    base = most = private_bytes()
    done = threading.Event()

    def watch():
        global most
        while not done.wait(0.02):
            most = max(most, private_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.perf_counter()
    try:
        getattr(partita, verb)(*positional, **options)
    finally:
        seconds = time.perf_counter() - began
        done.set()
        thread.join()
    print(json.dumps([seconds, (most - base) / 2**20]))
"""


def step(verb: str, *positional: str, limit: float, **options: object) -> tuple[float, float]:
    """Seconds and peak MiB of a call of Partita in a process of its own."""
    given = json.dumps([verb, positional, options, limit])
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_STEP), given], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise SystemExit(f"{verb} failed after {time.perf_counter() - began:.0f} s")
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["tiny", "small"], default="small")
    parser.add_argument("--limit-gib", type=float, default=1.0)
    parser.add_argument("--sort-mib", type=int, default=384, help="the option memory_limit of both verbs")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--algorithm", default="spring+")
    parser.add_argument("--folder", type=Path, help="for files of some GB; default: a temporary one")
    options = parser.parse_args()
    limit, sort = options.limit_gib, f"{options.sort_mib}MiB"
    with tempfile.TemporaryDirectory(prefix="partita-typed-", dir=options.folder) as temporary:
        folder = Path(temporary)
        made, file, store, cut = (str(folder / name) for name in ("made", "graph.npz", "store", "parts"))
        print(f"{'step':<12} {'seconds':>8} {'peak MiB':>9}", flush=True)
        for name, verb, given, more in (
            ("generate", "generate_typed", (made,), {"shape": options.shape, "dtype": "float16", "memory_limit": sort}),
            ("export", "export", (made, file), {}),
            ("ingest", "ingest", (file, store), {"memory_limit": sort, "feature_dtype": "float16"}),
            (
                "partition",
                "partition",
                (store, cut),
                {"parts": options.parts, "algorithm": options.algorithm, "memory_limit": sort},
            ),
        ):
            seconds, peak = step(verb, *given, limit=limit, **more)
            print(f"{name:<12} {seconds:>8.1f} {peak:>9,.0f}", flush=True)
        print(f"{Path(file).stat().st_size / 2**20:,.0f} MiB of source")


if __name__ == "__main__":
    main()
