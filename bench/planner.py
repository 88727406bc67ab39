"""The planner against what is then measured: estimates, and whether the strategy that it picks is the fastest.

    python bench/planner.py --out docs/planner_measured.csv [--minutes 60] [--cells 72] [--quick]
    python bench/planner.py --out docs/planner_measured.csv --table planner_tables.md

A cell is a graph, a model and its widths, fanouts, workers, and the link between them. In every cell the workers look
how long 20 epochs would take, as partita train does, and then plan them, or so many that they take a minute: what is
shorter nobody plans. Then they train an epoch, or two where an epoch takes less than five seconds, and a first one that
is not counted, with each strategy that has a name, and with the list of placements that the planner ranks first, if it
has none. Strategies of which an epoch is foreseen to take more than 20 seconds, and four times what the best one takes,
are not measured. Cells that are in the CSV file already are not measured again. Links other than loopback are emulated
hosts and need root and iproute2.

Cells are drawn from the whole grid by a hash of their settings and of ``--draw``. By another hash, a third of them are
*held out*: nothing may be tuned on them, and the tables show them apart. The planner was corrected by what cells of
draw 1 showed; no cell of draw 2 is one of these, but by chance.

In cells with ``rows`` "shards" every host has the edges of the whole graph, and the feature rows of its own parts; in
those with "shards, 10%" every worker caches a tenth of the bytes of all rows (by in-degree), with "shards, ahead 10%"
those that the batches known ahead use. With "files, 25%" every host has all rows, in a file, and a worker keeps a
quarter of them in memory. With "learnt" a row of as many columns as the cell says is learnt of every node, beside its
few features. Else every host has all rows in memory. With ``--cells-beside`` there are cells of graphs with the degrees
of ogbn-products, and of typed graphs with the relations of IGB-Heterogeneous, on which an R-GCN is trained.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from hosts import run_on_hosts
from rows import append_row, read_rows

GRID: dict[str, tuple[Any, ...]] = {
    "link": ("loopback", "10gbit", "1gbit", "100mbit"),
    "workers": (2, 4),
    "graph": ("rmat", "sbm"),
    "features": (32, 128, 512, 1024),
    "model": ("sage", "gat"),
    "hidden": (8, 32, 128, 512),
    "fanout": ("10,5", "10,10,10", "20,15,10"),
    "rows": ("whole", "shards", "shards, 10%", "shards, ahead 10%", "files, 25%", "learnt"),
}
GRIDS_BESIDE: tuple[dict[str, tuple[Any, ...]], ...] = (
    {**GRID, "graph": ("products",), "rows": ("whole", "shards", "shards, ahead 10%")},
    {**GRID, "graph": ("typed",), "model": ("rgcn",), "rows": ("whole", "files, 25%")},
)
"""Of other shapes of graphs, and models for these."""
BESIDE = tuple(graph for grid in GRIDS_BESIDE for graph in grid["graph"])
STRATEGIES = ("gdp", "nfp", "snp", "dnp", "gsplit")
STAGES = ("sample", "exchange", "load", "compute", "gradients")
KEY = tuple(GRID)
WHOLE, LEARNT = "whole", "learnt"
KINDS = {WHOLE: WHOLE, LEARNT: LEARNT, "shards, ahead 10%": "ahead", "files, 25%": "ahead"}
"""Of rows; others are those of shards."""
FIELDS = (
    *KEY, "held_out", "strategy", "rank", "measured_seconds", "estimated_seconds", "foreseen_seconds", "tried_steps",
    *STAGES, "plan_seconds", "short", "look_seconds", "steps", "rounds", "spread",
)  # fmt: skip
STEPS, BATCH, CLASSES, HEADS = 20, 256, 16, 4
FEATURES_BESIDE = 8
"""Columns of features where rows are learnt."""
TYPED_PAPERS = 0.18
"""Which part of the nodes of a typed graph are papers, whose classes are learned."""
EPOCHS = 20
"""Of the run that is planned."""
SHORT_RUN = 60.0
"""What the run takes that is planned where 20 epochs are too short for a plan."""
QUICK_SECONDS, SLOW_SECONDS, SLOW_TIMES = 5.0, 20.0, 4.0
CLOSE, ROUNDS = 1.15, 3
"""Strategies that take no more times what the fastest one takes are measured again, in so many rounds in all."""
TO_FIND_A_ROW = 9
"""Bytes for each row of the store, of those that are kept and those that are not."""
Cell = dict[str, Any]


def cells(count: int, count_of_shards: int, count_ahead: int, count_learnt: int, draw: int) -> list[Cell]:
    """So many cells of the grid, as many of each link and number of workers; the same ones every time.

    Args:
        count: with all rows in the memory of every host.
        count_of_shards: with shards, as many of each size of cache; of these there are none on one host.
        count_ahead: with rows that are kept as batches known ahead use them, as many of other hosts and of files.
        count_learnt: with rows that are learnt.
        draw: which of many.
    """
    groups = _drawn(GRID, ("link", "workers", "rows"), draw)
    kinds = [KINDS.get(rows, "shards") for *_, rows in groups]
    wanted = {WHOLE: count, "shards": count_of_shards, "ahead": count_ahead, LEARNT: count_learnt}
    shares = [-(-wanted[kind] // kinds.count(kind)) for kind in kinds]
    return [cell for group, share in zip(groups.values(), shares, strict=True) for cell in group[:share]]


def cells_beside(count: int, draw: int) -> list[Cell]:
    """So many cells of the other grids, as many of each, of each link and number of workers."""
    found = list[Cell]()
    for other in GRIDS_BESIDE:
        groups = _drawn(other, ("link", "workers"), draw)
        share = -(-count // (len(GRIDS_BESIDE) * len(groups)))
        found += [cell for group in groups.values() for cell in group[:share]]
    return found


def _drawn(grid: dict[str, tuple[Any, ...]], by: tuple[str, ...], draw: int) -> dict[tuple[Any, ...], list[Cell]]:
    """The cells of a grid in the order in which they are drawn, by some of their settings."""
    cells_of = [dict(zip(KEY, values, strict=True)) for values in itertools.product(*grid.values())]
    if draw == 1:  # the grid was smaller then
        cells_of = [cell for cell in cells_of if cell["link"] != "10gbit" and cell["features"] != 1024]
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in sorted(cells_of, key=lambda cell: _hash("draw", cell, draw)):
        if not cell["rows"].startswith("shards") or cell["link"] != "loopback":
            groups.setdefault(tuple(cell[name] for name in by), []).append(cell)
    return groups


def held_out(cell: Cell, draw: int) -> bool:
    """Whether nothing may be tuned on a cell: a third of all."""
    return _hash("kept for the end", cell, draw) % 3 == 0


def _hash(purpose: str, cell: Cell, draw: int) -> int:
    purpose = purpose if draw == 1 else f"{purpose} {draw}"
    said = {name: cell[name] for name in KEY if name != "rows" or cell[name] != WHOLE}
    return xxhash.xxh3_64_intdigest(f"{purpose} {json.dumps(said)}".encode())


def key_of(row: Cell) -> tuple[str, ...]:
    return tuple(str(row.get(name) or WHOLE) for name in KEY)


def graph_of(folder: Path, cell: Cell, scale: int) -> str:
    """The store of a cell, in a part for every worker, beside the shards of two hosts; made at first use."""
    import partita

    features = FEATURES_BESIDE if cell["rows"] == LEARNT else cell["features"]
    name = f"{cell['graph']}-{features}-{cell['workers']}-{cell['link'] == 'loopback'}"
    if (folder / name).exists():
        return str(folder / name)
    nodes = 2**scale
    split = (BATCH * STEPS / nodes, 1 / nodes, 0)
    common: dict[str, Any] = {"num_features": features, "num_classes": CLASSES, "split": split}
    whole = folder / f"whole-{name}"
    if cell["graph"] == "rmat":
        partita.generate_rmat(whole, scale=scale, edge_factor=8, undirected=True, **common)
    elif cell["graph"] == "typed":
        seeds = (min(0.9, BATCH * STEPS / (TYPED_PAPERS * nodes)), 1 / nodes, 0)
        partita.generate_typed(whole, scale=TYPED_PAPERS * nodes / 100_000, **{**common, "split": seeds})
    else:
        like_products = {"average_degree": 50.5, "homophily": 0.5, "power_law": 2.5}
        partita.generate_sbm(whole, num_nodes=nodes, **common, **(like_products if cell["graph"] == "products" else {}))
    partita.partition(whole, folder / name, parts=cell["workers"])
    shutil.rmtree(whole)
    for host in range(2 if cell["link"] != "loopback" and cell["graph"] != "typed" else 0):
        partita.shard(folder / name, folder / f"{name}-{host}", host=host, hosts=2, topology="replicated")
    return str(folder / name)


def work(folder: Path) -> None:
    """What every worker of a torchrun does: cell after cell."""
    from partita.comm.context import Context
    from partita.train.team import PURPOSES

    todo = json.loads((folder / "todo.json").read_text())
    with Context.from_environment(purposes=PURPOSES) as context:
        for number, cell in enumerate(todo["cells"]):
            if context.agree(lambda: time.time() > todo["until"]):
                return
            store = context.agree(partial(graph_of, folder / "graphs", cell, todo["scale"]))
            store += f"-{context.mesh.host}" if cell["rows"].startswith("shards") else ""
            for row in measure(context, cell, store, folder / f"run-{number}", todo["draw"]):
                if context.mesh.rank == 0:
                    append_row(Path(todo["out"]), FIELDS, row)
            if context.mesh.rank == 0:
                print(f"{number + 1}/{len(todo['cells'])}", *key_of(cell), flush=True)


def measure(context: Any, cell: Cell, store: str, out: Path, draw: int) -> Iterable[Cell]:
    """Plan and train in one cell; a row for every strategy."""
    import partita
    from partita.plan import choose
    from partita.train.planning import plan_run

    fanout = tuple(map(int, cell["fanout"].split(",")))
    settings = {
        "model": cell["model"], "hidden": cell["hidden"], "layers": len(fanout), "fanout": fanout, "batch_size": BATCH,
        "workers": cell["workers"], "eval_every": 0, "threads": 1,
        **({"heads": HEADS} if cell["model"] == "gat" else {}),
    }  # fmt: skip
    num_nodes = partita.open(store).num_nodes
    of_rows = 4 * num_nodes * cell["features"]
    if cell["rows"] == "shards, 10%":
        settings["cache"] = of_rows // 10
    elif cell["rows"] == "shards, ahead 10%":
        settings |= {"cache": of_rows // 10 + TO_FIND_A_ROW * num_nodes, "cache_policy": "look-ahead"}
    elif cell["rows"] == "files, 25%":
        settings["feature_memory"] = of_rows // 4 + TO_FIND_A_ROW * num_nodes
    elif cell["rows"] == LEARNT:
        settings["embed"] = cell["features"]
    begun = time.perf_counter()
    plan, _ = plan_run(context, partita.open(store), partita.Config.make({**settings, "epochs": EPOCHS}))
    first_seconds, short = time.perf_counter() - begun, plan.sampled_steps == 0
    begun = time.perf_counter()
    if short:
        epochs = math.ceil(max(SHORT_RUN, 1.1 * choose.SHORT_SECONDS) / plan.best.epoch.total)
        plan, _ = plan_run(context, partita.open(store), partita.Config.make({**settings, "epochs": epochs}))
    plan_seconds = first_seconds if not short else time.perf_counter() - begun
    by_name = {each.name: (rank, each) for rank, each in enumerate(plan.candidates)}
    names = list(dict.fromkeys([*(name for name in STRATEGIES if name in by_name), plan.best.name]))
    in_time = max(SLOW_SECONDS, SLOW_TIMES * plan.best.epoch.total)

    def train(name: str) -> list[float]:
        rank, found = by_name[name]
        events: list[dict[str, Any]] = []
        trainer = partita.Trainer(
            store, out=out / str(rank), context=context, callbacks=[events.append], strategy=name,
            epochs=3 if found.epoch.total < QUICK_SECONDS else 2, overwrite=True, **settings,
        )  # fmt: skip
        trainer.fit()
        return [event["seconds"] for event in events if event["event"] == "epoch"][1:]

    # Rounds one after another, so that a machine that is slower for a while is slower for all strategies.
    rounds: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        for name in names:
            found = by_name[name][1]
            close = context.agree(partial(_is_close, rounds, name)) if number else True
            if close and max(found.epoch.total, found.foreseen) < in_time:
                rounds.setdefault(name, []).append(context.agree(partial(statistics.median, train(name))))
    for name in names:
        rank, found = by_name[name]
        took = rounds.get(name, [])
        yield {
            **cell, "held_out": int(held_out(cell, draw)), "strategy": name, "rank": rank, "steps": plan.steps,
            "measured_seconds": round(statistics.median(took), 5) if took else "",
            "estimated_seconds": round(found.epoch.total, 5), "foreseen_seconds": round(found.foreseen, 5),
            "tried_steps": found.tried_steps, "plan_seconds": round(plan_seconds, 3), "short": int(short),
            "look_seconds": round(first_seconds, 3) if short else "", "rounds": len(took),
            "spread": round(max(took) / min(took) - 1, 4) if took else "",
            **{stage: round(spent, 5) for stage, spent in found.epoch.to_json().items()},
        }  # fmt: skip
    if context.mesh.rank == 0:
        shutil.rmtree(out, ignore_errors=True)


def _is_close(rounds: dict[str, list[float]], name: str) -> bool:
    """Whether a strategy may be the fastest one, by the rounds so far."""
    fastest = min(map(statistics.median, rounds.values()))
    return name in rounds and statistics.median(rounds[name]) < CLOSE * fastest


def run_group(options: argparse.Namespace, link: str, workers: int, todo: list[Cell], folder: Path) -> None:
    """Measure the cells of a link and a number of workers in one torchrun, or in one on each of two emulated hosts."""
    until = time.time() + 60 * options.minutes
    (folder / "todo.json").write_text(
        json.dumps(
            {
                "cells": todo,
                "until": until,
                "draw": options.draw,
                "scale": options.scale,
                "out": str(options.out.absolute()),
            }
        )
    )
    os.environ["XDG_CACHE_HOME"] = str(folder / f"cache-{link}-{workers}")  # nothing is known of these links yet
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    script = [__file__, "--worker", str(folder)]
    if link == "loopback":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        subprocess.run([*command, "--nproc-per-node", str(workers), *script], env=environment, check=True)
        return
    run_on_hosts(link, workers // 2, script)


def tables(rows: list[Cell]) -> str:
    """How far estimates are off, how good the picks are, and what they gain over one strategy for all."""
    by_cell: dict[tuple[str, ...], list[Cell]] = {}
    for row in rows:
        if row["measured_seconds"]:
            by_cell.setdefault(key_of(row), []).append(row)
    groups = {
        "all": list(by_cell.values()),
        "shards, with any cache": [found for key, found in by_cell.items() if key[-1].startswith("shards")],
        "tuned on": [found for found in by_cell.values() if found[0]["held_out"] != "1"],
        "held out": [found for found in by_cell.values() if found[0]["held_out"] == "1"],
        **{
            f"{link}, {workers} workers": [
                found for found in by_cell.values() if (found[0]["link"], found[0]["workers"]) == (link, str(workers))
            ]
            for link in GRID["link"]
            for workers in GRID["workers"]
        },
        **{
            rows: [found for found in by_cell.values() if (found[0].get("rows") or WHOLE) == rows]
            for rows in GRID["rows"]
        },
        **{graph: [found for key, found in by_cell.items() if graph in key] for graph in GRID["graph"] + BESIDE},
    }
    columns = (
        "", "cells", "picks within 5 % of the best", "worst pick", "tried out: median off", "90th percentile",
        "not tried out: median off", "90th percentile", "all: median off", "90th percentile",
        "planning, part of the run: median",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    gains = [
        "| | " + " | ".join(f"over always `{name}`" for name in STRATEGIES) + " | the best over always `gdp` |",
        "|---|" + "---|" * (1 + len(STRATEGIES)),
    ]
    for name, cells_of in groups.items():
        if cells_of:
            lines.append(f"| {name} | {' | '.join(_accuracy(cells_of))} |")
            shown = [*(_gain(cells_of, each) for each in STRATEGIES), _gain(cells_of, "gdp", of_best=True)]
            gains.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", *gains, "", *_wins(groups), "", *_misses(groups["all"])]) + "\n"


def _wins(groups: dict[str, list[list[Cell]]]) -> list[str]:
    """In how many cells of each group a strategy is the fastest, and in how many within 5 % of the fastest."""
    names = [*STRATEGIES, "another"]
    lines = ["| the fastest (within 5 % of it) | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for group, cells_of in groups.items():
        first, near = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        for found in cells_of:
            least = min(_number(row, "measured_seconds") for row in found)
            for row in found:
                name = row["strategy"] if row["strategy"] in names else "another"
                first[name] += _number(row, "measured_seconds") == least
                near[name] += _number(row, "measured_seconds") <= 1.05 * least
        if cells_of:
            lines.append(f"| {group} | " + " | ".join(f"{first[name]} ({near[name]})" for name in names) + " |")
    return lines


def _misses(cells_of: list[list[Cell]]) -> list[str]:
    """The cells in which the pick was more than 5 % slower than the best."""
    lines = ["| cell | | pick | the best | times the best | the pick took, estimated | the best took, estimated |"]
    lines.append("|---|---|---|---|---|---|---|")
    for found in cells_of:
        pick = next(row for row in found if row["rank"] == "0")
        best = min(found, key=lambda row: _number(row, "measured_seconds"))
        times = _number(pick, "measured_seconds") / _number(best, "measured_seconds")
        if times > 1.05:
            shown = [
                f"{_number(row, 'measured_seconds'):.2f} s, {_number(row, 'estimated_seconds'):.2f} s"
                + ("" if row["tried_steps"] != "0" else ", not tried out")
                for row in (pick, best)
            ]
            held = "held out" if pick["held_out"] == "1" else ""
            names = f"{pick['strategy']} | {best['strategy']}"
            lines.append(f"| {', '.join(key_of(pick))} | {held} | {names} | {times:.2f} | {' | '.join(shown)} |")
    return lines


def _accuracy(cells_of: list[list[Cell]]) -> list[str]:
    measured = [row for found in cells_of for row in found]
    kinds = (
        [row for row in measured if row["tried_steps"] != "0"],
        [row for row in measured if row["tried_steps"] == "0"],
        measured,
    )
    off = [
        [abs(_number(row, "estimated_seconds") / _number(row, "measured_seconds") - 1) for row in of] for of in kinds
    ]
    picks, planning = [], []
    for found in cells_of:
        pick = next(row for row in found if row["rank"] == "0")
        took = _number(pick, "measured_seconds")
        picks.append(took / min(_number(row, "measured_seconds") for row in found))
        planning.append(_number(pick, "plan_seconds") / max(EPOCHS * took, SHORT_RUN if pick["short"] == "1" else 0))
    good = sum(ratio <= 1.05 for ratio in picks)
    shown = [part for each in off for part in (statistics.median(each or [0.0]), np.percentile(each or [0.0], 90))]
    return [
        str(len(cells_of)), f"{good / len(picks):.0%}", f"{max(picks):.2f}x", *(f"{part:.1%}" for part in shown),
        f"{statistics.median(planning):.0%}",
    ]  # fmt: skip


def _number(row: Cell, name: str) -> float:
    return float(row[name])


def _gain(found: Iterable[list[Cell]], strategy: str, *, of_best: bool = False) -> str:
    """How much faster the picks are than one strategy in all cells where that can be used: geometric mean and most.

    ``of_best``: how much faster the fastest strategy of each cell is, whatever was picked.
    """
    ratios = []
    for rows in found:
        pick = next(_number(row, "measured_seconds") for row in rows if row["rank"] == "0")
        pick = min(_number(row, "measured_seconds") for row in rows) if of_best else pick
        ratios += [_number(row, "measured_seconds") / pick for row in rows if row["strategy"] == strategy]
    return f"{statistics.geometric_mean(ratios):.2f}x, up to {max(ratios):.1f}x" if ratios else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("planner_measured.csv"))
    parser.add_argument("--table", type=Path, help="only write the tables of what is in --out to this Markdown file")
    parser.add_argument("--cells", type=int, default=72)
    parser.add_argument("--cells-of-shards", type=int, default=24)
    parser.add_argument("--cells-ahead", type=int, default=0)
    parser.add_argument("--cells-learnt", type=int, default=0)
    parser.add_argument("--cells-beside", type=int, default=0)
    parser.add_argument("--draw", type=int, default=2, help="another number draws other cells")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no further cell of a group after so long")
    parser.add_argument("--scale", type=int, help="the graphs have 2^scale nodes (16; quick: 13)")
    parser.add_argument("--part", choices=("all", "tuned on", "held out"), default="all", help="only such cells")
    parser.add_argument("--links", nargs="+", default=list(GRID["link"]))
    parser.add_argument("--quick", action="store_true", help="one cell of each link: does it run?")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker)
        return
    if options.table is None:
        options.scale = options.scale or (13 if options.quick else 16)
        done = {key_of(row) for row in read_rows(options.out)}
        of_kinds = (options.cells, options.cells_of_shards, options.cells_ahead, options.cells_learnt)
        wanted = cells(*((6, 8, 10, 8) if options.quick else of_kinds), options.draw)
        wanted += cells_beside(options.cells_beside, options.draw)
        wanted = [cell for cell in wanted if cell["link"] in options.links]
        if options.part != "all":
            wanted = [cell for cell in wanted if held_out(cell, options.draw) == (options.part == "held out")]
        # In a random order, so that what is measured in a limited time is of all kinds.
        wanted.sort(key=lambda cell: (cell["link"], cell["workers"], _hash("turn", cell, options.draw)))
        todo = [cell for cell in wanted if key_of(cell) not in done]
        with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
            (Path(name) / "graphs").mkdir()
            for (link, workers), group in itertools.groupby(todo, lambda cell: (cell["link"], cell["workers"])):
                run_group(options, link, workers, list(group), Path(name))
    text = tables(read_rows(options.out))
    if options.table:
        options.table.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
