"""A graph that does not fit into memory, from nothing to a store in partition order.

    python bench/large_partition.py --scale 26 --parts 16 --folder /somewhere/with/40/GB --limit-gib 4

Generates an R-MAT graph with 16 float16 features, partitions it with SPRING, and writes the store in partition order.
Every step is a process of its own; its private memory is limited (RLIMIT_DATA), besides what it holds after imports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

_STEP = """
    import json, resource, sys, threading, time
    import numba, numpy, pyarrow, torch
    import partita
    from partita.core.memory import private_bytes
    from partita.graph.generate import generate_rmat
    from partita.partitioning.job import partition

    arguments, limit = json.loads(sys.argv[1]), float(sys.argv[2])
    held = [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData")][0]
    resource.setrlimit(resource.RLIMIT_DATA, (int(held + limit * 2**30), -1))
    base = most = private_bytes()
    done = threading.Event()

    def watch():
        global most
        while not done.wait(0.05):
            most = max(most, private_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.perf_counter()
    found = {}
    try:
        if arguments["step"] == "generate":
            generate_rmat(
                arguments["out"], scale=arguments["scale"], edge_factor=16, num_features=16, dtype="float16",
                memory_limit=arguments["sort_bytes"],
            )
        else:
            summary = partition(
                arguments["source"], arguments["out"], parts=arguments["parts"], algorithm=arguments["algorithm"],
                memory_limit=arguments["memory_limit"],
            )
            found = {
                "seconds": summary.seconds, "replication": summary.quality.replication_factor_connected,
                "balance": summary.quality.nodes.balance, "cut": summary.quality.edge_cut, "notes": summary.notes,
            }
    finally:
        done.set()
        thread.join()
    print(json.dumps({"total": time.perf_counter() - began, "peak_mib": (most - base) / 2**20, **found}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, nargs="+", default=[20])
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--algorithm", default="spring")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limit-gib", type=float, default=4.0)
    parser.add_argument("--memory-limit", default="512MiB", help="what the algorithm may use besides O(nodes)")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for scale in arguments.scale:
        source, out = arguments.folder / f"rmat{scale}", arguments.folder / f"rmat{scale}-parts"
        steps = [
            {"step": "generate", "out": str(source), "scale": scale, "sort_bytes": 1 << 30},
            {"step": "partition", "source": str(source), "out": str(out), "parts": arguments.parts,
             "algorithm": arguments.algorithm, "memory_limit": arguments.memory_limit},
        ]  # fmt: skip
        for step in steps:
            if step["step"] == "generate" and source.exists():
                continue
            began = time.time()
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(_STEP), json.dumps(step), str(arguments.limit_gib)],
                stdout=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"{step['step']} at scale {scale} failed after {time.time() - began:.0f} s")
            print(scale, step["step"], done.stdout.strip(), flush=True)
        if not arguments.keep:
            shutil.rmtree(source)
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
