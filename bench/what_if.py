"""Plans for the machines of APT and GSplit, which are not here, beside what their papers report.

    python bench/what_if.py --out docs/what_if_measured.csv [--folder FOLDER] [--only NAME]
    python bench/what_if_tables.py docs/what_if_measured.csv

The graphs of the papers are stood in for by generated ones of the same degrees and widths, with a fraction f of the
nodes. With f of the batch, of the caches, and of all times that are fixed (latencies, the fixed time of a layer), a
step does f times what a step of the paper does. What is reported is a step divided by f; to it, unchanged, come the
sum of the gradients and the optimizer, whose size is that of the model. This is done here: the planner itself plans
for the graph that it is given.

A batch of the stand-in has a few seeds for each worker, and its slowest worker is slow by chance. So a strategy takes
what the slowest worker takes over all sampled steps together, whose seeds are about those of one step of the paper.

Two stand-ins for each graph: R-MAT, whose quadrants are chosen so that the first percent of the nodes has about the
share of accesses of APT's table 3; and a graph of communities (degree-corrected stochastic block model, 64
communities, four fifths of the edges inside one). Parts of R-MAT are random: it has no communities, METIS and spring+
cut four fifths of the edges between 8 parts (random parts: seven eighths), and the parts that they make of it differ
several times in nodes or edges. Parts of communities are made by spring+. Nothing is chosen by results.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rows import append_row, read_rows

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
            for cache in (0.0, 1.0, 2.0, 8.0):
                yield apt("8c", f"cache {cache:.0f} GiB", cache=cache)
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
                for system, strategy, cache, more in (
                    ("DGL", "gdp", 0.0, {}),
                    ("P3*", "nfp", fits, {}),
                    ("Quiver", "gdp", 8.0, {"cache_layout": "partitioned"}),
                    ("GSplit", "gsplit", 8.0, {"seed_split": "owner"}),
                ):
                    yield Cell(
                        "GSplit 3", graph, kind, "p3.8xlarge", f"{model} {system}", {**common, **more}, (strategy,),
                        workers=4, cache=cache,
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


def planned(cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Every strategy of a cell, the fastest first."""
    import partita
    from partita.config import Config
    from partita.core.mesh import Mesh
    from partita.core.plan import Seconds
    from partita.core.records import TIERS
    from partita.parallel.strategies import STRATEGIES
    from partita.plan.cost import Cost, StepCost
    from partita.plan.described import described_links, described_rates
    from partita.plan.dryrun import DryRun
    from partita.plan.machine import Machine

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
    rates = described_rates(scaled(machine, fraction), config, dry_run.model, mesh)
    links = described_links(scaled(machine, fraction), mesh)
    parameters = sum(each.nbytes for each in dry_run.model.parameters())

    def cost(strategy: Any, engine: Any, links: Any) -> Cost:
        return Cost(
            engine, strategy.axis, mesh, rates, links, parameter_bytes=parameters, row_bytes=dry_run.row_bytes,
            ahead=0, held=config.cache,
        )  # fmt: skip

    costs = {strategy: cost(strategy, engine, links) for strategy, engine in dry_run.engines.items()}
    together: dict[Any, StepCost] = {}
    slowest = {each: Seconds() for each in costs}
    memory, sent = ({each: np.zeros(mesh.size) for each in costs} for _ in range(2))
    tiers = {each: np.zeros(len(TIERS)) for each in costs}
    steps = 0
    for step in dry_run.steps(seconds=SECONDS):
        steps += 1
        for each, shares in step.items():
            of_step = costs[each].of_step(shares)
            together[each] = together[each] + of_step if each in together else of_step
            slowest[each] += of_step.seconds
            memory[each] += [costs[each].memory(share) for share in shares]
            sent[each] += [share.traffic.total for share in shares]
            tiers[each] += np.sum([share.row_bytes for share in shares], 0)
        if steps == STEPS:
            break
    same = described_rates(machine, config, dry_run.model, mesh).optimizer
    gradients = cost(*next(iter(dry_run.engines.items())), described_links(machine, mesh)).gradients

    def at_full_size(seconds: Seconds) -> Seconds:
        """A step of the paper, from all sampled steps."""
        step = seconds.scaled(1 / steps)
        step = replace(step, compute=step.compute - rates.optimizer, gradients=0.0).scaled(1 / fraction)
        return replace(step, compute=step.compute + same, gradients=gradients)

    found = []
    for each in costs:
        step = at_full_size(together[each].seconds)
        need = (memory[each].max() / steps - rates.model_bytes) / fraction + rates.model_bytes
        in_tiers = dict(zip(TIERS, (tiers[each] / steps / fraction).tolist(), strict=True))
        found.append({
            "figure": cell.figure, "graph": cell.graph, "kind": cell.kind, "label": cell.label, "hosts": cell.hosts,
            "workers": cell.workers, "strategy": each.name, "step_seconds": step.total, **step.to_json(),
            "sent_bytes": round(sent[each].sum() / steps / fraction), "row_bytes_host": round(in_tiers["host"]),
            "row_bytes_cache": round(in_tiers["cache"]), "memory_bytes": round(need),
            "fits": need <= machine.processor.memory.value, "noisy_step_seconds": at_full_size(slowest[each]).total,
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
