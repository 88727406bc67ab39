"""Bytes of feature rows and seconds of an epoch over emulated hosts, by what is kept of the rows of other hosts.

    python bench/remote_rows.py --out docs/remote_rows_measured.csv --table remote_rows_table.md [--quick]

Needs root and iproute2 (see partita.testing.hosts). Every host has the edges of the whole graph and the feature rows of
its own part; the strategy is gdp. Compared are rows that are fetched for every batch, caches that are filled once (by
in-degree, and by how often epoch 0 reads each row), and caches that look a tenth of an epoch or a whole one ahead, each
of the same size: a share of all feature rows. A case that is in the CSV file already is not measured again. Seconds are
the median of the epochs but the first; bytes are those of feature rows and ids of all workers, with what caches are
filled with before the first step, divided by the number of epochs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from hosts import run_on_hosts
from rows import append_row, read_rows

WAYS: dict[str, dict[str, Any]] = {
    "every batch": {"cache": 0},
    "in-degree": {},
    "presample": {},
    "look-ahead, a tenth": {"cache_policy": "look-ahead"},
    "look-ahead, an epoch": {"cache_policy": "look-ahead"},
}
KEY = ("rate", "hosts", "share", "way")
FIELDS = (*KEY, "steps", "epoch_seconds", "features", "ids", "cached", "remote")
BATCH, FANOUT = 1024, (10, 10)
Case = dict[str, Any]


def cases(options: argparse.Namespace) -> list[Case]:
    """All cases; without a cache its size is of no meaning."""
    found = []
    for rate, hosts, share, way in itertools.product(options.rates, options.hosts, options.shares, WAYS):
        if way != "every batch" or share == options.shares[0]:
            found.append(dict(zip(KEY, (rate, hosts, share if way != "every batch" else 0, way), strict=True)))
    return found


def key_of(row: Case) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in KEY)


def make_graphs(folder: Path, options: argparse.Namespace) -> None:
    """For every number of hosts the shards of the graph."""
    import partita

    nodes = 2**options.scale
    partita.generate_rmat(
        folder / "source", scale=options.scale, edge_factor=8, num_features=options.width, num_classes=16,
        undirected=True, split=(BATCH * options.steps / nodes, 1 / nodes, 0),
    )  # fmt: skip
    for hosts in options.hosts:
        partita.partition(folder / "source", folder / f"whole{hosts}", parts=hosts, algorithm="spring+")
        for host in range(hosts):
            where = folder / f"shard{host}of{hosts}"
            partita.shard(folder / f"whole{hosts}", where, host=host, hosts=hosts, topology="replicated")


def start(options: argparse.Namespace, rate: str, hosts: int, todo: list[Case], folder: Path) -> None:
    """Measure the cases of a rate and a number of hosts: a process on each."""
    plan = {
        "cases": todo,
        "out": str(options.out.absolute()),
        "epochs": options.epochs,
        "scale": options.scale,
        "width": options.width,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    run_on_hosts(rate, 1, [__file__, "--worker", str(folder)], hosts)


def work(folder: Path) -> None:
    """What every worker does: one short run a case."""
    from partita.comm.context import Context
    from partita.train.team import PURPOSES

    plan = json.loads((folder / "plan.json").read_text())
    with Context.from_environment(purposes=PURPOSES) as context:
        for number, case in enumerate(plan["cases"]):
            row = measure(context, case, folder, f"{case['rate']}-{case['hosts']}-{number}", plan)
            if context.mesh.rank == 0:
                append_row(Path(plan["out"]), FIELDS, row)
                print(*key_of(row), f"{row['epoch_seconds']:.2f} s, {row['features'] / 1e6:.1f} MB", flush=True)


def measure(context: Any, case: Case, folder: Path, name: str, plan: dict[str, Any]) -> Case:
    import partita

    events: list[dict[str, Any]] = []
    size, epochs, mesh = int(case["share"] * 4 * plan["width"] * 2 ** plan["scale"]), plan["epochs"], context.mesh
    way: dict[str, Any] = {"cache": size, **({"cache_policy": case["way"]} if size else {}), **WAYS[case["way"]]}
    trainer = partita.Trainer(
        folder / f"shard{mesh.rank}of{mesh.size}", out=folder / name, context=context, callbacks=[events.append],
        strategy="gdp", seed_split="owner", hidden=128, layers=2, fanout=FANOUT, batch_size=BATCH, epochs=epochs,
        eval_every=0, threads=1, **way, **look_ahead(case, folder, mesh.size),
    )  # fmt: skip
    group, before = context.group(), context.meter.snapshot()
    record = trainer.fit().record
    sent = context.meter.difference(before)
    workers = group.gather({kind: sent[kind]["other_host"] for kind in ("features", "ids")})
    if mesh.rank:
        return case
    seconds = [event["seconds"] for event in events if event["event"] == "epoch"]
    row = {**case, "steps": trainer.job.views.seed_order.num_steps}
    row |= {kind: round(sum(each[kind] for each in workers) / epochs) for kind in ("features", "ids")}
    row |= {name: record["counts"]["rows_from"][tier] for name, tier in (("cached", "cache"), ("remote", "hosts"))}
    return {**row, "epoch_seconds": round(statistics.median(seconds[1:]), 3)}


def look_ahead(case: Case, folder: Path, hosts: int) -> dict[str, int]:
    """Batches to look ahead."""
    import partita

    if "look-ahead" not in case["way"]:
        return {}
    steps = -(-len(partita.open(folder / f"whole{hosts}").split("train")) // BATCH)
    return {"look_ahead": steps // 10 if "tenth" in case["way"] else steps}


def table(rows: list[Case]) -> str:
    """Seconds, megabytes of rows, and how many times less both are than with rows of every batch."""
    lines = ["| link | hosts | cache, share of all rows | kept | seconds | times less | MB of rows | times less |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    plain = {(row["rate"], str(row["hosts"])): row for row in rows if row["way"] == "every batch"}
    for row in rows:
        first = plain[row["rate"], str(row["hosts"])]
        seconds, size = float(row["epoch_seconds"]), max(1.0, float(row["features"]))
        faster, fewer = float(first["epoch_seconds"]) / seconds, float(first["features"]) / size
        lines.append(
            f"| {row['rate']} | {row['hosts']} | {float(row['share']):.0%} | {row['way']} | {seconds:.1f} | "
            f"{faster:.1f} | {size / 1e6:.1f} | {fewer:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is not measured yet, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("remote_rows_measured.csv"))
    parser.add_argument("--table", type=Path, help="Markdown file for the table; default: printed")
    parser.add_argument("--quick", action="store_true", help="a few cases on a small graph: is all well?")
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit"])
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.25])
    parser.add_argument("--scale", type=int, default=17, help="of the R-MAT graph")
    parser.add_argument("--width", type=int, default=256, help="columns of features")
    parser.add_argument("--steps", type=int, default=60, help="in an epoch")
    parser.add_argument("--epochs", type=int, default=10, help="the first one is not counted")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    if options.quick:
        options.rates, options.hosts, options.shares, options.scale, options.steps = ["1gbit"], [2], [0.25], 14, 10
    done = {key_of(row) for row in read_rows(options.out)}
    todo = [case for case in cases(options) if key_of(case) not in done]
    if todo:
        with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
            make_graphs(Path(name), options)
            for rate, hosts in dict.fromkeys((case["rate"], case["hosts"]) for case in todo):
                some = [case for case in todo if (case["rate"], case["hosts"]) == (rate, hosts)]
                start(options, rate, hosts, some, Path(name))
    text = table(read_rows(options.out))
    if options.table:
        options.table.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
