"""All partitioners side by side: what a partition costs, and what it costs to make it.

    python bench/partitioners.py quality --out docs/partitioning_measured.md --csv docs/partitioning_measured.csv
    python bench/partitioners.py budget --out docs/partitioning_measured.md --csv docs/partitioning_budget.csv
    python bench/partitioners.py speed --store graph --parts 4 --runs 5

``quality`` runs every algorithm on the real graphs of $PARTITA_DATA (made undirected) and on generated ones, for
4, 8 and 16 parts. ``budget`` gives spring+ less and less memory for the graph that METIS cuts, for 4, 16 and 64 parts,
each in a process of its own; with KaHIP beside it, where Python finds ``kahip``. ``speed`` times whole
partitionings of one store, survey included, kernels loaded. Peak memory is private memory (RssAnon) above that after
all kernels were loaded, looked at every 2 ms.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import importlib.util
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import partita
from partita.core.memory import private_bytes
from partita.core.partitioning import PartitionTask, Requires
from partita.partitioning.coarsen import contract
from partita.partitioning.edge_streams import StoreStream, Watched
from partita.partitioning.partitioners import PARTITIONERS, find_partitioner
from partita.partitioning.quality import quality
from partita.partitioning.stream_stats import survey

DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
PARTS = (4, 8, 16)
BUDGET_PARTS = (4, 16, 64)
SHARES = (1, 1 / 4, 1 / 16, 1 / 64)
GENERATED = ("rmat_17", "sbm")
USABLE = 1.5  # nodes of the largest part over the mean, beyond which a partition is none
MARKS = "<!-- {}: begin -->", "<!-- {}: end -->"


@dataclass
class Row:
    graph: str
    parts: int
    algorithm: str
    replication_factor: float
    replication_factor_connected: float
    edge_cut: float
    node_balance: float
    edge_balance: float
    seconds: float
    peak_mib: float
    cpu_seconds: float


class Peak:
    """The most private memory inside a ``with`` block, above that when the first of all blocks began."""

    base = 0

    def __enter__(self):
        Peak.base = Peak.base or private_bytes()
        self.most = private_bytes()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.done.wait(0.002):
            self.most = max(self.most, private_bytes())

    def __exit__(self, *error):
        self.most = max(self.most, private_bytes())
        self.done.set()
        self.thread.join()

    @property
    def mib(self):
        return (self.most - self.base) / 2**20


def measure(name: str, store, num_parts: int, *, label: str | None = None, memory_limit=1 << 33, **options) -> Row:
    stream = StoreStream(store)
    partitioner = Kahip() if name == "kahip" else find_partitioner(name)
    with Peak() as peak:
        began, cpu = time.perf_counter(), time.process_time()
        task = PartitionTask(Watched(stream), num_parts, memory_limit=memory_limit, options=options)
        if partitioner.requires.survey:
            task.survey = survey(task.stream)
        parts = partitioner.partition(task)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    found = quality(stream, parts, num_parts)
    return Row(
        store.path.name, num_parts, label or name, found.replication_factor, found.replication_factor_connected,
        found.edge_cut, found.nodes.balance, found.in_edges.balance, seconds, peak.mib, cpu,
    )  # fmt: skip


def measure_apart(path: Path, name: str, num_parts: int, **kwargs) -> Row:
    """The same in a forked process, in which nothing is left of earlier partitionings."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_measure_store, (path, name, num_parts), kwargs)


def _measure_store(path: Path, name: str, num_parts: int, **kwargs) -> Row:
    ctypes.CDLL(None).malloc_trim(0)  # else the peak is hidden in what the parent has freed
    Peak.base = 0
    return measure(name, partita.open(path), num_parts, **kwargs)


class Kahip:
    """KaHIP's kaffpa, in memory, preset "fastsocial" (3)."""

    requires = Requires(passes=1, in_memory=True)

    def partition(self, task):
        import kahip

        survey = task.surveyed()
        everyone = np.arange(task.num_nodes, dtype=np.int32)
        graph, _ = contract(task.stream, survey.degree, everyone, task.num_nodes, most_links=1 << 30)
        arrays = [np.ones(task.num_nodes, dtype=int), graph.indptr, graph.edge_weight, graph.indices]
        _, parts = kahip.kaffpa(*(array.tolist() for array in arrays), task.num_parts, task.epsilon, True, 0, 3)
        return np.array(parts, dtype=np.int32)


def graphs(folder: Path, names: list[str] | None):
    """Stores of all graphs: real ones where they are at hand, and two generated ones."""
    found = {}
    for path in sorted(DATA.glob("*.npz")):
        if path.stem.startswith("hetero") or (names and path.stem not in names):
            continue
        partita.ingest(path, folder / path.stem, undirected=True, deduplicate=True)
        found[path.stem] = partita.open(folder / path.stem)
    if not names or "rmat_17" in names:
        partita.generate_rmat(folder / "rmat_17", scale=17, edge_factor=16, undirected=True, deduplicate=True)
        found["rmat_17"] = partita.open(folder / "rmat_17")
    if not names or "sbm" in names:
        partita.generate_sbm(folder / "sbm", num_nodes=50_000, num_classes=32, average_degree=16, num_features=0)
        found["sbm"] = partita.open(folder / "sbm")
    return found


def warm(store) -> None:
    """Load all kernels."""
    for name in PARTITIONERS:
        measure(name, store, 2)
    Peak.base = 0


def mean(values) -> float:
    return float(np.exp(np.mean(np.log(list(values)))))


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join("---" for _ in header) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def quality_tables(rows: list[Row]) -> str:
    names = list(PARTITIONERS)
    by = {(row.graph, row.parts, row.algorithm): row for row in rows}
    graphs_ = list(dict.fromkeys(row.graph for row in rows))
    parts = [p for p in PARTS if any(row.parts == p for row in rows)]
    text = []
    for p in parts:
        text.append(f"Replication factor, {p} parts (lower is better):\n")
        body = [[graph, *(f"{by[graph, p, name].replication_factor:.3f}" for name in names)] for graph in graphs_]
        means = [mean(by[graph, p, name].replication_factor for graph in graphs_) for name in names]
        text.append(table(["graph", *names], [*body, ["geometric mean", *(f"{value:.3f}" for value in means)]]) + "\n")
    text.append("Over all graphs and numbers of parts (means of ratios are geometric):\n")
    body = []
    for name in names:
        mine = [(by[g, p, name], by[g, p, "metis"], by[g, p, "spring"]) for g in graphs_ for p in parts]
        usable = [(a, s) for a, _, s in mine if a.node_balance < USABLE]
        body.append([
            name,
            f"{mean(a.replication_factor / m.replication_factor for a, m, _ in mine):.3f}",
            f"{max(a.replication_factor / m.replication_factor for a, m, _ in mine):.3f}",
            f"{mean(s.replication_factor / a.replication_factor for a, s in usable):.3f} ({len(usable)})",
            f"{np.mean([a.edge_cut for a, _, _ in mine]):.3f}",
            spread([a.node_balance for a, _, _ in mine]),
            spread([a.edge_balance for a, _, _ in mine]),
            f"{sum(a.seconds for a, _, _ in mine):.1f}",
            f"{max(a.peak_mib for a, _, _ in mine):.0f}",
        ])  # fmt: skip
    header = [
        "algorithm", "replication / METIS", "worst", "SPRING's replication / its, where usable", "edge cut",
        "nodes max/mean, median / worst", "in-edges max/mean, median / worst", "seconds in all", "largest peak MiB",
    ]  # fmt: skip
    text.append(table(header, body))
    return "\n".join(text)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} / {max(values):.2f}"


def budget_tables(rows: list[tuple[float, Row]]) -> str:
    """Rows by share of the links; METIS's have share 0, KaHIP's -1."""
    by = {(share, row.graph, row.parts): row for share, row in rows}
    graphs_, parts = (list(dict.fromkeys(getattr(row, name) for _, row in rows)) for name in ("graph", "parts"))
    text = ["Over all graphs (ratios to METIS; means are geometric):\n"]
    columns = {share: "all" if share == 1 else f"1/{round(1 / share)}" for share in SHARES}
    if any(share == -1 for share, _ in rows):
        columns[-1] = "KaHIP, all"
    body = []
    for share, name in columns.items():
        cells = []
        for made in (False, True):
            pairs = [
                (by[share, g, p], by[0, g, p])
                for g in graphs_ for p in parts if (g in GENERATED) == made and (share, g, p) in by
            ]  # fmt: skip
            if not pairs:
                cells += ["", ""]
                continue
            ratios = [a.replication_factor / m.replication_factor for a, m in pairs]
            row = pairs[int(np.argmax(ratios))][0]
            cells += [f"{mean(ratios):.3f}", f"{max(ratios):.3f} ({row.graph}, {row.parts})"]
            if not made:
                cells += [
                    f"{np.mean(np.array(ratios) > 1.03):.0%}",
                    f"{mean(max(a.edge_cut, 1e-4) / max(m.edge_cut, 1e-4) for a, m in pairs):.3f}",
                ]
        every = [(row, by[0, row.graph, row.parts]) for s, row in rows if s == share]
        body.append([
            name, *cells,
            f"{max(a.node_balance for a, _ in every):.3f}",
            f"{sum(a.cpu_seconds for a, _ in every) / sum(m.cpu_seconds for _, m in every):.2f}",
            f"{max(a.cpu_seconds / m.cpu_seconds for a, m in every):.1f}",
        ])  # fmt: skip
    header = [
        "links given to METIS", "replication, real graphs", "worst", "above 1.03", "edge cut", "rmat_17 and sbm",
        "worst", "worst balance of nodes", "seconds, sum", "seconds, worst",
    ]  # fmt: skip
    text.append(table(header, body) + "\n")
    for p in parts:
        text.append(f"{p} parts (replication factor, edge cut in %, processor seconds, peak MiB):\n")
        body = [
            [g, *(describe(by[share, g, p]) if (share, g, p) in by else "" for share in (0, *columns))] for g in graphs_
        ]
        text.append(
            table(["graph", "metis", *(f"spring+, {columns[s]}" for s in SHARES), *["KaHIP"] * (-1 in columns)], body)
            + "\n"
        )
    return "\n".join(text)


def describe(row: Row) -> str:
    return f"{row.replication_factor:.3f}, {100 * row.edge_cut:.1f}, {row.cpu_seconds:.2f}, {row.peak_mib:.0f}"


def write_csv(path: Path | None, rows: list[dict]) -> None:
    if path is None:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})


def put(path: Path | None, mark: str, text: str) -> None:
    """Print a text, and write it between its marks in a page."""
    print(text)
    if path is None:
        return
    begin, end = (part.format(mark) for part in MARKS)
    page = path.read_text() if path.exists() else f"{begin}\n{end}\n"
    head, _, rest = page.partition(begin)
    tail = rest.partition(end)[2]
    path.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["quality", "budget", "speed"])
    parser.add_argument("--graphs", nargs="+")
    parser.add_argument("--algorithms", nargs="+", default=list(PARTITIONERS))
    parser.add_argument("--store", type=Path)
    parser.add_argument("--parts", type=int, nargs="+")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory-limit-mib", type=int, default=1 << 13)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    arguments.parts = arguments.parts or list(BUDGET_PARTS if arguments.what == "budget" else PARTS)
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
        if arguments.what == "speed":
            speed(arguments, Path(folder))
            return
        stores = graphs(Path(folder), arguments.graphs)
        warm(next(iter(stores.values())))
        if arguments.what == "budget":
            budget(arguments, stores)
            return
        rows = []
        for name, store in stores.items():
            for p in arguments.parts:
                rows += [measure(algorithm, store, p) for algorithm in PARTITIONERS]
            print(name, flush=True)
        write_csv(arguments.csv, [asdict(row) for row in rows])
        put(arguments.out, "quality", quality_tables(rows))


def budget(arguments: argparse.Namespace, stores: dict) -> None:
    kahip = importlib.util.find_spec("kahip") is not None
    rows = []
    for name, store in stores.items():
        links = survey(StoreStream(store)).volume // 2
        for p in arguments.parts:
            metis = measure_apart(store.path, "metis", p)
            found = [(s, measure_apart(store.path, "spring+", p, links=int(s * links))) for s in SHARES]
            if kahip:
                found.append((-1, measure_apart(store.path, "kahip", p)))
            rows += [(0, metis), *found]
            print(
                name, p, *(f"{row.replication_factor / metis.replication_factor:.3f}" for _, row in found), flush=True
            )
    write_csv(arguments.csv, [{"share": share, **asdict(row)} for share, row in rows])
    put(arguments.out, "budget", budget_tables(rows))


def speed(arguments: argparse.Namespace, folder: Path) -> None:
    if arguments.store is None:
        partita.generate_rmat(folder / "rmat_19", scale=19, edge_factor=16, undirected=True, deduplicate=True)
    store = partita.open(arguments.store or folder / "rmat_19")
    partita.generate_rmat(folder / "small", scale=10, edge_factor=4, undirected=True)
    small = partita.open(folder / "small")
    print(f"{store.num_nodes:,} nodes, {store.num_edges:,} stored edges; medians of {arguments.runs}")
    body = []
    warm(small)
    for p in arguments.parts:
        for name in arguments.algorithms:
            limit = arguments.memory_limit_mib << 20
            rows = [measure(name, store, p, memory_limit=limit) for _ in range(arguments.runs)]
            seconds = statistics.median(row.seconds for row in rows)
            body.append([
                name, str(p), f"{seconds:.2f}", f"{min(row.seconds for row in rows):.2f}",
                f"{store.num_edges / seconds / 1e6:.1f}", f"{max(row.peak_mib for row in rows):.0f}",
                f"{rows[0].replication_factor_connected:.3f}", f"{rows[0].node_balance:.3f}",
                f"{rows[0].edge_balance:.3f}",
            ])  # fmt: skip
            print(body[-1], flush=True)
    header = ["algorithm", "parts", "median s", "best s", "M stored edges/s", "peak MiB", "replication, connected",
              "nodes max/mean", "in-edges max/mean"]  # fmt: skip
    put(arguments.out, "speed", table(header, body))


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
