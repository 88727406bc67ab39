"""Seconds and bytes of a training step over two emulated hosts, by strategy, rate of the link, and widths.

    python bench/hosts.py --out docs/hosts_measured.csv --table hosts_table.md [--quick]

Needs root and iproute2 (see partita.testing.hosts). Every case trains a two-layer SAGE model on the same R-MAT graph in
two parts, which every host reads whole. A case that is in the CSV file already is not measured again. One torchrun
measures all cases of a rate and a number of workers. Seconds are those of an epoch, divided by its steps, the first
epoch left out: the median and the least. Bytes are sums over both hosts; ``wire`` is what has left the interfaces.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rows import append_row, read_rows

RATES = ("100mbit", "1gbit")
FEATURES = (64, 256)
HIDDEN = (8, 32, 128, 512)
STRATEGIES = ("gdp", "by-owner,data,data", "nfp", "snp", "dnp", "gsplit")
HYBRID = "data@hosts+gsplit@workers"
KINDS = ("ids", "features", "forward", "backward", "gradients", "metadata")
KEY = ("rate", "workers_per_host", "columns", "hidden", "strategy")
FIELDS = (
    *KEY, "steps", "step_seconds", "least_step_seconds", *KINDS, "other_host", "wire", "wire_busiest_host",
)  # fmt: skip
BATCH = 1024
FANOUT = (10, 10)
CLASSES = 16
PORT = "29500"
Case = dict[str, Any]


def cases(quick: bool) -> list[Case]:
    """All cases, those of one torchrun after another."""
    rates, features, hidden = (RATES[:1], FEATURES[:1], (8, 128)) if quick else (RATES, FEATURES, HIDDEN)
    found = []
    for rate, workers in itertools.product(rates, (1, 2)):
        strategies = STRATEGIES if workers == 1 else ("gdp", HYBRID)
        for values in itertools.product(features, hidden, strategies):
            found.append(dict(zip(KEY, (rate, workers, *values), strict=True)))
    return found


def key_of(row: Case) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in KEY)


def make_graphs(folder: Path, scale: int, steps: int, features: set[int]) -> None:
    """The graph in two parts, with several widths of features; its training nodes make ``steps`` batches."""
    import partita

    fraction = BATCH * steps / 2**scale
    for width in sorted(features):
        whole = partita.generate_rmat(
            folder / f"whole{width}", scale=scale, edge_factor=8, num_features=width, num_classes=CLASSES,
            undirected=True, split=(fraction, 1 / 2**scale, 0),
        )  # fmt: skip
        partita.presample(whole, fanout=FANOUT, batch_size=BATCH)
        partita.partition(whole, folder / f"graph{width}", parts=2, weights="presample")


def start(options: argparse.Namespace, rate: str, workers: int, todo: list[Case], folder: Path) -> None:
    """Measure the cases of a rate and a number of workers."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"cases": todo, "epochs": options.epochs, "out": str(options.out.absolute())}))
    run_on_hosts(rate, workers, [__file__, "--worker", str(folder)])


def run_on_hosts(rate: str, workers: int, script: list[str], count: int = 2) -> None:
    """Run a script on so many workers of each of some emulated hosts, to its end."""
    from partita.testing.hosts import EmulatedHosts

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with EmulatedHosts(count, rate=rate) as hosts:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            str(count),
            "--nproc-per-node",
            str(workers),
        ]
        command += ["--master-addr", hosts.addresses[0], "--master-port", PORT]
        started = [
            hosts.run(host, [*command, "--node-rank", str(host), *script], env=environment) for host in range(count)
        ]
        while any(process.poll() is None for process in started):
            time.sleep(0.2)
    if any(process.returncode for process in started):
        sys.exit(f"{rate}, {workers} workers a host: torchrun failed")


def work(folder: Path) -> None:
    """What every worker does: one short run a case."""
    from partita.comm.context import Context
    from partita.train.team import PURPOSES

    plan = json.loads((folder / "plan.json").read_text())
    with Context.from_environment(purposes=PURPOSES) as context:
        for number, case in enumerate(plan["cases"]):
            row = measure(context, case, folder, f"{case['rate']}-{case['workers_per_host']}-{number}", plan["epochs"])
            if context.mesh.rank == 0:
                append_row(Path(plan["out"]), FIELDS, row)
                done = f"{number + 1}/{len(plan['cases'])}"
                print(done, *key_of(row), f"{row['step_seconds']:.3f} s, {row['wire'] / 1e6:.2f} MB", flush=True)


def measure(context: Any, case: Case, folder: Path, name: str, epochs: int) -> Case:
    import partita

    events: list[dict[str, Any]] = []
    trainer = partita.Trainer(
        folder / f"graph{case['columns']}", out=folder / name, context=context, callbacks=[events.append],
        strategy=case["strategy"], hidden=case["hidden"], layers=2, fanout=FANOUT, batch_size=BATCH, epochs=epochs,
        eval_every=0, threads=1,
    )  # fmt: skip
    group = context.group()
    group.gather(0)
    meter, wire = context.meter.snapshot(), interface_bytes()
    group.gather(0)
    trainer.fit()
    sent = context.meter.difference(meter)
    group.gather(0)
    wire = interface_bytes() - wire
    mine = {kind: sum(sent[kind].values()) for kind in KINDS}
    mine |= {"other_host": sum(links["other_host"] for links in sent.values()), "wire": wire}
    workers = group.gather(mine)
    row = {**case, "step_seconds": 0.0, "wire": 0.0}
    if context.mesh.rank == 0:
        found = [event for event in events if event["event"] == "epoch"]
        steps = trainer.job.views.seed_order.num_steps
        seconds = [event["seconds"] / steps for event in found[1:]]
        row |= {"steps": steps * epochs, "step_seconds": round(statistics.median(seconds), 5)}
        row["least_step_seconds"] = round(min(seconds), 5)
        for kind in (*KINDS, "other_host"):
            row[kind] = round(sum(each[kind] for each in workers) / steps / epochs)
        # The workers of a host read the same interface.
        hosts = [workers[0]["wire"] / steps / epochs, workers[-1]["wire"] / steps / epochs]
        row |= {"wire": round(sum(hosts)), "wire_busiest_host": round(max(hosts))}
    return row


def interface_bytes() -> int:
    """Bytes that have left this emulated host."""
    time.sleep(0.1)  # the last acknowledgements
    command = ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]
    queues = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return sum(queue["bytes"] for queue in queues)


def table(rows: list[Case]) -> str:
    """Milliseconds of a step by strategy, megabytes on the wire in brackets; the fastest of a line in bold."""
    columns = [(1, strategy) for strategy in STRATEGIES] + [(2, "gdp"), (2, HYBRID)]
    names = [f"`{strategy}`" + (", 2 workers a host" if workers == 2 else "") for workers, strategy in columns]
    lines = [f"| link | features | hidden | {' | '.join(names)} |", "|---|---|---|" + "---|" * len(columns)]
    by_key = {key_of(row): row for row in rows}
    for rate, features, hidden in itertools.product(RATES, FEATURES, HIDDEN):
        found = [by_key.get(tuple(map(str, (rate, workers, features, hidden, name)))) for workers, name in columns]
        if not any(found):
            continue
        cells = []
        for (workers, _), row in zip(columns, found, strict=True):
            rivals = [float(each["step_seconds"]) for (of, _), each in zip(columns, found) if each and of == workers]
            if row is None:
                cells.append("")
                continue
            seconds = float(row["step_seconds"])
            text = f"{1000 * seconds:.0f}"
            cells.append(f"{f'**{text}**' if seconds == min(rivals) else text} ({float(row['wire']) / 1e6:.1f})")
        lines.append(f"| {rate} | {features} | {hidden} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("hosts_measured.csv"))
    parser.add_argument("--table", type=Path, help="Markdown file for the table; default: printed")
    parser.add_argument("--quick", action="store_true", help="a few cases on a small graph: is all well?")
    parser.add_argument("--scale", type=int, help="of the R-MAT graph; default 16, quick 13")
    parser.add_argument("--steps", type=int, default=6, help="in an epoch")
    parser.add_argument("--epochs", type=int, default=4, help="the first one is not counted")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker)
        return
    from partita.testing.hosts import available

    if available() is not None:
        sys.exit(f"hosts cannot be emulated: {available()}")
    done = {key_of(row) for row in read_rows(options.out)}
    todo = [case for case in cases(options.quick) if key_of(case) not in done]
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as name:
        folder = Path(name)
        if todo:
            scale = options.scale or (13 if options.quick else 16)
            make_graphs(folder, scale, options.steps, {case["columns"] for case in todo})
        for (rate, workers), group in itertools.groupby(todo, lambda case: (case["rate"], case["workers_per_host"])):
            start(options, rate, workers, list(group), folder)
    text = table(read_rows(options.out))
    if options.table:
        options.table.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
