"""The tables of docs/planner_what_if.md, from what bench/what_if.py has written.

    python bench/what_if_tables.py docs/what_if_measured.csv [--folder FOLDER]

With the folder in which bench/what_if.py keeps its graphs, also what these are like.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from rows import read_rows
from what_if import GRAPHS, KINDS

TABLE_3 = {"papers": (50.1, 34.8, 8.8), "friendster": (17.7, 29.4, 19.1)}
"""APT, table 3: percent of the accesses that go to the first percent of the nodes, the next 4 %, and the next 5 %."""
TABLE_4 = {
    "papers": {"gdp": 1.18, "nfp": 7.57, "snp": 3.33, "dnp": 1.59},
    "friendster": {"gdp": 2.13, "nfp": 4.25, "snp": 2.35, "dnp": 1.36},
}
"""APT, table 4: the most that always using one strategy is slower than the best, over figures 8 and 9."""
GSPLIT = {
    ("gsplit-orkut", "sage"): {"DGL": 4.4, "P3*": 0.8, "Quiver": 1.1},
    ("gsplit-orkut", "gat"): {"DGL": 3.6, "P3*": 1.9, "Quiver": 1.1},
    ("gsplit-papers", "sage"): {"DGL": 1.4, "P3*": 2.2, "Quiver": 1.9},
    ("gsplit-papers", "gat"): {"DGL": 1.2, "P3*": 2.2, "Quiver": 1.4},
    ("gsplit-friendster", "sage"): {"DGL": 2.9, "P3*": 4.1, "Quiver": 1.6},
    ("gsplit-friendster", "gat"): {"DGL": 1.7, "P3*": 3.0, "Quiver": 1.2},
}
"""GSplit, table 3: how many times as long as GSplit an epoch takes."""
HIDDEN = (8, 32, 128, 512)
BASE = "hidden 32"  # with fanout 10,10,10 and caches of 4 GiB
Found = dict[str, float]


class Results:
    """Seconds of a step, by strategy."""

    def __init__(self, rows: Iterable[dict[str, str]]) -> None:
        self.rows = list(rows)
        self._by_cell: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
        for row in self.rows:
            cell = (row["figure"], row["graph"], row["kind"], row["label"])
            self._by_cell.setdefault(cell, {})[row["strategy"]] = row

    def at(self, figure: str, graph: str, kind: str, label: str) -> Found:
        return {name: float(row["step_seconds"]) for name, row in self.row(figure, graph, kind, label).items()}

    def row(self, figure: str, graph: str, kind: str, label: str) -> dict[str, dict[str, str]]:
        return self._by_cell[figure, graph, kind, label]

    def cells(self, graph: str, kind: str, figures: Iterable[str]) -> list[Found]:
        return [self.at(*cell) for cell in self._by_cell if cell[0] in figures and cell[1:3] == (graph, kind)]


def first(found: Found) -> str:
    return min(found, key=lambda name: found[name])


def shown(found: Found) -> str:
    """From the fastest on, with what each takes beside it."""
    least = min(found.values())
    ranked = sorted(found, key=lambda name: found[name])
    return ", ".join(f"{name} {found[name] / least:.2f}" for name in ranked) + f" ({1000 * least:,.1f} ms)"


def configurations(results: Results) -> None:
    said = {
        ("8a", "papers", "hidden 512"): "gdp", ("8a", "friendster", "hidden 8"): "snp",
        ("8a", "friendster", "hidden 32"): "snp", ("8a", "friendster", "hidden 128"): "dnp (figure 1)",
        ("8a", "friendster", "hidden 512"): "gdp", ("8a", "papers", "hidden 32"): "gdp",
        ("8b", "papers", "fanout 10,5"): "usually gdp", ("8b", "friendster", "fanout 10,5"): "usually gdp",
        ("8c", "papers", "cache 0 GiB"): "gdp", ("8c", "friendster", "cache 0 GiB"): "gdp",
        ("1", "papers", "64 features"): "gdp", ("1", "papers", "256 features"): "dnp; gdp 1.3",
    }  # fmt: skip
    for size in (1, 2, 8):
        said["8c", "papers", f"cache {size} GiB"] = "gdp"
        said["8c", "friendster", f"cache {size} GiB"] = "snp"
    for graph in ("papers", "friendster"):
        for hidden in HIDDEN:
            said["9", graph, f"4 x 4 GPUs, hidden {hidden}"] = "gdp or dnp"
        for hidden in (32, 128, 512):
            said["10", graph, f"GAT, hidden {hidden}"] = "gdp or dnp"
    print("| figure | graph | configuration | R-MAT | communities | APT says first |\n|---|---|---|---|---|---|")
    cells = dict.fromkeys(
        (row["figure"], row["graph"], row["label"]) for row in results.rows if row["figure"] != "GSplit 3"
    )
    for figure, graph, label in cells:
        ours = [
            "-" if figure == "11" and kind == "rmat" else shown(results.at(figure, graph, kind, label))
            for kind in KINDS
        ]
        print(f"| {figure} | {graph} | {label} | {' | '.join(ours)} | {said.get((figure, graph, label), '-')} |")


def claims(results: Results) -> None:
    """What APT says in words, and whether the estimates say so: how far the strategy is from the fastest, at most."""
    at, graphs = results.at, tuple(TABLE_4)

    def base(graph: str, kind: str) -> Found:
        return at("8a", graph, kind, BASE)

    def behind(kind: str, names: tuple[str, ...], cells: list[tuple[str, str, str]]) -> str:
        """The best of some strategies in every cell, the worst of these."""
        found = [at(figure, graph, kind, label) for figure, graph, label in cells]
        worst = max(min(each[name] for name in names) / min(each.values()) for each in found)
        return "yes" if worst == 1 else f"within 10 % ({worst:.2f})" if worst <= 1.1 else f"no ({worst:.2f})"

    def holds(true: bool) -> str:
        return "yes" if true else "no"

    def growth(graph: str, kind: str) -> Found:
        small, large = (at("8a", graph, kind, f"hidden {hidden}") for hidden in (8, 512))
        return {name: large[name] / small[name] for name in small if name != "gdp"}

    def gains(graph: str, kind: str) -> list[float]:
        """What each GiB more of cache gains, in the mean over the strategies."""
        sizes = (0, 1, 2, 4, 8)
        cells = [base(graph, kind) if size == 4 else at("8c", graph, kind, f"cache {size} GiB") for size in sizes]
        means = [float(np.mean(list(cell.values()))) for cell in cells]
        return [(a - b) / step for a, b, step in zip(means, means[1:], np.diff(sizes), strict=False)]

    def on_hosts(hidden: int) -> str:
        return f"4 x 4 GPUs, hidden {hidden}"

    def snp_falls_back(kind: str) -> bool:
        """On several hosts; at every width."""

        def ratio(found: Found) -> float:
            return found["snp"] / min(found.values())

        return all(
            ratio(at("9", graph, kind, on_hosts(hidden))) > ratio(at("8a", graph, kind, f"hidden {hidden}"))
            for graph in graphs
            for hidden in HIDDEN
        )

    def random_parts(kind: str) -> str:
        if kind == "rmat":
            return "-"
        factors = {
            name: [at("11", graph, kind, "random parts")[name] / base(graph, kind)[name] for graph in graphs]
            for name in ("gdp", "nfp", "snp", "dnp")
        }
        slower, same = (factors[name] for name in ("snp", "dnp")), (factors[name] for name in ("gdp", "nfp"))
        true = min(map(min, slower)) > 1.05 and all(abs(each - 1) < 0.1 for of in same for each in of)
        shown_factors = ", ".join(
            f"{name} {' and '.join(f'{each:.2f}' for each in of)}" for name, of in factors.items()
        )
        return f"{holds(true)} ({shown_factors})"

    both = {label: [("8a", graph, label) for graph in graphs] for label in [f"hidden {hidden}" for hidden in HIDDEN]}
    attention = {graph: [("10", graph, f"GAT, hidden {hidden}") for hidden in (32, 128, 512)] for graph in graphs}
    cached = {
        graph: [("8a", graph, BASE), *(("8c", graph, f"cache {size} GiB") for size in (1, 2, 8))] for graph in graphs
    }
    friendster = {hidden: ("8a", "friendster", f"hidden {hidden}") for hidden in HIDDEN}
    spread = [("9", graph, on_hosts(hidden)) for graph in graphs for hidden in HIDDEN]
    every: dict[str, Callable[[str], str]] = {
        "1: on papers with 64 features gdp": lambda kind: behind(kind, ("gdp",), [("1", "papers", "64 features")]),
        "1: on papers with 256 features dnp": lambda kind: behind(kind, ("dnp",), [("1", "papers", "256 features")]),
        "1: there gdp takes over 1.3 times as long": lambda kind: (
            f"{at('1', 'papers', kind, '256 features')['gdp'] / at('1', 'papers', kind, '256 features')['dnp']:.2f}"
        ),
        "1, 8a: on friendster with hidden 8 and 32 snp": lambda kind: behind(
            kind, ("snp",), [friendster[8], friendster[32]]
        ),
        "1: on friendster with hidden 128 dnp": lambda kind: behind(kind, ("dnp",), [friendster[128]]),
        "1, 8a: on both graphs with hidden 512 gdp": lambda kind: behind(kind, ("gdp",), both["hidden 512"]),
        "8a: of nfp, snp and dnp, nfp grows fastest with the hidden width": lambda kind: holds(
            all(max(growth(graph, kind), key=growth(graph, kind).__getitem__) == "nfp" for graph in graphs)
        ),
        "8b: with fanouts 10,5 usually gdp": lambda kind: behind(
            kind, ("gdp",), [("8b", graph, "fanout 10,5") for graph in graphs]
        ),
        "8b, 8c: on papers with caches gdp": lambda kind: behind(kind, ("gdp",), cached["papers"]),
        "8b, 8c: on friendster with caches snp": lambda kind: behind(kind, ("snp",), cached["friendster"]),
        "8c: without caches gdp": lambda kind: behind(
            kind, ("gdp",), [("8c", graph, "cache 0 GiB") for graph in graphs]
        ),
        "8c: a larger cache gains less for each GiB": lambda kind: holds(
            all(gains(graph, kind) == sorted(gains(graph, kind), reverse=True) for graph in graphs)
        ),
        "9: on 4 hosts gdp or dnp": lambda kind: behind(kind, ("gdp", "dnp"), spread),
        "9: snp is further behind the fastest than on one host": lambda kind: holds(snp_falls_back(kind)),
        "10: with GAT gdp or dnp, on papers": lambda kind: behind(kind, ("gdp", "dnp"), attention["papers"]),
        "10: with GAT gdp or dnp, on friendster": lambda kind: behind(kind, ("gdp", "dnp"), attention["friendster"]),
        "10: nfp takes more memory than a GPU has, with a large hidden width": lambda kind: holds(
            all(results.row(*cell[:2], kind, cell[2])["nfp"]["fits"] == "False" for cell in
                (attention[graph][-1] for graph in graphs))
        ),
        "11: random parts make snp and dnp slower, gdp and nfp not": random_parts,
    }  # fmt: skip
    print("\n| APT, figure: its text | R-MAT | communities |\n|---|---|---|")
    for text, found in every.items():
        print(f"| {text} | {' | '.join(found(kind) for kind in KINDS)} |")


def most(results: Results) -> None:
    print("\n| graph | | gdp | nfp | snp | dnp |\n|---|---|---|---|---|---|")
    for graph, paper in TABLE_4.items():
        print(f"| {graph} | APT, table 4 | {' | '.join(f'{each:.2f}' for each in paper.values())} |")
        for kind in KINDS:
            cells = results.cells(graph, kind, ("8a", "8b", "8c", "9"))
            # Across hosts with shards nfp cannot be used.
            ours = {name: max(cell[name] / min(cell.values()) for cell in cells if name in cell) for name in paper}
            print(f"| {graph} | {kind} | {' | '.join(f'{each:.2f}' for each in ours.values())} |")


def gsplit(results: Results) -> None:
    print(
        "\n| graph | model | system | strategy | GSplit, table 3 | R-MAT | communities |\n|---|---|---|---|---|---|---|"
    )
    for (graph, model), paper in GSPLIT.items():
        for system, times in paper.items():
            ours = []
            for kind in KINDS:
                ((_, best),) = results.at("GSplit 3", graph, kind, f"{model} GSplit").items()
                ((name, seconds),) = results.at("GSplit 3", graph, kind, f"{model} {system}").items()
                ours.append(f"{seconds / best:.1f}")
            print(f"| {graph.removeprefix('gsplit-')} | {model} | {system} | {name} | {times} | {' | '.join(ours)} |")


def graphs(folder: Path) -> None:
    import partita
    from partita.config import Config
    from partita.core.mesh import Mesh
    from partita.parallel.strategies import parse_strategy
    from partita.plan.dryrun import DryRun

    print("\n| graph | stand-in | nodes | edges | f | first 1 % | next 4 % | next 5 % | edges between 8 parts |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, shares in TABLE_3.items():
        graph = GRAPHS[name]
        given = " | ".join(f"{share} %" for share in shares)
        print(f"| {name} | APT | {graph.nodes:,.0f} | {graph.nodes * graph.degree:,.0f} | 1 | {given} | ? |")
        for kind in KINDS:
            store = partita.open(folder / f"{name}-{kind}-{graph.features}-8-followed")
            config = Config.make(
                {"layers": 3, "fanout": "10,10,10", "batch_size": round(8192 * graph.fraction), "hidden": 8}
            )
            dry_run = DryRun(store, config, Mesh.of(0, 1, 1), [parse_strategy("gdp", 3)])
            accesses = np.zeros(store.num_nodes, np.int64)
            for step in range(dry_run.num_steps):
                layer = dry_run._drawn(step)[0]
                accesses += np.bincount(layer.src.numpy()[layer.indices], minlength=store.num_nodes)
            ordered = np.cumsum(np.sort(accesses)[::-1]) / accesses.sum()
            bounds = [0.0, *(ordered[int(part * store.num_nodes) - 1] for part in (0.01, 0.05, 0.1))]
            tops = " | ".join(f"{100 * share:.1f} %" for share in np.diff(bounds))
            owner = np.searchsorted(store.part_offsets, np.arange(store.num_nodes), side="right") - 1
            at = np.repeat(owner.astype(np.int8), np.diff(store.indptr))
            cut = float((owner.astype(np.int8)[store.indices] != at).mean())
            size = f"{store.num_nodes:,} | {store.num_edges:,} | 1/{1 / graph.fraction:.0f}"
            print(f"| {name} | {kind} | {size} | {tops} | {100 * cut:.0f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    results = Results(read_rows(options.csv))
    configurations(results)
    claims(results)
    most(results)
    gsplit(results)
    if options.folder is not None:
        graphs(options.folder)


if __name__ == "__main__":
    main()
