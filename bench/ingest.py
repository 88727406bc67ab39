"""How fast edges are ingested, and in how much private memory.

    python bench/ingest.py --edges 100_000_000 --memory-limit-mib 1024

Makes random edges over 2^22 nodes in a temporary directory, ingests them from every format, each in a process of
its own, and prints a table. Peak memory is the largest RssAnon (private memory; mapped file pages do not count)
minus what the process held after its imports. "read" is the time until the last edge is parsed and numbered.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

_CHUNK = 4_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--nodes", type=int, default=1 << 22)
    parser.add_argument("--memory-limit-mib", type=int, default=1024)
    parser.add_argument("--formats", nargs="+", default=["csv", "parquet"], choices=["csv", "csv.gz", "parquet"])
    parser.add_argument("--ids", default="auto", choices=["auto", "int", "str", "index"])
    parser.add_argument("--child", nargs=2, metavar=("SOURCE", "STORE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(*arguments.child, arguments.memory_limit_mib << 20, arguments.ids)))
        return
    print(f"{arguments.edges:,} edges, {arguments.nodes:,} nodes, memory limit {arguments.memory_limit_mib} MiB")
    print(f"{'format':<8} {'MiB':>7} {'read s':>7} {'total s':>8} {'M edges/s read':>15} {'total':>6} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as directory:
        for name in arguments.formats:
            source = Path(directory) / f"edges.{name}"
            write_edges(source, arguments.edges, arguments.nodes)
            command = [sys.executable, __file__, "--child", str(source), str(Path(directory) / "store")]
            command += ["--memory-limit-mib", str(arguments.memory_limit_mib), "--ids", arguments.ids]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rates = [arguments.edges / found[key] / 1e6 for key in ("read_seconds", "seconds")]
            print(
                f"{name:<8} {source.stat().st_size >> 20:>7} {found['read_seconds']:>7.1f} {found['seconds']:>8.1f} "
                f"{rates[0]:>15.2f} {rates[1]:>6.2f} {found['peak_bytes'] / 2**20:>9.0f}"
            )
            source.unlink()


def write_edges(path: Path, edges: int, nodes: int) -> None:
    """Random edges, sorted by source within a chunk as edge lists usually are, with a header."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    schema = pa.schema([("source", pa.int64()), ("target", pa.int64())])
    if path.suffix == ".parquet":
        writer = parquet.ParquetWriter(path, schema)
    elif path.suffix == ".gz":
        writer = csv.CSVWriter(pa.CompressedOutputStream(path, "gzip"), schema)
    else:
        writer = csv.CSVWriter(path, schema)
    with writer:
        for start in range(0, edges, _CHUNK):
            random = np.random.default_rng(start)
            count = min(_CHUNK, edges - start)
            source, target = np.sort(random.integers(0, nodes, count)), random.integers(0, nodes, count)
            writer.write_table(pa.table([pa.array(source), pa.array(target)], schema=schema))


def measure(source: str, store: str, memory_limit: int, ids: str) -> dict[str, float]:
    """Ingest in this process and say how long it took and how much memory."""
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401 (loaded before memory is counted)

    from partita.core import progress
    from partita.graph import build_loops  # noqa: F401
    from partita.sources.ingest import ingest

    with tempfile.TemporaryDirectory() as directory:  # compile, or load what was compiled
        write_edges(Path(directory) / "edges.csv", 1000, 100)
        ingest(Path(directory) / "edges.csv", Path(directory) / "store", ids=ids)
    held, peak, done = private_bytes(), 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, private_bytes())

    class Clock:
        """Notes when the task that reads edges ends."""

        read_seconds = 0.0

        def start(self, description: str, total: float | None, unit: str) -> Clock:
            self.description = description
            return self

        def advance(self, amount: float = 1) -> None:
            pass

        def stop(self, task: object) -> None:
            self.read_seconds = self.read_seconds or time.perf_counter() - began

    sampler, clock = threading.Thread(target=sample), Clock()
    sampler.start()
    began = time.perf_counter()
    with progress.shown_by(clock):
        summary = ingest(source, store, ids=ids, memory_limit=memory_limit, overwrite=True)
    seconds = time.perf_counter() - began
    done.set()
    sampler.join()
    return {
        "seconds": seconds,
        "read_seconds": clock.read_seconds,
        "peak_bytes": peak - held,
        "edges": summary.edges,
    }


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise OSError("this system does not count RssAnon")


if __name__ == "__main__":
    main()
