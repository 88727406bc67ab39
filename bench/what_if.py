"""Plans for the machines of APT and GSplit, which are not here, beside what their papers report.

    python bench/what_if.py --out docs/what_if_measured.csv [--folder FOLDER] [--only NAME]
    python bench/what_if_tables.py docs/what_if_measured.csv

The graphs of the papers are stood in for by generated ones of the same degrees and widths, with a fraction f of the
nodes. With f of the batch, of the caches, and of all times that are fixed (latencies, the fixed time of a layer), a
step does f times what a step of the paper does. What is reported is a step divided by f; to it, unchanged, come the
sum of the gradients and the optimizer, whose size is that of the model. This is done here: the planner itself plans
for the graph that it is given.

A batch of the stand-in has a few seeds for each worker, and its slowest worker is slow by chance, as is the one that
sends most at an exchange. So all sampled steps, whose seeds are about those of one step of the paper, are priced as one
step, with as many times the fixed times of one.

Two stand-ins for each graph: R-MAT, whose quadrants are chosen so that the first percent of the nodes has about the
share of accesses of APT's table 3; and a graph of communities (degree-corrected stochastic block model, 64
communities, four fifths of the edges inside one). Parts of R-MAT are random: it has no communities, METIS and spring+
cut four fifths of the edges between 8 parts (random parts: seven eighths), and the parts that they make of it differ
several times in nodes or edges. Parts of communities are made by spring+. Nothing is chosen by results.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rows import append_row, read_rows

from partita.config import Config
from partita.core.estimates import FileReads
from partita.core.mesh import Mesh
from partita.core.plan import Seconds
from partita.core.records import TIERS, Traffic
from partita.parallel.forecast import WorkerEstimate
from partita.parallel.strategies import STRATEGIES
from partita.plan.cost import Cost
from partita.plan.described import described_links, described_rates
from partita.plan.dryrun import DryRun
from partita.plan.machine import Machine
from partita.plan.rates import Rates

MACHINES = Path(__file__).parents[1] / "examples" / "machines"
STAGES = ("sample", "exchange", "load", "compute", "gradients")
SEEDS_PER_WORKER = 1024
STEPS, SECONDS = 96, 120.0
CLASSES, COMMUNITIES, HEADS = 16, 64, 4
GIB = 2**30
SAGE_APT = {"model": "sage", "hidden": 32, "fanout": "10,10,10"}
APT = ("gdp", "nfp", "snp", "dnp")


@dataclass(frozen=True)
class Graph:
    """A graph of a paper, and what stands in for it.

    Attributes:
        nodes, degree, features: of the paper.
        undirected: edges go both ways.
        scale: the stand-in has 2^scale nodes.
        quadrants: of R-MAT, the upper left one, and each of the two beside it.
        power_law: exponent of the degrees of the communities.
    """

    nodes: float
    degree: float
    features: int
    undirected: bool
    scale: int
    quadrants: tuple[float, float]
    power_law: float

    @property
    def fraction(self) -> float:
        return 2**self.scale / self.nodes


GRAPHS = {
    # APT, table 2; the first number of each row of table 3 is 50.1 and 17.7 %
    "papers": Graph(111e6, 3.2e9 / 111e6, 128, True, 19, (0.57, 0.19), 2.1),
    "friendster": Graph(66e6, 3.6e9 / 66e6, 256, True, 19, (0.45, 0.22), 2.4),
    # GSplit, table 2, whose undirected edges count once
    "gsplit-orkut": Graph(3.1e6, 2 * 120e6 / 3.1e6, 512, True, 17, (0.45, 0.22), 2.4),
    "gsplit-papers": Graph(111e6, 1.6e9 / 111e6, 128, False, 19, (0.57, 0.19), 2.1),
    "gsplit-friendster": Graph(65e6, 2 * 1.9e9 / 65e6, 128, True, 19, (0.45, 0.22), 2.4),
}
KINDS = ("rmat", "communities")


@dataclass(frozen=True)
class Cell:
    """A configuration of a paper.

    Attributes:
        figure: of the paper.
        graph, kind: of the stand-in.
        machine: a file of ``examples/machines``.
        settings: of the run.
        strategies: that are compared.
        label: of the settings, or of the system where each has its own.
        hosts, workers: hosts, and workers on each.
        cache: GiB of each worker, at the size of the paper.
        features: other than the graph's.
        parts: ``followed``: by the communities, where there are some; or ``random``.
    """

    figure: str
    graph: str
    kind: str
    machine: str
    label: str
    settings: dict[str, Any] = field(hash=False)
    strategies: tuple[str, ...] = APT
    hosts: int = 1
    workers: int = 8
    cache: float = 4.0
    features: int | None = None
    parts: str = "followed"

    @property
    def size(self) -> int:
        return self.hosts * self.workers


def cells() -> Iterator[Cell]:
    """All configurations: APT's figures 1, 8, 9, 10 and 11, and GSplit's table 3."""
    for kind in KINDS:
        for graph in ("papers", "friendster"):

            def apt(figure: str, label: str, graph: str = graph, kind: str = kind, **more: Any) -> Cell:
                names = ("hosts", "workers", "cache", "features", "parts")
                given = {name: more.pop(name) for name in names if name in more}
                return Cell(figure, graph, kind, "g4dn.metal", label, {**SAGE_APT, **more}, **given)

            for hidden in (8, 32, 128, 512):
                yield apt("8a", f"hidden {hidden}", hidden=hidden)
            # Fanouts are written as in DGL, input side first, and here seeds first.
            for fanout in ("5,10", "10,15", "10,15,20"):
                yield apt("8b", f"fanout {','.join(reversed(fanout.split(',')))}", fanout=fanout)
            for gib in (0.0, 1.0, 2.0, 8.0):
                yield apt("8c", f"cache {gib:.0f} GiB", cache=gib)
            for hidden in (8, 32, 128, 512):
                yield apt("9", f"4 x 4 GPUs, hidden {hidden}", hidden=hidden, hosts=4, workers=4)
            for hidden in (32, 128, 512):
                yield apt("10", f"GAT, hidden {hidden}", hidden=hidden, model="gat", heads=HEADS)
            if kind != "rmat":  # whose parts are random anyway
                yield apt("11", "random parts", parts="random")
        for features in (64, 256):
            yield apt("1", f"{features} features", graph="papers", features=features)
        for graph in ("gsplit-orkut", "gsplit-papers", "gsplit-friendster"):
            for model in ("sage", "gat"):
                heads = {"heads": HEADS} if model == "gat" else {}
                common = {"model": model, "hidden": 256, "fanout": "15,15,15", **heads}
                fits = 8.0 if graph == "gsplit-orkut" else 0.0  # only there P3* caches
                for system, strategy, gib, more in (
                    ("DGL", "gdp", 0.0, {}),
                    ("P3*", "nfp", fits, {}),
                    ("Quiver", "gdp", 8.0, {"cache_layout": "partitioned"}),
                    ("GSplit", "gsplit", 8.0, {"seed_split": "owner"}),
                ):
                    yield Cell(
                        "GSplit 3", graph, kind, "p3.8xlarge", f"{model} {system}", {**common, **more}, (strategy,),
                        workers=4, cache=gib,
                    )  # fmt: skip


FIELDS = (
    "figure", "graph", "kind", "label", "hosts", "workers", "strategy", "rank", "step_seconds", *STAGES, "sent_bytes",
    "row_bytes_host", "row_bytes_cache", "memory_bytes", "fits", "noisy_step_seconds", "fraction", "sampled_steps",
    "plan_seconds",
)  # fmt: skip


def store_of(folder: Path, cell: Cell) -> Path:
    """The stand-in in a part for every worker; made at first use."""
    import partita

    graph = GRAPHS[cell.graph]
    features = cell.features or graph.features
    shape = str(cell.workers) if cell.hosts == 1 else f"{cell.hosts}x{cell.workers}"
    name = f"{cell.graph}-{cell.kind}-{features}"
    whole, parts = folder / name, folder / f"{name}-{shape}-{cell.parts}"
    if parts.exists():
        return parts
    # As many seeds as there are steps on 8 workers; others have as many for each worker, in fewer steps.
    split = (min(0.9, STEPS * 8 * SEEDS_PER_WORKER / graph.nodes), 1e-4, 0)
    common: dict[str, Any] = {"num_features": features, "split": split}
    if not whole.exists() and cell.kind == "rmat":
        a, b = graph.quadrants
        factor = round(graph.degree / (2 if graph.undirected else 1))
        partita.generate_rmat(
            whole, scale=graph.scale, edge_factor=factor, a=a, b=b, c=b, undirected=graph.undirected,
            num_classes=CLASSES, **common,
        )  # fmt: skip
    elif not whole.exists():
        partita.generate_sbm(
            whole, num_nodes=2**graph.scale, num_classes=COMMUNITIES, average_degree=graph.degree, homophily=0.8,
            power_law=graph.power_law, **common,
        )  # fmt: skip
    algorithm = "spring+" if cell.parts == "followed" and cell.kind != "rmat" else "random"
    partita.partition(whole, parts, parts=shape, algorithm=algorithm, balance="train")
    return parts


def scaled(machine: Any, fraction: float) -> Any:
    """A machine that takes a fraction of its fixed times."""

    def of(link: Any) -> Any:
        return link.model_copy(update={"latency": times(link.latency)})

    def times(quantity: Any) -> Any:
        return replace(quantity, value=fraction * quantity.value)

    processor = machine.processor.model_copy(update={"layer_time": times(machine.processor.layer_time)})
    changes = {"processor": processor, "processor_link": of(machine.processor_link), "network": of(machine.network)}
    return machine.model_copy(update=changes)


def _added(shares: Sequence[WorkerEstimate]) -> WorkerEstimate:
    """What a worker does in several steps, as if in one: in the ways of the first."""
    first = shares[0]
    return replace(
        first,
        messages=[sum(of, Traffic()) for of in zip(*(share.messages for share in shares), strict=True)],
        far=[None if None in of else sum(of, Traffic()) for of in zip(*(share.far for share in shares), strict=True)],
        counts=sum((share.counts for share in shares[1:]), first.counts),
        row_bytes=tuple(map(sum, zip(*(share.row_bytes for share in shares), strict=True))),
        files=sum((share.files for share in shares), FileReads()),
        **{
            name: np.sum([getattr(share, name) for share in shares], axis=0)
            for name in ("blocks", "read", "taken", "given", "moved")
        },
    )


def planned(cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Every strategy of a cell, the fastest first."""
    import partita

    fraction, mesh = GRAPHS[cell.graph].fraction, Mesh.of(0, cell.size, cell.workers)
    machine = Machine.load(MACHINES / f"{cell.machine}.yaml")
    layers = cell.settings["fanout"].count(",") + 1
    config = Config.make({
        **cell.settings, "layers": layers, "workers": cell.workers, "prefetch": 0, "cache_policy": "strategy",
        "cache": round(cell.cache * GIB * fraction), "batch_size": round(cell.size * SEEDS_PER_WORKER * fraction),
    })  # fmt: skip
    store, begun = partita.open(store_of(folder, cell)), time.monotonic()
    strategies = [STRATEGIES.find(name).of(layers) for name in cell.strategies]
    dry_run = DryRun(store, config, mesh, strategies, shards=cell.hosts > 1, cache_device="meta")
    parameters = sum(each.nbytes for each in dry_run.model.parameters())

    @cache
    def prices(part: float) -> tuple[Rates, dict[Any, Cost]]:
        """Where fixed times are so large a part of what they are."""
        rates = described_rates(scaled(machine, part), config, dry_run.model, mesh)
        links = described_links(scaled(machine, part), mesh)
        return rates, {
            strategy: Cost(
                engine, strategy.axis, mesh, rates, links, parameter_bytes=parameters, row_bytes=dry_run.row_bytes,
                ahead=0, held=config.cache,
            )
            for strategy, engine in dry_run.engines.items()
        }  # fmt: skip

    sampled = list(itertools.islice(dry_run.steps(seconds=SECONDS), STEPS))
    steps, (same, of_paper) = len(sampled), prices(1.0)

    def seconds_of(strategy: Any, shares: Sequence[WorkerEstimate], part: float) -> Seconds:
        """A step of the paper, from shares that are so large a part of its own; the model has its size in any case."""
        rates, costs = prices(part)
        found = costs[strategy].of_step(shares).seconds
        found = replace(found, compute=found.compute - rates.optimizer, gradients=0.0).scaled(1 / part)
        return replace(found, compute=found.compute + same.optimizer, gradients=of_paper[strategy].gradients)

    found = []
    for each in dry_run.engines:
        of_steps = [of_all[each] for of_all in sampled]
        together = [_added(of_worker) for of_worker in zip(*of_steps, strict=True)]
        step = seconds_of(each, together, steps * fraction)
        memory = [sum(map(of_paper[each].memory, of_worker)) / steps for of_worker in zip(*of_steps, strict=True)]
        need = (max(memory) - same.model_bytes) / fraction + same.model_bytes
        tiers = np.sum([share.row_bytes for share in together], 0) / steps / fraction
        in_tiers = dict(zip(TIERS, tiers.tolist(), strict=True))
        found.append({
            "figure": cell.figure, "graph": cell.graph, "kind": cell.kind, "label": cell.label, "hosts": cell.hosts,
            "workers": cell.workers, "strategy": each.name, "step_seconds": step.total, **step.to_json(),
            "sent_bytes": round(sum(share.traffic.total for share in together) / steps / fraction),
            "row_bytes_host": round(in_tiers["host"]), "row_bytes_cache": round(in_tiers["cache"]),
            "memory_bytes": round(need), "fits": need <= machine.processor.memory.value,
            "noisy_step_seconds": statistics.fmean(seconds_of(each, of, fraction).total for of in of_steps),
            "fraction": fraction, "sampled_steps": steps, "plan_seconds": time.monotonic() - begun,
        })  # fmt: skip
    found.sort(key=lambda row: row["step_seconds"])
    return [{**row, "rank": rank} for rank, row in enumerate(found, start=1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file; cells that are in it are not planned again")
    parser.add_argument("--folder", type=Path, help="where graphs are kept; default: a temporary folder")
    parser.add_argument("--only", default="", help="cells whose graph, kind or figure contains this")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    done = {tuple(row[name] for name in ("figure", "graph", "kind", "label")) for row in read_rows(options.out)}
    wanted = [cell for cell in cells() if options.only in f"{cell.figure} {cell.graph} {cell.kind} {cell.label}"]
    for cell in wanted:
        if (cell.figure, cell.graph, cell.kind, cell.label) in done:
            continue
        begun = time.monotonic()
        found = planned(cell, folder)
        for row in found:
            written = {name: f"{each:.6g}" if isinstance(each, float) else each for name, each in row.items()}
            append_row(options.out, FIELDS, written)
        ranking = ", ".join(f"{row['strategy']} {1000 * row['step_seconds']:.1f}" for row in found)
        print(f"{cell.figure} {cell.graph} {cell.kind} {cell.label}: {ranking} ms, {time.monotonic() - begun:.0f} s",
              flush=True)  # fmt: skip
    if options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
