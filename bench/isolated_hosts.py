"""Seconds and bytes of an epoch over two emulated hosts: isolated training against exact, by link and number of parts.

    python bench/isolated_hosts.py --out docs/isolated_hosts_measured.csv --table isolated_hosts_table.md

Needs root and iproute2 (see partita.testing.hosts). Every case trains a two-layer SAGE model of width 128 on the same
R-MAT graph with 256 features for some epochs of 24 steps. ``gdp`` reads input rows from the host's own copy of the
store; ``by-owner,data,data`` asks the owner for them, as hosts must who hold their own part only; ``grappa`` and
``sdt-gnn`` are the presets. A case that is in the CSV file already is not measured again. Seconds are the median epoch
without the first one, with averaging of models
and without evaluation and checkpoints; ``wire`` is what has left the interfaces of both hosts in an epoch.
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

from hosts import KINDS, interface_bytes, run_on_hosts
from rows import append_row, read_rows

RATES = ("100mbit", "1gbit")
WAYS = ("gdp", "by-owner,data,data", "grappa", "sdt-gnn")
KEY = ("rate", "workers", "way", "parts")
FIELDS = (
    *KEY, "epochs", "epoch_seconds", "least_epoch_seconds", *KINDS, "other_host", "wire", "sampled_edges",
    "input_rows_read", "computed_rows", "wait_for_view",
)  # fmt: skip
BATCH, STEPS = 1024, 24
Case = dict[str, Any]


def cases() -> list[Case]:
    found = []
    for rate, workers in itertools.product(RATES, (2, 4)):
        for way in WAYS:
            # Exact ways need a part for every worker, pairs of chunks two.
            least = {"grappa": 2 * workers}.get(way, workers)
            for parts in (workers,) if way in WAYS[:2] else (max(least, 4), 16):
                found.append(dict(zip(KEY, (rate, workers, way, parts), strict=True)))
    return found


def make_graphs(folder: Path, scale: int) -> None:
    import partita

    fraction = BATCH * STEPS / 2**scale
    whole = partita.generate_rmat(
        folder / "whole", scale=scale, edge_factor=8, num_features=256, num_classes=16, undirected=True,
        split=(fraction, 1 / 2**scale, 0),
    )  # fmt: skip
    for parts in (2, 4, 8, 16):
        partita.partition(whole, folder / f"parts{parts}", parts=parts)


def start(rate: str, workers: int, todo: list[Case], options: argparse.Namespace, folder: Path) -> None:
    """Measure the cases of a rate and a number of workers."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"cases": todo, "epochs": options.epochs, "out": str(options.out.absolute())}))
    run_on_hosts(rate, workers // 2, [__file__, "--worker", str(folder)])


def work(folder: Path) -> None:
    """What every worker does: one short run a case."""
    from partita.comm.context import Context
    from partita.train.team import PURPOSES

    plan = json.loads((folder / "plan.json").read_text())
    with Context.from_environment(purposes=PURPOSES) as context:
        for number, case in enumerate(plan["cases"]):
            out = folder / f"{case['rate']}-{case['workers']}-{number}"
            row = measure(context, case, folder / f"parts{case['parts']}", out, plan["epochs"])
            if context.mesh.rank == 0:
                append_row(Path(plan["out"]), FIELDS, row)
                name = " ".join(str(case[key]) for key in KEY)
                print(f"{name}  {row['epoch_seconds']:.3f} s, {row['wire'] / 1e6:.2f} MB", flush=True)


def measure(context: Any, case: Case, store: Path, out: Path, epochs: int) -> Case:
    import partita

    way = case["way"]
    settings = {"strategy": way} if way in WAYS[:2] else {"preset": way}
    events: list[dict[str, Any]] = []
    trainer = partita.Trainer(
        store, out=out, context=context, callbacks=[events.append], hidden=128, layers=2, fanout="10,10",
        batch_size=BATCH if way != "sdt-gnn" else BATCH // case["workers"], epochs=epochs, eval_every=0, threads=1,
        checkpoint_minutes=1000.0, **settings,
    )  # fmt: skip
    group = context.group()
    group.gather(0)
    meter, wire = context.meter.snapshot(), interface_bytes()
    group.gather(0)
    summary = trainer.fit()
    sent = context.meter.difference(meter)
    group.gather(0)
    wire = interface_bytes() - wire
    mine = {kind: sum(sent[kind].values()) for kind in KINDS}
    mine |= {"other_host": sum(links["other_host"] for links in sent.values()), "wire": wire}
    workers = group.gather(mine)
    row = {**case, "epoch_seconds": 0.0, "wire": 0.0}
    if context.mesh.rank == 0:
        joining = summary.record["stage_seconds"].get("join_models", 0.0) / epochs
        seconds = [event["seconds"] + joining for event in events if event["event"] == "epoch"][1:]
        counts = summary.record["counts"]
        row |= {"epochs": epochs, "epoch_seconds": round(statistics.median(seconds), 4)}
        row["least_epoch_seconds"] = round(min(seconds), 4)
        for kind in (*KINDS, "other_host"):
            row[kind] = round(sum(each[kind] for each in workers) / epochs)
        row["wire"] = round((workers[0]["wire"] + workers[-1]["wire"]) / epochs)
        row["sampled_edges"] = counts["sampled_edges"] // epochs
        row["input_rows_read"] = counts["input_rows_read"] // epochs
        row["computed_rows"] = sum(counts["computed_destinations"]) // epochs
        row["wait_for_view"] = round(summary.record["stage_seconds"].get("wait_for_view", 0.0) / epochs, 4)
    return row


def table(rows: list[Case]) -> str:
    """One line a case."""
    lines = [
        "| link | workers | way | parts | epoch, ms | of `gdp` | MB on the wire | features, hidden rows, ids, MB | "
        "gradients, models, MB | edges drawn, millions | rows computed, thousands |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        base = [r for r in rows if (r["rate"], r["workers"], r["way"]) == (row["rate"], row["workers"], "gdp")]
        ratio = float(row["epoch_seconds"]) / float(base[0]["epoch_seconds"]) if base else float("nan")
        moved = sum(float(row[kind]) for kind in ("ids", "features", "forward", "backward")) / 1e6
        models = (float(row["gradients"]) + float(row["metadata"])) / 1e6
        lines.append(
            f"| {row['rate']} | {row['workers']} | `{row['way']}` | {row['parts']} | "
            f"{1000 * float(row['epoch_seconds']):.0f} | {ratio:.2f} | {float(row['wire']) / 1e6:.1f} | {moved:.1f} | "
            f"{models:.1f} | {float(row['sampled_edges']) / 1e6:.2f} | {float(row['computed_rows']) / 1e3:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("isolated_hosts_measured.csv"))
    parser.add_argument("--table", type=Path, help="Markdown file for the table; default: printed")
    parser.add_argument("--scale", type=int, default=16, help="of the R-MAT graph")
    parser.add_argument("--epochs", type=int, default=9, help="the first one is not counted")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker)
        return
    from partita.testing.hosts import available

    if available() is not None:
        sys.exit(f"hosts cannot be emulated: {available()}")
    done = {tuple(row[name] for name in KEY) for row in read_rows(options.out)}
    todo = [case for case in cases() if tuple(str(case[name]) for name in KEY) not in done]
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
        folder = Path(name)
        if todo:
            make_graphs(folder, options.scale)
        for (rate, workers), group in itertools.groupby(todo, lambda case: (case["rate"], case["workers"])):
            start(rate, workers, list(group), options, folder)
    text = table(read_rows(options.out))
    if options.table:
        options.table.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
