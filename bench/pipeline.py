"""Seconds of an epoch with and without the pipeline, over two emulated hosts: sampling and loading overlapped.

    python bench/pipeline.py --out docs/pipeline_measured.csv --table pipeline_table.md

Needs root and iproute2 (see partita.testing.hosts). Two workers, one on each host, train a two-layer SAGE model of
width 128 on an R-MAT graph whose adjacency and features are divided between them (``--strategy by-owner,data,data
--topology partitioned``), for epochs of 24 steps of 1024 seeds; one thread a worker. The ways of a link and width
take turns, and each is run several times; a row is one run, its seconds the median epoch without the first one. A row
that is in the CSV file is not measured again. ``load`` is the share of an epoch that loading takes without a pipeline,
``idle`` the share of all processors' time that nobody used: both hosts live on this machine, and share its cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from hosts import interface_bytes, run_on_hosts
from rows import append_row, read_rows

RATES = ("100mbit", "1gbit")
WIDTHS = (16, 32, 64, 128, 256)
AHEAD = (0, 2)
KEY = ("rate", "features", "ahead", "repetition")
FIELDS = (*KEY, "epoch_seconds", "sample", "load", "wait_for_batch", "sum_gradients", "wire", "idle")
BATCH, STEPS = 1024, 24
Case = dict[str, Any]


def cases(repetitions: int) -> list[Case]:
    order = itertools.product(RATES, range(repetitions), WIDTHS, AHEAD)
    return [dict(zip(KEY, (rate, width, ahead, again), strict=True)) for rate, again, width, ahead in order]


def make_graphs(folder: Path, scale: int) -> None:
    import partita

    for width in WIDTHS:
        whole = partita.generate_rmat(
            folder / f"whole{width}", scale=scale, edge_factor=8, num_features=width, num_classes=16, undirected=True,
            split=(BATCH * STEPS / 2**scale, 1 / 2**scale, 0),
        )  # fmt: skip
        partita.partition(whole, folder / f"parts{width}", parts=2)


def work(folder: Path) -> None:
    """What every worker does: one short run a case."""
    from partita.comm.context import Context
    from partita.train.team import PURPOSES

    plan = json.loads((folder / "plan.json").read_text())
    with Context.from_environment(purposes=PURPOSES) as context:
        for number, case in enumerate(plan["cases"]):
            row = measure(context, case, folder, folder / f"run-{case['rate']}-{number}", plan["epochs"])
            if context.mesh.rank == 0:
                append_row(Path(plan["out"]), FIELDS, row)
                print(" ".join(str(case[key]) for key in KEY), f"{row['epoch_seconds']:.3f} s", flush=True)


def measure(context: Any, case: Case, folder: Path, out: Path, epochs: int) -> Case:
    import partita

    events: list[dict[str, Any]] = []
    ticks: list[list[int]] = []

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            events.append(event)
            ticks.append([int(count) for count in Path("/proc/stat").read_text().split("\n")[0].split()[1:]])

    trainer = partita.Trainer(
        folder / f"parts{case['features']}", out=out, context=context, callbacks=[note], hidden=128, layers=2,
        fanout="10,10", batch_size=BATCH, epochs=epochs, eval_every=0, threads=1, checkpoint_minutes=1000.0,
        strategy="by-owner,data,data", topology="partitioned", prefetch=case["ahead"],
    )  # fmt: skip
    group = context.group()
    group.gather(0)
    wire = interface_bytes()
    summary = trainer.fit()
    group.gather(0)
    wire = sum(group.gather(interface_bytes() - wire))
    record = summary.record
    if context.mesh.rank:
        return case
    seconds = [event["seconds"] for event in events][1:]
    spent = [after - before for before, after in zip(ticks[0], ticks[-1], strict=True)]
    return {
        **case,
        "epoch_seconds": round(statistics.median(seconds), 4),
        **{name: round(record["pipeline"][name]["seconds"] / epochs, 4) for name in ("sample", "load")},
        **{name: round(record["stage_seconds"][name] / epochs, 4) for name in ("wait_for_batch", "sum_gradients")},
        "wire": round(wire / epochs),
        "idle": round((spent[3] + spent[4]) / sum(spent), 3),
    }


def table(rows: list[dict[str, str]]) -> str:
    """One line for a link and a width: medians over the repetitions."""
    lines = [
        "| link | features | MB on the wire | loading, share of the step | one after the other, ms | pipeline, ms | "
        "times as fast | waiting for a batch, ms | summing gradients, ms | processors idle |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for rate, width in itertools.product(RATES, WIDTHS):
        found = {
            ahead: [r for r in rows if (r["rate"], r["features"], r["ahead"]) == (rate, str(width), str(ahead))]
            for ahead in AHEAD
        }
        if not all(found.values()):
            continue
        one, two = (
            {name: statistics.median(float(row[name]) for row in found[ahead]) for name in FIELDS[4:]}
            for ahead in AHEAD
        )
        lines.append(
            f"| {rate} | {width} | {one['wire'] / 1e6:.1f} | {one['load'] / one['epoch_seconds']:.0%} | "
            f"{1000 * one['epoch_seconds']:.0f} | {1000 * two['epoch_seconds']:.0f} | "
            f"{one['epoch_seconds'] / two['epoch_seconds']:.2f} | {1000 * two['wait_for_batch']:.0f} | "
            f"{1000 * one['sum_gradients']:.0f}, {1000 * two['sum_gradients']:.0f} | "
            f"{one['idle']:.0%}, {two['idle']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("pipeline_measured.csv"))
    parser.add_argument("--table", type=Path, help="Markdown file for the table; default: printed")
    parser.add_argument("--scale", type=int, default=16, help="of the R-MAT graph")
    parser.add_argument("--epochs", type=int, default=6, help="of a run; the first one is not counted")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker)
        return
    from partita.testing.hosts import available

    if available() is not None:
        sys.exit(f"hosts cannot be emulated: {available()}")
    done = {tuple(row[name] for name in KEY) for row in read_rows(options.out)}
    todo = [case for case in cases(options.repetitions) if tuple(str(case[name]) for name in KEY) not in done]
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
        folder = Path(name)
        if todo:
            make_graphs(folder, options.scale)
        for rate, group in itertools.groupby(todo, lambda case: case["rate"]):
            plan = {"cases": list(group), "epochs": options.epochs, "out": str(options.out.absolute())}
            (folder / "plan.json").write_text(json.dumps(plan))
            run_on_hosts(rate, 1, [__file__, "--worker", str(folder)])
    text = table(read_rows(options.out))
    if options.table:
        options.table.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
